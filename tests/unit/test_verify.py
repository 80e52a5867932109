"""wanc verify on bundles of real plans: each fault is found, and a sound bundle has none."""

import copy
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sound import (
    EXECUTABLE_TYPE,
    Editor,
    blob_file,
    container,
    edit,
    executable_of,
    faults,
    verified,
    write_sound,
)
from tests.unit.conftest import variant_of
from wanc.bundle import oci
from wanc.bundle.config import FORMAT_VERSION, encode_config
from wanc.bundle.reports import COVERS_ANNOTATION, attach_report
from wanc.bundle.store import FORMAT_ANNOTATION, MAX_JSON_BYTES, open_bundle
from wanc.bundle.xla_interface import check_interface, interface_of
from wanc.cli import main
from wanc.digest import of_bytes
from wanc.errors import BundleError, WancError

KINDS = ["index", "manifest", "config", "stablehlo", "executable"]
JSON_KINDS = KINDS[:3]


@pytest.fixture(scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two variants; copied, never changed."""
    path = tmp_path_factory.mktemp("sound") / "bundle"
    return write_sound(path, variant_of().config, variant_of(topology="tp2-cfg2").config)


@pytest.fixture
def bundle(_whole: Path, tmp_path: Path) -> Path:
    """A sound bundle of two variants."""
    return shutil.copytree(_whole, tmp_path / "bundle")


def digest_of(path: Path, kind: str, variant: int = 0) -> str:
    """The digest of a blob that only this variant names."""
    editor = Editor(path, variant)
    record = editor.config["programs"][4]
    return {
        "index": next(e for e in editor.top["manifests"] if e["mediaType"] == oci.INDEX)["digest"],
        "manifest": editor.listed["digest"],
        "config": editor.manifest["config"]["digest"],
        "stablehlo": record["stablehlo"]["digest"],
        "executable": record["executable"]["digest"],
    }[kind]


def where_read(kind: str) -> tuple[str, str] | None:
    """Kind and place of the finding where a reference cannot be followed, beside the blob's own."""
    return {
        "index": ("reference", "bundle index"),
        "manifest": ("reference", "variant 1"),
        "config": ("config", "variant 1"),
    }.get(kind)


def places(path: Path) -> list[tuple[str, str]]:
    return [(kind, where) for kind, where, _ in faults(path)]


# --- sound ----------------------------------------------------------------------------------------


def test_a_sound_bundle_has_no_finding(bundle: Path):
    seen = verified(bundle)
    assert seen.findings == ()
    assert seen.is_sound
    assert seen.bundle == open_bundle(bundle).digest
    files = [file.stat().st_size for file in (bundle / "blobs" / "sha256").iterdir()]
    assert (seen.variants, seen.blobs, seen.bytes) == (2, len(files), sum(files))


@pytest.mark.parametrize("until", ["lower", "plan"])
def test_a_bundle_that_was_compiled_in_part_is_sound(bundle: Path, until: str):
    def cut(editor: Editor) -> None:
        for record in editor.config["programs"]:
            record["executable"] = None
            if until == "plan":
                record["stablehlo"] = None
        named = {r["stablehlo"]["digest"] for r in editor.config["programs"] if r["stablehlo"]}
        layers = [layer for layer in editor.manifest["layers"] if layer["digest"] in named]
        empty = {"mediaType": oci.EMPTY, **editor.put(oci.EMPTY_BYTES)}
        editor.manifest["layers"] = layers or [empty]
        for said in (editor.manifest, editor.listed):
            said["annotations"]["vnd.wanc.stage"] = until

    edit(bundle, cut)
    assert faults(bundle) == []


def test_jobs_do_not_change_what_is_seen(bundle: Path):
    from wanc.progress import Silent
    from wanc.verify.verify import verify_bundle

    for kind in ("stablehlo", "executable"):
        blob_file(bundle, digest_of(bundle, kind)).write_bytes(b"x")
    one, many = (verify_bundle(bundle, jobs=jobs, progress=Silent()) for jobs in (1, 7))
    assert one == many
    assert len(one.findings) == 2


# --- blobs ----------------------------------------------------------------------------------------


def flip(file: Path, _: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def truncate(file: Path, _: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def remove(file: Path, _: Path) -> None:
    file.unlink()


def link(file: Path, outside: Path) -> None:
    file.rename(outside / "linked")
    file.symlink_to(outside / "linked")


def make_folder(file: Path, _: Path) -> None:
    file.unlink()
    file.mkdir()


def make_pipe(file: Path, _: Path) -> None:
    file.unlink()
    os.mkfifo(file)


DAMAGE = {
    flip: "its bytes are sha256:",
    truncate: " bytes; ",
    remove: "missing, or a link: No such file",
    link: "missing, or a link: Too many levels",
    make_folder: "is no regular file",
    make_pipe: "is no regular file",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_blob_is_told_and_no_other(
    bundle: Path, tmp_path: Path, kind: str, damage: Callable[[Path, Path], None]
):
    digest = digest_of(bundle, kind)
    damage(blob_file(bundle, digest), tmp_path)
    found = faults(bundle)
    told = [what for place, where, what in found if (place, where) == ("blob", digest)]
    assert len(told) == 1
    assert DAMAGE[damage] in told[0]
    others = [(place, where) for place, where, _ in found if place != "blob"]
    assert others == ([where_read(kind)] if kind in JSON_KINDS else [])
    assert verified(bundle).variants == {"index": 0, "manifest": 1, "config": 1}.get(kind, 2)


def test_all_faults_are_told_at_once(bundle: Path):
    damaged = [digest_of(bundle, kind, 1) for kind in ("stablehlo", "executable")]
    for digest in damaged:
        flip(blob_file(bundle, digest), bundle)
    (bundle / "thesis.txt").write_text("x")
    edit(bundle, lambda e: e.manifest.update(artifactType="other"))
    edit(bundle, lambda e: e.config["geometry"].update(latent_rows=1), 1)
    assert sorted(places(bundle)) == sorted(
        [
            *(("blob", digest) for digest in damaged),
            ("layout", "thesis.txt"),
            ("reference", "variant 1"),
            ("plan", "variant 2"),
        ]
    )


def test_a_link_to_a_file_outside_is_not_read(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    digest = digest_of(bundle, "executable")
    link(blob_file(bundle, digest), tmp_path)
    opened, real = [], os.open

    def watched(path: Any, flags: int, *more: Any, **named: Any) -> int:
        descriptor = real(path, flags, *more, **named)
        opened.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    assert places(bundle) == [("blob", digest)]
    assert opened
    assert not [name for name in opened if "linked" in name]


@pytest.mark.parametrize(
    "name", ["sha256:../../../secret", "sha256:/etc/hostname", "/etc/hostname", "a\0b", "", "é"]
)
@pytest.mark.parametrize("blob", ["stablehlo", "executable"])
def test_a_digest_in_a_config_is_no_path(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, blob: str
):
    """A config is JSON of its own: what it names is not looked for before it is a layer."""
    (tmp_path / "secret").write_bytes(b"secret")
    opened, real = [], os.open
    monkeypatch.setattr(
        os, "open", lambda path, *a, **k: opened.append(path) or real(path, *a, **k)
    )
    record = {"digest": name, "size_bytes": 6}
    edit(bundle, lambda e: e.config["programs"][4].update({blob: record}))
    assert set(places(bundle)) == {("reference", "variant 1")}
    assert all(str(bundle) in str(path) and ".." not in str(path) for path in opened)


# --- layout ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["oci-layout", "index.json", "blobs", "blobs/sha256"])
@pytest.mark.parametrize("damage", ["missing", "link", "other"])
def test_the_layout_is_there(bundle: Path, tmp_path: Path, name: str, damage: str):
    place = bundle / name
    folder = place.is_dir()
    place.rename(tmp_path / "moved")
    if damage == "link":
        place.symlink_to(tmp_path / "moved")
    elif damage == "other":
        place.write_text("x") if folder else os.mkfifo(place)
    assert ("layout", name) in places(bundle)
    assert {kind for kind, _ in places(bundle)} == {"layout"}


def test_no_bundle_at_all(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "none", tmp_path / "file", tmp_path):
        seen = verified(path)
        assert not seen.is_sound
        assert (seen.bundle, seen.variants, seen.blobs, seen.bytes) == ("", 0, 0, 0)
        assert {finding.kind for finding in seen.findings} == {"layout"}


@pytest.mark.parametrize("text", ["", "{}", '{"imageLayoutVersion":"2.0.0"}', "[]", "\xff"])
def test_another_layout_is_told(bundle: Path, text: str):
    (bundle / "oci-layout").write_text(text)
    assert places(bundle) == [("layout", "oci-layout")]


def test_another_spelling_of_the_layout_is_the_same(bundle: Path):
    (bundle / "oci-layout").write_text('{ "imageLayoutVersion": "1.0.0" }\n')
    assert faults(bundle) == []


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"manifests": [null]}', b"[" * 100_000, b"\xff", b"9" * 5000]
)
def test_another_index_json_is_told(bundle: Path, data: bytes):
    (bundle / "index.json").write_bytes(data)
    assert places(bundle) == [("layout", "index.json")]


def test_index_json_names_one_bundle(bundle: Path):
    top = json.loads((bundle / "index.json").read_bytes())
    for times in (0, 2):
        (bundle / "index.json").write_text(
            json.dumps({**top, "manifests": top["manifests"] * times})
        )
        assert ("layout", "index.json") in places(bundle)


def test_huge_json_is_not_read(bundle: Path):
    size = MAX_JSON_BYTES + 1
    with (bundle / "index.json").open("r+b") as file:
        file.truncate(size)
    assert places(bundle) == [("layout", "index.json")]


@pytest.mark.parametrize("kind", JSON_KINDS)
def test_json_that_says_too_many_bytes_is_not_read(bundle: Path, kind: str):
    editor = Editor(bundle)
    named = {
        "index": editor.top["manifests"][0],
        "manifest": editor.listed,
        "config": editor.manifest["config"],
    }[kind]
    data = blob_file(bundle, named["digest"]).read_bytes()
    data += b" " * (MAX_JSON_BYTES + 1 - len(data))
    named.update(editor.put(data))
    if kind == "config":
        editor.config = data
    elif kind == "manifest":
        editor.manifest = data
    else:
        editor.index = data
    if kind == "index":
        editor.listed = {}
    editor.save()
    assert where_read(kind) in places(bundle)


def test_strange_files_are_told(bundle: Path):
    (bundle / "notes").write_text("x")
    (bundle / "blobs" / "md5").mkdir()
    (bundle / "blobs" / "sha256" / "README").write_text("x")
    (bundle / "blobs" / "sha256" / ("A" * 64)).write_text("x")
    odd = os.fsencode(bundle) + b"/\xff\x1b[2J"
    with open(odd, "wb"):
        pass
    told = places(bundle)
    assert told == [
        ("layout", "notes"),
        ("layout", "\udcff\x1b[2J"),
        ("layout", "blobs/md5"),
        ("layout", f"blobs/sha256/{'A' * 64}"),
        ("layout", "blobs/sha256/README"),
    ]


def test_loose_blobs_are_notices(bundle: Path):
    blob_file(bundle, of_bytes(b"loose")).write_bytes(b"loose")
    (bundle / "blobs" / "sha256" / ".new-1").write_bytes(b"")
    (bundle / ".new-2").write_bytes(b"")
    seen = verified(bundle)
    assert seen.is_sound
    (notice,) = seen.findings
    assert (notice.kind, notice.where) == ("orphan", "blobs/sha256")
    assert notice.what.startswith("2 that nothing refers to")


def test_what_another_tool_names_is_a_notice(bundle: Path):
    editor = Editor(bundle)
    entry = {"mediaType": "application/vnd.other", **editor.put(b"signature")}
    editor.top["manifests"].append(entry)
    editor.save()
    seen = verified(bundle)
    assert seen.is_sound
    assert [(f.kind, f.where) for f in seen.findings if f.kind != "orphan"] == [
        ("reference", "index.json")
    ]


def test_what_cannot_be_read_is_told(bundle: Path, monkeypatch: pytest.MonkeyPatch):
    """Folders and files of another user, and disks that fail."""
    digest = digest_of(bundle, "executable")
    real_fdopen = os.fdopen

    def failing(descriptor: int, *more: Any, **named: Any) -> Any:
        if digest.removeprefix("sha256:") in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(5, "Input/output error")
        return real_fdopen(descriptor, *more, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdopen", failing)
        found = faults(bundle)
    assert [(kind, where) for kind, where, _ in found] == [("blob", digest)]
    assert "Input/output error" in found[0][2]

    def refused(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refused)
        assert {kind for kind, _ in places(bundle)} == {"layout"}
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", refused)
        assert ("layout", "index.json") in places(bundle)


# --- references -----------------------------------------------------------------------------------

MANIFEST_EDITS: list[tuple[Callable[[Editor], Any], str]] = [
    (lambda e: e.manifest.update(schemaVersion=3), "schemaVersion is 3; needs 2"),
    (lambda e: e.manifest.update(mediaType="a/b"), "mediaType is 'a/b'"),
    (lambda e: e.listed.update(mediaType="a/b"), "media type is 'a/b'"),
    (lambda e: e.manifest.update(artifactType="a/b"), "artifactType is 'a/b'"),
    (lambda e: e.manifest.pop("artifactType"), "artifactType is None"),
    (lambda e: e.manifest["config"].update(mediaType="a/b"), "of the config is 'a/b'"),
    (lambda e: e.manifest["layers"][0].update(mediaType="a/b"), "media type is 'a/b'"),
    (lambda e: e.layer(b"of nothing"), "is of no program"),
    (lambda e: e.manifest["layers"].pop(0), "no layer does"),
    (lambda e: e.manifest["annotations"].update(a="b"), "the manifest's annotations"),
    (lambda e: e.manifest.pop("annotations"), "the manifest's annotations"),
    (lambda e: e.manifest["annotations"].update({"vnd.wanc.stage": "plan"}), "the manifest's"),
    (lambda e: e.listed["annotations"].update({"vnd.wanc.shape": "16x16x1"}), "the index's"),
    (lambda e: e.listed["annotations"].pop("vnd.wanc.stage"), "the index's annotations"),
    (lambda e: e.manifest.update(layers={}), "no list of layers"),
    (lambda e: e.manifest.update(layers=[3]), "a descriptor is damaged"),
    (lambda e: e.manifest.update(config=None), "a descriptor is damaged"),
]


@pytest.mark.parametrize(
    ("change", "what"), MANIFEST_EDITS, ids=[what for _, what in MANIFEST_EDITS]
)
def test_a_manifest_that_is_not_a_variants_is_told(
    bundle: Path, change: Callable[[Editor], Any], what: str
):
    edit(bundle, change)
    ((kind, where, told),) = faults(bundle)
    assert (kind, where) == ("reference", "variant 1")
    assert what in told


@pytest.mark.parametrize(
    "media_type", ["application/vnd.wanc.program.neff.v1", oci.EMPTY, oci.STABLEHLO]
)
def test_executables_are_layers_of_their_targets_type(bundle: Path, media_type: str):
    def change(editor: Editor) -> None:
        for layer in editor.manifest["layers"]:
            if layer["digest"] == editor.config["programs"][4]["executable"]["digest"]:
                layer["mediaType"] = media_type

    edit(bundle, change)
    assert places(bundle) == [("reference", "variant 1")]


def test_a_stablehlo_layer_of_another_type_is_told(bundle: Path):
    def change(editor: Editor) -> None:
        for layer in editor.manifest["layers"]:
            if layer["digest"] == editor.config["programs"][4]["stablehlo"]["digest"]:
                layer["mediaType"] = EXECUTABLE_TYPE

    edit(bundle, change)
    assert places(bundle) == [("reference", "variant 1")]


def test_a_wrong_size_is_told_where_it_is_stated(bundle: Path):
    """The layer says another size than the config, and than the file has."""
    digest = digest_of(bundle, "executable")

    def change(editor: Editor) -> None:
        for layer in editor.manifest["layers"]:
            if layer["digest"] == digest:
                layer["size"] += 1

    edit(bundle, change)
    assert places(bundle) == [("reference", "variant 1"), ("blob", digest)]
    assert "variant 1 says" in faults(bundle)[1][2]


def test_a_wrong_size_in_the_config_is_told(bundle: Path):
    edit(bundle, lambda e: e.config["programs"][4]["executable"].update(size_bytes=7))
    assert places(bundle) == [("reference", "variant 1")]


@pytest.mark.parametrize("key", ["mediaType", "schemaVersion"])
def test_the_bundle_index_is_an_oci_index(bundle: Path, key: str):
    edit(bundle, lambda e: e.index.update({key: "other"}))
    assert places(bundle) == [("reference", "bundle index")]


def test_two_variants_with_the_same_annotations_are_told(bundle: Path):
    edit(bundle, lambda e: e.index["manifests"].append(copy.deepcopy(e.listed)), 1)
    assert faults(bundle) == [("reference", "variant 3", "has the annotations of variant 2")]


def test_a_bundle_without_variants_is_told(bundle: Path):
    edit(bundle, lambda e: e.index.update(manifests=[]))
    assert faults(bundle)[0][:2] == ("reference", "bundle index")
    assert "0 variants" in faults(bundle)[0][2]


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, FORMAT_VERSION - 1, "x", None])
def test_another_format_version_is_told(bundle: Path, version: Any):
    edit(bundle, lambda e: e.index["annotations"].update({FORMAT_ANNOTATION: str(version)}))
    ((kind, where, told),) = faults(bundle)
    assert (kind, where) == ("reference", "bundle index")
    assert "format" in told
    edit(bundle, lambda e: e.index["annotations"].update({FORMAT_ANNOTATION: str(FORMAT_VERSION)}))
    edit(bundle, lambda e: e.config.update(format_version=version))
    ((kind, where, told),) = faults(bundle)
    assert (kind, where) == ("config", "variant 1")
    assert "format" in told


@pytest.mark.parametrize(
    "digest",
    ["sha256:../../../../etc/passwd", "/etc/passwd", "sha256:" + "a" * 64 + "\n", "sha512:0"],
)
@pytest.mark.parametrize("of", ["index.json", "index", "config", "layer"])
def test_digests_are_no_paths(bundle: Path, digest: str, of: str):
    editor = Editor(bundle)
    editor.save()
    if of == "index.json":
        editor.top["manifests"][0]["digest"] = digest
        (bundle / "index.json").write_text(json.dumps(editor.top))
    elif of == "index":
        edit(bundle, lambda e: e.index["manifests"].append({**e.listed, "digest": digest}))
    elif of == "layer":
        edit(bundle, lambda e: e.manifest["layers"][0].update(digest=digest))
    else:
        editor.manifest["config"]["digest"] = digest
        editor.config = b"x"
        config = editor.manifest.pop("config")
        editor.save()
        edit_raw = Editor.__new__(Editor)
        edit_raw.__dict__.update(editor.__dict__)
        edit_raw.manifest = json.dumps({**editor.manifest, "config": config}).encode()
        edit_raw.listed.update(edit_raw.put(edit_raw.manifest))
        index = json.dumps(editor.index).encode()
        editor.top["manifests"][0].update(editor.put(index))
        (bundle / "index.json").write_text(json.dumps(editor.top))
    (found,) = faults(bundle)
    assert "a descriptor is damaged" in found[2]


def nested(depth: int, around: str = "1") -> bytes:
    return b"[" * depth + around.encode() + b"]" * depth


@pytest.mark.parametrize("depth", [*range(100, 1100, 37), 5_000, 1_000_000])
@pytest.mark.parametrize("place", ["definition", "requires", "compile_key"])
def test_deep_json_is_a_finding_at_most(bundle: Path, depth: int, place: str):
    """Just where one reader gives up and the next does not, too."""
    editor = Editor(bundle)
    named = editor.config if place == "requires" else editor.config["programs"][0]
    named = named["program"] if place == "definition" else named
    named[place] = {"deep": "HERE"}
    editor.config = json.dumps(editor.config).encode().replace(b'"HERE"', nested(depth))
    editor.save()
    found = {kind for kind, _, _ in faults(bundle)}
    assert found <= {"config", "plan"}
    assert found or place != "definition"


# --- reports --------------------------------------------------------------------------------------


@pytest.fixture
def reported(bundle: Path) -> Path:
    """A bundle with a report."""
    attach_report(bundle, b'{"report": 1}', (digest_of(bundle, "stablehlo"),))
    return bundle


def change_report(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    """Change the report's entry in index.json and its manifest."""
    top = json.loads((path / "index.json").read_bytes())
    entry = next(e for e in top["manifests"] if e["mediaType"] != oci.INDEX)
    manifest = json.loads(blob_file(path, entry["digest"]).read_bytes())
    change(entry, manifest)
    data = json.dumps(manifest).encode()
    blob_file(path, of_bytes(data)).write_bytes(data)
    entry.update(digest=of_bytes(data), size=len(data))
    (path / "index.json").write_text(json.dumps(top))


def cover(text: str) -> Callable[[dict[str, Any], dict[str, Any]], Any]:
    return lambda *both: [each["annotations"].update({COVERS_ANNOTATION: text}) for each in both]


def test_a_report_is_sound(reported: Path):
    assert verified(reported).findings == ()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda _, m: m.update(artifactType="other"), "artifactType"),
        (lambda _, m: m.update(layers=[]), "one layer"),
        (lambda _, m: m["layers"].append(m["layers"][0]), "one layer"),
        (lambda e, _: e["annotations"].update(a="b"), "annotations are not those"),
        (lambda _, m: m.update(annotations=None), "annotations are not those"),
        (lambda _, m: m.update(layers=3), "no list of layers"),
        (lambda _, m: m.update(config=3), "descriptor is damaged"),
        (cover("nothing"), "covers"),
        (cover(""), "covers"),
    ],
)
def test_a_damaged_report_is_told(reported: Path, change: Any, what: str):
    change_report(reported, change)
    found = faults(reported)
    assert [kind for kind, _, _ in found] == ["report"]
    assert what in found[0][2]


def test_a_damaged_blob_of_a_report_is_told(reported: Path):
    flip(blob_file(reported, of_bytes(b'{"report": 1}')), reported)
    assert places(reported) == [("blob", of_bytes(b'{"report": 1}'))]


# --- configs and plans ----------------------------------------------------------------------------


def at(value: Any, path: str) -> Any:
    for step in path.split("."):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def put(path: str, value: Any) -> Callable[[Editor], None]:
    """Set a part of the config; what is found there is given to a value that can be called."""
    parent, _, last = path.rpartition(".")

    def change(editor: Editor) -> None:
        holder = at(editor.config, parent) if parent else editor.config
        key = int(last) if isinstance(holder, list) else last
        holder[key] = value(holder[key]) if callable(value) else value

    return change


def kinds_after(path: Path, change: Callable[[Editor], Any]) -> Counter[str]:
    """Kinds of faults after a change, each place that is told once."""
    edit(path, change)
    started = time.monotonic()
    found = faults(path)
    assert time.monotonic() - started < 2
    return Counter(kind for kind, _, _ in found)


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        ("geometry.latent_rows", 17, "its geometry is not"),
        ("tokens.chunk_tokens", 1, "its tokens is not"),
        ("mesh.coordinates.0.cp", 1, "its mesh is not"),
        ("tiles.tiles.0.rows", 3, "its tiles is not"),
        ("tiles.ranks.0", 1, "its tiles is not"),
        ("programs.3.program.definition", {}, "another definition than planned"),
        ("programs.3.program.groups", {"tp": []}, "another groups than planned"),
        ("programs.0.program.weights.0.shape.0", 3, "another weights than planned"),
        ("programs.0.program.weights.0.stored_shape.0", 3, "another weights than planned"),
        ("programs.0.program.weights.0.tensor", "other", "another weights than planned"),
        ("programs.3.program.kind", "other", "another kind than planned"),
        ("programs.3.program.replica_count", 9, "another replica_count than planned"),
        ("schedule.stages.2.calls.0.component", "transformer_2", "its schedule is not"),
        ("model.transformer.ffn_width", 640, "another weights than planned"),
        ("variant.placement", "nowhere", "cannot be planned"),
        ("variant.shape.width_px", 200, "cannot be planned"),
        ("options.attention", "allgather", "than planned"),
    ],
)
def test_what_is_not_planned_is_told(bundle: Path, path: str, value: Any, what: str):
    if path.startswith(("mesh", "tiles.ranks")):  # of two ranks, so that other numbers exist
        edit(bundle, put(path, value), 1)
    else:
        edit(bundle, put(path, value))
    told = [text for kind, _, text in faults(bundle) if kind == "plan"]
    assert any(what in text for text in told), told


@pytest.mark.parametrize("other", [float, bool])
def test_numbers_of_definitions_are_of_their_kind(bundle: Path, other: Callable[[int], Any]):
    """To Python 1, 1.0 and True are equal; to the text of a program they are not."""

    def change(editor: Editor) -> None:
        programs = {r["program"]["name"]: r["program"] for r in editor.config["programs"]}
        holder, key = next(
            (holder, key)
            for program in programs.values()
            for holder, key in values_in(program["definition"])
            if type(holder[key]) is int and other(holder[key]) == holder[key]
        )
        holder[key] = other(holder[key])

    edit(bundle, change)
    (told,) = [what for kind, _, what in faults(bundle) if kind == "plan"]
    assert told.endswith("has another definition than planned")


def test_programs_are_those_of_the_plan(bundle: Path):
    edit(bundle, lambda e: e.config["programs"].append({"program": {
        **e.config["programs"][0]["program"], "name": "another"
    }}))  # fmt: skip
    told = [text for kind, _, text in faults(bundle) if kind == "plan"]
    assert told == ["program another is not in the plan"]


HUGE = 1 << 40


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((f"variant.shape.{side}", HUGE) for side in ("width_px", "height_px")),
        ("variant.shape.frames", HUGE + 1),
        ("variant.shape.frames", 0),
        ("variant.shape.width_px", -16),
        ("variant.topology.tp", 10**12),
        ("variant.topology.cp", 10**9),
        ("variant.topology.cfg", 0),
        ("model.transformer.layers", 10**9),
        ("model.text_encoder.layers", 10**9),
        ("model.transformer.heads", 10**15),
        ("model.transformer.head_width", 0),
        ("model.transformer.patch_FHW", [1, 0, 0]),
        ("model.transformer.patch_FHW", [HUGE, HUGE, HUGE]),
        ("model.vae.residual_blocks", 10**9),
        ("model.vae.width_multiples", [HUGE] * 4),
        ("model.vae.width_multiples", [1] * 100_000),
        ("model.vae.width_multiples", []),
        ("model.vae.temporal_downsample", [True] * 100_000),
        ("model.vae.temporal_downsample", []),
        ("model.vae.spatial_stride", 10**9),
        ("model.vae.temporal_stride", 0),
        ("model.vae.latents_mean", []),
        ("model.vae.patch", 0),
        ("model.experts", ["high_noise"] * 100_000),
        ("model.experts", []),
        ("model.task", "i2v"),
        ("model.sampling.steps", 10**15),
        ("options.blocks_per_program", 10**9),
        ("options.blocks_per_program", 0),
        ("variant.target", "cpv"),
        ("variant.target", "trn2"),
    ],
)
def test_absurd_numbers_are_told_in_no_time(bundle: Path, path: str, value: Any):
    kinds = kinds_after(bundle, put(path, value))
    if path.startswith("model.sampling"):
        assert not kinds  # a user's default, of which nothing follows
    else:
        assert kinds["plan" if value != "trn2" else "executable"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("variant.shape", {"width_px": 16_384, "height_px": 16_384, "frames": 99_997}),
        ("variant.topology", {"tp": 1, "cp": 4096, "cfg": 1}),
        ("variant.topology", {"tp": 4, "cp": 512, "cfg": 2}),
        ("model.transformer.layers", 1000),
        ("model.vae.residual_blocks", 1000),
        ("model.text_encoder.layers", 1000),
    ],
)
def test_the_largest_numbers_that_are_planned_take_no_time(bundle: Path, path: str, value: Any):
    started = time.monotonic()
    edit(bundle, put(path, value))
    assert any(kind == "plan" for kind, _, _ in faults(bundle))
    assert time.monotonic() - started < 5


# --- executables ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"not an executable", b"\x00\x0a\xff\xff\xff\xff\x0f", b"\xff" * 99]
)
def test_an_executable_that_is_none_is_told(bundle: Path, data: bytes):
    def change(editor: Editor) -> None:
        record = editor.config["programs"][4]
        editor.manifest["layers"] = [
            layer
            for layer in editor.manifest["layers"]
            if layer["digest"] != record["executable"]["digest"]
        ]
        record["executable"] = editor.layer(data)

    edit(bundle, change)
    ((kind, where, what),) = faults(bundle)
    assert (kind, where) == ("executable", "variant 1, program dit_head")
    assert "not an executable of XLA:CPU, or a damaged one" in what


def test_stablehlo_that_is_none_is_told(bundle: Path):
    def change(editor: Editor) -> None:
        record = editor.config["programs"][4]
        editor.manifest["layers"] = [
            layer
            for layer in editor.manifest["layers"]
            if layer["digest"] != record["stablehlo"]["digest"]
        ]
        record["stablehlo"] = editor.layer(b"module @text {}", oci.STABLEHLO)

    edit(bundle, change)
    assert faults(bundle) == [
        ("executable", "variant 1, program dit_head", "its StableHLO is no MLIR bytecode")
    ]


def head() -> Any:
    return next(r.program for r in variant_of().config.programs if r.program.name == "dit_head")


def interface(**changes: Any) -> dict[str, Any]:
    program = head()
    return {
        "name": program.kind,
        "arguments": [(t.dtype, t.shape) for t in program.arguments],
        "results": [(t.dtype, t.shape) for t in program.outputs],
        "replicas": 1,
        **changes,
    }


def test_an_interface_is_read():
    seen = interface_of(
        container("m", [("float32", (2, 300)), ("bfloat16", ())], [("float32", (1,))], 6)
    )
    assert (seen.name, seen.replicas) == ("m", 6)
    assert seen.arguments == (("float32", (2, 300)), ("bfloat16", ()))
    assert seen.results == (("float32", (1,)),)
    many = interface_of(container("m", [], [("float32", (1,)), ("float32", (2, 2))], 1))
    assert (many.arguments, many.replicas) == ((), 1)
    assert many.results == (("float32", (1,)), ("float32", (2, 2)))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"name": "dit_embed"}, "it is of 'dit_embed', and the program of 'dit_head'"),
        ({"replicas": 4}, "4 replicas, and the program has 1"),
        ({"arguments": []}, "0 arguments, and the program has"),
        ({"results": [("float32", (1, 2, 3))]}, "result 0 is float32 [1, 2, 3], needs"),
        ({"results": [("bfloat16", head().outputs[0].shape)]}, "result 0 is bfloat16"),
    ],
)
def test_another_interface_is_told(changes: dict[str, Any], what: str):
    check_interface(container(**interface()), head())
    with pytest.raises(BundleError) as caught:
        check_interface(container(**interface(**changes)), head())
    assert what in str(caught.value)


def test_code_for_another_machine_is_told(bundle: Path):
    data = container(**interface(), triple="aarch64-unknown-linux-gnu")

    def change(editor: Editor) -> None:
        record = editor.config["programs"][4]
        old = record["executable"]["digest"]
        editor.manifest["layers"] = [e for e in editor.manifest["layers"] if e["digest"] != old]
        record["executable"] = editor.layer(data)

    edit(bundle, change)
    ((kind, _, what),) = faults(bundle)
    assert kind == "executable"
    assert "its code is for 'aarch64-unknown-linux-gnu'" in what


@pytest.mark.soak
def test_a_damaged_executable_raises_nothing_else(repetitions: Callable[[int, int], int]):
    chance = random.Random(11)
    program = head()
    whole = executable_of(program)
    for _ in range(repetitions(1_000, 100_000)):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            kept = chance.choice([len(data), chance.randrange(len(data))])
            check_interface(bytes(data[:kept]), program)
        except BundleError:
            continue


# --- the command ----------------------------------------------------------------------------------


def run(*line: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["verify", *map(str, line)])
    return int(end.value.code or 0)


def test_the_command_says_that_a_bundle_is_sound(bundle: Path, capsys: pytest.CaptureFixture[str]):
    assert run(bundle) == 0
    assert f"{open_bundle(bundle).digest}: 2 variants, " in capsys.readouterr().out
    assert run(bundle, "--json", "--jobs", 2) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["is_sound"] is True
    assert (told["bundle"], told["findings"]) == (open_bundle(bundle).digest, [])
    assert set(told) == {"bundle", "variants", "blobs", "bytes", "findings", "is_sound"}


def test_the_command_tells_every_fault_and_ends_with_5(
    bundle: Path, capsys: pytest.CaptureFixture[str]
):
    digest = digest_of(bundle, "executable")
    flip(blob_file(bundle, digest), bundle)
    blob_file(bundle, of_bytes(b"loose")).write_bytes(b"loose")
    with open(os.fsencode(bundle) + b"/\xff\x1b[2J", "wb"):
        pass
    assert run(bundle) == 5
    shown = capsys.readouterr()
    assert "is not sound: 2 faults" in shown.err
    assert "\x1b" not in shown.out
    assert {"fault", "notice", "layout", "orphan", "blob"} <= set(shown.out.split())
    assert run(bundle, "--json") == 5
    told = json.loads(capsys.readouterr().out)
    assert told["is_sound"] is False
    assert sorted((f["kind"], f["is_fault"]) for f in told["findings"]) == [
        ("blob", True),
        ("layout", True),
        ("orphan", False),
    ]
    assert {"kind", "where", "what", "is_fault"} == set(told["findings"][0])


def test_notices_alone_end_with_0(bundle: Path):
    blob_file(bundle, of_bytes(b"loose")).write_bytes(b"loose")
    assert run(bundle) == 0


def test_no_bundle_ends_with_5(tmp_path: Path):
    assert run(tmp_path / "none") == 5


# --- fuzz -----------------------------------------------------------------------------------------


def meaning(path: Path) -> Any:
    """All that readers get of a bundle but what is not determined; None where it is refused."""
    try:
        opened = open_bundle(path)
        return [
            (
                variant.manifest.annotations,
                determined(json.loads(encode_config(variant.config))),
                sorted(opened.read(blob) for r in variant.config.programs for blob in r.blobs),
            )
            for variant in opened.variants
        ]
    except (WancError, OSError):
        return None


def determined(config: Any) -> Any:
    """A config without what nothing else in a bundle determines, and with no order of programs."""
    for parts, names in (
        ([config], ["requires"]),
        (config["programs"], ["collectives", "compile_key"]),
        ([config["model"]], ["sampling"]),
        ([config["model"]["vae"]], ["latents_mean", "latents_std"]),
    ):
        for part, name in ((part, name) for part in parts for name in names):
            del part[name]
    config["programs"].sort(key=lambda record: record["program"]["name"])
    return json.dumps(config, sort_keys=True)


def values_in(value: Any) -> list[tuple[Any, Any]]:
    """(holder, key) of every value in JSON."""
    found = []
    stack = [value]
    while stack:
        holder = stack.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                stack.append(holder[key])
    return found


ODD = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    1.5,
    1 << 40,
    10**30,
    "",
    "x",
    "\x1b[2J",
    "é",
    [],
    {},
    [1],
    {"a": 1},
]


def mutate_json(document: Any, chance: random.Random) -> str:
    """One change somewhere; what it was."""
    holder, key = chance.choice(values_in(document))
    act = chance.choice(["drop", "rename", "retype", "nudge", "repeat", "swap"])
    if act == "drop":
        del holder[key]
    elif act == "rename" and isinstance(holder, dict):
        holder[key + chance.choice(["_", "x", "\0"])] = holder.pop(key)
    elif act == "nudge" and type(holder[key]) is int:
        holder[key] += chance.choice([-1, 1, 16, 1 << 20])
    elif act == "repeat" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif act == "swap" and isinstance(holder, list):
        other = chance.randrange(len(holder))
        holder[key], holder[other] = holder[other], holder[key]
    else:
        act = "retype"
        holder[key] = copy.deepcopy(chance.choice(ODD))
    return act


def mutate_files(path: Path, chance: random.Random) -> str:
    """Damage to one file, digests left as they are."""
    file = chance.choice(sorted(file for file in path.rglob("*") if file.is_file()))
    act = chance.choice(["flip", "truncate", "remove", "extend", "exchange"])
    data = bytearray(file.read_bytes())
    if act == "flip":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif act == "truncate":
        del data[chance.randrange(len(data)) :]
    elif act == "extend":
        data += bytes(chance.randrange(1, 9))
    elif act == "exchange":
        other = chance.choice(sorted((path / "blobs" / "sha256").iterdir()))
        data = bytearray(other.read_bytes())
    file.unlink()
    if act != "remove":
        file.write_bytes(data)
    return act


def mutate(path: Path, chance: random.Random) -> str:
    """Change a bundle somewhere; half of the time with all digests made right again."""
    if chance.random() < 0.5:
        return mutate_files(path, chance)
    editor = Editor(path)
    name = chance.choice(["config", "config", "config", "manifest", "index", "top"])
    acts = [mutate_json(getattr(editor, name), chance) for _ in range(chance.choice([1, 1, 1, 3]))]
    editor.save()
    return f"{name} {acts[0]}"


@pytest.mark.soak
def test_no_mutated_bundle_is_sound_and_none_raises(
    tmp_path: Path, repetitions: Callable[[int, int], int]
):
    whole = write_sound(tmp_path / "whole", variant_of().config)
    sound, chance = meaning(whole), random.Random(23)
    told: Counter[str] = Counter()
    same = 0
    for number in range(repetitions(200, 2_000)):
        path = tmp_path / "mutated"
        shutil.copytree(whole, path)
        act = mutate(path, chance)
        started = time.monotonic()
        seen = verified(path)
        assert time.monotonic() - started < 5, f"mutation {number}: {act}"
        told.update({f.kind for f in seen.findings if f.is_fault})
        if seen.is_sound:
            same += 1
            assert meaning(path) == sound, f"mutation {number}: {act}"
        shutil.rmtree(path)
    print("\n".join(f"{kind:<12}{times:>6}" for kind, times in told.most_common()), f"same {same}")
    assert set(told) >= {"layout", "blob", "reference", "config", "plan", "schedule"}

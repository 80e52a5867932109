"""wanc verify on bundles of real plans: each fault is found, and a sound bundle has none."""

import copy
import hashlib
import json
import os
import random
import shutil
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import neuronx_cc
from tests.sound import (
    EXECUTABLE_TYPE,
    Editor,
    blob_file,
    container,
    edit,
    executable_of,
    faults,
    interface_of,
    spelled,
    values_in,
    verified,
    write_sound,
)
from tests.unit.conftest import variant_of
from wanc.bundle import oci, wire
from wanc.bundle.config import FORMAT_VERSION
from wanc.bundle.pieces import pieces_of
from wanc.bundle.reports import COVERS_ANNOTATION, attach_report
from wanc.bundle.store import FORMAT_ANNOTATION, MAX_JSON_BYTES, open_bundle
from wanc.bundle.wire import record_of
from wanc.bundle.xla_interface import check_interface, interface_from
from wanc.cli import main
from wanc.digest import PIECE_BYTES, Reading, of_bytes, of_file
from wanc.errors import BundleError
from wanc.verify import findings, references
from wanc.verify.layout import Orphans
from wanc.verify.references import MISSPELLED

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
    remove: "is missing: No such file",
    link: "cannot be read: it is a link",
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
    assert set(places(bundle)) == {("layout", "index.json")}


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
    assert notice.what.startswith("2 of 5 bytes that nothing refers to")
    assert seen.orphans == Orphans(blobs=2, bytes=5, digests=(of_bytes(b"loose"),))


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
        patched.setattr("wanc.verify.files.os.open", refused)
        assert ("layout", "oci-layout") in places(bundle)


# --- references -----------------------------------------------------------------------------------

MANIFEST_EDITS: list[tuple[Callable[[Editor], Any], str]] = [
    (lambda e: e.manifest.update(schemaVersion=3), "schemaVersion is 3; needs 2"),
    (lambda e: e.manifest.update(mediaType="a/b"), "mediaType is 'a/b'"),
    (lambda e: e.listed.update(mediaType="a/b"), "media type is 'a/b'"),
    (lambda e: e.manifest.update(artifactType="a/b"), "artifactType is 'a/b'"),
    (lambda e: e.manifest.pop("artifactType"), "artifactType is None"),
    (lambda e: e.manifest["config"].update(mediaType="a/b"), "of the config is 'a/b'"),
    (lambda e: e.manifest["layers"][0].update(mediaType="a/b"), "a layer of type 'a/b'; needs"),
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
    assert faults(bundle) == [
        ("reference", "variant 3", "has the annotations of variant 2"),
        ("reference", "variant 3", "has the manifest of something else"),
    ]


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
        editor.manifest = spelled(editor.manifest)
        editor.save()
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
    data = spelled(manifest)
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
        (cover(",".join(f"sha256:{letter * 64}" for letter in "ba")), "in order"),
        (cover(",".join([f"sha256:{'a' * 64}"] * 2)), "each once"),
        (lambda e, _: e.update(mediaType="a/b"), "media type is 'a/b'"),
        (lambda _, m: m.update(mediaType="a/b"), "mediaType is 'a/b'"),
        (lambda _, m: m.update(schemaVersion="2"), "schemaVersion is '2'"),
        (lambda _, m: m["layers"][0].update(mediaType="a/b"), "one layer of that media type"),
        (lambda _, m: m["layers"][0].update(annotations={"a": "b"}), "a layer has annotations"),
        (lambda _, m: m["config"].update(mediaType="a/b"), "its config is not the empty one"),
        (lambda _, m: m.update(subject={}), MISSPELLED),
    ],
)
def test_a_damaged_report_is_told(reported: Path, change: Any, what: str):
    change_report(reported, change)
    found = faults(reported)
    assert [kind for kind, _, _ in found] == ["report"]
    assert what in found[0][2]


@pytest.mark.parametrize("data", [b"text", b"[]", b'{"a":1,"a":2}'])
def test_a_report_is_a_json_object(bundle: Path, data: bytes):
    attach_report(bundle, data, (digest_of(bundle, "stablehlo"),))
    ((kind, _, what),) = faults(bundle)
    assert kind == "report"
    assert what.startswith("what it says: not ")


def test_a_report_that_is_named_twice_is_told(reported: Path):
    top = json.loads((reported / "index.json").read_bytes())
    top["manifests"] += [each for each in top["manifests"] if each["mediaType"] != oci.INDEX]
    (reported / "index.json").write_text(json.dumps(top))
    ((kind, _, what),) = faults(reported)
    assert (kind, what) == ("report", "is named twice")


def test_one_report_of_two_covers_is_sound(reported: Path):
    attach_report(reported, b'{"report": 1}', (digest_of(reported, "stablehlo", 1),))
    assert faults(reported) == []


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
    edit(bundle, lambda e: e.replace(4, "executable", data))
    ((kind, where, what),) = faults(bundle)
    assert (kind, where) == ("executable", "variant 1, program dit_head")
    assert "not an executable of XLA:CPU, or a damaged one" in what


@pytest.mark.parametrize("data", [b"module @text {}", b"ML", b""])
def test_stablehlo_that_is_none_is_told(bundle: Path, data: bytes):
    edit(bundle, lambda e: e.replace(4, "stablehlo", data))
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
    check_interface(interface_of(container(**interface())), head())
    with pytest.raises(BundleError) as caught:
        check_interface(interface_of(container(**interface(**changes))), head())
    assert what in str(caught.value)


def test_code_for_another_machine_is_told(bundle: Path):
    data = container(**interface(), triple="aarch64-unknown-linux-gnu")
    edit(bundle, lambda e: e.replace(4, "executable", data))
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
            check_interface(interface_of(bytes(data[:kept])), program)
        except BundleError:
            continue


# --- spelling -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("", "note"),
        ("variant.shape", "depth_px"),
        ("programs.3.program", "hint"),
        ("programs.0.program.weights.0", "scale"),
        ("schedule.stages.1.calls.0.inputs.0", "offset"),
        ("model.vae", "tiled"),
    ],
)
def test_a_field_that_no_config_has_is_told(bundle: Path, path: str, name: str):
    """Readers leave it alone, and so would not see what the digest names."""
    edit(bundle, put(f"{path}.{name}" if path else name, None))
    where = f"{path}.{name}" if path else name
    assert faults(bundle) == [("config", "variant 1", f"fields that no config has: {where}")]


def respell(change: Callable[[bytes], bytes]) -> Callable[[Editor], None]:
    """Change the config's text."""

    def edited(editor: Editor) -> None:
        before = spelled(editor.config, canonical=True)
        editor.config = change(before)
        assert editor.config != before

    return edited


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data + b"\n",
        lambda data: data.replace(b",", b", ", 1),
        lambda data: data.replace(b'"format_version":4', b'"format_version":4,"format_version":4'),
        lambda data: data.replace(b'"format_version":4', b'"format_version":9,"format_version":4'),
        lambda data: data.replace(b'"flow_shift":12.0', b'"flow_shift":12'),
        lambda data: data.replace(b'"flow_shift":12.0', b'"flow_shift":1.2e1'),
        lambda data: data.replace(b'"task":"t2v"', b'"task":"\\u00742v"'),
        lambda data: data.replace(b'"axis":null,', b"", 1),  # read as what it was
    ],
)
def test_a_config_has_one_spelling(bundle: Path, change: Callable[[bytes], bytes]):
    edit(bundle, respell(change))
    assert faults(bundle) == [("config", "variant 1", MISSPELLED)]


@pytest.mark.parametrize("of", ["manifest", "index"])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data + b"\n",
        lambda data: data.replace(b":", b": ", 1),
        lambda data: data.replace(b'{"schemaVersion":2,', b'{"subject":null,"schemaVersion":2,'),
        lambda data: (
            data.replace(b'"schemaVersion":2,"mediaType"', b'"mediaType"')[:-1]
            + b',"schemaVersion":2}'
        ),
        lambda data: data.replace(b'"size":', b'"urls":[],"size":', 1),
        lambda data: data.replace(b"vnd.wanc", b"vnd\\u002ewanc", 1),
    ],
)
def test_a_manifest_and_an_index_have_one_spelling(
    bundle: Path, of: str, change: Callable[[bytes], bytes]
):
    def edited(editor: Editor) -> None:
        before = spelled(getattr(editor, of))
        setattr(editor, of, change(before))
        assert getattr(editor, of) != before

    edit(bundle, edited)
    where = {"manifest": "variant 1", "index": "bundle index"}[of]
    assert faults(bundle) == [("reference", where, MISSPELLED)]


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.manifest["layers"].reverse(),
        lambda e: e.manifest["layers"][0].update(annotations={"a": "b"}),
        lambda e: e.manifest["config"].update(annotations={"a": "b"}),
        lambda e: e.manifest.update(subject={"mediaType": "a/b"}),
    ],
)
def test_a_manifest_follows_from_its_config(bundle: Path, change: Callable[[Editor], Any]):
    edit(bundle, change)
    assert faults(bundle) == [("reference", "variant 1", MISSPELLED)]


def test_variants_are_listed_in_order(bundle: Path):
    edit(bundle, lambda e: e.index["manifests"].reverse())
    assert faults(bundle) == [("reference", "bundle index", MISSPELLED)]


def test_programs_are_listed_in_order(bundle: Path):
    edit(bundle, lambda e: e.config["programs"].reverse())
    assert ("plan", "variant 1", "its programs are in another order than planned") in faults(bundle)


def twice(data: bytes) -> bytes:
    """Two values of one key: readers differ in which they take."""
    return data.replace(b'"mediaType":', b'"mediaType":"a/b","mediaType":', 1)


def test_a_key_that_stands_twice_is_told(reported: Path):
    what = "the key 'mediaType' stands twice"
    top = (reported / "index.json").read_bytes()
    (reported / "index.json").write_bytes(twice(top))
    ((kind, where, told),) = faults(reported)
    assert (kind, where) == ("layout", "index.json")
    assert what in told
    (reported / "index.json").write_bytes(top)
    entry = next(e for e in json.loads(top)["manifests"] if e["mediaType"] != oci.INDEX)
    manifest = twice(blob_file(reported, entry["digest"]).read_bytes())
    blob_file(reported, of_bytes(manifest)).write_bytes(manifest)
    (reported / "index.json").write_bytes(
        top.replace(entry["digest"].encode(), of_bytes(manifest).encode()).replace(
            b'"size":%d' % entry["size"], b'"size":%d' % len(manifest)
        )
    )
    ((kind, _, told),) = faults(reported)
    assert kind == "report"
    assert what in told


@pytest.mark.parametrize("of", ["manifest", "index"])
def test_a_key_of_a_manifest_that_stands_twice_is_told(bundle: Path, of: str):
    edit(bundle, lambda e: setattr(e, of, twice(spelled(getattr(e, of)))))
    ((kind, where, told),) = faults(bundle)
    assert (kind, where) == ("reference", {"manifest": "variant 1", "index": "bundle index"}[of])
    assert "the key 'mediaType' stands twice" in told


@pytest.mark.parametrize(
    "data",
    [b'{"a":1,"a":1}', b'{"a":[{"b":1,"b":2}]}', b'{"a":NaN}', b'{"a":-Infinity}']
    + [text.encode(way) for text in ('{"a":1}',) for way in ("utf-16", "utf-32", "utf-8-sig")],
)
def test_json_that_readers_differ_about_is_refused(data: bytes):
    with pytest.raises(BundleError, match=r"here: not JSON"):
        oci.parse(data, "here")


# --- what JSON says of itself ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("schemaVersion", 1, "schemaVersion is 1; needs 2"),
        ("schemaVersion", 2.0, "schemaVersion is 2.0; needs 2"),
        ("schemaVersion", None, "schemaVersion is None; needs 2"),
        ("mediaType", oci.MANIFEST, f"mediaType is {oci.MANIFEST!r}; needs {oci.INDEX!r}"),
        ("mediaType", None, "mediaType is None"),
    ],
)
def test_index_json_is_an_oci_index(bundle: Path, key: str, value: Any, what: str):
    top = json.loads((bundle / "index.json").read_bytes())
    (bundle / "index.json").write_text(json.dumps({**top, key: value}))
    ((kind, where, told),) = faults(bundle)
    assert (kind, where) == ("layout", "index.json")
    assert what in told


def test_index_json_as_other_tools_write_it_is_sound(bundle: Path):
    """Without the media type, as image tools did for long, and with spaces."""
    top = json.loads((bundle / "index.json").read_bytes())
    del top["mediaType"]
    (bundle / "index.json").write_text(json.dumps(top, indent=2))
    assert verified(bundle).findings == ()


@pytest.mark.parametrize("of", ["top", "index", "manifest"])
@pytest.mark.parametrize("key", ["mediaType", "schemaVersion", "annotations", "config", "deep"])
def test_deep_values_are_told_without_showing_them(bundle: Path, of: str, key: str):
    """As deep as can be read; what is shown of them is not written by them."""
    value: Any = 1
    for _ in range(900):
        value = [value]
    editor = Editor(bundle)
    getattr(editor, of)[key] = {"a": value} if key == "annotations" else value
    if of == "top":
        (bundle / "index.json").write_bytes(spelled(editor.top))
    else:
        editor.manifest = spelled(editor.manifest) if of == "manifest" else editor.manifest
        editor.save()
    kinds = {kind for kind, _, _ in faults(bundle)}
    assert kinds <= {"layout", "reference"}
    assert kinds or of == "top"


def test_what_two_name_as_of_two_types_is_told(bundle: Path):
    """StableHLO that both variants have: a reader of the one takes it for what it is not."""
    shared = Editor(bundle).config["programs"][6]["stablehlo"]["digest"]
    assert shared == Editor(bundle, 1).config["programs"][6]["stablehlo"]["digest"]

    def change(editor: Editor) -> None:
        layers = {layer["digest"]: layer for layer in editor.manifest["layers"]}
        layers[shared]["mediaType"] = oci.XLA_CPU

    edit(bundle, change, 1)
    told = faults(bundle)
    assert {(kind, where) for kind, where, _ in told} == {("reference", "variant 2")}
    assert f"{shared} is of type {oci.XLA_CPU!r}; variant 1 has it as {oci.STABLEHLO!r}" in {
        what for _, _, what in told
    }


def test_the_empty_layer_holds_nothing_else(bundle: Path):
    """A media type that no reader looks behind is no place to carry something in."""

    def change(editor: Editor) -> None:
        for record in editor.config["programs"]:
            record.update(stablehlo=None, executable=None)
        editor.manifest["layers"] = [{"mediaType": oci.EMPTY, **editor.put(b"a payload")}]
        for said in (editor.manifest, editor.listed):
            said["annotations"]["vnd.wanc.stage"] = "plan"

    edit(bundle, change)
    digest = of_bytes(b"a payload")
    assert faults(bundle) == [("reference", "variant 1", f"layer {digest} is of no program")]


def test_one_manifest_and_one_config_are_of_one_variant(bundle: Path):
    """Else a few bytes would have all of them read again and again."""
    one = Editor(bundle)
    edit(bundle, lambda e: e.manifest["config"].update(one.manifest["config"]), 1)
    editor = Editor(bundle, 1)
    editor.manifest["config"] = one.manifest["config"]
    editor.manifest = spelled(editor.manifest)
    editor.save()
    assert ("config", "variant 2", "has the config of something else") in faults(bundle)


def test_json_is_read_up_to_a_size_in_all(bundle: Path, monkeypatch: pytest.MonkeyPatch):
    sizes = [Editor(bundle, n).manifest["config"]["size"] for n in (0, 1)]
    monkeypatch.setattr(references, "MOST_JSON_BYTES", sum(sizes))
    ((kind, where, what),) = faults(bundle)
    assert (kind, where) == ("config", "variant 2")
    assert f"more than {sum(sizes):,} bytes of JSON are not read" in what


# --- findings -------------------------------------------------------------------------------------


def test_findings_are_shown_up_to_a_number(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(findings, "MOST_SHOWN", 3)
    for number in range(5):
        (bundle / f"strange{number}").write_text("x")
    blob_file(bundle, of_bytes(b"loose")).write_bytes(b"loose")
    seen = verified(bundle)
    shown = ["strange0", "strange1", "strange2", "blobs/sha256"]  # faults do not hide notices
    assert [finding.where for finding in seen.findings] == shown
    assert (seen.faults, seen.findings_left_out, seen.is_sound) == (5, 2, False)
    assert run(bundle) == 5
    told = capsys.readouterr()
    assert "and 2 more findings, not shown" in told.out
    assert "is not sound: 5 faults" in told.err
    assert run(bundle, "--json") == 5
    document = json.loads(capsys.readouterr().out)
    assert (len(document["findings"]), document["findings_left_out"]) == (4, 2)
    assert document["faults"] == 5


def test_long_texts_of_findings_are_cut(bundle: Path):
    edit(bundle, lambda e: e.manifest.update(artifactType="x" * 100_000))
    edit(bundle, lambda e: e.manifest["layers"][0].update(mediaType="y" * 100_000))
    (told,) = [what for _, _, what in faults(bundle) if "y" in what and "layer" in what]
    assert len(told) < findings.MOST_LETTERS + 100
    assert told.endswith("letters)")


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        ("schedule.stages.0.name", "s" * 1025, "a text of 1,025 letters"),
        ("requires.note", "s" * 1025, "a text of 1,025 letters"),
        ("programs.0.collectives.all_reduce", 1 + (1 << 53), "a number above 9007199254740992"),
        ("requires.note", -(10**4000), "a number above"),
    ],
)
def test_texts_and_numbers_beyond_all_measure_are_told(
    bundle: Path, path: str, value: Any, what: str
):
    edit(bundle, put(path, value))
    ((kind, where, told),) = faults(bundle)
    assert (kind, where) == ("config", "variant 1")
    assert what in told


def test_tensors_of_many_dimensions_are_told_and_nothing_is_worked_out(bundle: Path):
    """Their sizes in bytes would be numbers that Python does not write out."""
    shape = [1 << 52] * 300
    edit(bundle, put("programs.4.program.inputs.0.shape", shape))
    assert faults(bundle) == [
        ("plan", "variant 1", "sizes that are not planned: dimensions of a tensor 300")
    ]


def test_orphans_are_listed(bundle: Path, capsys: pytest.CaptureFixture[str]):
    loose = [f"loose {number}".encode() for number in range(120)]
    for data in loose:
        blob_file(bundle, of_bytes(data)).write_bytes(data)
    (bundle / "blobs" / "sha256" / ".new-1").write_bytes(b"half")
    assert run(bundle, "--json") == 0
    told = json.loads(capsys.readouterr().out)["orphans"]
    assert told["blobs"] == 121
    assert told["bytes"] == 4 + sum(map(len, loose))
    assert told["digests"] == sorted(map(of_bytes, loose))[:100]


# --- keys and kinds -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        ("requires", {"target": "trn2"}, "it requires target 'trn2', and is for 'cpu'"),
        ("requires", {}, "it requires target None"),
        ("programs.2.compile_key.target", "trn2", "key of dit_embed has target 'trn2'"),
        ("programs.2.compile_key.stablehlo", "sha256:0", "has stablehlo 'sha256:0'; needs 'sha2"),
    ],
)
def test_what_is_required_and_what_was_compiled_are_of_the_variant(
    bundle: Path, path: str, value: Any, what: str
):
    edit(bundle, put(path, value))
    ((kind, where, told),) = faults(bundle)
    assert (kind, where) == ("config", "variant 1")
    assert what in told


def test_code_for_more_than_a_config_requires_is_told(bundle: Path):
    """A machine that has all that is required would stop in the middle of a program."""
    data = container(**interface(), features="+sse2,+avx2,-avx512f,+fma")

    def change(editor: Editor, *required: str) -> None:
        editor.replace(4, "executable", data)
        editor.config["requires"]["features"] = [*required]

    edit(bundle, lambda e: change(e, "avx2", "bmi", "fma", "sse2"))
    assert faults(bundle) == []
    edit(bundle, lambda e: change(e, "sse2"))
    told = "its code is for CPUs with avx2, fma, and its config does not require that"
    assert faults(bundle) == [("executable", "variant 1, program dit_head", told)]


def exchange(editor: Editor) -> None:
    """What the config has as StableHLO and as an executable, the other way round."""
    record = editor.config["programs"][4]
    record["stablehlo"], record["executable"] = record["executable"], record["stablehlo"]


def relist(editor: Editor) -> None:
    """Have layers of the types and in the order that the config implies."""
    layers = {}
    for record in editor.config["programs"]:
        for key, media_type in (("stablehlo", oci.STABLEHLO), ("executable", oci.XLA_CPU)):
            named = {"digest": record[key]["digest"], "size": record[key]["size_bytes"]}
            layers[named["digest"]] = {"mediaType": media_type, **named}
    editor.manifest["layers"] = list(layers.values())


def test_stablehlo_and_an_executable_that_are_exchanged_are_told(bundle: Path):
    edit(bundle, exchange)
    assert places(bundle) == [
        *[("reference", "variant 1")] * 2,
        *[("executable", "variant 1, program dit_head")] * 2,
    ]
    edit(bundle, relist)
    found = faults(bundle)
    assert [(kind, where) for kind, where, _ in found] == [
        ("executable", "variant 1, program dit_head")
    ] * 2
    assert "its StableHLO is no MLIR bytecode" in {what for _, _, what in found}
    assert any("not an executable of XLA:CPU" in what for _, _, what in found)


def test_one_blob_as_both_is_told(bundle: Path):
    def both(editor: Editor) -> None:
        record = editor.config["programs"][4]
        record["stablehlo"] = record["executable"]
        relist(editor)

    edit(bundle, both)
    found = faults(bundle)
    assert {(kind, where) for kind, where, _ in found} == {("reference", "variant 1")}
    assert any("as StableHLO and as an executable" in what for _, _, what in found)


def test_a_neff_is_no_executable_of_cpus(bundle: Path):
    interface = {"input": [("input0", 4)], "output": [("output0", 4)]}
    data = neuronx_cc.neff(interface, {})
    edit(bundle, lambda e: e.replace(4, "executable", data))
    ((kind, where, what),) = faults(bundle)
    assert (kind, where) == ("executable", "variant 1, program dit_head")
    assert "not an executable of XLA:CPU, or a damaged one" in what


def test_a_target_that_is_not_known_is_told_once(bundle: Path):
    """What its executables are to be, nobody knows: they are read, and not looked at."""

    def change(editor: Editor) -> None:
        editor.config["variant"]["target"] = editor.config["requires"]["target"] = "gpu"
        for said in (editor.manifest, editor.listed):
            said["annotations"]["vnd.wanc.target"] = "gpu"

    edit(bundle, change, 1)
    ((kind, where, what),) = faults(bundle)
    assert (kind, where) == ("plan", "variant 2")
    assert "'gpu' is not known" in what


# --- reading --------------------------------------------------------------------------------------


def filled(editor: Editor, program: int, fill_bytes: int) -> None:
    """Give a program its executable with bytes that mean nothing, in a field that readers skip."""
    digest = editor.config["programs"][program]["executable"]["digest"]
    data = blob_file(editor.path, digest).read_bytes()
    editor.replace(program, "executable", data + record_of(15, bytes(fill_bytes)))


@pytest.mark.parametrize("size_bytes", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7])
@pytest.mark.parametrize("looked_at", [0, 1, 2])
def test_a_digest_is_of_all_that_passes(tmp_path: Path, size_bytes: int, looked_at: int):
    """Whether nobody looks at the pieces, or somebody at some, who then has enough."""
    file, data = tmp_path / "file", random.Random(3).randbytes(size_bytes)
    file.write_bytes(data)
    with file.open("rb", buffering=0) as stream:
        reading = Reading(stream)
        seen = b"".join([bytes(piece) for piece in islice(reading, looked_at)])
        assert seen == data[: looked_at * PIECE_BYTES]
        assert reading.digest() == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert of_file(file) == of_bytes(data)


def test_a_blob_is_read_once_and_is_never_in_memory_whole(bundle: Path):
    for program in (0, 4):
        edit(bundle, lambda e, program=program: filled(e, program, 64 << 20))
    assert faults(bundle) == []  # and what is imported late is there
    before = read_bytes()
    tracemalloc.start()
    try:
        seen = verified(bundle)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen.is_sound
    assert seen.bytes > 128 << 20
    assert read_bytes() - before < 1.02 * seen.bytes
    assert peak_bytes < 16 << 20


def read_bytes() -> int:
    """What this process has read by system calls."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def test_a_vast_sparse_file_is_not_read(bundle: Path):
    digest = digest_of(bundle, "executable")
    os.truncate(blob_file(bundle, digest), 1 << 42)
    started = time.monotonic()
    ((kind, where, what),) = faults(bundle)
    assert time.monotonic() - started < 2
    assert (kind, where) == ("blob", digest)
    assert f"has {1 << 42} bytes; variant 1 says" in what


def test_a_container_of_very_many_fields_is_not_gone_through(bundle: Path):
    many = bytes([15 << 3, 0]) * (wire.MOST_FIELDS + 1)
    edit(bundle, lambda e: e.replace(4, "executable", executable_of(head()) + many))
    ((kind, _, what),) = faults(bundle)
    assert kind == "executable"
    assert f"more than {wire.MOST_FIELDS} fields" in what


def test_an_interface_of_very_many_bytes_is_not_kept():
    program = container("m" * (wire.MOST_KEPT_BYTES + 1), [], [("float32", (1,))], 1)
    with pytest.raises(BundleError, match="bytes of interface"):
        interface_of(program)


@pytest.mark.parametrize("cut", [*range(60), 200])
def test_a_container_that_ends_early_is_damaged(cut: int):
    whole = container("m", [("float32", (2, 300))], [("float32", (1,))], 6)
    assert interface_of(whole).replicas == 6
    if cut < len(whole):
        with pytest.raises(BundleError, match="damaged"):
            interface_of(whole[:cut])
        with pytest.raises(BundleError, match="damaged"):  # a file that shrinks meanwhile
            interface_from(pieces_of(whole[:cut]), len(whole))


@pytest.mark.parametrize(
    ("number", "what"),
    [(1, "2 fields 1 where one belongs"), (4, "2 fields 4"), (15, "2 device assignments")],
)
def test_what_readers_would_merge_is_damage(number: int, what: str):
    """A protocol buffer's field that stands twice is the last of them, or both."""
    module = [record_of(1, b"m"), record_of(4, record_of(2, b"")), record_of(15, b"")]
    module.append(record_of(number, b""))
    result = record_of(1, record_of(1, b"".join(module))) + record_of(9, b"")
    with pytest.raises(BundleError, match=what):
        interface_of(b"\0" + record_of(1, result) + record_of(2, b""))


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
    assert set(told) == {
        *("bundle", "variants", "blobs", "bytes", "orphans", "is_sound"),
        *("faults", "findings", "findings_left_out"),
    }


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

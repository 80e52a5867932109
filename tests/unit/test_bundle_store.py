"""A bundle on disk: written blobs first and index last, read with every digest checked."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from wanc.bundle import oci, store
from wanc.bundle.config import FORMAT_VERSION, Blob
from wanc.bundle.store import check_destination, config_blobs, open_bundle, write_bundle
from wanc.digest import of_bytes
from wanc.errors import BundleError, RunError

KINDS = ["index", "manifest", "config", "stablehlo", "executable"]


def write(path, *made, blobs=None):
    """Write variants, with all their blobs unless given."""
    named = {digest: data for one in made for digest, data in one.blobs.items()}
    read = (named if blobs is None else blobs).__getitem__
    return write_bundle(path, [one.new for one in made], read).digest


def files(path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


def variants(path) -> list[str]:
    return [str(variant.config.variant) for variant in open_bundle(path).variants]


def blob_file(path, digest) -> Path:
    return path / "blobs" / "sha256" / digest.removeprefix("sha256:")


def digests(path) -> dict[str, str]:
    """The digest of one blob of each kind."""
    bundle = open_bundle(path)
    manifest = bundle.variants[0].manifest.digest
    record = bundle.variants[0].config.programs[0]
    return {
        "index": bundle.digest,
        "manifest": manifest,
        "config": json.loads(blob_file(path, manifest).read_bytes())["config"]["digest"],
        "stablehlo": record.stablehlo.digest,
        "executable": record.executable.digest,
    }


def read_all(path):
    """Open the bundle and read every blob that its configs name."""
    bundle = open_bundle(path)
    for variant in bundle.variants:
        for blob in config_blobs(variant.config):
            bundle.read(blob)


def refusal(path) -> str:
    with pytest.raises(BundleError) as caught:
        read_all(path)
    assert caught.value.exit_code == 5
    return str(caught.value)


def put(path, data: bytes) -> str:
    blob_file(path, of_bytes(data)).write_bytes(data)
    return of_bytes(data)


def point_at(path, index: bytes):
    """Make some bytes the bundle's index, with digests that agree."""
    put(path, index)
    top = oci.index_bytes([oci.describe(oci.INDEX, index)], {})
    (path / "index.json").write_bytes(top)


@pytest.fixture
def bundle(tmp_path, made):
    """A bundle of one variant."""
    path = tmp_path / "bundle"
    write(path, made())
    return path


# --- round trip ---------------------------------------------------------------------------


def test_what_was_written_is_read(tmp_path, made):
    one = made(topology="tp2")
    digest = write(tmp_path / "b", one)
    bundle = open_bundle(tmp_path / "b")
    assert bundle.digest == digest
    assert [variant.config for variant in bundle.variants] == [one.config]
    for blob in config_blobs(one.config):
        assert bundle.read(blob) == one.blobs[blob.digest]


def test_layout_is_that_of_oci(bundle):
    assert json.loads((bundle / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    top = json.loads((bundle / "index.json").read_bytes())
    (entry,) = top["manifests"]
    assert list(top) == ["schemaVersion", "mediaType", "manifests"]
    assert list(entry) == ["mediaType", "digest", "size", "annotations"]
    index = json.loads(blob_file(bundle, entry["digest"]).read_bytes())
    assert "artifactType" not in json.dumps(index)
    manifest = json.loads(blob_file(bundle, digests(bundle)["manifest"]).read_bytes())
    assert list(manifest) == [
        *("schemaVersion", "mediaType", "artifactType", "config", "layers", "annotations"),
    ]
    assert manifest["artifactType"] == "application/vnd.wanc.bundle.v1+json"
    assert {layer["mediaType"] for layer in manifest["layers"]} == {
        *("application/vnd.wanc.program.stablehlo.v1", "test/executable"),
    }
    for file in (bundle / "blobs" / "sha256").iterdir():
        assert of_bytes(file.read_bytes()) == f"sha256:{file.name}"


def test_manifest_is_annotated_with_the_variant(bundle):
    assert open_bundle(bundle).variants[0].manifest.annotations == {
        "vnd.wanc.model": "tiny",
        "vnd.wanc.task": "t2v",
        "vnd.wanc.shape": "208x128x5",
        "vnd.wanc.topology": "tp1",
        "vnd.wanc.placement": "linear",
        "vnd.wanc.precision": "fp32",
        "vnd.wanc.target": "cpu",
        "vnd.wanc.stage": "compile",
    }


@pytest.mark.parametrize(
    ("stage", "kept"), [("lower", {"executable": None}), ("plan", {"stablehlo": None})]
)
def test_a_variant_says_how_far_it_was_compiled_and_is_finished_in_its_place(
    tmp_path, made, stage, kept
):
    """The stage is no part of the key: the finished variant replaces the unfinished one."""
    one = made()
    programs = tuple(
        replace(record, **({"executable": None} | kept)) for record in one.config.programs
    )
    early = replace(one.new, config=replace(one.config, programs=programs))
    write_bundle(tmp_path / "b", [early], one.blobs.__getitem__)
    (variant,) = open_bundle(tmp_path / "b").variants
    assert variant.config.stage == variant.manifest.annotations["vnd.wanc.stage"] == stage
    done = write_bundle(tmp_path / "b", [one.new], one.blobs.__getitem__)
    (variant,) = open_bundle(tmp_path / "b").variants
    assert variant.config.stage == variant.manifest.annotations["vnd.wanc.stage"] == "compile"
    assert bool(done.replaced) is (stage == "plan")  # where programs were not known before


def test_blobs_that_two_variants_share_are_stored_once(tmp_path, made):
    """pytorch/executorch PR #18901: shared weights stored twice."""
    one, two = made(), made(executables="executable")
    write(tmp_path / "b", one, two)
    stored = len(list((tmp_path / "b" / "blobs" / "sha256").iterdir()))
    assert stored == len(one.blobs) + len(["config", "manifest", "index"])


def test_variant_without_programs_compiled_has_the_empty_layer(tmp_path, made):
    one = made()
    programs = tuple(
        replace(record, stablehlo=None, executable=None) for record in one.config.programs
    )
    planned = replace(one.new, config=replace(one.config, programs=programs))
    write_bundle(tmp_path / "b", [planned], {}.__getitem__)
    assert open_bundle(tmp_path / "b").variants[0].config == planned.config


# --- several variants ---------------------------------------------------------------------


def test_second_variant_is_added_and_the_first_is_kept(bundle, made):
    before = open_bundle(bundle)
    assert write(bundle, made("320x320x9", "tp2")) != before.digest
    assert sorted(variants(bundle)) == ["t2v 208x128x5 tp1 fp32 cpu", "t2v 320x320x9 tp2 fp32 cpu"]
    assert before.variants[0] in open_bundle(bundle).variants
    read_all(bundle)


@pytest.mark.parametrize(
    "other", [{"topology": "cp2"}, {"precision": "bf16"}, {"shape": "16x16x1"}]
)
def test_variants_differ_in_any_part(bundle, made, other):
    write(bundle, made(**other))
    assert len(variants(bundle)) == 2


def test_same_variant_is_replaced(bundle, made):
    again = made(executables="a later executable")
    write(bundle, again)
    (variant,) = open_bundle(bundle).variants
    assert variant.config == again.config
    read_all(bundle)


def test_order_of_writing_does_not_change_the_digest(tmp_path, made):
    one, two = made(), made("320x320x9")
    write(tmp_path / "a", one)
    last = write(tmp_path / "a", two)
    assert write(tmp_path / "b", two, one) == last


def test_same_content_has_the_same_digest_and_bytes_elsewhere(tmp_path, made, monkeypatch):
    first = write(tmp_path / "a", made())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    assert write(Path("deep/b"), made()) == first
    assert files(tmp_path / "deep" / "b") == files(tmp_path / "a")


def test_writing_the_same_again_changes_nothing(bundle, made):
    before = files(bundle)
    write(bundle, made())
    assert files(bundle) == before


def test_blobs_are_readable_by_others_and_nothing_is_left_over(bundle):
    for file in bundle.rglob("*"):
        assert not file.name.startswith(".")
        assert not file.is_file() or file.stat().st_mode & 0o777 == 0o644


# --- damage -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, "middle", -1])
def test_flipped_byte_is_found_wherever_it_is(bundle, kind, place):
    """deepbeepmeep/Wan2GP #2367: a corrupted file gives seams, not an error."""
    file = blob_file(bundle, digests(bundle)[kind])
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if place == "middle" else place] ^= 1
    file.write_bytes(data)
    assert f"sha256:{file.name} is damaged" in refusal(bundle)


@pytest.mark.parametrize("kind", KINDS)
def test_longer_or_shorter_blob_is_found(bundle, kind):
    file = blob_file(bundle, digests(bundle)[kind])
    data = file.read_bytes()
    for damaged in (data + b"\n", data[:-1], b""):
        file.write_bytes(damaged)
        assert f"{len(damaged)} bytes; needs {len(data)}" in refusal(bundle)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_blob_is_named(bundle, kind):
    digest = digests(bundle)[kind]
    blob_file(bundle, digest).unlink()
    assert f"blob {digest} is missing" in refusal(bundle)


@pytest.mark.parametrize("kind", KINDS)
def test_symlinked_blob_is_refused_though_its_bytes_are_right(bundle, kind, tmp_path):
    file = blob_file(bundle, digests(bundle)[kind])
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert "is not a file but a link" in refusal(bundle)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_blob_that_is_a_folder_or_a_pipe_is_refused(bundle, kind, make):
    """A pipe would be waited for without end."""
    file = blob_file(bundle, digests(bundle)[kind])
    file.unlink()
    make(file)
    assert "is not a file" in refusal(bundle)


def test_compiling_again_replaces_a_link_by_the_blob(bundle, made, tmp_path):
    file = blob_file(bundle, digests(bundle)["executable"])
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    write(bundle, made())
    read_all(bundle)


@pytest.mark.parametrize("name", ["index.json", "oci-layout"])
def test_directory_without_its_two_files_is_no_bundle(bundle, name):
    (bundle / name).unlink()
    assert "not a bundle" in refusal(bundle)


def test_path_that_is_no_directory(tmp_path):
    assert "no such bundle" in refusal(tmp_path / "none")
    (tmp_path / "file").write_text("")
    assert "no such bundle" in refusal(tmp_path / "file")


@pytest.mark.parametrize("keep", [0, 1, 20, 100, -1])
def test_truncated_index_json(bundle, keep):
    data = (bundle / "index.json").read_bytes()
    (bundle / "index.json").write_bytes(data[:keep])
    assert "index.json: not JSON" in refusal(bundle)


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"null",
        b"{}",
        b'{"manifests": {}}',
        b'{"manifests": []}',
        b'{"manifests": [null]}',
        b'{"manifests": ["sha256"]}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
    ids=lambda data: repr(data[:20]),
)
def test_index_json_of_another_kind(bundle, data):
    (bundle / "index.json").write_bytes(data)
    assert "index.json: " in refusal(bundle)


def test_index_json_that_names_two_bundles_is_refused(bundle):
    top = json.loads((bundle / "index.json").read_bytes())
    top["manifests"] *= 2
    (bundle / "index.json").write_text(json.dumps(top))
    assert "names 2 bundles; needs exactly one" in refusal(bundle)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("digest", "sha256:../../../../etc/passwd"),
        ("digest", "../index.json"),
        ("digest", "/etc/passwd"),
        ("digest", "sha256:" + "A" * 64),
        ("digest", "sha256:" + "a" * 63),
        ("digest", "sha256:" + "a" * 64 + "\n"),
        ("digest", "sha512:" + "a" * 64),
        ("digest", None),
        ("size", -1),
        ("size", "12"),
        ("size", True),
        ("size", 1.0),
        ("mediaType", 3),
        ("annotations", {"a": 1}),
        ("annotations", ["a"]),
    ],
)
def test_damaged_descriptor_is_refused(bundle, key, value):
    top = json.loads((bundle / "index.json").read_bytes())
    top["manifests"][0][key] = value
    (bundle / "index.json").write_text(json.dumps(top))
    assert "a descriptor is damaged" in refusal(bundle)


def test_descriptor_that_says_too_many_bytes_is_not_read(bundle):
    top = json.loads((bundle / "index.json").read_bytes())
    top["manifests"][0]["size"] = store.MAX_JSON_BYTES + 1
    (bundle / "index.json").write_text(json.dumps(top))
    assert "bytes of JSON" in refusal(bundle)


def test_bundle_without_variants_is_refused(bundle):
    point_at(bundle, oci.index_bytes([], {store.FORMAT_ANNOTATION: str(FORMAT_VERSION)}))
    assert "no variants" in refusal(bundle)


def test_manifest_of_another_artifact_is_refused(bundle):
    config = oci.describe(oci.CONFIG, b"{}")
    data = oci.manifest_bytes(config, [], {}).replace(b"vnd.wanc.bundle", b"vnd.other.thing")
    put(bundle, data)
    point_at(
        bundle,
        oci.index_bytes(
            [oci.describe(oci.MANIFEST, data)], {store.FORMAT_ANNOTATION: str(FORMAT_VERSION)}
        ),
    )
    assert "artifactType 'application/vnd.other.thing.v1+json' is not wanc's" in refusal(bundle)


def test_config_that_names_a_blob_which_is_no_layer_is_refused(bundle):
    manifest = blob_file(bundle, digests(bundle)["manifest"]).read_bytes()
    value = json.loads(manifest)
    value["layers"] = value["layers"][1:]
    data = json.dumps(value).encode()
    put(bundle, data)
    annotations = {store.FORMAT_ANNOTATION: str(FORMAT_VERSION)}
    point_at(bundle, oci.index_bytes([oci.describe(oci.MANIFEST, data)], annotations))
    assert "its config names sha256:" in refusal(bundle)


def test_blob_of_a_wrong_size_in_the_config_is_refused(bundle, made):
    record = made().config.programs[0]
    with pytest.raises(BundleError, match="bytes; needs"):
        open_bundle(bundle).read(Blob(digest=record.stablehlo.digest, size_bytes=1))


# --- format version -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "rest",
    [b"", b',"manifests":7', b',"manifests":[{"digest":"../../etc/passwd"}]', b',"config":[]'],
)
def test_newer_format_is_refused_before_anything_else_is_read(bundle, rest):
    """Every manifest, config and layer is garbage; the version alone is looked at."""
    newer = FORMAT_VERSION + 1
    for file in (bundle / "blobs" / "sha256").iterdir():
        file.write_bytes(b"garbage")
    annotations = json.dumps({store.FORMAT_ANNOTATION: str(newer)}).encode()
    point_at(bundle, b'{"annotations":' + annotations + rest + b"}")
    message = refusal(bundle)
    assert f"bundle format {newer}; this wanc reads format {FORMAT_VERSION}" in message


@pytest.mark.parametrize("version", [None, 1, "", "one", "1.0", "-1", "１", "9" * 5000, ["1"]])
def test_index_without_a_format_version_is_no_wanc_bundle(bundle, version):
    annotations = {} if version is None else {store.FORMAT_ANNOTATION: version}
    point_at(bundle, json.dumps({"annotations": annotations, "manifests": []}).encode())
    assert "no format version" in refusal(bundle)


@pytest.mark.parametrize("annotations", [None, [], "1", 1])
def test_annotations_of_another_kind(bundle, annotations):
    point_at(bundle, json.dumps({"annotations": annotations}).encode())
    assert "no format version" in refusal(bundle)


def test_newer_format_is_not_written_over(bundle, made):
    annotations = {store.FORMAT_ANNOTATION: str(FORMAT_VERSION + 1)}
    point_at(bundle, oci.index_bytes([], annotations))
    before = files(bundle)
    with pytest.raises(BundleError, match="a newer wanc reads it"):
        write(bundle, made())
    with pytest.raises(BundleError, match="a newer wanc reads it"):
        check_destination(bundle)
    assert files(bundle) == before


# --- interrupted writing ------------------------------------------------------------------


class Killed(BaseException):
    """Stands for whatever ends a process."""


@pytest.fixture
def replaces(monkeypatch):
    """Counts renames, and lets the n-th one fail with an error."""
    state = {"count": 0, "fail_at": None, "error": Killed}
    rename = Path.replace

    def counted(self, target):
        state["count"] += 1
        if state["count"] == state["fail_at"]:
            raise state["error"]
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", counted)
    return state


def fails_at(last: Path):
    """A rename that fails at one name."""
    rename = Path.replace

    def replace(self, target):
        if target == last:
            raise Killed
        return rename(self, target)

    return replace


def count_of_replaces(replaces, tmp_path, made) -> int:
    """Renames of adding a second variant to a bundle."""
    write(tmp_path / "counted", made())
    replaces["count"] = 0
    write(tmp_path / "counted", made("320x320x9"))
    return replaces["count"]


@pytest.mark.parametrize("error", [Killed, OSError(28, "No space left on device")])
def test_interrupted_write_leaves_the_old_bundle(bundle, made, replaces, tmp_path, error):
    old, steps = open_bundle(bundle), count_of_replaces(replaces, tmp_path, made)
    assert steps > 10
    for step in range(1, steps + 1):
        path = shutil.copytree(bundle, tmp_path / f"failed at {step}")
        replaces.update(count=0, fail_at=step, error=error)
        with pytest.raises(Killed if error is Killed else RunError):
            write(path, made("320x320x9"))
        replaces["fail_at"] = None
        assert replace(open_bundle(path), path=bundle) == old
        read_all(path)
        assert not [file for file in path.rglob("*") if file.name.startswith(".")]
        write(path, made("320x320x9"))
        assert len(variants(path)) == 2


def test_interrupted_first_write_leaves_no_bundle_and_can_be_repeated(tmp_path, made, replaces):
    write(tmp_path / "whole", made())
    steps = replaces["count"]
    for step in range(1, steps + 1):
        path = tmp_path / f"killed at {step}"
        replaces.update(count=0, fail_at=step)
        with pytest.raises(Killed):
            write(path, made())
        replaces["fail_at"] = None
        assert not (path / "index.json").exists()
        check_destination(path)
        write(path, made())
        assert files(path) == files(tmp_path / "whole")


def test_unfinished_files_of_a_killed_process_are_not_in_the_way(tmp_path, made, monkeypatch):
    """Nothing is cleaned up after SIGKILL."""
    write(tmp_path / "whole", made())
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        patched.setattr(Path, "replace", fails_at(tmp_path / "killed" / "index.json"))
        with pytest.raises(Killed):
            write(tmp_path / "killed", made())
    assert len([file for file in (tmp_path / "killed").iterdir() if file.is_file()]) > 1
    check_destination(tmp_path / "killed")
    write(tmp_path / "killed", made())
    read_all(tmp_path / "killed")


def test_disk_error_names_the_bundle(bundle, made, replaces):
    replaces.update(count=0, fail_at=1, error=OSError(28, "No space left on device"))
    with pytest.raises(RunError, match=f"cannot write the bundle {bundle}.*No space left"):
        write(bundle, made("320x320x9"))


# --- where a bundle may be written --------------------------------------------------------


def test_new_and_empty_and_nested_destinations_are_fine(tmp_path):
    check_destination(tmp_path / "new")
    check_destination(tmp_path / "a" / "b" / "c")
    (tmp_path / "empty").mkdir()
    check_destination(tmp_path / "empty")
    assert [file.name for file in tmp_path.iterdir()] == ["empty"]


def test_relative_destination(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_destination(Path("bundles/store/tiny"))


def test_bundle_and_what_a_killed_compile_leaves_are_fine(bundle, tmp_path):
    check_destination(bundle)
    left = tmp_path / "left"
    (left / "blobs" / "sha256").mkdir(parents=True)
    (left / "oci-layout").write_bytes(oci.LAYOUT)
    (left / ".new-abcd").write_bytes(b"{")
    check_destination(left)


def test_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is a file; a bundle is a directory"):
        check_destination(tmp_path / "file")


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_place_below_a_file_is_refused_before_any_work(tmp_path, mode):
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(mode)
    with pytest.raises(RunError, match="cannot write the bundle"):
        check_destination(tmp_path / "file" / "bundle")


def test_other_things_in_the_directory_are_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(RunError, match="neither empty nor a bundle; choose another -o"):
        check_destination(tmp_path)


def test_damaged_bundle_is_not_added_to(bundle, made):
    blob_file(bundle, digests(bundle)["config"]).write_bytes(b"x")
    with pytest.raises(BundleError):
        check_destination(bundle)
    with pytest.raises(BundleError):
        write(bundle, made("320x320x9"))


def test_place_that_takes_no_file_is_refused(tmp_path, monkeypatch):
    """Permissions alone do not say it: root may do all, and /proc takes nothing."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    with pytest.raises(RunError, match=f"{tmp_path} takes no file: No space") as caught:
        check_destination(tmp_path / "a" / "b")
    assert caught.value.exit_code == 6

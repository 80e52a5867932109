"""Cases from the field about files: damaged bundles, and bundles of another version.

Each test names the public report that it retells. Bundles are of real plans; their executables have
the right interface and no code, for nothing here is run.
"""

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.sound import Editor, edit, faults, write_sound
from tests.unit.conftest import variant_of
from tests.unit.test_check import runnable
from wanc.bundle import oci
from wanc.bundle.config import FORMAT_VERSION
from wanc.bundle.store import FORMAT_ANNOTATION, open_bundle
from wanc.cli import main
from wanc.run import session


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of one variant of the tiny model, on two ranks. Read only: it is shared."""
    here = runnable(variant_of("208x128x5", "cp2"), jaxlib=version("jaxlib"))
    return write_sound(tmp_path_factory.mktemp("field") / "bundle", here.config)


@pytest.fixture
def bundle(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "bundle"))


def told(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and all that a command says."""
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


def flip(file: Path) -> None:
    """One bit of the byte in its middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_one_flipped_byte_of_any_blob_is_found(sound, tmp_path, capsys):
    """deepbeepmeep/Wan2GP #2367: a corrupted file is read, and the video has seams."""
    names = sorted(file.name for file in (sound / "blobs" / "sha256").iterdir())
    assert len(names) == 14 + 3  # programs twice; index, manifest, config
    for name in names:
        bundle = Path(shutil.copytree(sound, tmp_path / name))
        flip(bundle / "blobs" / "sha256" / name)
        code, said = told(f"verify {bundle}", capsys)
        assert (code, name in said) == (5, True), said


def test_one_flipped_byte_of_what_is_run_ends_a_run_before_weights_are_read(
    bundle, tiny_checkpoint, tmp_path, capsys, monkeypatch
):
    """deepbeepmeep/Wan2GP #2367. StableHLO is not run, and not read by a run."""
    monkeypatch.setattr(session, "read_shards", lambda *_: pytest.fail("weights were read"))
    (entry,) = open_bundle(bundle).variants
    executables = [record.executable.digest for record in entry.config.programs]
    for digest in (executables[0], executables[-1], entry.manifest.digest):
        damaged = Path(shutil.copytree(bundle, tmp_path / digest[7:]))
        flip(damaged / "blobs" / "sha256" / digest[7:])
        line = f"run --bundle {damaged} --weights {tiny_checkpoint} --prompt p -o {tmp_path}/v.mp4"
        code, said = told(line, capsys)
        assert (code, "is damaged" in said, digest in said) == (5, True, True), said


@pytest.mark.parametrize("place", ["index", "config"])
def test_a_newer_format_is_refused_by_every_command_naming_both_numbers(
    bundle, tiny_checkpoint, capsys, place
):
    """aws-neuron-sdk #820, optimum-neuron #114, executorch PR #22114: newer artifacts misread."""

    def newer(editor: Editor) -> None:
        if place == "index":
            editor.index["annotations"][FORMAT_ANNOTATION] = str(FORMAT_VERSION + 1)
            editor.manifest["layers"] = "not what this version expects"
        else:
            editor.config["format_version"] = FORMAT_VERSION + 1
            editor.config["programs"] = "not what this version expects"

    edit(bundle, newer)
    numbers = f"bundle format {FORMAT_VERSION + 1}; this wanc reads format {FORMAT_VERSION}"
    weights = f"--weights {tiny_checkpoint}"
    for line in (
        f"verify {bundle}",
        f"inspect {bundle}",
        f"check {bundle}",
        f"diff {bundle} {bundle}",
        f"gc {bundle} --delete",
        f"compile --from {bundle} --target cpu",
        f"run --bundle {bundle} {weights} --prompt p -o {bundle}/v.mp4",
    ):
        code, said = told(line, capsys)
        assert (code, numbers in " ".join(said.split())) == (5, True), f"{line}: {said}"


def test_tiles_with_a_gap_between_them_are_found(tmp_path):
    """kijai/ComfyUI-WanVideoWrapper PR #353: a stride larger than the tile."""
    bundle = write_sound(tmp_path / "bundle", variant_of("320x320x5").config)

    def spread(editor: Editor) -> None:
        tiles = editor.config["tiles"]["tiles"]
        assert len(tiles) == 4
        for tile in tiles:
            tile["columns"] //= 4

    edit(bundle, spread)
    assert any(kind == "plan" and "its tiles" in what for kind, _, what in faults(bundle))


def test_executables_for_another_number_of_ranks_are_found(bundle, tmp_path):
    """aws-neuron/aws-neuron-sdk #1030: world size differs; an opaque runtime error."""
    other = write_sound(tmp_path / "other", variant_of("208x128x5", "cp4").config)
    theirs = Editor(other).config["programs"]

    def exchange(editor: Editor) -> None:
        for record, their in zip(editor.config["programs"], theirs, strict=True):
            if record["program"]["replica_count"] == 2:
                digest = their["executable"]["digest"].removeprefix("sha256:")
                data = (other / "blobs" / "sha256" / digest).read_bytes()
                record["executable"] = editor.layer(data)

    edit(bundle, exchange)
    found = [what for kind, _, what in faults(bundle) if kind == "executable"]
    assert len(found) == 5
    assert all("4 replicas, and the program has 2" in what for what in found)


def test_what_is_cut_short_is_found(bundle, capsys):
    """optimum-neuron #114 in kind: half an artifact, of a download that was ended."""
    for file in sorted((bundle / "blobs" / "sha256").iterdir()):
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        code, said = told(f"verify {bundle}", capsys)
        assert (code, f"has {len(whole) // 2} bytes" in said) == (5, True), said
        file.write_bytes(whole)
    index = bundle / "index.json"
    index.write_bytes(index.read_bytes()[:-20])
    assert told(f"verify {bundle}", capsys)[0] == 5


def test_what_is_attached_by_others_is_kept(bundle):
    """A scanner's or a signer's entry in index.json stays when a variant is added."""
    editor = Editor(bundle)
    manifest = {"schemaVersion": 2, "mediaType": oci.MANIFEST, "artifactType": "a/scan"}
    manifest |= {"config": {"mediaType": oci.EMPTY} | editor.put(oci.EMPTY_BYTES)}
    manifest |= {"layers": [{"mediaType": "text/plain"} | editor.put(b"no findings")]}
    entry = {"mediaType": oci.MANIFEST} | editor.put(json.dumps(manifest).encode())
    editor.top["manifests"].append(entry)
    editor.save()
    write_sound(bundle, variant_of("320x320x5").config)
    assert entry in json.loads((bundle / "index.json").read_bytes())["manifests"]

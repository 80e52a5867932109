"""wanc verify on what is really compiled: sound, and executables that are exchanged are told."""

import gzip
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.compiled import tiny_plan
from tests.neuron_bundles import Twins, make_twins
from tests.sound import Editor, blob_file, edit, faults, interface_of, verified
from tests.unit.test_verify_fuzz import outside, watched
from wanc.bundle.neff import HEADER_BYTES
from wanc.bundle.pieces import pieces_of
from wanc.bundle.store import open_bundle
from wanc.verify.executables import misfits, uses_of

SHAPE = "208x128x5"

of_twins = pytest.mark.xdist_group("twins-verify")
"""Of tests with the same twins, which are made once."""


@pytest.fixture
def bundle(wanc: Any, tmp_path: Path) -> Path:
    """A compiled bundle of two variants, which have programs of their own and some in common."""
    path = shutil.copytree(wanc.bundle(SHAPE, "tp1"), tmp_path / "bundle")
    wanc.compile([tiny_plan(SHAPE, "tp2")], path)
    return path


@pytest.fixture(scope="module")
def twins(wanc: Any, shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """Bundles for trn2 and for CPUs; copied, never changed."""
    folder = tmp_path_factory.mktemp("twins")
    return make_twins(folder, wanc.checkpoint, SHAPE, "tp2", cache=shared_folder / "twins")


def executables(path: Path, topology: str) -> dict[str, Any]:
    """Each program's record of its executable, as the config spells it."""
    for number in range(len(open_bundle(path).variants)):
        editor = Editor(path, number)
        if editor.listed["annotations"]["vnd.wanc.topology"] == topology:
            records = editor.config["programs"]
            return {record["program"]["name"]: record["executable"] for record in records}
    raise LookupError(topology)


def give(executables: dict[str, Any]) -> Callable[[Editor], None]:
    """Give programs other executables, with layers that agree."""

    def change(editor: Editor) -> None:
        becomes = {}
        for record in editor.config["programs"]:
            old = record["executable"]
            record["executable"] = executables.get(record["program"]["name"], old)
            becomes[old["digest"]] = record["executable"]
        for layer in editor.manifest["layers"]:
            if new := becomes.get(layer["digest"]):
                layer.update(digest=new["digest"], size=new["size_bytes"])
        layers = {layer["digest"]: layer for layer in editor.manifest["layers"]}
        editor.manifest["layers"] = list(layers.values())

    return change


def test_what_is_compiled_is_sound(wanc: Any) -> None:
    path = wanc.bundle(SHAPE, "tp1")
    seen = verified(path)
    assert seen.findings == ()
    assert (seen.bundle, seen.variants) == (open_bundle(path).digest, 1)


def test_variants_that_share_blobs_are_sound(bundle: Path) -> None:
    """What the second write replaced is loose: the first index."""
    seen = verified(bundle)
    assert seen.is_sound
    assert [finding.kind for finding in seen.findings] == ["orphan"]
    stored = list((bundle / "blobs" / "sha256").iterdir())
    assert (seen.variants, seen.blobs) == (2, len(stored) - 1)


@pytest.mark.parametrize("topology", ["tp1", "tp2"])
def test_interfaces_are_those_of_the_programs(bundle: Path, topology: str) -> None:
    """Not by the check itself: every number of every interface."""
    opened = open_bundle(bundle)
    (config,) = [v.config for v in opened.variants if str(v.config.variant.topology) == topology]
    for record in config.programs:
        assert record.executable
        seen, program = interface_of(opened.read(record.executable)), record.program
        assert seen.name == program.kind
        assert seen.replicas == program.replica_count
        assert seen.arguments == tuple((t.dtype, t.shape) for t in program.arguments)
        assert seen.results == tuple((t.dtype, t.shape) for t in program.outputs)
    replicas = {record.program.replica_count for record in config.programs}
    assert replicas == ({1} if topology == "tp1" else {1, 2})


def test_executables_of_another_variant_are_told(bundle: Path) -> None:
    """Every digest and reference is right; only the executables can tell."""
    one, two = executables(bundle, "tp1"), executables(bundle, "tp2")
    others = {name for name in one if one[name] != two[name]}
    assert {"dit_blocks", "dit_head"} <= others < one.keys()
    for number in (0, 1):
        topology = Editor(bundle, number).listed["annotations"]["vnd.wanc.topology"]
        edit(bundle, give(two if topology == "tp1" else one), number)
    found = faults(bundle)
    assert {kind for kind, _, _ in found} == {"executable"}
    assert sorted(where for _, where, _ in found) == sorted(
        f"variant {number}, program {name}" for number in (1, 2) for name in others
    )
    assert all("its interface is not the program's: " in what for _, _, what in found)
    assert any("2 replicas, and the program has 1" in what for _, _, what in found)


def test_programs_that_are_exchanged_are_told(bundle: Path) -> None:
    one = executables(bundle, "tp1")
    swapped = {"dit_embed": one["dit_head"], "dit_head": one["dit_embed"]}
    variant = Editor(bundle).listed["annotations"]["vnd.wanc.topology"] != "tp1"
    edit(bundle, give(swapped), int(variant))
    found = faults(bundle)
    assert [(kind, where.partition(", ")[2]) for kind, where, _ in found] == [
        ("executable", "program dit_embed"),
        ("executable", "program dit_head"),
    ]


@of_twins
def test_a_bundle_for_trainium_is_sound(twins: Twins, tmp_path: Path) -> None:
    for path in (twins.trn2, twins.cpu):
        assert verified(path).findings == ()
    neffs, code = executables(twins.trn2, "tp2"), executables(twins.cpu, "tp2")
    trn2 = shutil.copytree(twins.trn2, tmp_path / "trn2")
    shutil.copytree(twins.cpu / "blobs", trn2 / "blobs", dirs_exist_ok=True)
    edit(trn2, give({"dit_head": code["dit_head"], "dit_embed": neffs["dit_blocks"]}))
    found = faults(trn2)
    assert [(kind, where) for kind, where, _ in found] == [
        ("executable", "variant 1, program dit_embed"),
        ("executable", "variant 1, program dit_head"),
    ]
    assert "its interface is not that of program dit_embed" in found[0][2]
    assert "not a NEFF, or a damaged one" in found[1][2]


# --- changed inside, with every digest right ------------------------------------------------------


def changed(data: bytes, chance: random.Random) -> bytes:
    """Bytes of an executable with some changed: anywhere, or where its container begins or ends."""
    made = bytearray(data)
    edge = min(600, len(made))
    for _ in range(chance.randint(1, 6)):
        within = chance.choice([range(edge), range(len(made) - edge, len(made)), range(len(made))])
        made[chance.choice(within)] = chance.randrange(256)
    cut = chance.choice([len(made), len(made), len(made), chance.randrange(len(made))])
    return bytes(made[:cut])


def changed_neff(data: bytes, chance: random.Random) -> bytes:
    """A NEFF with bytes changed in its file, or in the tar that is gzipped there."""
    if chance.random() < 0.3:
        return changed(data, chance)
    packed = gzip.compress(changed(gzip.decompress(data[HEADER_BYTES:]), chance), 1)
    header = bytearray(data[:HEADER_BYTES])
    header[16:24] = len(packed).to_bytes(8, "little")
    return bytes(header) + packed


CHANGES = {"cpu": changed, "trn2": changed_neff}


@of_twins
@pytest.mark.soak
@pytest.mark.parametrize("target", CHANGES)
def test_a_changed_executable_is_a_fault_or_has_its_interface(
    twins: Twins, target: str, repetitions: Callable[[int, int], int]
) -> None:
    """Never anything else, as an error of Python's; code bytes have nothing to be judged by."""
    bundle = open_bundle(getattr(twins, target))
    config, chance = bundle.variants[0].config, random.Random(5)
    kept = told = 0
    for digest, use in uses_of("v", config):
        if use.media_type.endswith("stablehlo.v1"):
            continue
        data = blob_file(bundle.path, digest).read_bytes()
        assert misfits(pieces_of(data), len(data), [use]) == []
        for _ in range(repetitions(20, 2_000)):
            other = CHANGES[target](data, chance)
            found = misfits(pieces_of(other), len(other), [use])
            assert [where for where, _ in found] in ([], [use.where])
            kept, told = kept + (not found), told + bool(found)
    assert kept
    assert told


@of_twins
@pytest.mark.soak
@pytest.mark.parametrize("target", CHANGES)
def test_a_bundle_with_a_changed_executable_reads_nothing_outside(
    twins: Twins, tmp_path: Path, target: str, repetitions: Callable[[int, int], int]
) -> None:
    whole, chance = getattr(twins, target), random.Random(7)
    for number in range(repetitions(5, 200)):
        path = shutil.copytree(whole, tmp_path / "changed")
        editor = Editor(path)
        program = chance.randrange(len(editor.config["programs"]))
        name = editor.config["programs"][program]["executable"]["digest"]
        data = CHANGES[target](blob_file(path, name).read_bytes(), chance)
        editor.replace(program, "executable", data)
        editor.save()
        with watched() as opened:
            found = faults(path)
        assert outside(opened, path) == [], number
        assert {kind for kind, _, _ in found} <= {"executable"}, number
        shutil.rmtree(path)

"""wanc verify on what is really compiled: sound, and executables that are exchanged are told."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.compiled import tiny_plan
from tests.neuron_bundles import make_twins
from tests.sound import Editor, edit, faults, verified
from wanc.bundle.store import open_bundle
from wanc.bundle.xla_interface import interface_of

SHAPE = "208x128x5"


@pytest.fixture
def bundle(wanc: Any, tmp_path: Path) -> Path:
    """A compiled bundle of two variants, which have programs of their own and some in common."""
    path = shutil.copytree(wanc.bundle(SHAPE, "tp1"), tmp_path / "bundle")
    wanc.compile([tiny_plan(SHAPE, "tp2")], path)
    return path


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


def test_a_bundle_for_trainium_is_sound(wanc: Any, tmp_path: Path) -> None:
    twins = make_twins(tmp_path, wanc.checkpoint, SHAPE, "tp2")
    for path in (twins.trn2, twins.cpu):
        assert verified(path).findings == ()
    neffs, code = executables(twins.trn2, "tp2"), executables(twins.cpu, "tp2")
    shutil.copytree(twins.cpu / "blobs", twins.trn2 / "blobs", dirs_exist_ok=True)
    edit(twins.trn2, give({"dit_head": code["dit_head"], "dit_embed": neffs["dit_blocks"]}))
    found = faults(twins.trn2)
    assert [(kind, where) for kind, where, _ in found] == [
        ("executable", "variant 1, program dit_embed"),
        ("executable", "variant 1, program dit_head"),
    ]
    assert "its interface is not that of program dit_embed" in found[0][2]
    assert "not a NEFF, or a damaged one" in found[1][2]

"""A bundle that was only lowered, finished from its StableHLO elsewhere and for another target."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.compiled import Wanc, tiny_plan
from tests.doubles.neuron import install_neuronx_cc
from wanc.bundle.neff import read_neff
from wanc.bundle.store import NewVariant, open_bundle, write_bundle
from wanc.cli import main
from wanc.compile import finish_bundle
from wanc.diff.compare import compare
from wanc.diff.side import side_of
from wanc.errors import BundleError, RefusedError
from wanc.progress import Silent
from wanc.targets.cpu import CpuTarget

SHAPE, TOPOLOGY = "208x128x5", "tp2-cp2-cfg2"

WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        absent = ("torch", "jax", "diffusers", "transformers", "wanc.model", "wanc.trace")
        if any(name == start or name.startswith(start + ".") for start in absent):
            raise ModuleNotFoundError(f"no {name} on this host", name=name)

sys.meta_path.insert(0, Refuse())
from wanc.cli import main
main(sys.argv[1:])
"""


def compile_line(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["compile", *map(str, arguments)])
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def lowered(wanc: Wanc, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trn2 bundle, made where there is no neuronx-cc."""
    bundle = tmp_path_factory.mktemp("lowered") / "trn2"
    request = ["--model", wanc.checkpoint, "--shape", SHAPE, "--topology", TOPOLOGY]
    stop = ["--target", "trn2", "--precision", "fp32", "--stop-after", "lower", "-o", bundle]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(bundle.parent / "cache"))
        assert compile_line(*request, *stop) == 0
    return bundle


def video(wanc: Wanc, bundle: Path, folder: Path) -> bytes:
    output = folder / f"{bundle.name}.mp4"
    wanc.generate(bundle, output, steps=2)
    return output.read_bytes()


def test_a_lowered_bundle_says_so(wanc: Wanc, lowered: Path, capsys: Any) -> None:
    (variant,) = open_bundle(lowered).variants
    assert variant.config.stage == "lower"
    assert variant.config.requires == {"target": "trn2"}
    assert variant.manifest.annotations["vnd.wanc.stage"] == "lower"
    with pytest.raises(SystemExit):
        main(["inspect", str(lowered)])
    assert "lowered" in capsys.readouterr().out


def test_finished_for_cpu_without_torch_it_gives_the_cpu_bundle_s_video(
    wanc: Wanc, lowered: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c", WITHOUT_TORCH, "compile", "--from", lowered),
            *("--target", "cpu", "-o", tmp_path / "finished"),
        ],
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    plan = tiny_plan(SHAPE, TOPOLOGY, placement="trn2-torus")
    wanc.compile([plan], tmp_path / "direct")
    finished, direct = (open_bundle(tmp_path / name) for name in ("finished", "direct"))
    assert finished.variants[0].config == direct.variants[0].config
    assert finished.digest == direct.digest
    assert video(wanc, tmp_path / "finished", tmp_path) == video(
        wanc, tmp_path / "direct", tmp_path
    )


def test_finished_for_trn2_with_the_double_of_its_compiler(
    lowered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = install_neuronx_cc(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{compiler.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert compile_line("--from", lowered, "-o", tmp_path / "b") == 0
    bundle = open_bundle(tmp_path / "b")
    (variant,) = bundle.variants
    assert variant.config.stage == "compile"
    for record in variant.config.programs:
        assert record.executable
        neff = read_neff(bundle.read(record.executable), record.program.name)
        assert len(neff.inputs) == len(record.program.arguments)
    compared = compare(side_of(str(lowered)), side_of(str(tmp_path / "b")))
    assert {difference.kind for difference in compared.differences} == {"stage"}


def test_complete_variants_stay_as_they_are(
    wanc: Wanc, lowered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """On a host without the cache, and with a compiler for one of the targets only."""
    shutil.copytree(lowered, tmp_path / "b")
    wanc.compile([tiny_plan(SHAPE, TOPOLOGY, placement="trn2-torus")], tmp_path / "b")
    compiler = install_neuronx_cc(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{compiler.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(CpuTarget, "compile", lambda *_, **__: pytest.fail("compiled again"))
    before = {v.config.variant.target: v.config for v in open_bundle(tmp_path / "b").variants}
    assert compile_line("--from", tmp_path / "b", "-o", tmp_path / "c") == 0
    after = {v.config.variant.target: v.config for v in open_bundle(tmp_path / "c").variants}
    assert after["cpu"] == before["cpu"]
    assert after["trn2"].stage == "compile"
    assert compile_line("--from", tmp_path / "c") == 0  # again, and into itself
    assert "every variant is complete already" in capsys.readouterr().err
    assert len(open_bundle(tmp_path / "c").variants) == 2


def test_a_cpu_bundle_goes_back_to_trn2(
    wanc: Wanc, lowered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = install_neuronx_cc(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{compiler.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plan = tiny_plan(SHAPE, TOPOLOGY, placement="trn2-torus")
    wanc.compile([plan], tmp_path / "b")
    assert compile_line("--from", tmp_path / "b", "--target", "trn2") == 0
    by_target = {v.config.variant.target: v.config for v in open_bundle(tmp_path / "b").variants}
    assert set(by_target) == {"cpu", "trn2"}
    assert all(config.stage == "compile" for config in by_target.values())
    (before,) = open_bundle(lowered).variants
    digests = [
        [record.stablehlo for record in config.programs]
        for config in (*by_target.values(), before.config)
    ]
    assert digests[0] == digests[1] == digests[2]


def test_options_of_each_target_go_with_a_bundle_of_both(
    wanc: Wanc, lowered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = install_neuronx_cc(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{compiler.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(lowered, tmp_path / "b")
    wanc.compile([tiny_plan(SHAPE, TOPOLOGY)], tmp_path / "b")
    options = ["--isa", "x86-64-v3", "--timeout", "60", "--neuron-flags", "--verbose=info"]
    assert compile_line("--from", tmp_path / "b", *options) == 0
    for variant in open_bundle(tmp_path / "b").variants:
        keys = [record.compile_key for record in variant.config.programs]
        flagged = [("--verbose=info" in key["flags"]) for key in keys]
        assert set(flagged) == {variant.config.variant.target == "trn2"}


def test_numbers_that_no_model_has_are_a_damaged_bundle(
    lowered: Path, tmp_path: Path, wanc: Wanc
) -> None:
    opened = open_bundle(lowered)
    (entry,) = opened.variants
    config = entry.config
    for variant in (
        replace(config.variant, placement="trn2-torus-x"),
        replace(config.variant, topology=replace(config.variant.topology, cp=0)),
    ):
        wrong = replace(entry, config=replace(config, variant=variant))
        with pytest.raises(BundleError, match="numbers that no model has"):
            finish_bundle(
                replace(opened, variants=(wrong,)),
                lambda _: pytest.fail("a target was made"),
                tmp_path / "c",
                cache=wanc.cache,
                progress=Silent(),
            )


def test_a_linear_bundle_is_refused_by_trn2(
    wanc: Wanc, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its groups are not those of the torus: the groups are in the programs' text."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wanc.compile([tiny_plan(SHAPE, "tp8-cp2")], tmp_path / "b")
    assert compile_line("--from", tmp_path / "b", "--target", "trn2") == 3
    assert "trn2-torus" in capsys.readouterr().err
    assert open_bundle(tmp_path / "b").variants[0].config.variant.target == "cpu"


def test_a_planned_bundle_cannot_be_finished(wanc: Wanc, lowered: Path, tmp_path: Path) -> None:
    (variant,) = open_bundle(lowered).variants
    programs = tuple(replace(record, stablehlo=None) for record in variant.config.programs)
    config = replace(variant.config, programs=programs)
    new = NewVariant(config=config, executable_type="none")
    write_bundle(tmp_path / "b", [new], {}.__getitem__)
    with pytest.raises(BundleError, match=r"text_encoder of t2v .* has no StableHLO"):
        finish_bundle(
            open_bundle(tmp_path / "b"),
            lambda _: CpuTarget(),
            tmp_path / "c",
            wanted="cpu",
            cache=wanc.cache,
            progress=Silent(),
        )


def test_a_damaged_artifact_is_never_compiled(wanc: Wanc, lowered: Path, tmp_path: Path) -> None:
    shutil.copytree(lowered, tmp_path / "b")
    opened = open_bundle(tmp_path / "b")
    blob = opened.variants[0].config.programs[0].stablehlo
    assert blob
    file = tmp_path / "b" / "blobs" / "sha256" / blob.digest.removeprefix("sha256:")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(BundleError, match="is damaged"):
        finish_bundle(
            opened,
            lambda _: CpuTarget(),
            tmp_path / "c",
            wanted="cpu",
            cache=wanc.cache,
            progress=Silent(),
        )
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "extra",
    [
        *(["--shape", SHAPE], ["--max-ranks", "8"], ["--stop-after", "lower"], ["--lock"]),
        *(["set.yaml"], ["--target", "cpu", "--timeout", "60"]),
    ],
    ids=str,
)
def test_all_but_the_target_comes_from_the_bundle(lowered: Path, extra: list[str]) -> None:
    assert compile_line("--from", lowered, *extra) == 2


def test_an_unknown_target_is_refused(lowered: Path) -> None:
    assert compile_line("--from", lowered, "--target", "trn9") == RefusedError.exit_code

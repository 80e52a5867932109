"""Bundles for trn2 by the double of neuronx-cc, and their twins for CPUs, by which they run."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.doubles.neuron import Nrtpy, install_neuronx_cc, install_nrtpy
from wanc.bundle.store import open_bundle
from wanc.cli import main


@dataclass(frozen=True)
class Twins:
    """One request, compiled for trn2 and from the same StableHLO for CPUs."""

    trn2: Path
    cpu: Path

    @property
    def executables(self) -> dict[str, Path]:
        """The CPU's executable of each NEFF, by the NEFF's digest."""
        ours, theirs = (open_bundle(path).variants[0].config for path in (self.trn2, self.cpu))
        found = {}
        for one, two in zip(ours.programs, theirs.programs, strict=True):
            assert one.stablehlo == two.stablehlo
            assert one.executable
            assert two.executable
            digest = two.executable.digest.removeprefix("sha256:")
            found[one.executable.digest] = self.cpu / "blobs" / "sha256" / digest
        return found

    def nrtpy(self, folder: Path, *acts: str) -> Nrtpy:
        """The double, with what it needs to run the bundle."""
        return install_nrtpy(folder, self.executables, *acts)


def make_twins(folder: Path, checkpoint: Path, shape: str, topology: str, *, cache: Path) -> Twins:
    """Compile a checkpoint's model for both; what is in the cache's folder is not made again."""
    twins = Twins(folder / "trn2", folder / "cpu")
    compiler = install_neuronx_cc(folder / "bin")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{compiler.parent}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("XDG_CACHE_HOME", str(cache))
        request = ["--model", checkpoint, "--shape", shape, "--topology", topology]
        _compile(*request, "--precision", "fp32", "--target", "trn2", "-o", twins.trn2)
        _compile("--from", twins.trn2, "--target", "cpu", "-o", twins.cpu)
    return twins


def _compile(*arguments: object) -> None:
    with pytest.raises(SystemExit) as end:
        main(["compile", *map(str, arguments)])
    assert not end.value.code

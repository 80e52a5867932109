"""Bundles for trn2 over several processes, with the doubles of compiler and runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compiled import Wanc
from tests.cpu.test_parity import WHOLE
from tests.neuron_bundles import Twins, make_twins
from wanc.errors import RunError
from wanc.run.video import read_frames

pytestmark = pytest.mark.xdist_group("twins-processes")  # they are made once

TOPOLOGY = "tp2-cp2"


@pytest.fixture(scope="module")
def twins(wanc: Wanc, shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    folder = tmp_path_factory.mktemp("twins")
    return make_twins(folder, wanc.checkpoint, WHOLE, TOPOLOGY, cache=shared_folder / "twins")


@pytest.fixture(scope="module")
def on_the_cpu(wanc: Wanc, twins: Twins, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The record and frames of the CPU's twin: files name their bundles, and so differ."""
    video = tmp_path_factory.mktemp("cpu") / "v.mp4"
    return wanc.generate(twins.cpu, video, steps=2), read_frames(video, "mp4")


@pytest.mark.parametrize("processes", [None, 2])
def test_trn2_gives_the_video_of_the_cpu(
    wanc: Wanc, twins: Twins, on_the_cpu: Any, tmp_path: Path, monkeypatch: Any, processes: Any
) -> None:
    """A process for each rank is the default."""
    record, video = on_the_cpu
    nrtpy = twins.nrtpy(tmp_path / "nrtpy")
    with nrtpy.imported():
        monkeypatch.setenv("PYTHONPATH", nrtpy.environment["PYTHONPATH"])
        made = wanc.generate(twins.trn2, tmp_path / "v.mp4", processes=processes, steps=2)
    assert made["latents"] == record["latents"]
    np.testing.assert_array_equal(read_frames(tmp_path / "v.mp4", "mp4"), video)
    assert len(made["processes"]) == (processes or 4)
    assert made["compile_count"] == 0
    visible = [call["environment"]["NEURON_RT_VISIBLE_CORES"] for call in nrtpy.calls("start")]
    assert sorted(visible) == (["0", "1", "2", "3"] if processes is None else ["0,1", "2,3"])


def test_a_core_that_fails_ends_all_processes(
    wanc: Wanc, twins: Twins, tmp_path: Path, monkeypatch: Any
) -> None:
    nrtpy = twins.nrtpy(tmp_path / "nrtpy", "execute:error@3")
    with nrtpy.imported():
        monkeypatch.setenv("PYTHONPATH", nrtpy.environment["PYTHONPATH"])
        with pytest.raises(RunError, match=r"process 3 \(rank 3\) in stage .*rank 3, core 3"):
            wanc.generate(twins.trn2, tmp_path / "v.mp4", steps=2)
    assert not list(tmp_path.glob("*.mp4"))

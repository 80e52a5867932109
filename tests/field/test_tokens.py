"""Cases from the field about tokens split over ranks: uneven splits, pads, groups of ranks.

Each test names the public report that it retells.
"""

import math

import numpy as np
import pytest
import torch

from tests.cpu.test_parity import MASKED, TOPOLOGY_TOLERANCE, WHOLE, difference
from wanc.cli import main

pytestmark = pytest.mark.xdist_group("field-run")


def test_three_latent_frames_on_two_ranks(wanc):
    """hao-ai-lab/FastVideo #676: latent frames that the sequence degree does not divide."""
    two, one = (wanc.latents(wanc.denoiser(MASKED, topology)) for topology in ("cp2", "tp1"))
    assert two.shape[2] == 3
    assert difference(two, one) < TOPOLOGY_TOLERANCE


def test_3645_tokens_on_eight_ranks(wanc):
    """vllm-omni-neuron (source) refuses 432x240x33 at cp8. One step of it."""
    eight, one = (
        wanc.latents(wanc.denoiser("432x240x33", topology), steps=1) for topology in ("cp8", "tp1")
    )
    assert difference(eight, one) < TOPOLOGY_TOLERANCE


@pytest.mark.parametrize("fill", [1e30, math.nan])
@pytest.mark.parametrize(
    ("shape", "topology"),
    [
        (MASKED, "cp2"),  # a pad among the keys
        (WHOLE, "tp4-cp8"),  # pads at each chunk's tail
    ],
)
def test_nothing_attends_to_pads(wanc, monkeypatch, shape, topology, fill):
    """vllm-project/vllm-omni (source): ``mask_sp_padding`` is off by default."""
    bundle = wanc.denoiser(shape, topology)
    expected = wanc.latents(bundle, steps=2)
    filled = []

    def padded(array, one):
        missing = 0 if one.pad_to is None else one.pad_to - array.shape[one.dim]
        pads = [(0, missing if dim == one.dim else 0) for dim in range(array.ndim)]
        filled.append(missing)
        return np.pad(array, pads, constant_values=fill)

    monkeypatch.setattr("wanc.run.slices._padded", padded)
    assert torch.equal(wanc.latents(bundle, steps=2), expected)
    assert any(filled)


def test_inspect_gives_each_rank_its_place(tmp_path, capsys):
    """sgl-project/sglang PR #16532: sequence groups taken as consecutive ranks, under tp.

    That tp2-cp2-cfg2 equals one rank is held by tests/cpu/test_parity.py.
    """
    bundle = tmp_path / "b"
    request = f"--model tiny --target cpu --shape {WHOLE} --topology tp2-cp2-cfg2"
    for line in (f"compile {request} --stop-after plan -o {bundle}", f"inspect {bundle} 1"):
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        assert not ended.value.code
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("Ranks, each with its (cfg, cp, tp)")
    assert " ".join(lines[at + 1 : at + 3]).split() == [
        *("0:(0,0,0)", "1:(0,0,1)", "2:(0,1,0)", "3:(0,1,1)"),
        *("4:(1,0,0)", "5:(1,0,1)", "6:(1,1,0)", "7:(1,1,1)"),
    ]

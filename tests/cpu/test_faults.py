"""The parity checks can fail: a planted fault moves the latents far past the tolerance."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.cpu.test_parity import LATENT_TOLERANCE, MASKED, WHOLE, difference
from wanc.lower.lower import lower
from wanc.model import ops
from wanc.model.text_encoder import TextEncoderGraph
from wanc.model.transformer import BlocksGraph
from wanc.run import feeds, pipeline
from wanc.run.request import Guidance
from wanc.run.sampler import SamplingValues, draw_noise
from wanc.targets.cpu import CpuTarget
from wanc.trace import trace

SHOWS = 100 * LATENT_TOLERANCE
"""A check that a fault passes by less could not be trusted to catch it."""

Patch = Callable[[pytest.MonkeyPatch], None]


def rank_local_norm(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ops, "all_reduce", lambda x, axis: x * 2)  # a rank's own half, taken twice


def no_rope(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ops, "rotate", lambda x, cos, sin: x)


def lost_ring_chunk(patch: pytest.MonkeyPatch) -> None:
    whole = ops.ring_attention
    patch.setattr(
        ops, "ring_attention", lambda q, k, v, **how: whole(q, k, v, **{**how, "degree": 1})
    )


def attended_pads(patch: pytest.MonkeyPatch) -> None:
    def keep_all(self: BlocksGraph, q: Tensor, k: Tensor, v: Tensor, keep: Any) -> Tensor:
        tile = self.query_tile_tokens
        return ops.ring_attention(q, k, v, degree=self.cp, query_tile=tile)

    patch.setattr(BlocksGraph, "attend", keep_all)


def text_pads_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TextEncoderGraph, "zero_pads", lambda self, x, mask: x)


PROGRAM_FAULTS = [
    (rank_local_norm, "dit_blocks", WHOLE, "tp2-cp2-cfg2"),
    (no_rope, "dit_blocks", WHOLE, "tp2-cp2-cfg2"),
    (lost_ring_chunk, "dit_blocks", WHOLE, "tp2-cp2-cfg2"),
    (attended_pads, "dit_blocks", MASKED, "tp2-cp4-cfg2"),
    (text_pads_kept, "text_encoder", WHOLE, "tp2-cp2-cfg2"),
]


@pytest.mark.parametrize(("fault", "name", "shape", "topology"), PROGRAM_FAULTS)
def test_a_fault_in_a_program_shows(
    wanc: Any,
    diffusers_result: Any,
    monkeypatch: pytest.MonkeyPatch,
    fault: Patch,
    name: str,
    shape: str,
    topology: str,
) -> None:
    session = wanc.session(wanc.bundle(shape, topology))
    program = session.config.program(name).program
    with monkeypatch.context() as patch:
        fault(patch)
        stablehlo = lower(trace(program)).stablehlo
    wrong = CpuTarget().compile(program, stablehlo)
    right = session.read_executable
    faulty = replace(
        session,
        read_executable=lambda wanted: wrong if wanted == name else right(wanted),
        _loaded={},
    )
    made = wanc.sample(faulty)
    session.engine.close()
    assert difference(made.latents, diffusers_result(shape).latents) > SHOWS


def shifted_rope_rows(patch: pytest.MonkeyPatch) -> None:
    tables = feeds.rope_tables
    patch.setattr(
        feeds, "rope_tables", lambda *how: tuple(np.roll(t, 1, axis=1) for t in tables(*how))
    )


def swapped_experts(patch: pytest.MonkeyPatch) -> None:
    right = SamplingValues.expert_at
    other = {"high_noise": "low_noise", "low_noise": "high_noise"}
    patch.setattr(SamplingValues, "expert_at", lambda *how: other[right(*how)])


def shift_twice(patch: pytest.MonkeyPatch) -> None:
    right = pipeline.make_scheduler

    def twice(values: SamplingValues) -> Any:
        scheduler = right(values)
        sigmas = scheduler.sigmas
        shift = values.flow_shift
        scheduler.sigmas = shift * sigmas / (1 + (shift - 1) * sigmas)
        scheduler.timesteps = (scheduler.sigmas[:-1] * 1000).to(torch.int64)
        return scheduler

    patch.setattr(pipeline, "make_scheduler", twice)


@pytest.mark.parametrize("fault", [shifted_rope_rows, swapped_experts, shift_twice])
def test_a_fault_on_the_host_shows(
    wanc: Any, diffusers_result: Any, monkeypatch: pytest.MonkeyPatch, fault: Patch
) -> None:
    session = wanc.session(wanc.bundle(WHOLE, "tp1"))
    fault(monkeypatch)
    made = wanc.sample(session)
    session.engine.close()
    assert difference(made.latents, diffusers_result(WHOLE).latents) > SHOWS


def test_swapped_guidance_shows(wanc: Any, diffusers_result: Any) -> None:
    session = wanc.session(wanc.bundle(WHOLE, "tp1"))
    made = wanc.sample(session, guidance=Guidance(high=3.0, low=4.0))
    session.engine.close()
    assert difference(made.latents, diffusers_result(WHOLE).latents) > SHOWS


def test_another_seed_is_another_noise() -> None:
    shape = (1, 16, 2, 16, 26)
    assert difference(draw_noise(1, shape), draw_noise(2, shape)) > 1

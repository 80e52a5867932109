"""wanc on every kind of topology against diffusers' WanPipeline, and against each other."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.compiled import Made
from wanc.spec.target import TARGETS

TEXT_TOLERANCE = 1e-4
LATENT_TOLERANCE = 1e-3
PIXEL_TOLERANCE = 1e-3
"""Summation order in fp32 moves latents by about 1e-5; a fault moves them by 0.3 and more."""

TOPOLOGY_TOLERANCE = 1e-4
BLOCKS_TOLERANCE = 1e-5

BF16_FACTOR = 1.5
"""wanc's bf16 may be off fp32 by this much of what diffusers' own bf16 is, in root mean square:
the largest of 13,000 differences scatters by itself, to 0.8 and 1.7 times diffusers' over seeds."""

WHOLE = "208x128x5"  # 208 tokens; tp4-cp8 pads each chunk's tail from 26 to 28
MASKED = "80x48x9"  # 45 tokens, which 2, 4 and 8 do not divide
TAILS = "176x96x5"  # 132 tokens; tp4-cp2 pads 66 to 68

CASES = [
    (WHOLE, "tp1"),
    (WHOLE, "tp2"),
    (WHOLE, "cp2"),
    (WHOLE, "cfg2"),
    (WHOLE, "tp2-cp2-cfg2"),
    (WHOLE, "tp4-cp8-cfg2"),
    (TAILS, "tp4-cp2"),
    (MASKED, "tp2-cp4-cfg2"),
    (MASKED, "cp8"),
]


def difference(a: Any, b: Any) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


def rms_difference(a: Any, b: Any) -> float:
    return float(np.sqrt(np.square(np.asarray(a) - np.asarray(b)).mean()))


@pytest.mark.parametrize(("shape", "topology"), CASES)
def test_equals_diffusers(wanc: Any, diffusers_result: Any, shape: str, topology: str) -> None:
    ours, theirs = wanc.generation(shape, topology), diffusers_result(shape)
    assert difference(ours.prompt_embeddings, theirs.prompt_embeddings) < TEXT_TOLERANCE
    assert difference(ours.latents, theirs.latents) < LATENT_TOLERANCE
    assert difference(ours.pixels, theirs.pixels) < PIXEL_TOLERANCE


@pytest.mark.parametrize("shape", [WHOLE, MASKED])
def test_allgather_attention_equals_diffusers(wanc: Any, diffusers_result: Any, shape: str) -> None:
    ours = wanc.generation(shape, "tp2-cp2", attention="allgather")
    assert difference(ours.latents, diffusers_result(shape).latents) < LATENT_TOLERANCE


@pytest.fixture(scope="module")
def one_rank(wanc: Any) -> Made:
    made: Made = wanc.generation(WHOLE, "tp1")
    return made


@pytest.mark.parametrize("topology", ["tp2", "cp2", "tp2-cp2-cfg2", "tp4-cp8-cfg2"])
def test_topologies_agree(wanc: Any, one_rank: Made, topology: str) -> None:
    ours = wanc.generation(WHOLE, topology)
    assert difference(ours.latents, one_rank.latents) < TOPOLOGY_TOLERANCE


def test_cfg2_equals_cfg1_to_the_bit(wanc: Any) -> None:
    both, one = wanc.generation(WHOLE, "tp2-cp2-cfg2"), wanc.generation(WHOLE, "tp2-cp2")
    assert torch.equal(both.latents, one.latents)


def test_blocks_per_program_changes_nothing(wanc: Any, one_rank: Made) -> None:
    single = wanc.generation(WHOLE, "tp1", blocks_per_program=1)
    assert difference(single.latents, one_rank.latents) < BLOCKS_TOLERANCE


@pytest.mark.parametrize("topology", ["tp1", "tp2-cp2-cfg2"])
def test_bf16_is_as_close_to_fp32_as_diffusers(
    wanc: Any, diffusers_result: Any, topology: str
) -> None:
    exact = diffusers_result(WHOLE)
    theirs = rms_difference(diffusers_result(WHOLE, torch.bfloat16).latents, exact.latents)
    ours = rms_difference(wanc.generation(WHOLE, topology, "bf16").latents, exact.latents)
    assert ours < BF16_FACTOR * theirs


def test_two_runs_give_the_same_bits(wanc: Any) -> None:
    first, second = (wanc.generation(WHOLE, "tp2-cp2-cfg2") for _ in range(2))
    assert torch.equal(first.latents, second.latents)
    assert np.array_equal(first.pixels, second.pixels)


@pytest.mark.parametrize("attention", ["ring", "allgather"])
def test_query_tiles_change_nothing(
    wanc: Any, diffusers_result: Any, monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    """A budget that cuts self- and cross-attention into tiles, the last ones shorter."""
    small = replace(TARGETS["cpu"], score_budget_bytes=40_000)
    monkeypatch.setitem(TARGETS, "cpu", small)
    session = wanc.session(wanc.bundle(TAILS, "tp2-cp2", "fp32", attention=attention))
    how = session.config.program("dit_blocks").program.definition
    assert how["query_tile_tokens"] < how["chunk_tokens"]
    assert how["cross_query_tile_tokens"] < how["chunk_tokens"]
    assert how["chunk_tokens"] % how["cross_query_tile_tokens"]
    made = wanc.sample(session)
    session.engine.close()
    assert difference(made.latents, diffusers_result(TAILS).latents) < LATENT_TOLERANCE

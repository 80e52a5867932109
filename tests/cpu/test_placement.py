"""A trn2 placement and every grouping of blocks, run on CPU ranks: the same numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compiled import Wanc, tiny_plan, without_vae
from wanc.spec.model import Model
from wanc.spec.presets import TINY
from wanc.spec.variant import Options

MIDDLE: Model = replace(
    TINY,
    name="middle",
    transformer=replace(TINY.transformer, head_width=64, ffn_width=1024, layers=4),
)
"""Wider and deeper than tiny: 512 wide, four layers."""

SHAPE = "208x128x5"
TOPOLOGY = "tp4-cp8-cfg2"
"""Pads at every chunk's tail, and a ring of eight on half of the torus' chips."""


pytestmark = pytest.mark.xdist_group("placement")  # what all compare with is made once


@pytest.fixture(scope="module")
def middle(wanc: Wanc, tmp_path_factory: pytest.TempPathFactory) -> Wanc:
    """wanc on a checkpoint of the middle model."""
    from wanc.tiny import write_tiny_checkpoint

    folder = tmp_path_factory.mktemp("middle")
    write_tiny_checkpoint(folder / "checkpoint", model=MIDDLE)
    return Wanc(folder / "checkpoint", wanc.cache, folder)


def latents(middle: Wanc, blocks: int, placement: str) -> Any:
    options = Options(blocks_per_program=blocks)
    plan = tiny_plan(SHAPE, TOPOLOGY, options=options, model=MIDDLE, placement=placement)
    bundle = middle.folder / f"{blocks}-{placement}"
    middle.compile([without_vae(plan)], bundle)
    return middle.latents(bundle, steps=2)


@pytest.fixture(scope="module")
def whole_and_linear(middle: Wanc) -> Any:
    return latents(middle, MIDDLE.transformer.layers, "linear")


@pytest.mark.parametrize("blocks", [1, 2])
def test_groups_of_blocks_under_the_torus_give_the_same_bits(
    middle: Wanc, whole_and_linear: Any, blocks: int
) -> None:
    assert torch.equal(latents(middle, blocks, "trn2-torus"), whole_and_linear)


def test_the_whole_model_under_the_torus_gives_the_same_bits(
    middle: Wanc, whole_and_linear: Any
) -> None:
    assert torch.equal(latents(middle, 4, "trn2-torus"), whole_and_linear)


def test_an_arithmetic_placement_gives_the_same_bits(middle: Wanc, whole_and_linear: Any) -> None:
    assert torch.equal(latents(middle, 4, "cfg-tp-cp"), whole_and_linear)


def test_feeding_by_another_placement_than_the_programs_shows(
    middle: Wanc, whole_and_linear: Any, tmp_path: Path
) -> None:
    """Programs of the torus with the linear placement's coordinates: other ranks' tokens meet."""
    torus = tiny_plan(SHAPE, TOPOLOGY, model=MIDDLE, placement="trn2-torus")
    linear = tiny_plan(SHAPE, TOPOLOGY, model=MIDDLE)
    middle.compile([without_vae(replace(torus, mesh=linear.mesh))], tmp_path / "crossed")
    wrong = middle.latents(tmp_path / "crossed", steps=2)
    assert (wrong - whole_and_linear).abs().max() > 0.1

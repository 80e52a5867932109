"""The grid of VAE tiles: counts and shapes at common sizes, and that tiles cover the picture."""

from itertools import pairwise

import pytest

from wanc.plan.geometry import Geometry, geometry
from wanc.plan.tiles import STRIDE_PX, TILE_PX, Tile, TilePlan, plan_tiles
from wanc.spec.presets import WAN22_T2V_A14B
from wanc.spec.shape import Shape

TILE_LATENT, STRIDE_LATENT = TILE_PX // 8, STRIDE_PX // 8
SIDES = range(2, 200)
"""Latent sides of pictures up to 1,600 px."""


def tiles_of(shape: str, kind: str, ranks: int = 1) -> TilePlan:
    return plan_tiles(
        geometry(Shape.parse(f"{shape}x5"), WAN22_T2V_A14B), kind, ranks, px_per_latent=8
    )


def spans(length: int, kind: str) -> list[tuple[int, int]]:
    """(start, length) along a side that is cut, through a picture 40 latent rows high."""
    grid = Geometry(
        latent_frames=1, latent_rows=40, latent_columns=length, token_rows=20, token_columns=1
    )
    return sorted(
        {(tile.column, tile.columns) for tile in plan_tiles(grid, kind, 1, px_per_latent=8).tiles}
    )


@pytest.mark.parametrize(
    ("shape", "even", "diffusers"),
    [
        ("832x480", (12, 1), (15, 4)),
        ("1280x720", (28, 1), (28, 4)),
        ("480x832", (12, 1), (15, 4)),
        ("432x240", (2, 1), (6, 6)),
        ("320x320", (4, 1), (4, 4)),
        ("208x128", (1, 1), (1, 1)),
        ("256x256", (1, 1), (1, 1)),
        ("272x256", (2, 1), (4, 4)),
    ],
)
def test_count_of_tiles_and_of_their_shapes(shape, even, diffusers):
    for kind, expected in (("even", even), ("diffusers", diffusers)):
        plan = tiles_of(shape, kind)
        assert (len(plan.tiles), len(plan.shapes)) == expected


def test_picture_that_fits_one_tile_is_decoded_whole():
    for kind in ("even", "diffusers"):
        assert tiles_of("208x128", kind).tiles == (Tile(row=0, column=0, rows=16, columns=26),)


def test_832_pixels_on_both_grids_by_hand():
    assert spans(104, "even") == [(0, 32), (24, 32), (48, 32), (72, 32)]
    assert spans(104, "diffusers") == [(0, 32), (24, 32), (48, 32), (72, 32), (96, 8)]


def test_starts_are_clamped_and_spread_evenly_by_hand():
    assert spans(60, "even") == [(0, 32), (14, 32), (28, 32)]
    assert spans(90, "even") == [(0, 32), (19, 32), (39, 32), (58, 32)]
    assert spans(33, "even") == [(0, 32), (1, 32)]


@pytest.mark.parametrize("kind", ["even", "diffusers"])
def test_tiles_cover_every_side_and_stay_inside(kind):
    for length in SIDES:
        found = spans(length, kind)
        assert found[0][0] == 0
        assert sum(found[-1]) == length
        assert all(0 < size <= TILE_LATENT for _, size in found)
        assert all(start < before + size for (before, size), (start, _) in pairwise(found))


def test_even_grid_has_one_size_few_tiles_and_strides_alike():
    for length in SIDES:
        found = spans(length, "even")
        strides = [start - before for (before, _), (start, _) in pairwise(found)]
        assert {size for _, size in found} == {min(length, TILE_LATENT)}
        assert all(stride <= STRIDE_LATENT for stride in strides)
        assert max(strides, default=0) - min(strides, default=0) <= 1
        assert len(found) == 1 + -(-max(0, length - TILE_LATENT) // STRIDE_LATENT)


def test_even_grid_is_the_same_from_both_ends():
    for length in SIDES:
        starts = [start for start, _ in spans(length, "even")]
        mirrored = [length - min(length, TILE_LATENT) - start for start in reversed(starts)]
        assert all(abs(a - b) <= 1 for a, b in zip(starts, mirrored, strict=True))


def test_stride_is_not_larger_than_the_tile():
    """kijai/ComfyUI-WanVideoWrapper PR #353: a larger one leaves gaps."""
    assert STRIDE_LATENT <= TILE_LATENT


def test_tiles_are_listed_row_by_row():
    tiles = tiles_of("832x480", "even").tiles
    assert tiles == tuple(sorted(tiles))
    assert [tile.column for tile in tiles[:5]] == [0, 24, 48, 72, 0]


@pytest.mark.parametrize("ranks", [1, 2, 5, 12, 64])
def test_tiles_are_dealt_to_ranks_in_turn(ranks):
    plan = tiles_of("832x480", "even", ranks)
    assert plan.ranks == tuple(i % ranks for i in range(12))
    counts = [plan.ranks.count(rank) for rank in set(plan.ranks)]
    assert max(counts) - min(counts) <= 1


def test_programs_of_several_shapes_have_names_of_their_own():
    plan = tiles_of("832x480", "diffusers")
    assert plan.shapes == ((32, 32), (32, 8), (12, 32), (12, 8))
    assert [plan.suffix(*shape) for shape in plan.shapes] == ["_32x32", "_32x8", "_12x32", "_12x8"]
    assert tiles_of("832x480", "even").suffix(32, 32) == ""

"""Decoded tiles put together: weights sum to one, whatever the picture's size."""

import numpy as np
import pytest

from wanc.plan.geometry import Geometry
from wanc.plan.tiles import TilePlan, plan_tiles
from wanc.run.tiles import clamp, stitch

STRIDE = 8
SIZES = [(40, 40), (33, 40), (60, 104), (57, 32), (16, 100), (90, 34)]
"""Latent rows and columns; in the fourth three tiles lie over one another."""
ROUNDING = 5e-7
"""A few fp32 roundings of values of at most 1: four weights and their products."""


def grid(rows: int, columns: int, kind="even") -> TilePlan:
    geometry = Geometry(
        latent_frames=1, latent_rows=rows, latent_columns=columns, token_rows=1, token_columns=1
    )
    return plan_tiles(geometry, kind, 1, px_per_latent=8)


def tiles_of(picture: np.ndarray, plan: TilePlan) -> list[np.ndarray]:
    """A picture cut into tiles that agree wherever they overlap."""
    return [
        picture[
            ...,
            tile.row * STRIDE : (tile.row + tile.rows) * STRIDE,
            tile.column * STRIDE : (tile.column + tile.columns) * STRIDE,
        ]
        for tile in plan.tiles
    ]


def together(tiles, plan, rows, columns):
    whole = stitch(tiles, plan, grain=STRIDE, px_per_latent=STRIDE)
    assert whole.shape[3:] == (rows * STRIDE, columns * STRIDE)
    return whole


def noise(rows, columns, frames=2):
    shape = (1, 3, frames, rows * STRIDE, columns * STRIDE)
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def ramp(rows, columns):
    """Goes from -1 to 1 along both sides at once."""
    down = np.linspace(-0.5, 0.5, rows * STRIDE, dtype=np.float32)[:, None]
    right = np.linspace(-0.5, 0.5, columns * STRIDE, dtype=np.float32)[None, :]
    return np.broadcast_to(down + right, (1, 3, 1, rows * STRIDE, columns * STRIDE))


@pytest.mark.parametrize("kind", ["even", "diffusers"])
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_constant_tiles_give_the_constant(kind, rows, columns):
    plan = grid(rows, columns, kind)
    tiles = tiles_of(np.full_like(noise(rows, columns, 1), 0.7), plan)
    np.testing.assert_allclose(together(tiles, plan, rows, columns), 0.7, atol=ROUNDING)


@pytest.mark.parametrize("kind", ["even", "diffusers"])
@pytest.mark.parametrize("picture", [ramp, noise])
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_picture_cut_into_tiles_comes_back(kind, picture, rows, columns):
    plan, whole = grid(rows, columns, kind), picture(rows, columns)
    stitched = together(tiles_of(whole, plan), plan, rows, columns)
    assert stitched.shape == whole.shape
    assert stitched.dtype == np.float32
    np.testing.assert_allclose(stitched, whole, atol=ROUNDING)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_order_of_tiles_does_not_matter(rows, columns):
    plan = grid(rows, columns)
    tiles = [part + 0.01 * i for i, part in enumerate(tiles_of(0.5 * noise(rows, columns), plan))]
    turned = TilePlan(grid="even", tiles=plan.tiles[::-1], ranks=plan.ranks[::-1])
    np.testing.assert_allclose(
        together(tiles[::-1], turned, rows, columns),
        together(tiles, plan, rows, columns),
        atol=ROUNDING,
    )


def test_two_tiles_fade_evenly_by_hand():
    """0 on the left, 1 on the right: the fade is straight and symmetric over the overlap."""
    plan = grid(32, 40)
    assert [tile.column for tile in plan.tiles] == [0, 8]
    left, right = (np.full((1, 3, 1, 256, 256), value, np.float32) for value in (0, 1))
    (row,) = together([left, right], plan, 32, 40)[:, 0, 0, :1]
    row = row[0]
    assert not row[:64].any()
    assert (row[256:] == 1).all()
    assert (np.diff(row[64:256]) > 0).all()
    np.testing.assert_allclose(row + row[::-1], 1, atol=ROUNDING)


def test_tiles_are_not_written_to():
    for kind in ("even", "diffusers"):
        plan = grid(60, 104, kind)
        tiles = tiles_of(noise(60, 104, 1), plan)
        tiles = [tile.copy() for tile in tiles]
        before = [tile.copy() for tile in tiles]
        together(tiles, plan, 60, 104)
        assert all(np.array_equal(a, b) for a, b in zip(tiles, before, strict=True))


@pytest.mark.parametrize("kind", ["even", "diffusers"])
@pytest.mark.parametrize(("rows", "columns"), [(16, 26), (40, 40)])
def test_pixels_are_not_yet_clamped(kind, rows, columns):
    plan = grid(rows, columns, kind)
    tiles = tiles_of(np.full_like(noise(rows, columns, 1), 1.5), plan)
    np.testing.assert_allclose(together(tiles, plan, rows, columns), 1.5, atol=2 * ROUNDING)


def test_pixels_are_clamped_in_place():
    pixels = np.array([-7, -1, -0.25, 0, 1, 1.5], np.float32)
    clamped = clamp(pixels)
    assert clamped is pixels
    assert clamped.tolist() == [-1, -1, -0.25, 0, 1, 1]


def test_number_of_tiles_must_be_that_of_the_plan():
    plan = grid(40, 40)
    tiles = tiles_of(noise(40, 40), plan)
    with pytest.raises(ValueError, match="zip"):
        together(tiles[:3], plan, 40, 40)

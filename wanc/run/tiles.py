"""Stitches decoded VAE tiles. Knows pixels and the tile plan, and no decoder.

On the even grid every pixel is a weighted mean of the tiles that cover it, with weights that sum
to one in whatever order tiles come. The other grid follows diffusers' tiled_decode to the letter:
each tile is blended with its upper and its left neighbour in turn.
"""

from typing import Any

import numpy as np

from wanc.plan.tiles import STRIDE_PX, TILE_PX, Tile, TilePlan

Array = np.ndarray[Any, Any]


def stitch(
    pixels: list[Array], plan: TilePlan, stride: int, width_px: int, height_px: int
) -> Array:
    """Tiles [1, 3, frames, h, w], in the plan's order, to the whole picture, clamped to [-1, 1]."""
    if len(pixels) == 1:
        whole = pixels[0]
    elif plan.grid == "even":
        whole = _weighted(pixels, plan.tiles, stride, (height_px, width_px))
    else:
        whole = _blended(pixels, plan.tiles)
    return np.clip(whole, -1.0, 1.0, out=whole)


def _weighted(
    pixels: list[Array], tiles: tuple[Tile, ...], stride: int, size_px: tuple[int, int]
) -> Array:
    rows = _ramps([(t.row * stride, t.rows * stride) for t in tiles], size_px[0])
    columns = _ramps([(t.column * stride, t.columns * stride) for t in tiles], size_px[1])
    total = np.zeros((*pixels[0].shape[:3], *size_px), np.float32)
    for tile, part in zip(tiles, pixels, strict=True):
        top, left = tile.row * stride, tile.column * stride
        at = (..., slice(top, top + part.shape[3]), slice(left, left + part.shape[4]))
        weight = rows[top][:, None] * columns[left][None, :]
        total[at] += part * weight
    return total


def _ramps(spans: list[tuple[int, int]], size_px: int) -> dict[int, Array]:
    """Weights of each span along one side, by its start; at every pixel they sum to one."""
    distinct = sorted(set(spans))
    raw = {}
    for start, length in distinct:
        inner = np.arange(length) + 0.5
        raw[start] = np.minimum(inner, inner[::-1])  # distance to the nearer edge
    total = np.zeros(size_px)
    for start, length in distinct:
        total[start : start + length] += raw[start]
    return {
        start: (raw[start] / total[start : start + length]).astype(np.float32)
        for start, length in distinct
    }


def _blended(pixels: list[Array], tiles: tuple[Tile, ...]) -> Array:
    kept, extent = STRIDE_PX, TILE_PX - STRIDE_PX
    per_row = len({tile.column for tile in tiles})
    parts = [part.copy() for part in pixels]
    rows = [parts[i : i + per_row] for i in range(0, len(parts), per_row)]
    for i, row in enumerate(rows):
        for j, part in enumerate(row):
            if i > 0:
                _blend(rows[i - 1][j], part, extent, axis=3)
            if j > 0:
                _blend(row[j - 1], part, extent, axis=4)
    joined = [np.concatenate([p[..., :kept, :kept] for p in row], axis=4) for row in rows]
    return np.concatenate(joined, axis=3)


def _blend(before: Array, after: Array, extent: int, axis: int) -> None:
    """Fade from the end of one tile into the start of the next, which is written to."""
    extent = min(before.shape[axis], after.shape[axis], extent)
    shape = [1] * before.ndim
    shape[axis] = extent
    fade = (np.arange(extent) / extent).reshape(shape)
    rising, falling = fade.astype(np.float32), (1 - fade).astype(np.float32)
    head = (slice(None),) * axis + (slice(0, extent),)
    tail = (slice(None),) * axis + (slice(before.shape[axis] - extent, None),)
    after[head] = before[tail] * falling + after[head] * rising

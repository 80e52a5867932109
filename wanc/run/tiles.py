"""Stitches VAE tiles, of pixels or of latents. Knows the tile plan, and no network.

On the even grid every place is a weighted mean of the tiles that cover it, with weights that sum
to one in whatever order tiles come. The other grid follows diffusers' tiled_decode and tiled_encode
to the letter: each tile is blended with its upper and its left neighbour in turn.
"""

from typing import Any

import numpy as np

from wanc.plan.tiles import STRIDE_PX, TILE_PX, Tile, TilePlan

Array = np.ndarray[Any, Any]


def stitch(parts: list[Array], plan: TilePlan, *, grain: int, px_per_latent: int) -> Array:
    """Tiles [1, C, frames, h, w], in the plan's order, to the whole picture, not clamped.

    grain is how many rows of a part lie in one latent row: px_per_latent for pixels, else 1.
    """
    if len(parts) == 1:
        return parts[0]
    if plan.grid == "even":
        return _weighted(parts, plan.tiles, grain)
    kept, side = (px * grain // px_per_latent for px in (STRIDE_PX, TILE_PX))
    return _blended(parts, plan.tiles, kept, side - kept)


def clamp(pixels: Array) -> Array:
    """The pixels in [-1, 1], in place."""
    return np.clip(pixels, -1.0, 1.0, out=pixels)


def _weighted(parts: list[Array], tiles: tuple[Tile, ...], grain: int) -> Array:
    whole = (
        grain * max(t.row + t.rows for t in tiles),
        grain * max(t.column + t.columns for t in tiles),
    )
    rows = _ramps([(t.row * grain, t.rows * grain) for t in tiles], whole[0])
    columns = _ramps([(t.column * grain, t.columns * grain) for t in tiles], whole[1])
    total = np.zeros((*parts[0].shape[:3], *whole), np.float32)
    for tile, part in zip(tiles, parts, strict=True):
        top, left = tile.row * grain, tile.column * grain
        at = (..., slice(top, top + part.shape[3]), slice(left, left + part.shape[4]))
        weight = rows[top][:, None] * columns[left][None, :]
        total[at] += part * weight
    return total


def _ramps(spans: list[tuple[int, int]], length: int) -> dict[int, Array]:
    """Weights of each span along one side, by its start; at every place they sum to one."""
    distinct = sorted(set(spans))
    raw = {}
    for start, size in distinct:
        inner = np.arange(size) + 0.5
        raw[start] = np.minimum(inner, inner[::-1])  # distance to the nearer edge
    total = np.zeros(length)
    for start, size in distinct:
        total[start : start + size] += raw[start]
    return {
        start: (raw[start] / total[start : start + size]).astype(np.float32)
        for start, size in distinct
    }


def _blended(tiles: list[Array], places: tuple[Tile, ...], kept: int, extent: int) -> Array:
    per_row = len({tile.column for tile in places})
    parts = [part.copy() for part in tiles]
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

"""The grid of VAE tiles, in latent rows and columns. Knows nothing of pixels' values.

The even grid has one tile shape: starts are clamped to the edge and spread evenly. diffusers' own
grid (AutoencoderKLWan.tiled_decode) has a fixed stride and edge tiles that are cut short.
"""

from dataclasses import dataclass

from wanc.plan.geometry import Geometry
from wanc.spec.variant import TileGrid

TILE_PX = 256
"""Side of a tile."""

STRIDE_PX = 192
"""Largest distance of two neighbours' starts."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Tile:
    """One tile's place in the latent picture."""

    row: int
    column: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """All tiles of a picture, row by row, and the ranks that decode them."""

    grid: TileGrid
    tiles: tuple[Tile, ...]
    ranks: tuple[int, ...]
    """The rank that decodes each tile, by tile."""

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Distinct (rows, columns), largest first."""
        return tuple(sorted({(t.rows, t.columns) for t in self.tiles}, reverse=True))

    def suffix(self, rows: int, columns: int) -> str:
        """What tells the programs of one tile shape from another's; empty where there is one."""
        return f"_{rows}x{columns}" if len(self.shapes) > 1 else ""


def plan_tiles(grid: Geometry, kind: TileGrid, ranks: int, *, px_per_latent: int) -> TilePlan:
    """Tiles of a picture, dealt to ranks in turn."""
    cut = _even if kind == "even" else _diffusers
    tile, stride = TILE_PX // px_per_latent, STRIDE_PX // px_per_latent
    rows, columns = grid.latent_rows, grid.latent_columns
    whole = rows <= tile and columns <= tile
    row_spans = ((0, rows),) if whole else cut(rows, tile, stride)
    column_spans = ((0, columns),) if whole else cut(columns, tile, stride)
    tiles = tuple(
        Tile(row=row, rows=height, column=column, columns=width)
        for row, height in row_spans
        for column, width in column_spans
    )
    return TilePlan(grid=kind, tiles=tiles, ranks=tuple(i % ranks for i in range(len(tiles))))


def _even(length: int, tile: int, stride: int) -> tuple[tuple[int, int], ...]:
    """(start, length) of each tile along one side."""
    if length <= tile:
        return ((0, length),)
    room = length - tile
    steps = -(-room // stride)
    return tuple(((2 * i * room + steps) // (2 * steps), tile) for i in range(steps + 1))


def _diffusers(length: int, tile: int, stride: int) -> tuple[tuple[int, int], ...]:
    return tuple((start, min(tile, length - start)) for start in range(0, length, stride))

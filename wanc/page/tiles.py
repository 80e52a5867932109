"""The tile plan: VAE tiles over the picture, in pixels. What is no such plan is not drawn."""

from dataclasses import dataclass
from itertools import pairwise

from wanc.bundle.config import VariantConfig
from wanc.plan.tiles import Tile
from wanc.verify.plans import MOST_RANKS, MOST_SIDE_PX

MOST_TILES = MOST_RANKS
"""Drawn."""
WIDEST_LABEL = 5.2
"""Of ``rank 27``, over its height."""
LEAST_PX, LABELS_ACROSS = 13, 34
"""A label is at most so high, or that part of the picture's width: a small one is not enlarged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileBox:
    """A tile, in pixels of the picture."""

    number: int
    """From 1."""
    rank: int
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TileMap:
    """The drawing, one unit a pixel."""

    width: int
    height: int
    tiles: tuple[TileBox, ...]
    label_px: int
    """Height of the labels' smaller line, that with the rank."""

    @property
    def number_px(self) -> int:
        """Height of the line with the tile's number."""
        return self.label_px * 5 // 4

    @property
    def ranks(self) -> int:
        """Ranks that have tiles."""
        return len({tile.rank for tile in self.tiles})


def tile_map(config: VariantConfig) -> TileMap | None:
    """The tiles of a variant; None where they are too many or not on its picture."""
    shape, stride = config.variant.shape, config.model.vae.spatial_stride
    tiles, ranks = config.tiles.tiles, config.tiles.ranks
    sides = (shape.width_px, shape.height_px, stride)
    if not (all(1 <= side <= MOST_SIDE_PX for side in sides) and 1 <= len(tiles) <= MOST_TILES):
        return None
    if len(tiles) != len(ranks):
        return None
    boxes = tuple(
        _box(number, rank, tile, stride)
        for number, (tile, rank) in enumerate(zip(tiles, ranks, strict=True), start=1)
    )
    if not all(_lies_in(box, shape.width_px, shape.height_px) for box in boxes):
        return None
    return TileMap(
        width=shape.width_px,
        height=shape.height_px,
        tiles=boxes,
        label_px=min(_label_px(boxes), max(LEAST_PX, shape.width_px // LABELS_ACROSS)),
    )


def _box(number: int, rank: int, tile: Tile, stride: int) -> TileBox:
    return TileBox(
        number=number,
        rank=rank,
        x=tile.column * stride,
        y=tile.row * stride,
        width=tile.columns * stride,
        height=tile.rows * stride,
    )


def _lies_in(box: TileBox, width: int, height: int) -> bool:
    return (
        box.x >= 0
        and box.y >= 0
        and 0 < box.width <= width - box.x
        and 0 < box.height <= height - box.y
    )


def _label_px(boxes: tuple[TileBox, ...]) -> int:
    """The most that two lines at the middle of each tile have room for."""
    across = _room({box.x + box.width // 2 for box in boxes}, min(box.width for box in boxes))
    down = _room({box.y + box.height // 2 for box in boxes}, min(box.height for box in boxes))
    return max(1, min(int(across / WIDEST_LABEL), down // 4))


def _room(middles: set[int], smallest: int) -> int:
    """Between neighbours' middles, or within the smallest tile."""
    return min([smallest, *(b - a for a, b in pairwise(sorted(middles)))])

"""Says what a video shows in the toy's grammar. Knows pixels only, not what was asked for.

What differs from the background is the shape. Its color is the one that most of its pixels are
nearest to, its direction the way of its middle, its kind what share of its bounding box it fills.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tools.toy.clips import BACKGROUND_RGB, RGB, STEP
from tools.toy.grammar import Scene

Frames = npt.NDArray[np.uint8]

_DIFFERS = 60.0
"""Of a shape's pixel from its background, in 8-bit RGB; whole colors are 150 and more away."""
_LEAST_SHAPE_PX = 400
"""The smallest shape, a triangle, has 1400 pixels."""
_LEAST_WAY_PX = 8.0
"""From the first frame to the last; clips go 20 to 32."""
_SQUARE_FILLS, _CIRCLE_FILLS = 0.90, 0.66
"""Of its bounding box at least: a square fills 1, a circle 0.79, a triangle 0.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen; None where there is nothing that could be named."""

    color: str | None
    color_share: float
    """Of the shape's pixels in all frames, those nearest to its color."""
    kind: str | None
    direction: str | None
    way_px: tuple[float, float]
    """Of the shape's middle from the first frame to the last, right and down."""
    background: str

    def shows(self, scene: Scene, *parts: str) -> bool:
        """Whether these parts of a scene, as ``color`` and ``direction``, are what was seen."""
        return all(getattr(self, part) == getattr(scene, part) for part in parts)


def look(frames_FHWC: Frames) -> Seen:
    """Names what 8-bit frames show."""
    pixels = frames_FHWC.astype(np.float32)
    behind = np.median(pixels.reshape(-1, 3), axis=0)
    background = _nearest(behind[None], BACKGROUND_RGB)[0]
    shape_FHW = np.linalg.norm(pixels - behind, axis=-1) > _DIFFERS
    if min(shape_FHW[0].sum(), shape_FHW[-1].sum()) < _LEAST_SHAPE_PX:
        return Seen(
            color=None,
            color_share=0.0,
            kind=None,
            direction=None,
            way_px=(0.0, 0.0),
            background=background,
        )
    names, counts = np.unique(_nearest(pixels[shape_FHW], RGB), return_counts=True)
    first, last = _middle(shape_FHW[0]), _middle(shape_FHW[-1])
    way = last - first
    return Seen(
        color=str(names[counts.argmax()]),
        color_share=float(counts.max() / counts.sum()),
        kind=_kind(shape_FHW),
        direction=_direction(way),
        way_px=(float(way[0]), float(way[1])),
        background=background,
    )


def _nearest(pixels: npt.NDArray[np.float32], named: dict[str, Any]) -> npt.NDArray[np.str_]:
    palette = 255 * np.array(list(named.values()), dtype=np.float32)
    distances = np.linalg.norm(pixels[:, None] - palette, axis=-1)
    return np.array(list(named))[distances.argmin(axis=1)]


def _middle(shape_HW: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Of the pixels of a shape: right, down."""
    rows, columns = np.nonzero(shape_HW)
    return np.array([columns.mean(), rows.mean()])


def _direction(way: npt.NDArray[np.float64]) -> str | None:
    """The direction that the way goes farther along than twice across it."""
    for name, step in STEP.items():
        along, across = abs(way @ step), abs(way @ step[::-1])
        if way @ step >= _LEAST_WAY_PX and along > 2 * across:
            return name
    return None


def _kind(shape_FHW: npt.NDArray[np.bool_]) -> str:
    """By the share of its bounding box, without stray pixels, in the median of frames."""
    fills = []
    for shape_HW in shape_FHW:
        rows, columns = np.nonzero(shape_HW)
        if not len(rows):
            continue
        top, bottom = np.percentile(rows, [1, 99])
        left, right = np.percentile(columns, [1, 99])
        fills.append(len(rows) / ((bottom - top + 1) * (right - left + 1)))
    fill = float(np.median(fills))
    return "square" if fill > _SQUARE_FILLS else "circle" if fill > _CIRCLE_FILLS else "triangle"

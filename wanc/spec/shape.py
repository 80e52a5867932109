"""Shapes as people write them: ``832x480x81``, width and height in pixels, then video frames.

Knows what no Wan model can accept, and nothing of any one model.
"""

import re
from dataclasses import dataclass
from typing import Self

from wanc.errors import RequestError

GRAIN_PX = 16
"""Width and height of every Wan picture are multiples of this: VAE stride 8, patch 2."""

FRAME_STRIDE = 4
"""Frames of a Wan video are 4k+1: one first frame, then VAE groups of four."""

_GRAMMAR = re.compile(r"([0-9]{1,6})x([0-9]{1,6})x([0-9]{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Shape:
    """A video's size."""

    width_px: int
    height_px: int
    frames: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``WxHxF``; raises RequestError naming the nearest legal values."""
        match = _GRAMMAR.fullmatch(text)
        if match is None:
            raise RequestError(f"shape {text!r} is not WIDTHxHEIGHTxFRAMES; write it as 832x480x81")
        width_px, height_px, frames = map(int, match.groups())
        problems = [
            f"{name} {value} is not a positive multiple of {GRAIN_PX}; "
            f"nearest are {_list(nearest_multiples(value, GRAIN_PX))}"
            for name, value in (("width", width_px), ("height", height_px))
            if value <= 0 or value % GRAIN_PX
        ]
        if frames < 1 or frames % FRAME_STRIDE != 1:
            problems.append(
                f"frames {frames} is not 4k+1; nearest are {_list(nearest_frames(frames))}"
            )
        if problems:
            raise RequestError(f"shape {text}: " + "; ".join(problems))
        return cls(width_px=width_px, height_px=height_px, frames=frames)

    def __str__(self) -> str:
        return f"{self.width_px}x{self.height_px}x{self.frames}"


def nearest_multiples(value: int, grain: int) -> tuple[int, ...]:
    """The positive multiples of the grain just below and above the value."""
    below = value // grain * grain
    return tuple(v for v in (below, below + grain) if v > 0)


def nearest_frames(frames: int) -> tuple[int, ...]:
    """The legal frame counts just below and above."""
    below = (frames - 1) // FRAME_STRIDE * FRAME_STRIDE + 1
    return tuple(v for v in (below, below + FRAME_STRIDE) if v > 0)


def _list(values: tuple[int, ...]) -> str:
    return " and ".join(map(str, values))

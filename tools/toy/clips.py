"""Draws toy clips: antialiased shapes with soft edges that move at an even pace.

Knows no sentences beyond a ``Scene`` and no networks. Pixels are fp32 RGB in [-1, 1], laid out
(B, 3, F, H, W); everything random comes from the generator that is given.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tools.toy.grammar import BACKGROUNDS, COLORS, DIRECTIONS, KINDS, Scene

RGB = {
    "red": (0.86, 0.16, 0.14),
    "green": (0.14, 0.68, 0.24),
    "blue": (0.18, 0.30, 0.90),
    "yellow": (0.93, 0.82, 0.16),
}
"""Of 0 to 1."""

BACKGROUND_RGB = {"dark": (0.10, 0.10, 0.13), "light": (0.82, 0.82, 0.80)}

STEP = {"left": (-1.0, 0.0), "right": (1.0, 0.0), "up": (0.0, -1.0), "down": (0.0, 1.0)}
"""By direction: the sign of x and y."""

RADIUS_PX = (26.0, 36.0)
SPEED_PX = (5.0, 8.0)
"""Pixels from a frame to the next."""
EDGE_PX = 2.0
"""Over so many pixels a shape fades into its background."""

_REACH = 1.15
"""Of a shape from its middle, in radii: a triangle's tip."""


def draw(
    scenes: Sequence[Scene],
    *,
    frames: int,
    height: int,
    width: int,
    generator: torch.Generator,
    radius_px: tuple[float, float] = RADIUS_PX,
    margin_px: float | None = None,
) -> Tensor:
    """Clips of complete scenes, as (B, 3, F, H, W).

    A shape's way lies within the frame; with ``margin_px`` its middle may be anywhere up to so far
    outside, as in a crop of something larger.
    """
    B = len(scenes)
    radius = _between(B, *radius_px, generator)
    pace = _between(B, *SPEED_PX, generator)
    step = torch.tensor([STEP[scene.direction] for scene in scenes]) * pace[:, None]
    half_way = step.abs() * (frames - 1) / 2
    size = torch.tensor([float(width), float(height)])
    inside = half_way + _REACH * radius[:, None] + EDGE_PX
    room = inside if margin_px is None else torch.tensor(-margin_px)
    low, high = room.expand(B, 2), (size - room).expand(B, 2)
    middle = low + (high - low) * torch.rand(B, 2, generator=generator)
    color = torch.tensor([RGB[scene.color] for scene in scenes])
    behind = torch.tensor([BACKGROUND_RGB[scene.background] for scene in scenes])
    kinds = torch.tensor([KINDS.index(scene.kind) for scene in scenes])
    x_W, y_H = torch.arange(width) + 0.5, torch.arange(height) + 0.5
    clips = torch.empty(B, 3, frames, height, width)
    for frame in range(frames):
        at = middle + step * (frame - (frames - 1) / 2)
        dx = (x_W[None, None, :] - at[:, 0, None, None]).expand(B, height, width)
        dy = (y_H[None, :, None] - at[:, 1, None, None]).expand(B, height, width)
        cover = (0.5 - _distance(dx, dy, radius[:, None, None], kinds) / EDGE_PX).clamp(0, 1)
        clips[:, :, frame] = torch.lerp(
            behind[:, :, None, None], color[:, :, None, None], cover[:, None]
        )
    return clips * 2 - 1


def any_scenes(count: int, generator: torch.Generator) -> list[Scene]:
    """Complete scenes of the whole grammar, each part drawn by itself: for the VAE."""

    def pick(parts: Sequence[str]) -> str:
        return parts[int(torch.randint(len(parts), (), generator=generator))]

    return [
        Scene(pick(COLORS), pick(KINDS), pick(DIRECTIONS), pick(BACKGROUNDS)) for _ in range(count)
    ]


def _between(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=generator)


def _distance(dx: Tensor, dy: Tensor, radius: Tensor, kinds: Tensor) -> Tensor:
    """Pixels from each shape's edge, negative inside; corners count by the nearer side."""
    circle = (dx.square() + dy.square()).sqrt() - radius
    square = torch.maximum(dx.abs(), dy.abs()) - 0.88 * radius
    slope = (1.9**2 + 1) ** 0.5  # of sides that rise 1.9 for 1
    triangle = torch.maximum(dy - 0.85 * radius, (1.9 * dx.abs() - dy - _REACH * radius) / slope)
    return torch.stack([circle, square, triangle])[kinds, torch.arange(len(kinds))]

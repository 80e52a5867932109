"""What a generation shows on its way, to whom it is told. Knows names of stages, and no stage."""

from collections.abc import Callable

from wanc.arrays import Array

TEXT = "text"
"""Prompt embeddings [branches, T, D]."""
CONDITION = "condition"
"""Encoded images, normalised: latents [1, C, F, H, W], or the first frame of them. Only where a
video starts from an image."""
LATENTS = "latents"
"""Latents [1, C, F, H, W] after the scheduler's step of that number, from 1."""
PIXELS = "pixels"
"""[1, 3, frames, rows, columns] in [-1, 1], clamped."""

Observe = Callable[[str, int, Array], None]
"""Takes a stage, a step and its values, which may change later."""


def ignore(stage: str, step: int, values: Array) -> None:
    """Observe nothing."""

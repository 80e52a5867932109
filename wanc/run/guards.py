"""Guards of a run: values that must not go on. Knows arrays and where they came from."""

from typing import Any

import numpy as np

from wanc.errors import RunError

Array = np.ndarray[Any, Any]

LEVEL = 2 / 255
"""Pixels in [-1, 1] that differ by less have one colour in 8 bits, or two next to each other."""

FAR, MOST_FAR = 2.0, 0.5
"""The largest share of pixel values beyond ±FAR. A trained decoder overshoots [-1, 1] by a few
tenths at edges, and random weights give values around 0, of which few lie beyond ±2: half of all
there is neither, but latents scaled twice, say."""

LARGEST = 1e3
"""No picture has a value of 500 times the range; sums that overflowed or diverged do."""


def check_finite(array: Any, stage: str, what: str) -> None:
    """Raise RunError where a value is not finite."""
    values = np.asarray(array)
    if not np.isfinite(values).all():
        bad = int(values.size - np.isfinite(values).sum())
        raise RunError(
            f"stage {stage}: {what}: {bad} of {values.size} values are not finite; "
            "look for NaN or infinity in the checkpoint's weights"
        )


def check_pixels(pixels_BCFHW: Array, *, frames: int, height_px: int, width_px: int) -> None:
    """Raise RunError where decoded pixels, before they are clamped, are no video of this size.

    Refused are another size or number of frames, values far outside [-1, 1], and one colour in all
    of the video once it is clamped, as a black one.
    """
    planned = (1, 3, frames, height_px, width_px)
    if pixels_BCFHW.shape != planned:
        raise RunError(
            f"stage decode: pixels are {_shape(pixels_BCFHW.shape)}, and the plan has "
            f"{_shape(planned)}: the bundle's programs or its tiles are wrong"
        )
    by_frame = [pixels_BCFHW[0, :, frame] for frame in range(frames)]  # no second video in memory
    lowest_C = np.min([frame_CHW.min(axis=(1, 2)) for frame_CHW in by_frame], axis=0)
    highest_C = np.max([frame_CHW.max(axis=(1, 2)) for frame_CHW in by_frame], axis=0)
    far = sum(int(np.count_nonzero(np.abs(part) > FAR)) for part in by_frame) / pixels_BCFHW.size
    largest = float(max(-lowest_C.min(), highest_C.max()))
    if largest > LARGEST or far > MOST_FAR:
        raise RunError(
            f"stage decode: {far:.0%} of the pixels' values lie beyond ±{FAR:g}, the largest at "
            f"{largest:.4g}, and a picture's lie in [-1, 1]; look for damage in the checkpoint's "
            "VAE, or for latents that are none of this model's"
        )
    spread_C = np.clip(highest_C, -1, 1) - np.clip(lowest_C, -1, 1)
    if spread_C.max() < LEVEL:
        colour = ", ".join(f"{value:.3f}" for value in (lowest_C + highest_C) / 2)
        raise RunError(
            f"stage decode: every frame has one colour, about {colour} in [-1, 1]; "
            "look for damage in the checkpoint's weights"
        )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))

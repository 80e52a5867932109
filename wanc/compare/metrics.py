"""How far two arrays lie apart. Knows numbers and pictures, and nothing of what they are of.

Sums are in float64, whatever the arrays' dtype. Values that are not finite have no distance.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from wanc.arrays import Array
from wanc.errors import RequestError, RunError

PIXEL_RANGE = 2.0
"""Of pixels in [-1, 1]."""

PSNR_CAP_DB = 200.0
"""PSNR of frames that are equal, and the most that is told of any: fp32 rounds at about 145 dB."""

SSIM_SIGMA_PX = 1.5
SSIM_WINDOW_PX = 11
"""The window and its Gaussian, after Wang, Bovik, Sheikh and Simoncelli, 2004."""

_CHUNK = 1 << 20
"""Values that are widened to float64 at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far values are from a reference's."""

    max_abs: float
    """The largest absolute difference."""
    rms: float
    """The root mean square of the differences."""
    relative_l2: float | None
    """The differences' norm by the reference's; None where the reference alone is zero."""
    cosine: float
    """Of the angle between the two; 1 where both are zero, 0 where one is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLikeness:
    """How like a video frame is to the reference's."""

    psnr_db: float
    """At most PSNR_CAP_DB."""
    ssim: float
    """Mean structural similarity over the three colours."""


def distance(values: Array, reference: Array, what: str) -> Distance:
    """Measure values against a reference; raises RunError, naming what they are."""
    _check_shapes(values, reference, what)
    largest, square, own, theirs, product = 0.0, 0.0, 0.0, 0.0, 0.0
    for a, b in _chunks(values, reference):
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise RunError(f"{what}: not all values are finite; {_finite(values, reference)}")
        difference = a - b
        largest = max(largest, float(np.abs(difference).max()))
        square += float(difference @ difference)
        own, theirs, product = own + float(a @ a), theirs + float(b @ b), product + float(a @ b)
    return Distance(
        max_abs=largest,
        rms=math.sqrt(square / max(values.size, 1)),
        relative_l2=math.sqrt(square / theirs) if theirs else (None if square else 0.0),
        cosine=_cosine(own, theirs, product),
    )


def frame_likeness(pixels: Array, reference: Array) -> tuple[FrameLikeness, ...]:
    """Of each frame of [1, 3, frames, h, w] in [-1, 1]; raises RunError, RequestError."""
    _check_shapes(pixels, reference, "pixels")
    frames = zip(pixels[0].swapaxes(0, 1), reference[0].swapaxes(0, 1), strict=True)
    return tuple(FrameLikeness(psnr_db=psnr_db(a, b), ssim=ssim(a, b)) for a, b in frames)


def psnr_db(frame_CHW: Array, reference_CHW: Array) -> float:
    """Peak signal-to-noise ratio of pixels in [-1, 1], at most PSNR_CAP_DB."""
    rms = distance(frame_CHW, reference_CHW, "a frame").rms
    return min(20 * math.log10(PIXEL_RANGE / rms), PSNR_CAP_DB) if rms else PSNR_CAP_DB


def ssim(frame_CHW: Array, reference_CHW: Array) -> float:
    """Mean structural similarity of pixels in [-1, 1]; raises RequestError without scikit-image.

    A frame that is smaller than the window gets the largest window that it holds.
    """
    check_installed("SSIM", "skimage")
    from skimage.metrics import structural_similarity

    _check_shapes(frame_CHW, reference_CHW, "a frame")
    side = min(SSIM_WINDOW_PX, *frame_CHW.shape[1:])
    window = side - 1 + side % 2  # odd
    found = structural_similarity(
        frame_CHW.astype(np.float64),
        reference_CHW.astype(np.float64),
        win_size=window,
        data_range=PIXEL_RANGE,
        channel_axis=0,
        gaussian_weights=True,
        sigma=SSIM_SIGMA_PX * window / SSIM_WINDOW_PX,
        use_sample_covariance=False,
    )
    return float(found)


def check_installed(what: str, *packages: str) -> None:
    """Raise RequestError where a package of the extra ``compare`` is missing."""
    lacking = [package for package in packages if find_spec(package) is None]
    if lacking:
        raise RequestError(
            f"{what} needs wanc[compare]: pip install 'wanc[compare]' "
            f"(not found: {', '.join(lacking)})"
        )


def _check_shapes(values: Array, reference: Array, what: str) -> None:
    if values.shape != reference.shape:
        raise RunError(
            f"{what}: shapes {values.shape} and {reference.shape} differ; "
            "both runs must be of one shape and one request"
        )


def _chunks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Parts of arrays, flat and in float64."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, _CHUNK):
        yield tuple(array[start : start + _CHUNK].astype(np.float64) for array in flat)


def _finite(values: Array, reference: Array) -> str:
    bad = [int(np.count_nonzero(~np.isfinite(array))) for array in (values, reference)]
    return f"{bad[0]} of {values.size} are not, and {bad[1]} of the reference's"


def _cosine(own: float, theirs: float, product: float) -> float:
    if not own or not theirs:
        return 1.0 if own == theirs else 0.0
    return min(max(product / math.sqrt(own) / math.sqrt(theirs), -1.0), 1.0)

"""Guards of a run: what is let through, and what is told of what is not."""

import re

import numpy as np
import pytest

from wanc.errors import RunError
from wanc.run.guards import FAR, LARGEST, LEVEL, check_finite, check_pixels

FRAMES, HEIGHT_PX, WIDTH_PX = 5, 32, 48
PLANNED = {"frames": FRAMES, "height_px": HEIGHT_PX, "width_px": WIDTH_PX}


def noise(scale=1.0) -> np.ndarray:
    shape = (1, 3, FRAMES, HEIGHT_PX, WIDTH_PX)
    return scale * np.random.default_rng(0).standard_normal(shape, np.float32)


def colour(*channels: float) -> np.ndarray:
    """Every frame of one colour."""
    return np.broadcast_to(
        np.array(channels, np.float32)[None, :, None, None, None],
        (1, 3, FRAMES, HEIGHT_PX, WIDTH_PX),
    ).copy()


def refused(text: str):
    return pytest.raises(RunError, match=re.escape(text))


def test_finite_values_pass():
    check_finite(np.array([1e30, -1e30, 0]), "denoise", "noise")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(value):
    with refused("stage denoise: noise: 2 of 3 values are not finite; look for NaN"):
        check_finite(np.array([value, 1, value]), "denoise", "noise")


@pytest.mark.parametrize("scale", [0.05, 0.4, 1.0, 1.5])
def test_pictures_and_the_noise_of_random_weights_pass(scale):
    pixels = noise(scale)
    before = pixels.copy()
    check_pixels(pixels, **PLANNED)
    np.testing.assert_array_equal(pixels, before)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 3, FRAMES - 1, HEIGHT_PX, WIDTH_PX),
        (1, 3, FRAMES, WIDTH_PX, HEIGHT_PX),
        (1, 3, FRAMES, HEIGHT_PX, WIDTH_PX + 8),
        (2, 3, FRAMES, HEIGHT_PX, WIDTH_PX),
        (3, FRAMES, HEIGHT_PX, WIDTH_PX),
    ],
)
def test_another_size_or_number_of_frames(shape):
    seen = "x".join(map(str, shape))
    with refused(f"stage decode: pixels are {seen}, and the plan has 1x3x5x32x48: the bundle's"):
        check_pixels(np.zeros(shape, np.float32), **PLANNED)


@pytest.mark.parametrize("channels", [(-1, -1, -1), (0, 0, 0), (1, 1, 1), (0.9, -0.5, 0.2)])
def test_one_colour_in_all_of_the_video(channels):
    """Also where channels differ, and under a trace of noise."""
    for pixels in (colour(*channels), colour(*channels) + noise(LEVEL / 100)):
        with refused("stage decode: every frame has one colour, about "):
            check_pixels(pixels, **PLANNED)


def test_the_colour_is_told():
    with refused("one colour, about 0.900, -0.500, 0.200 in [-1, 1]; look for damage in"):
        check_pixels(colour(0.9, -0.5, 0.2), **PLANNED)


def test_what_is_black_once_it_is_clamped():
    """Values differ, and no one would see it."""
    with refused("stage decode: every frame has one colour"):
        check_pixels(-1.5 + noise(0.1), **PLANNED)


@pytest.mark.parametrize(("channel", "frame"), [(0, 0), (1, 2), (2, 4)])
def test_one_pixel_of_another_colour_in_one_channel_passes(channel, frame):
    pixels = colour(-1, -1, -1)
    pixels[0, channel, frame, 3, 4] += 1.01 * LEVEL
    check_pixels(pixels, **PLANNED)
    pixels[0, channel, frame, 3, 4] -= 0.02 * LEVEL
    with refused("one colour"):
        check_pixels(pixels, **PLANNED)


def test_frames_of_one_colour_each_that_change_pass():
    """A fade."""
    pixels = colour(0, 0, 0) + np.linspace(-1, 1, FRAMES, dtype=np.float32)[:, None, None]
    check_pixels(pixels, **PLANNED)


@pytest.mark.parametrize("sign", [1, -1])
def test_half_of_all_values_far_outside(sign):
    pixels = noise(0.1)
    flat = pixels.reshape(-1)
    flat[: flat.size // 2] = sign * 1.01 * FAR
    check_pixels(pixels, **PLANNED)
    flat[flat.size // 2] = -sign * 1.01 * FAR
    with refused("stage decode: 50% of the pixels' values lie beyond ±2, the largest at 2.02"):
        check_pixels(pixels, **PLANNED)


@pytest.mark.parametrize("value", [1.01 * LARGEST, -1.01 * LARGEST])
def test_one_value_that_no_picture_has(value):
    pixels = noise()
    pixels[0, 1, 2, 3, 4] = value / 1.02
    check_pixels(pixels, **PLANNED)
    pixels[0, 1, 2, 3, 4] = value
    with refused("the largest at 1010, and a picture's lie in [-1, 1]"):
        check_pixels(pixels, **PLANNED)


def test_latents_of_another_scale():
    with refused("stage decode: 69% of the pixels' values lie beyond ±2"):
        check_pixels(noise(5), **PLANNED)

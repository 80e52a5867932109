"""Distances and likeness against numbers worked out by hand."""

import sys

import numpy as np
import pytest

from wanc.compare import metrics
from wanc.compare.metrics import (
    PSNR_CAP_DB,
    check_installed,
    distance,
    frame_likeness,
    psnr_db,
    ssim,
)
from wanc.errors import RequestError, RunError


def array(*values):
    return np.array(values, np.float32)


def noise(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


# --- distance -------------------------------------------------------------------------------------


def test_distance_of_three_values():
    found = distance(array(1, 2, 3), array(1, 2, 5), "values")
    assert found.max_abs == 2
    assert found.rms == pytest.approx(2 / 3**0.5)
    assert found.relative_l2 == pytest.approx(2 / 30**0.5)
    assert found.cosine == pytest.approx(20 / (14 * 30) ** 0.5)


def test_distance_is_relative_to_the_reference():
    assert distance(array(1), array(2), "values").relative_l2 == pytest.approx(0.5)
    assert distance(array(2), array(1), "values").relative_l2 == pytest.approx(1)


@pytest.mark.parametrize(
    ("values", "reference", "relative", "cosine"),
    [
        (array(0, 0), array(0, 0), 0, 1),
        (array(0, 0), array(3, 4), 1, 0),
        (array(3, 4), array(0, 0), None, 0),
        (array(3, 4), array(3, 4), 0, 1),
        (array(3, 4), array(-3, -4), 2, -1),
        (array(1e-30, 0), array(1e-30, 0), 0, 1),  # squares are no fp32 numbers
    ],
)
def test_distance_of_zeros_and_of_opposites(values, reference, relative, cosine):
    found = distance(values, reference, "values")
    assert found.relative_l2 == relative
    assert found.cosine == pytest.approx(cosine, abs=1e-12)


def test_sums_are_in_float64():
    """In fp32 this cosine is 1, and the sum of squares stays at 1e8."""
    assert 1 - distance(array(1, 0), array(1, 1e-4), "values").cosine == pytest.approx(5e-9, 1e-3)
    found = distance(array(1e4, *[1] * 10), np.zeros(11, np.float32), "values")
    assert found.rms**2 * 11 == pytest.approx(1e8 + 10, rel=1e-9)


def test_chunks_change_nothing(monkeypatch):
    values, reference = noise(3, 5, 7), noise(3, 5, 7, seed=1)
    whole = distance(values, reference, "values")
    monkeypatch.setattr(metrics, "_CHUNK", 4)
    parts = distance(values, reference, "values")
    assert parts.max_abs == whole.max_abs == np.abs(values - reference).max()
    exact = np.sqrt(np.square(values.astype(np.float64) - reference).mean())
    assert parts.rms == pytest.approx(whole.rms, rel=1e-12) == pytest.approx(exact, rel=1e-12)
    assert parts.cosine == pytest.approx(whole.cosine, rel=1e-12)


def test_other_shapes_have_no_distance():
    with pytest.raises(RunError, match=r"text: shapes \(2, 3\) and \(3, 2\) differ"):
        distance(np.zeros((2, 3)), np.zeros((3, 2)), "text")


@pytest.mark.parametrize(
    ("values", "reference", "told"),
    [
        (array(1, np.nan, np.inf), array(1, 2, 3), "2 of 3 are not, and 0 of the reference's"),
        (array(1, 2, 3), array(1, -np.inf, 3), "0 of 3 are not, and 1 of the reference's"),
    ],
)
def test_what_is_not_finite_has_no_distance(values, reference, told):
    with pytest.raises(RunError, match=f"latents: not all values are finite; {told}"):
        distance(values, reference, "latents")


# --- frames ---------------------------------------------------------------------------------------


def test_psnr_of_a_known_error():
    """20·log10(2 / 0.02) = 40."""
    frame = noise(3, 16, 16) * 0.9
    assert psnr_db(frame + np.float32(0.02), frame) == pytest.approx(40, abs=1e-3)


def test_psnr_of_equal_frames_is_the_cap():
    assert psnr_db(noise(3, 16, 16), noise(3, 16, 16)) == PSNR_CAP_DB
    nearly = np.zeros((3, 16, 16), np.float32)
    assert psnr_db(nearly + np.float32(1e-20), nearly) == PSNR_CAP_DB


@pytest.mark.parametrize("size", [(16, 16), (5, 7), (10, 64), (2, 2)])
def test_ssim_of_two_plain_frames(size):
    """Without variance it is (2ab + C) / (a² + b² + C), C = (0.01 · 2)². Some are below 11 px."""
    a, b = np.full((3, *size), 0.5, np.float32), np.full((3, *size), -0.25, np.float32)
    assert ssim(a, b) == pytest.approx((2 * -0.125 + 4e-4) / (0.25 + 0.0625 + 4e-4), abs=1e-6)
    assert ssim(a, a) == 1


def test_ssim_of_one_window_by_the_formula():
    """An 11 by 11 frame has one place for the window; population moments, sigma 1.5."""
    a, b = noise(3, 11, 11), noise(3, 11, 11) * 0.5 + noise(3, 11, 11, seed=1) * 0.4
    line = np.exp(-np.square(np.arange(-5, 6)) / (2 * 1.5**2))
    weights = np.outer(line, line) / line.sum() ** 2

    def mean(values):
        return (values.astype(np.float64) * weights).sum(axis=(1, 2))

    c1, c2 = (0.01 * 2) ** 2, (0.03 * 2) ** 2
    wide = a.astype(np.float64), b.astype(np.float64)
    of_a, of_b = map(mean, wide)
    spread = mean(wide[0] ** 2) - of_a**2 + mean(wide[1] ** 2) - of_b**2
    together = mean(wide[0] * wide[1]) - of_a * of_b
    expected = (
        (2 * of_a * of_b + c1) * (2 * together + c2) / (of_a**2 + of_b**2 + c1) / (spread + c2)
    )
    assert ssim(a, b) == pytest.approx(expected.mean(), abs=1e-9)


def test_frames_are_compared_each_with_its_own():
    reference = noise(1, 3, 4, 16, 16) * 0.9
    pixels = reference.copy()
    pixels[:, :, 2] += np.float32(0.2)
    found = frame_likeness(pixels, reference)
    assert [frame.psnr_db for frame in found] == pytest.approx([200, 200, 20, 200], abs=1e-3)
    assert [frame.ssim == 1 for frame in found] == [True, True, False, True]


def test_other_videos_cannot_be_compared():
    with pytest.raises(RunError, match=r"\(1, 3, 5, 16, 16\) and \(1, 3, 9, 16, 16\) differ"):
        frame_likeness(np.zeros((1, 3, 5, 16, 16)), np.zeros((1, 3, 9, 16, 16)))


# --- the extra ------------------------------------------------------------------------------------


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(RequestError, match=r"SSIM needs wanc\[compare\]: pip install 'wanc\["):
        ssim(noise(3, 16, 16), noise(3, 16, 16))


def test_all_that_is_missing_is_named():
    with pytest.raises(RequestError, match=r"\(not found: no_such_package, nor_such\)"):
        check_installed("a plot", "numpy", "no_such_package", "nor_such")
    check_installed("a plot", "numpy")

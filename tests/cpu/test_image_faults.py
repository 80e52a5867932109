"""Parity from images can fail: a planted fault moves what comes out far past the tolerance."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.compiled import Images, Made, named_images
from tests.cpu.test_faults import SHOWS
from tests.cpu.test_images import COARSE, CONDITION_TOLERANCE
from tests.cpu.test_parity import WHOLE, difference
from wanc.arrays import Array
from wanc.run import condition, feeds, pipeline, session
from wanc.run.condition import Condition

pytestmark = pytest.mark.xdist_group("images")

SHOWS_IN_CONDITION = 100 * CONDITION_TOLERANCE
"""As far past its tolerance as latents must be."""

Sample = Callable[[], Made]
Plant = Callable[[pytest.MonkeyPatch], None]


@contextmanager
def sampling(wanc: Any, shape: str, images: Images) -> Iterator[Sample]:
    """Generate from images again and again, on one session."""
    opened = wanc.session(wanc.bundle(shape, "tp1"))
    yield lambda: wanc.sample(opened, **named_images(images))
    opened.engine.close()


@pytest.fixture(scope="module")
def sample(of_task: Any, pictures: Any) -> Iterator[Sample]:
    """From a first and a last image."""
    with sampling(of_task("i2v")[0], WHOLE, pictures(WHOLE)) as sample:
        yield sample


@pytest.fixture(scope="module")
def right(sample: Sample) -> Made:
    """What is made without a fault; tests/cpu/test_images.py holds it against diffusers."""
    return sample()


def test_without_a_fault_nothing_shows(sample: Sample, right: Made) -> None:
    again = sample()
    assert np.array_equal(again.condition, right.condition)
    assert torch.equal(again.latents, right.latents)


# --- pixels ---------------------------------------------------------------------------------------

PIXEL_FAULTS: dict[str, Callable[[Array], Array]] = {
    "no image": np.zeros_like,
    "a frame late": lambda pixels: np.roll(pixels, 1, axis=2),
    "a frame early": lambda pixels: np.roll(pixels, -1, axis=2),
    "the last image a frame early": lambda pixels: moved_last(pixels, -2),
    "the last image first of its latent frame": lambda pixels: moved_last(pixels, -4),
    "black between": lambda pixels: np.where(pixels == 0, np.float32(-1), pixels),
    "from 0 to 1": lambda pixels: np.where(pixels == 0, pixels, (pixels + 1) / 2),
    "blue for red": lambda pixels: pixels[:, ::-1],
    "upside down": lambda pixels: pixels[..., ::-1, :],
    "mirrored": lambda pixels: pixels[..., ::-1],
}
"""By name, what becomes of all that is encoded: [1, 3, frames, h, w]."""


def moved_last(pixels: Array, place: int) -> Array:
    """The last image in another of the last frames."""
    moved = pixels.copy()
    moved[:, :, -1] = 0
    moved[:, :, place] = pixels[:, :, -1]
    return moved


@pytest.mark.parametrize("name", PIXEL_FAULTS)
def test_a_fault_in_the_pixels_shows(
    sample: Sample, right: Made, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    frames_of = pipeline.condition_frames

    def faulty(*how: Any) -> list[Array]:
        frames = frames_of(*how)
        ends = np.cumsum([frame.shape[2] for frame in frames])
        return np.split(PIXEL_FAULTS[name](np.concatenate(frames, axis=2)), ends[:-1], axis=2)

    monkeypatch.setattr(pipeline, "condition_frames", faulty)
    made = sample()
    assert difference(made.condition, right.condition) > SHOWS_IN_CONDITION
    assert difference(made.latents, right.latents) > SHOWS


# --- encoding -------------------------------------------------------------------------------------


def not_normalised(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(feeds, "sampler_latents", lambda latents, vae: latents)


def normalised_backwards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(feeds, "sampler_latents", feeds.vae_latents)


@pytest.mark.parametrize("fault", [not_normalised, normalised_backwards])
def test_a_fault_in_the_condition_s_scale_shows(
    sample: Sample, right: Made, monkeypatch: pytest.MonkeyPatch, fault: Plant
) -> None:
    fault(monkeypatch)
    made = sample()
    assert difference(made.condition, right.condition) > SHOWS_IN_CONDITION
    assert difference(made.latents, right.latents) > SHOWS


def test_an_encoder_in_bf16_shows(
    of_task: Any, pictures: Any, right: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights alone: they are the least that such an encoder rounds."""
    read = session.read_shards

    def rounded(component: Any, *how: Any) -> list[Array]:
        shards: list[Array] = read(component, *how)
        if component.name != "vae":
            return shards
        return [torch.from_numpy(shard.copy()).bfloat16().float().numpy() for shard in shards]

    monkeypatch.setattr(session, "read_shards", rounded)
    wanc, _ = of_task("i2v")
    made = wanc.generation(WHOLE, "tp1", images=pictures(WHOLE))
    assert difference(made.condition, right.condition) > SHOWS_IN_CONDITION


# --- channels -------------------------------------------------------------------------------------

MASK_FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "inverted": lambda mask: 1 - mask,
    "a latent frame late": lambda mask: mask.roll(1, dims=2),
    "the last image in channel 0": lambda mask: mask.roll(1, dims=1),
    "the first image in channel 0 alone": lambda mask: first_in(mask, 0),
    "the first image in channel 3 alone": lambda mask: first_in(mask, 3),
    "no last image": lambda mask: torch.cat([mask[:, :, :-1], 0 * mask[:, :, -1:]], dim=2),
}
"""By name, what becomes of the mask: [1, 4, F, H, W]."""


def first_in(mask: Tensor, channel: int) -> Tensor:
    """The mask with one channel of the first latent frame."""
    one = mask.clone()
    one[:, :, 0] = 0
    one[:, channel, 0] = 1
    return one


@pytest.mark.parametrize("name", MASK_FAULTS)
def test_a_fault_in_the_mask_shows(
    sample: Sample, right: Made, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    mask_of = condition.condition_mask
    monkeypatch.setattr(
        condition, "condition_mask", lambda *args, **how: MASK_FAULTS[name](mask_of(*args, **how))
    )
    assert difference(sample().latents, right.latents) > SHOWS


ORDERS = [
    ("noise", "latents", "mask"),
    ("mask", "noise", "latents"),
    ("mask", "latents", "noise"),
    ("latents", "mask", "noise"),
]


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_another_order_of_the_channels_shows(
    sample: Sample, right: Made, monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...]
) -> None:
    def seen(self: Condition, noise: Tensor) -> Tensor:
        parts = {"noise": noise, "mask": self.mask, "latents": self.latents}
        return torch.cat([parts[name] for name in order], dim=1)

    monkeypatch.setattr(Condition, "seen", seen)
    assert difference(sample().latents, right.latents) > SHOWS


# --- the 5B model, whose image is its first latent frame ------------------------------------------


def no_token_given(patch: pytest.MonkeyPatch) -> None:
    tokens = feeds.given_tokens
    patch.setattr(feeds, "given_tokens", lambda grid, frames: tokens(grid, 0))


def every_token_given(patch: pytest.MonkeyPatch) -> None:
    tokens = feeds.given_tokens
    patch.setattr(feeds, "given_tokens", lambda grid, frames: tokens(grid, grid.latent_frames))


def given_tokens_at_the_noisy_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pipeline, "GIVEN_TIMESTEP", 999.0)


def noise_for_the_image(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Condition, "seen", lambda self, latents: latents)


@pytest.fixture(scope="module")
def sample_5b(of_task: Any, pictures: Any) -> Iterator[Sample]:
    """From a first image."""
    with sampling(of_task("ti2v")[0], COARSE, pictures(COARSE)[:1]) as sample:
        yield sample


@pytest.fixture(scope="module")
def right_5b(sample_5b: Sample) -> Made:
    return sample_5b()


@pytest.mark.parametrize(
    "fault",
    [
        no_token_given,
        every_token_given,
        given_tokens_at_the_noisy_end,
        noise_for_the_image,
        not_normalised,
    ],
)
def test_a_fault_of_the_5b_model_shows(
    sample_5b: Sample, right_5b: Made, monkeypatch: pytest.MonkeyPatch, fault: Plant
) -> None:
    """In the latent frame that is made: the given one shows no more than what is given."""
    fault(monkeypatch)
    assert difference(sample_5b().latents[:, :, 1:], right_5b.latents[:, :, 1:]) > SHOWS

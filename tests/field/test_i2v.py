"""Cases from the field about videos that begin, and end, with an image.

Each test names the public report that it retells. tests/cpu/test_images.py has parity with
diffusers, and tests/unit/test_image.py what becomes of a file's pixels.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from imageio.v2 import get_reader
from PIL import Image

from tests.compiled import SEED, Images, named_images, tiny_plan
from tests.cpu.test_images import COARSE, CONDITION_TOLERANCE
from tests.cpu.test_parity import (
    BF16_FACTOR,
    LATENT_TOLERANCE,
    MASKED,
    PIXEL_TOLERANCE,
    WHOLE,
    difference,
    rms_difference,
)
from wanc.bundle.store import open_bundle
from wanc.run.condition import Condition, condition_mask
from wanc.run.image import FITS
from wanc.run.session import Session
from wanc.spec.presets import TINY_I2V
from wanc.spec.shape import Shape

pytestmark = pytest.mark.xdist_group("images")

LEVEL = 2 / 255
"""Of 8 bits, in pixels from -1 to 1."""
SHOWS = 100
"""Times a tolerance: far from rounding."""


@pytest.fixture(scope="module")
def i2v(of_task):
    return of_task("i2v")[0]


@pytest.fixture(scope="module")
def session(i2v) -> Iterator[Session]:
    opened = i2v.session(i2v.bundle(WHOLE, "tp1"))
    yield opened
    opened.engine.close()


@pytest.fixture(scope="module")
def prepared(of_task):
    """What diffusers' own pipeline makes of a seed and of images: noise, mask and condition."""
    pipe = of_task("i2v")[1].pipeline(from_images=True)

    @torch.no_grad()
    def prepared(shape: str, images: Images) -> torch.Tensor:
        size = Shape.parse(shape)
        sides = {"height": size.height_px, "width": size.width_px}
        opened = [pipe.video_processor.preprocess(Image.open(path), **sides) for path in images]
        parts = pipe.prepare_latents(
            opened[0],
            batch_size=1,
            num_frames=size.frames,
            dtype=torch.float32,
            generator=torch.Generator("cpu").manual_seed(SEED),
            last_image=opened[1] if len(opened) > 1 else None,
            **sides,
        )
        return torch.cat(parts, dim=1)

    return prepared


# --- the image is seen ----------------------------------------------------------------------------


def test_the_video_follows_its_image(i2v, session, prepared, pictures):
    """Wan-Video/Wan2.2 #249, deepbeepmeep/Wan2GP #1160: image ignored, a black first frame."""
    one, two = (i2v.sample(session, image=path) for path in pictures(WHOLE))
    for made, path in zip((one, two), pictures(WHOLE), strict=True):
        theirs = prepared(WHOLE, (path,))[:, -16:]
        assert difference(made.condition, theirs) < CONDITION_TOLERANCE
        assert made.pixels[:, :, 0].std() > 0.1
    assert difference(one.condition[:, :, 0], two.condition[:, :, 0]) > SHOWS * CONDITION_TOLERANCE
    assert difference(one.latents[:, :, 0], two.latents[:, :, 0]) > SHOWS * LATENT_TOLERANCE
    assert difference(one.pixels[:, :, 0], two.pixels[:, :, 0]) > SHOWS * PIXEL_TOLERANCE


@pytest.mark.parametrize("count", [1, 2])
def test_experts_see_noise_then_mask_then_images(
    i2v, session, prepared, pictures, monkeypatch, count
):
    """huggingface/diffusers #12499, #12241: 36 channels, and where each of them lies."""
    seen, see = [], Condition.seen
    monkeypatch.setattr(Condition, "seen", lambda *how: seen.append(see(*how)) or seen[-1])
    images = pictures(WHOLE)[:count]
    i2v.sample(session, steps=1, **named_images(images))
    (ours,), theirs = seen, prepared(WHOLE, images)
    assert ours.shape == theirs.shape == (1, 36, 2, 16, 26)
    assert torch.equal(ours[:, :20], theirs[:, :20])
    assert difference(ours[:, 20:], theirs[:, 20:]) < CONDITION_TOLERANCE


@pytest.mark.parametrize("with_last", [False, True])
def test_mask_has_four_channels_at_the_first_latent_frame(prepared, pictures, with_last):
    """huggingface/diffusers #12499, #12241: a channel for each frame of a latent one."""
    ours = condition_mask(TINY_I2V.vae, torch.empty(1, 16, 3, 6, 10), with_last=with_last)
    assert ours.dtype == torch.float32
    of_channel = torch.tensor([[1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, int(with_last)]])
    assert torch.equal(ours, of_channel[None, :, :, None, None].expand(1, 4, 3, 6, 10).float())
    images = pictures(MASKED)[: 2 if with_last else 1]
    assert torch.equal(ours, prepared(MASKED, images)[:, 16:20])


# --- the image is what was given ------------------------------------------------------------------


@pytest.fixture
def encoded(i2v, session, monkeypatch):
    """The pixels of each latent frame that the encoder is fed."""

    def encoded(images: Images) -> list[np.ndarray]:
        fed, feed = [], Session.feed

        def kept(self: Session, name: str, array: np.ndarray) -> None:
            fed.append((name, array))
            feed(self, name, array)

        with monkeypatch.context() as patch:
            patch.setattr(Session, "feed", kept)
            i2v.sample(session, steps=1, **named_images(images))
        return [array for name, array in fed if name.startswith("pixels_")]

    return encoded


CORNERS = {
    "first": [[-1, -1, 1], [1, -1, 1], [-1, 1, 1], [1, 1, -1]],
    "last": [[1, 0, -1], [1, np.sin(9), -1], [-1, 0, -1], [-1, np.sin(9), 1]],
}
"""Red, green and blue of the pictures' corners: above left and right, below left and right."""


@pytest.mark.parametrize("size", [WHOLE, "416x256x5"])
def test_images_reach_the_encoder_upright_and_in_their_colours(encoded, pictures, size):
    """Wan-Video/Wan2.2 #249 in kind: what is turned or has its colours changed is ignored too."""
    first, rest = encoded(pictures(size))
    assert first.shape == (1, 3, 1, 128, 208)
    assert rest.shape == (1, 3, 4, 128, 208)
    assert not rest[:, :, :3].any()
    for name, frame in (("first", first[0, :, 0]), ("last", rest[0, :, 3])):
        corners = frame[:, [0, 0, -1, -1], [0, -1, 0, -1]].T
        assert np.abs(corners - CORNERS[name]).max() < 5 * LEVEL  # scaled by half, a little bent


def test_nothing_but_the_first_image_is_encoded_without_a_last(encoded, pictures):
    _, rest = encoded(pictures(WHOLE)[:1])
    assert not rest.any()


def test_aspect_is_changed_as_declared_and_recorded(i2v, tmp_path, pictures):
    """Wan-Video/Wan2.2 #231, #233: a 4:3 image into a wider video, in silence."""
    image, bundle = pictures("160x120x5")[0], i2v.bundle(WHOLE, "tp1")
    records = {
        fit: i2v.generate(bundle, tmp_path / "v.mp4", image=image, steps=1, fit=fit)
        for fit in (*FITS, None)
    }
    said = {fit: record["images"][0] for fit, record in records.items()}
    assert len({each["digest"] for each in said.values()}) == 1
    assert {(each["width_px"], each["height_px"]) for each in said.values()} == {(160, 120)}
    assert [said[fit]["fit"] for fit in FITS] == list(FITS)
    assert said["crop"]["kept"] == pytest.approx((0, 10.77, 160, 98.46), abs=0.01)
    assert said["crop"]["placed"] == said["stretch"]["placed"] == (0, 0, 208, 128)
    assert said["pad"]["kept"] == said["stretch"]["kept"] == (0, 0, 160, 120)
    assert said["pad"]["placed"] == (18, 0, 171, 128)
    assert len({records[fit]["latents"] for fit in FITS}) == len(FITS)
    assert said[None] == said["crop"]
    assert records[None]["latents"] == records["crop"]["latents"]


def test_a_video_has_the_frame_rate_of_its_model(of_task, tmp_path, pictures):
    """Comfy-Org/ComfyUI #9106 in kind: 24 a second are the 5B model's, 16 the others'."""
    wanc, _ = of_task("ti2v")
    image, video = pictures(COARSE)[0], tmp_path / "v.mp4"
    record = wanc.generate(wanc.bundle(COARSE, "tp1"), video, image=image, steps=1)
    assert record["sampling"]["fps"] == 24
    with get_reader(video) as reader:
        assert reader.get_meta_data()["fps"] == 24
        assert len(list(reader.iter_data())) == 5


# --- precision, and what is shared ----------------------------------------------------------------


ENCODER = {"vae_encode_first", "vae_encode_rest"}
DECODER = {"vae_decode_first", "vae_decode_rest"}


def programs_of(bundle: Path, variant: int = 0) -> dict[str, tuple[str, str]]:
    """Digests of each program's StableHLO and executable."""
    records = open_bundle(bundle).variants[variant].config.programs
    return {r.program.name: (r.stablehlo.digest, r.executable.digest) for r in records}


def test_images_are_encoded_in_fp32_whatever_the_rest_is(i2v, of_task, pictures):
    """sgl-project/sglang PR #32697: VAE encode must stay fp32. To the bit, of the same programs."""
    narrow, wide = (i2v.bundle(WHOLE, "tp1", precision) for precision in ("bf16", "fp32"))
    images, (_, diffusers) = pictures(WHOLE), of_task("i2v")
    half, whole = (i2v.generation(WHOLE, "tp1", p, images=images) for p in ("bf16", "fp32"))
    assert np.array_equal(half.condition, whole.condition)
    assert not torch.equal(half.latents, whole.latents)
    stored, same = programs_of(narrow), programs_of(wide)
    assert {name for name in stored if stored[name] == same[name]} == ENCODER | DECODER
    records = open_bundle(narrow).variants[0].config.programs
    encoders = [record.program for record in records if record.program.name in ENCODER]
    tensors = [t for each in encoders for t in (*each.weights, *each.inputs, *each.outputs)]
    assert {tensor.dtype for tensor in tensors} == {"float32"}
    exact = diffusers(WHOLE, images=images).latents
    theirs = rms_difference(diffusers(WHOLE, torch.bfloat16, images=images).latents, exact)
    assert rms_difference(half.latents, exact) < BF16_FACTOR * theirs


def test_text_and_image_to_video_share_a_bundle(wanc, i2v, tmp_path, pictures):
    """pytorch/executorch PR #18901 in kind: all but the embedding and the encoder is one blob."""
    plans = [tiny_plan(WHOLE, "tp1"), tiny_plan(WHOLE, "tp1", model=TINY_I2V)]
    both = tmp_path / "both"
    i2v.compile(plans, both)
    text, image = sorted((programs_of(both, variant) for variant in (0, 1)), key=len)
    of_image = {"dit_embed", *ENCODER}
    assert {name for name in image if image[name] != text.get(name)} == of_image
    assert set(image) - set(text) == ENCODER
    json_blobs = 5  # the index, and a manifest and a config of each variant
    stored = list((both / "blobs" / "sha256").iterdir())
    assert len(stored) == 2 * (len(text) + len(of_image)) + json_blobs
    for task, one, images in (("t2v", wanc, ()), ("i2v", i2v, pictures(WHOLE)[:1])):
        alone, shared = (
            one.generate(bundle, tmp_path / "v.mp4", steps=1, **named_images(images))
            for bundle in (one.bundle(WHOLE, "tp1"), both)
        )
        assert shared["variant"]["task"] == task
        assert shared["latents"] == alone["latents"]

"""Image to video against diffusers' WanImageToVideoPipeline, and against other topologies."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.compiled import named_images
from tests.cpu.test_parity import (
    LATENT_TOLERANCE,
    MASKED,
    PIXEL_TOLERANCE,
    TAILS,
    TEXT_TOLERANCE,
    WHOLE,
    difference,
)

pytestmark = pytest.mark.xdist_group("images")
"""On one worker, for what they compile takes long."""

CONDITION_TOLERANCE = 1e-4
"""Of the encoded image: one pass of convolutions in fp32, no loop that multiplies rounding."""

COARSE = "224x128x5"
"""Of the 5B model, whose grain is 32 px: 56 tokens, which tp2-cp2 divides."""

CASES = [
    (WHOLE, "tp1", 1),
    (WHOLE, "tp1", 2),
    (WHOLE, "cp2", 1),
    (WHOLE, "cp2", 2),
    (WHOLE, "tp2-cp2-cfg2", 1),
    (WHOLE, "tp2-cp2-cfg2", 2),
    (TAILS, "tp4-cp2", 2),
    (MASKED, "cp2", 2),
]


@pytest.mark.parametrize(("shape", "topology", "count"), CASES)
def test_equals_diffusers(
    of_task: Any, pictures: Any, shape: str, topology: str, count: int
) -> None:
    """The first image alone, and the first and the last."""
    wanc, diffusers = of_task("i2v")
    images = pictures(shape)[:count]
    ours = wanc.generation(shape, topology, images=images)
    theirs = diffusers(shape, images=images)
    assert difference(ours.prompt_embeddings, theirs.prompt_embeddings) < TEXT_TOLERANCE
    assert difference(ours.condition, theirs.condition) < CONDITION_TOLERANCE
    assert difference(ours.latents, theirs.latents) < LATENT_TOLERANCE
    assert difference(ours.pixels, theirs.pixels) < PIXEL_TOLERANCE


@pytest.mark.parametrize("topology", ["tp1", "tp2-cp2-cfg2", "tp4-cp3"])
@pytest.mark.parametrize("count", [0, 1])
def test_5b_equals_diffusers_from_a_prompt_and_from_an_image(
    of_task: Any, pictures: Any, topology: str, count: int
) -> None:
    """tp4-cp3 masks the pads of 57 keys."""
    wanc, diffusers = of_task("ti2v")
    images = pictures(COARSE)[:count]
    ours = wanc.generation(COARSE, topology, images=images)
    theirs = diffusers(COARSE, images=images)
    if images:
        assert difference(ours.condition, theirs.condition) < CONDITION_TOLERANCE
    assert difference(ours.latents, theirs.latents) < LATENT_TOLERANCE
    assert difference(ours.pixels, theirs.pixels) < PIXEL_TOLERANCE


def test_5b_keeps_the_first_latent_frame_that_is_given(of_task: Any, pictures: Any) -> None:
    wanc, _ = of_task("ti2v")
    made = wanc.generation(COARSE, "tp1", images=pictures(COARSE)[:1])
    assert np.array_equal(made.latents[:, :, :1].numpy(), made.condition)
    assert not torch.equal(made.steps[-1], made.latents)


def test_two_images_give_two_videos(of_task: Any, pictures: Any) -> None:
    wanc, _ = of_task("i2v")
    one, two = (wanc.generation(WHOLE, "tp1", images=(path,)) for path in pictures(WHOLE))
    assert difference(one.latents, two.latents) > 100 * LATENT_TOLERANCE


def test_processes_give_the_bits_of_one(of_task: Any, pictures: Any, tmp_path: Path) -> None:
    """Tiles of the image lie on ranks of either process; all need the whole condition."""
    wanc, _ = of_task("i2v")
    bundle, images = wanc.bundle(WHOLE, "tp2-cp2-cfg2"), named_images(pictures(WHOLE))
    records = [
        wanc.generate(bundle, tmp_path / f"{count}.mp4", processes=count, **images)
        for count in (None, 2)
    ]
    assert records[0]["latents"] == records[1]["latents"]
    assert len(records[1]["processes"]) == 2
    first, second = ([image["digest"] for image in record["images"]] for record in records)
    assert first == second
    assert len(first) == 2

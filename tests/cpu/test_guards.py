"""Damage that no reader can see ends a run, with the stage and the step that it showed in."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.cpu.test_failures import fails, run_line
from tests.cpu.test_parity import WHOLE
from wanc.arrays import Array
from wanc.spec.model import EXPERT_COMPONENTS

pytestmark = pytest.mark.xdist_group("images")

Change = Callable[[Array], Array]
Run = Callable[..., list[str]]


@pytest.fixture
def run(
    wanc: Any, of_task: Any, pictures: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run a checkpoint with some tensors changed, which fails; the files that it leaves."""

    def run(task: str, component: str, changed: dict[str, Change], *said: str) -> list[str]:
        one = wanc if task == "t2v" else of_task(task)[0]
        images = [] if task == "t2v" else ["--image", str(pictures(WHOLE)[0])]
        weights, output = tmp_path / "checkpoint", tmp_path / "out"
        shutil.copytree(one.checkpoint, weights)
        change(weights / component, changed)
        output.mkdir()
        arguments = run_line(one.bundle(WHOLE, "tp1"), weights, output / "v.mp4", *images)
        fails(arguments, 6, capsys, *said)
        return sorted(file.name for file in output.iterdir())

    return run


def change(component: Path, changed: dict[str, Change]) -> None:
    """Rewrite some tensors of a component in one file."""
    (file,) = component.glob("*.safetensors")
    tensors = load_file(file)
    for name, become in changed.items():
        tensors[name] = become(tensors[name]).astype(np.float32)
    save_file(tensors, file, metadata={"format": "pt"})


def one_nan(tensor: Array) -> Array:
    """NaN in one place."""
    damaged = tensor.copy()
    damaged.flat[tensor.size // 2] = np.nan
    return damaged


LOW_NOISE = EXPERT_COMPONENTS["low_noise"]
BEFORE_DECODING = [
    ("t2v", "text_encoder", "encoder.block.0.layer.1.DenseReluDense.wo.weight", "text encoding"),
    ("t2v", "transformer", "blocks.1.ffn.net.2.weight", "step.high_noise: noise at step 1 of 4"),
    ("t2v", "transformer", "blocks.0.attn2.to_k.bias", "step.high_noise: noise at step 1 of 4"),
    ("t2v", LOW_NOISE, "blocks.0.attn1.norm_q.weight", "step.low_noise: noise at step 4 of 4"),
    ("i2v", "vae", "encoder.down_blocks.0.conv1.weight", "encode image: latents of tile 1 of 1"),
    ("i2v", LOW_NOISE, "patch_embedding.weight", "step.low_noise: noise at step 3 of 4"),
]


@pytest.mark.parametrize(("task", "component", "tensor", "where"), BEFORE_DECODING)
def test_nan_in_one_weight_is_named_by_stage_and_step(
    run: Run, task: str, component: str, tensor: str, where: str
) -> None:
    """The first stage that it shows in, and nothing is left: no video, and no half of one."""
    changed = {tensor: one_nan}
    assert run(task, component, changed, f"stage {where}", "are not finite; look for NaN") == []


COLOUR = "stage decode: every frame has one colour, about "
FAR = "of the pixels' values lie beyond ±2, the largest at "
WEIGHT, BIAS = "decoder.conv_out.weight", "decoder.conv_out.bias"
DECODERS: dict[str, tuple[dict[str, Change], str]] = {
    "nan": (
        {"decoder.up_blocks.2.resnets.0.conv1.weight": one_nan},
        "stage decode: pixels of tile 1 of 1",
    ),
    "grey": ({WEIGHT: np.zeros_like, BIAS: np.zeros_like}, COLOUR + "0.000, 0.000, 0.000"),
    "black": (
        {WEIGHT: lambda weight: weight / 10, BIAS: lambda bias: np.full_like(bias, -1.6)},
        COLOUR + "-1.",
    ),
    "too bright": ({WEIGHT: lambda weight: 1e4 * weight}, FAR),
    "ten times the contrast": ({WEIGHT: lambda weight: 10 * weight}, FAR),
}
"""By what the video would be: tensors of the decoder and what becomes of them, and what is said."""


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_that_makes_no_picture_leaves_the_latents(run: Run, name: str) -> None:
    """Decoding can be taken up from them."""
    changed, said = DECODERS[name]
    assert run("t2v", "vae", changed, said) == ["v.latents.safetensors"]

"""The official contract of the three published models, row by row, and on its way into a run.

Sampling is that of wan/configs in the official Wan2.2 repository, commit 42bf4cf; networks are
those of the checkpoints in diffusers layout. tests/cpu/test_samplers.py has the sigmas.
"""

import json
import math
from dataclasses import replace

import pytest

from tests.planned import planned
from tests.unit.conftest import variant_of
from tests.unit.test_checkpoint_configs import INDEX, configs_of
from wanc.bundle.config import decode_config, encode_config
from wanc.run.request import Guidance, RunRequest, sampling_values
from wanc.spec.checkpoint import read_checkpoint
from wanc.spec.model import TEXT_TOKENS
from wanc.spec.presets import (
    NEGATIVE_PROMPT,
    RUN_PRESETS,
    SAMPLING,
    TINY_MODELS,
    WAN22_I2V_A14B,
    WAN22_T2V_A14B,
    WAN22_TI2V_5B,
)

MODELS = {"t2v": WAN22_T2V_A14B, "i2v": WAN22_I2V_A14B, "ti2v": WAN22_TI2V_5B}
SHAPES = {"t2v": "832x480x81", "i2v": "832x480x81", "ti2v": "1280x704x121"}
VAE_Z16 = (16, 4, 8)
A14B_DIT = (5120, 13824, 40, 128, 40)
UMT5_XXL = (24, 4096, 64, 10240)

CONTRACT = {
    "flow shift": ("sampling", "flow_shift", (12.0,), (5.0,), (5.0,)),
    "steps": ("sampling", "steps", (40,), (40,), (50,)),
    "boundary": ("sampling", "boundary", (0.875,), (0.900,), (None,)),
    "guidance": ("sampling", "guidance_low guidance_high", (3.0, 4.0), (3.5, 3.5), (5.0, 5.0)),
    "fps, frames": ("sampling", "fps trained_frames", (16, 81), (16, 81), (24, 121)),
    "VAE": (
        "vae",
        "z_channels temporal_stride spatial_stride",
        (16, 4, 8),
        (16, 4, 8),
        (48, 4, 16),
    ),
    "DiT": (
        *("transformer", "width ffn_width heads head_width layers"),
        *(A14B_DIT, A14B_DIT, (3072, 14336, 24, 128, 30)),
    ),
    "patch": ("transformer", "patch_FHW", ((1, 2, 2),), ((1, 2, 2),), ((1, 2, 2),)),
    "channels": ("transformer", "in_channels out_channels", (16, 16), (36, 16), (48, 48)),
    "UMT5": ("text_encoder", "layers width heads ffn_width", UMT5_XXL, UMT5_XXL, UMT5_XXL),
}
"""A part of the model, names in it, and their values for t2v-A14B, i2v-A14B and ti2v-5B."""


def fields(record, names):
    return tuple(getattr(record, name) for name in names.split())


def config_of(model):
    """The config of a bundle of the model, as a run reads it."""
    return decode_config(encode_config(replace(variant_of().config, model=model)), "here")


def values(model, **given):
    return sampling_values(replace(RunRequest(prompt="", seed=1), **given), config_of(model))


@pytest.mark.parametrize("task", MODELS)
@pytest.mark.parametrize("row", CONTRACT)
def test_row(row, task):
    part, names, *columns = CONTRACT[row]
    official = dict(zip(MODELS, columns, strict=True))[task]
    assert fields(getattr(MODELS[task], part), names) == official


@pytest.mark.parametrize("task", MODELS)
def test_every_task_is_the_task_of_its_model(task):
    assert MODELS[task].task == TINY_MODELS[task].task == task
    assert MODELS[task].sampling == TINY_MODELS[task].sampling == SAMPLING[task]
    assert SAMPLING[task].negative_prompt == NEGATIVE_PROMPT


def test_prompts_have_512_tokens():
    assert TEXT_TOKENS == 512


def test_image_to_video_sees_noise_mask_and_condition():
    vae, dit = WAN22_I2V_A14B.vae, WAN22_I2V_A14B.transformer
    noise, mask, condition = 16, 4, 16
    assert dit.in_channels == noise + mask + condition
    assert dit.out_channels == noise
    assert vae.condition_channels == mask + condition


# --- experts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "boundary"), [("t2v", 875), ("i2v", 900)])
def test_boundary_itself_is_the_high_noise_expert_s(task, boundary):
    model = MODELS[task]
    run = values(model)
    below = math.nextafter(boundary, 0)
    assert run.expert_at(boundary, model) == "high_noise"
    assert run.expert_at(below, model) == run.expert_at(boundary - 1, model) == "low_noise"
    assert {run.expert_at(t, model) for t in (1000, 999)} == {"high_noise"}
    assert run.expert_at(0, model) == "low_noise"


def test_one_expert_takes_every_timestep():
    run = values(WAN22_TI2V_5B)
    assert {run.expert_at(t, WAN22_TI2V_5B) for t in (1000, 900, 875, 500, 0)} == {"high_noise"}


# --- on the way into a run ------------------------------------------------------------------------


@pytest.mark.parametrize("task", MODELS)
def test_a_plan_and_a_bundle_carry_the_contract(task):
    model = MODELS[task]
    assert planned(SHAPES[task], "tp4-cp8", model=model.name).model == model
    assert config_of(model).model == model


@pytest.mark.parametrize("task", MODELS)
def test_a_run_takes_what_is_not_given(task):
    run, official = values(MODELS[task]), SAMPLING[task]
    names = "flow_shift steps boundary guidance_low guidance_high fps"
    assert fields(run, names) == fields(official, names)
    assert (run.sampler, run.only, run.preset) == ("unipc", None, "official")


@pytest.mark.parametrize("preset", [None, *RUN_PRESETS])
@pytest.mark.parametrize("task", MODELS)
@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"flow_shift": 3.0}, {"flow_shift": 3.0}),
        ({"flow_shift": 12.0}, {"flow_shift": 12.0}),
        ({"steps": 7}, {"steps": 7}),
        ({"guidance": Guidance(high=2.0, low=6.0)}, {"guidance_high": 2.0, "guidance_low": 6.0}),
        ({"guidance": Guidance(high=0.0, low=0.0)}, {"guidance_high": 0.0, "guidance_low": 0.0}),
    ],
    ids=["shift", "official shift", "steps", "guidance", "no guidance"],
)
def test_what_a_user_gives_wins_and_nothing_else_moves(given, seen, task, preset):
    model = MODELS[task]
    assert values(model, preset=preset, **given) == replace(values(model, preset=preset), **seen)


# --- a checkpoint's own boundary ------------------------------------------------------------------


def checkpoint_of(directory, model, **index):
    """Its config files."""
    for component, config in configs_of(model).items():
        (directory / component).mkdir(parents=True)
        (directory / component / "config.json").write_text(json.dumps(config))
    (directory / "model_index.json").write_text(json.dumps(INDEX | index))
    return directory


@pytest.mark.parametrize("preset", RUN_PRESETS)
@pytest.mark.parametrize("task", ["t2v", "i2v"])
def test_boundary_of_a_checkpoint_wins(tmp_path, task, preset):
    read = read_checkpoint(checkpoint_of(tmp_path / "c", MODELS[task], boundary_ratio=0.6))
    assert read.task == task
    run = values(read, preset=preset)
    assert run.boundary == 0.6
    assert [run.expert_at(t, read) for t in (600, 599)] == ["high_noise", "low_noise"]
    assert replace(read, name="", sampling=SAMPLING[task]) == replace(MODELS[task], name="")


@pytest.mark.parametrize("task", ["t2v", "i2v"])
def test_boundary_that_a_checkpoint_leaves_out_is_the_task_s(tmp_path, task):
    read = read_checkpoint(checkpoint_of(tmp_path / "c", MODELS[task], boundary_ratio=None))
    assert read == MODELS[task]
    assert values(read).boundary == SAMPLING[task].boundary

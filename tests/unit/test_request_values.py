"""What a user may ask of a run beyond numbers: sampler, expert, preset, images; and warnings."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.unit.conftest import variant_of
from wanc.errors import RequestError
from wanc.run.image import FITS
from wanc.run.request import (
    LEAST_FLOW_SHIFT,
    MOST_FLOW_SHIFT,
    SAMPLERS,
    Guidance,
    LoadRequest,
    RunRequest,
    as_plain,
    check_request,
    from_plain,
    sampling_values,
    warnings,
)
from wanc.spec.presets import (
    RUN_PRESETS,
    TINY_MODELS,
    WAN22_I2V_A14B,
    WAN22_T2V_A14B,
    WAN22_TI2V_5B,
)

REQUEST = RunRequest(prompt="a cat", seed=1)
IMAGE = Path("first.png")
LAST = Path("last.png")


def config_of(model=WAN22_T2V_A14B, topology="tp1"):
    config = variant_of(topology=topology).config
    return replace(config, model=model, variant=replace(config.variant, task=model.task))


def values(model=WAN22_T2V_A14B, **given):
    return sampling_values(replace(REQUEST, **given), config_of(model))


def refused(task, **given):
    """What is said of a request to a variant of this task."""
    with pytest.raises(RequestError) as caught:
        check_request(replace(REQUEST, **given), config_of(TINY_MODELS[task]))
    return str(caught.value)


def accepted(task, **given):
    check_request(replace(REQUEST, **given), config_of(TINY_MODELS[task]))


# --- samplers -------------------------------------------------------------------------------------


def test_sampler_is_unipc_unless_another_is_named():
    assert values().sampler == "unipc"
    assert [values(sampler=name).sampler for name in SAMPLERS] == ["unipc", "euler", "dpm++"]


@pytest.mark.parametrize("name", ["", "ddim", "UniPC", "dpm"])
def test_another_sampler_is_refused_with_those_there_are(name):
    with pytest.raises(RequestError) as caught:
        values(sampler=name)
    assert str(caught.value) == f"sampler {name!r}: needs one of unipc, euler, dpm++"


@pytest.mark.parametrize("shift", [LEAST_FLOW_SHIFT, MOST_FLOW_SHIFT])
def test_flow_shifts_at_the_ends_of_their_range(shift):
    assert values(flow_shift=shift).flow_shift == shift


@pytest.mark.parametrize("shift", [0.0, 0.0099, 100.1, 1000.0])
@pytest.mark.parametrize("preset", RUN_PRESETS)
def test_flow_shifts_beyond_are_refused(shift, preset):
    """At 1000 the first two of 1000 sigmas are one, and UniPC's latents are NaN."""
    with pytest.raises(RequestError) as caught:
        values(flow_shift=shift, preset=preset)
    assert str(caught.value) == (
        f"flow shift {shift}: needs a positive number; the model's is 12.0, the least 0.01, "
        "the most 100"
    )


# --- one expert -----------------------------------------------------------------------------------


@pytest.mark.parametrize("only", ["high_noise", "low_noise"])
@pytest.mark.parametrize("model", [WAN22_T2V_A14B, WAN22_I2V_A14B], ids=["t2v", "i2v"])
def test_the_only_expert_takes_every_timestep(model, only):
    run = values(model, expert=only)
    assert run == replace(values(model), only=only)
    assert {run.expert_at(t, model) for t in (1000, 900, 899, 875, 874, 0)} == {only}
    assert run.experts(model) == (only,)


def test_both_experts_take_steps_unless_one_is_named():
    assert values().experts(WAN22_T2V_A14B) == ("high_noise", "low_noise")
    assert values(WAN22_TI2V_5B).experts(WAN22_TI2V_5B) == ("high_noise",)


def test_a_model_of_one_expert_has_no_other():
    assert values(WAN22_TI2V_5B, expert="high_noise").only == "high_noise"
    with pytest.raises(RequestError) as caught:
        values(WAN22_TI2V_5B, expert="low_noise")
    assert str(caught.value) == "expert 'low_noise': model wan2.2-ti2v-5b has high_noise"


def test_an_unknown_expert_is_refused_with_those_there_are():
    with pytest.raises(RequestError, match="has high_noise and low_noise"):
        values(expert="high")


# --- presets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [WAN22_T2V_A14B, WAN22_I2V_A14B, WAN22_TI2V_5B])
def test_vllm_omni_s_values(model):
    assert values(model, preset="vllm-omni") == replace(
        values(model),
        flow_shift=5.0,
        guidance_high=5.0,
        guidance_low=5.0,
        preset="vllm-omni",
    )


def test_official_is_the_preset_of_who_names_none():
    assert values(preset="official") == values()
    assert values().preset == "official"


def test_another_preset_is_refused_with_those_there_are():
    with pytest.raises(RequestError) as caught:
        values(preset="comfy")
    assert str(caught.value) == "preset 'comfy': needs one of official, vllm-omni"


def test_the_record_says_which_sampler_expert_and_preset():
    run = values(sampler="euler", expert="low_noise", preset="vllm-omni")
    assert asdict(run) == {
        "steps": 40,
        "flow_shift": 5.0,
        "boundary": 0.875,
        "guidance_high": 5.0,
        "guidance_low": 5.0,
        "seed": 1,
        "fps": 16,
        "sampler": "euler",
        "only": "low_noise",
        "preset": "vllm-omni",
    }


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "given"),
    [
        ("t2v", {}),
        ("i2v", {"image": IMAGE}),
        ("i2v", {"image": IMAGE, "last_image": LAST}),
        *(("i2v", {"image": IMAGE, "fit": fit}) for fit in FITS),
        ("ti2v", {}),
        ("ti2v", {"image": IMAGE, "fit": "pad"}),
    ],
)
def test_images_that_a_task_takes(task, given):
    accepted(task, **given)


@pytest.mark.parametrize(
    ("task", "given", "told"),
    [
        ("t2v", {"image": IMAGE}, "makes videos from a prompt alone: leave --image"),
        ("t2v", {"last_image": LAST}, "makes videos from a prompt alone: leave --image"),
        ("i2v", {}, "makes videos from an image: give --image"),
        ("i2v", {"last_image": LAST}, "makes videos from an image: give --image"),
        ("ti2v", {"last_image": LAST}, "takes a first image and no last one"),
        ("ti2v", {"image": IMAGE, "last_image": LAST}, "takes a first image and no last one"),
    ],
)
def test_images_that_a_task_does_not_take(task, given, told):
    said = refused(task, **given)
    assert said.startswith(f"variant {task} 208x128x5 tp1 fp32 cpu ")
    assert told in said


def test_one_frame_is_the_first_image_alone():
    config = replace(variant_of("208x128x1").config, model=TINY_MODELS["i2v"])
    check_request(replace(REQUEST, image=IMAGE), config)
    with pytest.raises(RequestError, match="has one frame, which is --image: leave --last-image"):
        check_request(replace(REQUEST, image=IMAGE, last_image=LAST), config)


@pytest.mark.parametrize("task", ["t2v", "ti2v"])
def test_there_is_nothing_to_fit_without_an_image(task):
    assert refused(task, fit="pad").startswith("fit pad: there is no image to fit")


def test_another_fit_is_refused_with_those_there_are():
    said = refused("i2v", image=IMAGE, fit="cover")
    assert said == "fit 'cover': needs one of crop, pad, stretch"


def test_images_are_the_first_and_the_last():
    assert REQUEST.images == ()
    assert replace(REQUEST, image=IMAGE).images == (IMAGE,)
    assert replace(REQUEST, last_image=LAST, image=IMAGE).images == (IMAGE, LAST)


def test_a_resumed_run_brings_its_values_but_not_its_image():
    resumes = {"prompt": None, "seed": None, "resume": Path("v.steps.safetensors")}
    accepted("t2v", **resumes)
    accepted("i2v", image=IMAGE, **resumes)
    assert "give --image" in refused("i2v", **resumes)


def test_latents_bring_everything():
    for task in TINY_MODELS:
        accepted(task, prompt=None, seed=None, latents=Path("l.safetensors"))


@pytest.mark.parametrize("given", [{"sampler": "ddim"}, {"expert": "both"}, {"preset": "x"}])
def test_values_are_checked_before_anything_is_loaded(given):
    assert "'" in refused("t2v", **given)


# --- another process ------------------------------------------------------------------------------


def test_requests_go_to_other_processes():
    request = replace(
        REQUEST,
        guidance=Guidance(high=1.0, low=3.0),
        sampler="dpm++",
        expert="low_noise",
        preset="vllm-omni",
        image=IMAGE,
        last_image=LAST,
        fit="stretch",
    )
    assert from_plain(as_plain(request), RunRequest) == request
    load = LoadRequest(bundle=Path("b"), weights=Path("w"), decode_only=True)
    assert from_plain(as_plain(load), LoadRequest) == load


# --- warnings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "guidance", "expert", "warned"),
    [
        ("tp2-cfg2", "1", None, True),
        ("tp2-cfg2", "0", None, True),
        ("tp2-cfg2", "high=1,low=0.5", None, True),
        ("tp2-cfg2", "high=1,low=3", "high_noise", True),
        ("tp2-cfg2", "high=1,low=3", None, False),
        ("tp2-cfg2", "high=1,low=3", "low_noise", False),
        ("tp2-cfg2", "4", None, False),
        ("tp2", "1", None, False),
    ],
)
def test_half_of_the_ranks_repeat_work_without_guidance(topology, guidance, expert, warned):
    config = config_of(topology=topology)
    request = replace(REQUEST, guidance=Guidance.parse(guidance), expert=expert)
    said = warnings(sampling_values(request, config), config)
    assert said == warned * [
        "without guidance half of the 4 ranks of tp2-cfg2 repeat the work of the other half; "
        "tp2 makes the same video on 2"
    ]

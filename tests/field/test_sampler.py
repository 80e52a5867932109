"""Cases from the field about sigmas, experts, guidance and seeds.

Each test names the public report that it retells.
"""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.compiled import STEPS, Diffusers, tiny_plan
from tests.cpu.test_parity import LATENT_TOLERANCE, MASKED, PIXEL_TOLERANCE, difference
from wanc.progress import Silent
from wanc.run import pipeline
from wanc.run.request import Guidance, RunRequest, sampling_values
from wanc.run.sampler import draw_noise, make_scheduler
from wanc.run.session import Session
from wanc.spec.checkpoint import read_checkpoint
from wanc.spec.presets import (
    NEGATIVE_PROMPT,
    TINY,
    WAN22_I2V_A14B,
    WAN22_T2V_A14B,
    WAN22_TI2V_5B,
)
from wanc.tiny import write_tiny_checkpoint

pytestmark = pytest.mark.xdist_group("field-run")

SIGMA_TOLERANCE = 1e-7
"""Sigmas are fp32 below 1. A second shift moves them by up to 0.55."""
SHOWS = 100 * LATENT_TOLERANCE
"""Far from rounding."""


def values(**given):
    """The sampling values of a run of the published model."""
    request = RunRequest(prompt="", seed=1)
    return sampling_values(replace(request, **given), SimpleNamespace(model=WAN22_T2V_A14B))


class Notes(Silent):
    """Keeps what a run says."""

    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


@pytest.mark.parametrize(
    ("model", "shift"), [(WAN22_T2V_A14B, 12.0), (WAN22_I2V_A14B, 5.0), (WAN22_TI2V_5B, 5.0)]
)
def test_defaults_are_the_official_ones(model, shift):
    """huggingface/diffusers #12094: wrong default shift.

    tests/unit/test_contract.py has every other value.
    """
    config = SimpleNamespace(model=model)
    assert sampling_values(RunRequest(prompt="", seed=1), config).flow_shift == shift


def test_a_run_takes_the_defaults():
    """huggingface/diffusers #12094: what is not given is the model's own."""
    taken, official = values(), WAN22_T2V_A14B.sampling
    for name in ["flow_shift", "steps", "boundary", "guidance_low", "guidance_high", "fps"]:
        assert getattr(taken, name) == getattr(official, name)


def test_shift_is_applied_once():
    """vllm-project/vllm-omni PR #7576: the scheduler is built with the shift, then shifted."""
    scheduler = make_scheduler(values())
    x = np.linspace(1, 1 / 1000, 41)[:-1]
    sigmas = 12 * x / (1 + 11 * x)
    sigmas[0] -= 1e-6
    assert np.abs(scheduler.sigmas[:-1].numpy() - sigmas).max() < SIGMA_TOLERANCE
    assert scheduler.sigmas[-1] == 0
    assert scheduler.timesteps.dtype == torch.int64
    assert scheduler.timesteps.tolist() == (sigmas * 1000).astype(int).tolist()


def test_a_timestep_on_the_boundary_is_the_high_noise_expert_s():
    """``t >= boundary * 1000``: eight steps without a shift meet 875 itself."""
    sampled = values(steps=8, flow_shift=1.0)
    timesteps = make_scheduler(sampled).timesteps.tolist()
    assert timesteps[:3] == [999, 875, 750]
    experts = [sampled.expert_at(timestep, WAN22_T2V_A14B) for timestep in timesteps]
    assert experts == ["high_noise"] * 2 + ["low_noise"] * 6


def test_one_number_is_the_guidance_of_both_experts():
    """vllm-project/vllm-omni #5415: an omitted second guidance became 1.0."""
    sampled = values(guidance=Guidance.parse("5"))
    assert (sampled.guidance_high, sampled.guidance_low) == (5.0, 5.0)


def test_each_expert_has_its_own_guidance(wanc, tmp_path):
    """Wan-Video/Wan2.2 #18: guidance ignored. The record says which expert got which."""
    bundle = wanc.bundle(MASKED, "tp1")
    low, high = Guidance(high=3.0, low=4.0), Guidance(high=4.0, low=3.0)
    assert difference(*(wanc.latents(bundle, guidance=g) for g in (low, high))) > SHOWS
    record = wanc.generate(bundle, tmp_path / "v.mp4", guidance=low)
    sampling = record["sampling"]
    assert (sampling["guidance_high"], sampling["guidance_low"]) == (3.0, 4.0)
    assert [step["expert"] for step in record["steps"]] == ["high_noise"] * 3 + ["low_noise"]


@pytest.mark.parametrize(
    ("high", "low", "passes", "prompts"),
    [(4.0, 3.0, 8, 2), (1.0, 3.0, 5, 2), (4.0, 1.0, 7, 2), (1.0, 0.5, 4, 1)],
)
def test_guidance_of_one_skips_the_unconditioned_pass(
    wanc, monkeypatch, high, low, passes, prompts
):
    """Of that expert alone, which has three steps, or one. A call is counted as it is made."""
    session, called = wanc.session(wanc.bundle(MASKED, "tp1")), Counter()
    executable = Session._executable

    def counted(self, program, ranks):
        called[program.name] += 1
        return executable(self, program, ranks)

    monkeypatch.setattr(Session, "_executable", counted)
    wanc.sample(session, guidance=Guidance(high=high, low=low))
    session.engine.close()
    assert called["dit_blocks"] == called["dit_head"] == passes
    assert called["text_encoder"] == prompts


def test_latents_of_every_step_are_diffusers_own(wanc, diffusers_result, monkeypatch):
    """vllm-project/vllm-omni #3116, #4306: output darker than the reference."""
    ours = []

    def watched(sampled):
        scheduler = make_scheduler(sampled)
        step = scheduler.step

        def kept(*args, **how):
            ours.append(step(*args, **how)[0])
            return (ours[-1],)

        scheduler.step = kept
        return scheduler

    monkeypatch.setattr(pipeline, "make_scheduler", watched)
    wanc.latents(wanc.denoiser(MASKED, "tp1"))
    theirs = diffusers_result(MASKED).steps
    assert len(ours) == len(theirs) == STEPS
    for mine, reference in zip(ours, theirs, strict=True):
        assert difference(mine, reference) < LATENT_TOLERANCE


def test_model_of_one_expert_runs(wanc, tmp_path):
    """vllm-project/vllm-omni PR #1392: a crash for want of transformer_2."""
    one = replace(TINY, experts=("high_noise",), sampling=replace(TINY.sampling, boundary=None))
    checkpoint = tmp_path / "one"
    write_tiny_checkpoint(checkpoint, model=one)
    index = checkpoint / "model_index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "transformer_2": [None, None]}))
    assert not (checkpoint / "transformer_2").exists()
    plan = tiny_plan(MASKED, "tp1", model=read_checkpoint(checkpoint))
    wanc.compile([plan], tmp_path / "b")
    single = replace(wanc, checkpoint=checkpoint)
    session = single.session(tmp_path / "b")
    ours, theirs = single.sample(session), Diffusers(checkpoint)(MASKED)
    session.engine.close()
    assert difference(ours.latents, theirs.latents) < LATENT_TOLERANCE
    assert difference(ours.pixels, theirs.pixels) < PIXEL_TOLERANCE


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**64 - 1])
def test_a_seed_draws_what_diffusers_draws(diffusers_result, seed):
    """To the bit: fp32, the whole latent at once, on the CPU."""
    pipe = diffusers_result.pipeline()
    theirs = pipe.prepare_latents(
        batch_size=1,
        height=48,
        width=80,
        num_frames=9,
        dtype=torch.float32,
        generator=torch.Generator("cpu").manual_seed(seed),
    )
    ours = draw_noise(seed, (1, 16, 3, 6, 10))
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)


def test_processes_share_the_seed_that_nobody_gave(wanc, tmp_path):
    """Tencent-Hunyuan/HunyuanVideo-I2V #35, SkyworkAI/SkyReels-V2 #24: static from many ranks."""
    bundle, video = wanc.bundle(MASKED, "cp2"), tmp_path / "v.mp4"
    drawn = wanc.generate(bundle, video, seed=None, steps=1, processes=2)
    seed = drawn["sampling"]["seed"]
    again = wanc.generate(bundle, video, seed=seed, steps=1)
    assert (again["noise"], again["latents"]) == (drawn["noise"], drawn["latents"])


def test_values_not_given_are_said_recorded_and_repeat(wanc, tmp_path):
    """Tencent-Hunyuan/HunyuanVideo-I2V #35, SkyworkAI/SkyReels-V2 #24: each rank drew a seed.

    vllm-omni (source): an omitted negative prompt is the official text, not an empty one.
    """
    bundle, said = wanc.bundle(MASKED, "tp1"), Notes()
    video, given = tmp_path / "v.mp4", {"steps": 1, "negative": None}
    drawn = wanc.generate(bundle, video, progress=said, seed=None, **given)
    seed = drawn["sampling"]["seed"]
    assert said.lines == [f"variant t2v {MASKED} tp1 fp32 cpu", f"seed {seed}"]
    again, other = (wanc.generate(bundle, video, seed=s, **given) for s in (seed, seed ^ 1))
    assert again["noise"] == drawn["noise"] != other["noise"]
    assert drawn["negative_prompt"] == NEGATIVE_PROMPT

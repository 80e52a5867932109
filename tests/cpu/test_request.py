"""What a user asks of a run, and the sampling values that follow."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from wanc.errors import RequestError
from wanc.run.request import SEEDS, Guidance, RunRequest, draw_seed, sampling_values
from wanc.spec.presets import NEGATIVE_PROMPT, TINY, WAN22_T2V_A14B

REQUEST = RunRequest(prompt="a cat", seed=1)


def config_of(model=WAN22_T2V_A14B):
    """As much of a bundle's config as sampling looks at."""
    return SimpleNamespace(model=model)


def values(**given):
    return sampling_values(replace(REQUEST, **given), config_of())


@pytest.mark.parametrize(
    ("text", "high", "low"),
    [
        ("5", 5, 5),  # vllm-omni #5415: one number means both
        ("3.5", 3.5, 3.5),
        ("1", 1, 1),
        ("0", 0, 0),
        ("1e1", 10, 10),
        ("high=4,low=3", 4, 3),
        ("low=3,high=4", 4, 3),
        ("high=1,low=3.5", 1, 3.5),
    ],
)
def test_guidance(text, high, low):
    assert Guidance.parse(text) == Guidance(high=high, low=low)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "4,3", "high=4", "low=3", "high=4,low=", "high=4;low=3", "high=4,mid=3"),
        *("high=4,low=3,mid=1", "high=4,high=4", "high=4,high=5,low=3", "HIGH=4,LOW=3"),
        *("nan", "inf", "-inf", "high=nan,low=3", "high=4,low=1e999", "=", ","),
    ],
)
def test_guidance_that_is_not_one_number_or_two_is_refused(text):
    with pytest.raises(RequestError, match="or one for each, as high=4,low=3") as caught:
        Guidance.parse(text)
    assert repr(text) in str(caught.value)
    assert caught.value.exit_code == 2


def test_defaults_are_the_official_contract():
    """huggingface/diffusers #12094: wrong default shift."""
    defaults = values()
    assert defaults.flow_shift == 12.0
    assert defaults.steps == 40
    assert defaults.boundary == 0.875
    assert (defaults.guidance_high, defaults.guidance_low) == (4.0, 3.0)
    assert defaults.fps == 16


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"steps": 1}, {"steps": 1}),
        ({"steps": 1000}, {"steps": 1000}),
        ({"flow_shift": 5.0}, {"flow_shift": 5.0}),
        ({"guidance": Guidance(high=3, low=4)}, {"guidance_high": 3, "guidance_low": 4}),
        ({"guidance": Guidance(high=0, low=0)}, {"guidance_high": 0, "guidance_low": 0}),
        ({"seed": 0}, {"seed": 0}),
        ({"seed": SEEDS - 1}, {"seed": SEEDS - 1}),
    ],
)
def test_value_that_was_given_wins_and_nothing_else_moves(given, seen):
    assert values(**given) == replace(values(), **seen)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 0}, "steps 0: needs 1 to 1000"),
        ({"steps": -1}, "steps -1"),
        ({"steps": 1001}, "steps 1001"),
        ({"flow_shift": 0.0}, "flow shift 0.0: needs a positive number; the model's is 12.0"),
        ({"flow_shift": -3.0}, "flow shift -3.0"),
        ({"flow_shift": float("nan")}, "flow shift nan"),
        ({"flow_shift": float("inf")}, "flow shift inf"),
        ({"seed": -1}, "seed -1: needs 0 to"),
        ({"seed": SEEDS}, f"seed {SEEDS}"),
    ],
)
def test_value_that_cannot_be_is_refused(given, message):
    with pytest.raises(RequestError, match=message):
        values(**given)


def test_seed_that_was_not_given_is_drawn_each_time_and_repeats():
    """Tencent-Hunyuan/HunyuanVideo-I2V #35: no seed, each rank draws its own."""
    drawn = {draw_seed() for _ in range(20)}
    assert len(drawn) > 10
    assert all(0 <= seed < 2**31 for seed in drawn)
    seed = drawn.pop()
    assert values(seed=seed).seed == seed


def test_negative_prompt_is_the_official_one_unless_given():
    """vllm-omni (source): omitted negative prompt. An empty one is a choice."""
    assert REQUEST.negative_prompt(config_of(TINY)) == NEGATIVE_PROMPT
    assert NEGATIVE_PROMPT.startswith("色调艳丽，过曝，静态")
    assert NEGATIVE_PROMPT.endswith("背景人很多，倒着走")
    for text in ("", "blurry"):
        assert replace(REQUEST, negative=text).negative_prompt(config_of()) == text


def test_boundary_of_one_expert():
    one = replace(TINY, experts=("high_noise",), sampling=replace(TINY.sampling, boundary=None))
    sampled = sampling_values(REQUEST, config_of(one))
    assert sampled.boundary is None
    assert {sampled.expert_at(t, one) for t in (0, 500, 875, 1000)} == {"high_noise"}


def test_expert_of_a_timestep_is_high_noise_from_the_boundary_up():
    two = values()
    experts = [two.expert_at(t, WAN22_T2V_A14B) for t in (999, 876, 875, 874, 0)]
    assert experts == ["high_noise"] * 3 + ["low_noise"] * 2

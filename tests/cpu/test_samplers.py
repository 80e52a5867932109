"""Every sampler: its sigmas, the experts of its timesteps, and that it solves what it should."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.conftest import variant_of
from wanc.run.request import (
    LEAST_FLOW_SHIFT,
    MOST_FLOW_SHIFT,
    SAMPLERS,
    Guidance,
    RunRequest,
    Sampler,
    SamplingValues,
    sampling_values,
)
from wanc.run.sampler import draw_noise, guide, make_scheduler, state_of
from wanc.run.text import branches
from wanc.spec.presets import WAN22_T2V_A14B

SIGMA_TOLERANCE = 1e-7
"""Sigmas are fp32 below 1. A second shift moves them by up to 0.55."""
SOLVED = 1e-4
"""Rounding of up to 1000 steps in fp32."""
SIZE = (1, 2, 1, 4, 4)
CONFIG = variant_of("16x16x5").config
FIRST: dict[Sampler, float] = {"unipc": 1 - 1e-6, "euler": 1.0, "dpm++": 1 - 1e-6}
"""The first sigma; two samplers take the logarithm of 1 - sigma."""


def values(sampler: Sampler, **given: Any) -> SamplingValues:
    return sampling_values(RunRequest(prompt="", seed=1, sampler=sampler, **given), CONFIG)


def sigmas_of(shift: float, steps: int) -> Any:
    x = np.linspace(1, 1 / 1000, steps + 1)[:-1]
    return shift * x / (1 + (shift - 1) * x)


def solve(sampled: SamplingValues, velocity: Any, noise: Tensor) -> Tensor:
    """Final latents, where the velocity of (latents, sigma) is known."""
    scheduler, latents = make_scheduler(sampled), noise
    for step, timestep in enumerate(scheduler.timesteps):
        flow = velocity(latents, scheduler.sigmas[step])
        latents = scheduler.step(flow, timestep, latents, return_dict=False)[0]
    return latents


# --- sigmas and timesteps -------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("shift", "steps"), [(12.0, 40), (5.0, 50), (1.0, 8), (12.0, 1000)])
def test_sigmas_are_shifted_once(sampler: Sampler, shift: float, steps: int) -> None:
    scheduler = make_scheduler(values(sampler, flow_shift=shift, steps=steps))
    expected = sigmas_of(shift, steps)
    expected[0] = FIRST[sampler]
    assert scheduler.sigmas.shape == (steps + 1,)
    assert np.abs(scheduler.sigmas[:-1].numpy() - expected).max() < SIGMA_TOLERANCE
    assert scheduler.sigmas[-1] == 0
    assert scheduler.timesteps.shape == (steps,)


def test_the_published_sigmas_of_40_steps() -> None:
    """Worked out by hand: x = 1, 0.975025, ..., 0.025975 at shift 12."""
    for sampler in SAMPLERS:
        sigmas = make_scheduler(values(sampler)).sigmas.tolist()
        assert sigmas[1] == pytest.approx(12 * 0.975025 / (1 + 11 * 0.975025), abs=1e-6)
        assert sigmas[39] == pytest.approx(12 * 0.025975 / (1 + 11 * 0.025975), abs=1e-6)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_timesteps_are_a_thousand_sigmas(sampler: Sampler) -> None:
    """Whole ones but for Euler, whose class refuses whole ones."""
    scheduler = make_scheduler(values(sampler))
    exact = 1000 * scheduler.sigmas[:-1].double()
    if sampler == "euler":
        assert scheduler.timesteps.dtype == torch.float32
        assert torch.equal(scheduler.timesteps, exact.float())
    else:
        assert scheduler.timesteps.dtype == torch.int64
        assert torch.equal(scheduler.timesteps, exact.long())


@pytest.mark.parametrize(("shift", "steps"), [(12.0, 40), (5.0, 40), (1.0, 8), (3.0, 1000)])
def test_a_step_has_the_same_expert_with_every_sampler(shift: float, steps: int) -> None:
    found = set()
    for sampler in SAMPLERS:
        sampled = values(sampler, flow_shift=shift, steps=steps)
        timesteps = make_scheduler(sampled).timesteps.tolist()
        found.add(tuple(sampled.expert_at(t, WAN22_T2V_A14B) for t in timesteps))
    (experts,) = found
    high = experts.count("high_noise")
    assert 0 < high < steps
    assert experts == ("high_noise",) * high + ("low_noise",) * (steps - high)


# --- solving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 40, 1000])
@pytest.mark.parametrize("shift", [12.0, 1.0])
def test_a_straight_flow_ends_where_it_leads(sampler: Sampler, steps: int, shift: float) -> None:
    """latents = (1-s)·end + s·noise, whose velocity is noise - end, is solved by any one step."""
    noise, end = draw_noise(1, SIZE), draw_noise(2, SIZE)
    sampled = values(sampler, steps=steps, flow_shift=shift)
    found = solve(sampled, lambda latents, sigma: noise - end, noise)
    assert (found - end).abs().max() < SOLVED


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 40, 1000])
@pytest.mark.parametrize("shift", [LEAST_FLOW_SHIFT, MOST_FLOW_SHIFT])
def test_every_shift_that_is_taken_stays_finite(sampler: Sampler, steps: int, shift: float) -> None:
    sampled = values(sampler, steps=steps, flow_shift=shift)
    assert (make_scheduler(sampled).sigmas.diff() < 0).all()
    found = solve(sampled, lambda latents, sigma: torch.sin(latents + sigma), draw_noise(1, SIZE))
    assert found.isfinite().all()


DEVIATION = 0.5


def error_of_a_curved_flow(sampler: Sampler, steps: int) -> float:
    """Of data that are normally distributed, where noise ends at the deviation times itself."""

    def velocity(latents: Tensor, s: Tensor) -> Tensor:
        return latents * (s - (1 - s) * DEVIATION**2) / (s**2 + (1 - s) ** 2 * DEVIATION**2)

    noise = draw_noise(1, SIZE)
    found = solve(values(sampler, steps=steps, flow_shift=1.0), velocity, noise)
    return float((found - DEVIATION * noise).abs().max())


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_curved_flow_is_solved_better_by_more_steps(sampler: Sampler) -> None:
    errors = [error_of_a_curved_flow(sampler, steps) for steps in (5, 20, 40, 80)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.03


def test_two_samplers_are_of_higher_order_than_euler() -> None:
    errors = {sampler: error_of_a_curved_flow(sampler, 40) for sampler in SAMPLERS}
    assert errors["unipc"] < errors["dpm++"] < errors["euler"] / 4


def test_samplers_differ() -> None:
    ends = [error_of_a_curved_flow(sampler, 10) for sampler in SAMPLERS]
    assert len({round(end, 4) for end in ends}) == 3


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_nothing_is_random(sampler: Sampler) -> None:
    """Not from the generator that torch shares, either."""
    ends = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        ends.append(solve(values(sampler, steps=5), lambda x, s: torch.sin(x), draw_noise(1, SIZE)))
        assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(*ends)


# --- state ----------------------------------------------------------------------------------------

GATHERED: dict[Sampler, tuple[set[str], set[str]]] = {
    "unipc": ({"model_outputs.1", "last_sample"}, {"model_outputs.0"}),
    "euler": (set(), set()),
    "dpm++": ({"model_outputs.1"}, {"model_outputs.0"}),
}
"""Tensors of the latents' size that there are after the first step, and after more."""


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_state_is_the_tensors_of_the_latents_size(sampler: Sampler) -> None:
    scheduler, latents = make_scheduler(values(sampler, steps=5)), draw_noise(1, SIZE)
    first, later = GATHERED[sampler]
    assert state_of(scheduler, SIZE) == {}
    for timestep, expected in zip(scheduler.timesteps, (first, first | later), strict=False):
        latents = scheduler.step(latents, timestep, latents, return_dict=False)[0]
        assert set(state_of(scheduler, SIZE)) == expected


# --- guidance -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guidance", "high", "low"),
    [("high=1,low=3", 1, 2), ("high=4,low=1", 2, 1), ("1", 1, 1), ("0", 1, 1), ("1.01", 2, 2)],
)
def test_an_expert_without_guidance_has_no_unconditioned_pass(
    guidance: str, high: int, low: int
) -> None:
    sampled = values("unipc", guidance=Guidance.parse(guidance))
    assert len(branches(sampled, "high_noise")) == high
    assert len(branches(sampled, "low_noise")) == low


def test_guidance_goes_from_the_unconditioned_to_the_conditioned_and_beyond() -> None:
    noise = torch.stack([torch.full(SIZE[1:], 3.0), torch.full(SIZE[1:], 1.0)])
    assert torch.equal(guide(noise, 4.0), torch.full(SIZE, 9.0))
    assert torch.equal(guide(noise, 1.0), torch.full(SIZE, 3.0))
    assert torch.equal(guide(noise[:1], 1.0), torch.full(SIZE, 3.0))

"""The sampler: diffusers' own UniPC on the host, which expert a timestep takes, and guidance.

Knows latents and noise predictions in fp32, and nothing of how they were computed.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wanc.spec.model import TRAIN_TIMESTEPS, Expert, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingValues:
    """Every value that a run samples with."""

    steps: int
    flow_shift: float
    boundary: float | None
    guidance_high: float
    guidance_low: float
    seed: int
    fps: int
    sampler: str = "unipc"

    def guidance(self, expert: Expert) -> float:
        """The expert's guidance scale; 1 or less leaves its unconditioned pass out."""
        return self.guidance_high if expert == "high_noise" else self.guidance_low

    def expert_at(self, timestep: float, model: Model) -> Expert:
        """The expert of a timestep: high noise from the boundary up."""
        if self.boundary is None or len(model.experts) == 1:
            return "high_noise"
        return "high_noise" if timestep >= self.boundary * TRAIN_TIMESTEPS else "low_noise"


def make_scheduler(values: SamplingValues) -> Any:
    """UniPC for flow matching. The shift is applied once, by the scheduler, to its own sigmas."""
    from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler

    scheduler = UniPCMultistepScheduler(
        num_train_timesteps=TRAIN_TIMESTEPS,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=values.flow_shift,
    )
    scheduler.set_timesteps(values.steps, device="cpu")
    scheduler.set_begin_index(0)
    return scheduler


def draw_noise(seed: int, shape: tuple[int, ...]) -> Tensor:
    """What diffusers draws for this seed: fp32, the whole latent at once."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def guide(noise_BCFHW: Tensor, scale: float) -> Tensor:
    """Combine the branches, in fp32: uncond + scale · (cond - uncond)."""
    if scale <= 1:
        return noise_BCFHW[:1]
    cond, uncond = noise_BCFHW[:1], noise_BCFHW[1:]
    return uncond + scale * (cond - uncond)

"""The sampler: diffusers' own UniPC on the host, which expert a timestep takes, and guidance.

Knows latents and noise predictions in fp32, and nothing of how they were computed.
"""

from typing import Any

import torch
from torch import Tensor

from wanc.run.request import SamplingValues
from wanc.spec.model import TRAIN_TIMESTEPS


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


State = dict[str, Any]
"""What a scheduler gathers over its steps, by attribute: numbers, tensors, and lists of both."""


def state_of(scheduler: Any, values: SamplingValues) -> State:
    """The attributes in which a scheduler differs from a new one."""
    new = vars(make_scheduler(values))
    return {
        name: value
        for name, value in vars(scheduler).items()
        if name not in new or not _same(value, new[name])
    }


def make_scheduler_at(values: SamplingValues, state: State) -> Any:
    """The scheduler that has this state; raises ValueError where none can."""
    scheduler = make_scheduler(values)
    if methods := sorted(name for name in state if hasattr(type(scheduler), name)):
        raise ValueError(f"{', '.join(methods)}: a scheduler's own, and no state")
    vars(scheduler).update(state)
    return scheduler


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)


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

"""The sampler: diffusers' own UniPC on the host, which expert a timestep takes, and guidance.

Knows latents and noise predictions in fp32, and nothing of how they were computed.
"""

from typing import Any

import torch
from torch import Tensor

from wanc.run.request import SamplingValues
from wanc.spec.model import TRAIN_TIMESTEPS


def load_scheduler() -> Any:
    """diffusers' class, whose import takes seconds."""
    from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler

    return UniPCMultistepScheduler


def make_scheduler(values: SamplingValues) -> Any:
    """UniPC for flow matching. The shift is applied once, by the scheduler, to its own sigmas."""
    scheduler = load_scheduler()(
        num_train_timesteps=TRAIN_TIMESTEPS,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=values.flow_shift,
    )
    scheduler.set_timesteps(values.steps, device="cpu")
    scheduler.set_begin_index(0)
    return scheduler


State = dict[str, Tensor]
"""Tensors of the latents' size that a scheduler gathers over its steps: by attribute, with
``.index`` where that is a list."""


def state_of(scheduler: Any, size: tuple[int, ...]) -> State:
    """What a scheduler has gathered of latents of a size."""
    held: dict[str, Any] = {}
    for name, value in vars(scheduler).items():
        items = {f"{name}.{i}": v for i, v in enumerate(value)} if isinstance(value, list) else {}
        held |= items or {name: value}
    return {
        name: value
        for name, value in held.items()
        if isinstance(value, Tensor) and tuple(value.shape) == size
    }


def make_scheduler_at(
    values: SamplingValues, step: int, size: tuple[int, ...], state: State
) -> Any:
    """The scheduler after so many steps; raises ValueError where it would hold other tensors.

    It goes through the steps on zeros, so that all but these tensors is as it must be.
    """
    scheduler, latents = make_scheduler(values), torch.zeros(size)
    for timestep in scheduler.timesteps[:step]:
        latents = scheduler.step(latents, timestep, latents, return_dict=False)[0]
    needed, found = (
        {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        for tensors in (state_of(scheduler, size), state)
    )
    if found != needed:
        raise ValueError(f"it holds {found}, and needs {needed}")
    for name, tensor in state.items():
        attribute, _, index = name.partition(".")
        if index:
            getattr(scheduler, attribute)[int(index)] = tensor.clone()
        else:
            setattr(scheduler, attribute, tensor.clone())
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

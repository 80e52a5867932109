"""The sampler: diffusers' own schedulers on the host, and guidance.

Knows latents and noise predictions in fp32, and nothing of how they were computed.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from wanc.arrays import Array
from wanc.run.request import Sampler, SamplingValues
from wanc.spec.model import TRAIN_TIMESTEPS

BELOW_ONE = 1e-6
"""How far below 1 the first sigma is for a solver that takes the logarithm of 1 - sigma."""


def load_scheduler(sampler: Sampler = "unipc") -> Any:
    """diffusers' class. The first import takes seconds, and the others after it nothing."""
    if sampler == "euler":
        from diffusers.schedulers.scheduling_flow_match_euler_discrete import (
            FlowMatchEulerDiscreteScheduler,
        )

        return FlowMatchEulerDiscreteScheduler
    if sampler == "dpm++":
        from diffusers.schedulers.scheduling_dpmsolver_multistep import DPMSolverMultistepScheduler

        return DPMSolverMultistepScheduler
    from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler

    return UniPCMultistepScheduler


def make_scheduler(values: SamplingValues) -> Any:
    """The scheduler before its first step. Nothing in it is random.

    Every sampler steps through the same sigmas, which are shifted once.
    """
    make = {"unipc": _unipc, "euler": _euler, "dpm++": _dpm}[values.sampler]
    scheduler = make(values)
    scheduler.set_begin_index(0)
    return scheduler


def flow_sigmas(values: SamplingValues) -> Array:
    """[steps] fp64: s·x/(1+(s-1)·x) of x from 1 to 1/1000, without the last."""
    x = np.linspace(1, 1 / TRAIN_TIMESTEPS, values.steps + 1)[:-1]
    return values.flow_shift * x / (1 + (values.flow_shift - 1) * x)


def _unipc(values: SamplingValues) -> Any:
    """UniPC makes and shifts these sigmas itself."""
    scheduler = load_scheduler("unipc")(
        num_train_timesteps=TRAIN_TIMESTEPS,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=values.flow_shift,
    )
    scheduler.set_timesteps(values.steps, device="cpu")
    return scheduler


def _euler(values: SamplingValues) -> Any:
    """Euler shifts what it is given once more, so it gets no shift. Its timesteps are fp32."""
    scheduler = load_scheduler("euler")(num_train_timesteps=TRAIN_TIMESTEPS, shift=1.0)
    scheduler.set_timesteps(sigmas=flow_sigmas(values).tolist(), device="cpu")
    return scheduler


def _dpm(values: SamplingValues) -> Any:
    """DPM-Solver++ takes no sigmas, and its own begin at 0.999 before they are shifted."""
    scheduler = load_scheduler("dpm++")(
        num_train_timesteps=TRAIN_TIMESTEPS,
        algorithm_type="dpmsolver++",
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=values.flow_shift,
    )
    scheduler.set_timesteps(values.steps, device="cpu")
    sigmas = flow_sigmas(values)
    sigmas[0] -= BELOW_ONE
    scheduler.sigmas = torch.from_numpy(np.append(sigmas, 0.0).astype(np.float32))
    scheduler.timesteps = torch.from_numpy(sigmas * TRAIN_TIMESTEPS).to(torch.int64)
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

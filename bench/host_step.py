"""The host's own work in a denoising step of the 14B model at 832x480x81, for 64 ranks.

What is measured is a step of wanc's own: feeds cut for every rank and put on it, noise fetched,
checked and guided, and the scheduler. Calls of executables are left out: the engine puts and
fetches as it does, and answers a call with tensors that lie ready. On one core, torch on one
thread. Run as a module, it prints milliseconds as JSON.
"""

import json
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from wanc.bundle.config import config_of
from wanc.plan.plan import make_plan
from wanc.processes.world import Alone
from wanc.run.guards import check_finite
from wanc.run.pipeline import predict_noise
from wanc.run.request import RunRequest, sampling_values
from wanc.run.sampler import draw_noise, guide, make_scheduler
from wanc.run.session import Session
from wanc.runtime.cpu import CpuEngine
from wanc.runtime.engine import Buffer, Interface, Loaded
from wanc.spec.presets import WAN22_T2V_A14B
from wanc.spec.shape import Shape
from wanc.spec.topology import Topology
from wanc.spec.variant import Options, Variant

STEPS = 12
WARM = 3


class Unexecuted(CpuEngine):
    """Ranks whose calls give tensors of the right type that were made before."""

    def __init__(self, rank_count: int) -> None:
        super().__init__(rank_count)
        self._ready: dict[Any, list[Buffer]] = {}

    def load(self, executable: bytes, interface: Interface, *, ranks: tuple[int, ...]) -> Any:
        """The interface stands for the executable."""
        return interface

    def call(self, loaded: Loaded, inputs: Sequence[Buffer]) -> list[Buffer]:
        """No work."""
        interface: Any = loaded
        if interface.name not in self._ready:
            chance = np.random.default_rng(0)
            self._ready[interface.name] = [
                self.put(
                    [chance.standard_normal(tensor.shape, np.float32).astype(tensor.dtype)]
                    * self.rank_count,
                    ranks=self.local_ranks,
                )
                for tensor in (interface.results if interface.name == "dit_head" else ())
            ]
        ready = self._ready[interface.name]
        return ready or [None for _ in interface.results]  # what no host looks at


class Unweighted(Session):
    """A session without a checkpoint."""

    def _weight(self, *_: Any) -> Any:
        return None


def session() -> Session:
    """The published model's schedule on 64 ranks."""
    variant = Variant(
        task="t2v",
        shape=Shape.parse("832x480x81"),
        topology=Topology.parse("tp4-cp8-cfg2"),
        placement="linear",
        precision="bf16",
        target="cpu",
    )
    plan = make_plan(WAN22_T2V_A14B, variant, Options())
    config = config_of(plan)
    engine = Unexecuted(variant.topology.ranks)
    return Unweighted(
        config=config,
        engine=engine,
        world=Alone(),
        components={},
        read_executable=lambda name: b"",
    )


def measure() -> dict[str, float]:
    """Median milliseconds of a step, and of the scheduler in it."""
    made = session()
    request = RunRequest(prompt="", steps=STEPS, seed=1)
    values = sampling_values(request, made.config)
    model = made.config.model
    latents = draw_noise(1, made.config.latents_shape)
    scheduler, state = make_scheduler(values), {}
    for expert in model.experts:  # what text encoding would leave
        for call in made.stage(f"context.{expert}").calls:
            state.update(dict.fromkeys(call.outputs))
    for name in ("rope_cos", "rope_sin"):
        feed = next(each for each in made.config.schedule.feeds if each.name == name)
        made.feed(name, np.zeros(feed.shape, np.float32))
    whole, sampler = [], []
    for timestep in scheduler.timesteps:
        started = time.perf_counter()
        expert = values.expert_at(float(timestep), model)
        noise = predict_noise(made, latents, float(timestep), expert, values, state)
        check_finite(noise, "step", "noise")
        guided = guide(noise, values.guidance(expert))
        before = time.perf_counter()
        latents = scheduler.step(guided, timestep, latents, return_dict=False)[0]
        sampler.append(1000 * (time.perf_counter() - before))
        check_finite(latents, "step", "latents")
        whole.append(1000 * (time.perf_counter() - started))
    made.close()
    return {"step": statistics.median(whole[WARM:]), "scheduler": statistics.median(sampler[WARM:])}


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    print(json.dumps(measure()))

"""Trains one expert of the toy on its side of the boundary. Knows no pixels.

Flow matching as the sampler sees it: x_t = (1 - t) x_0 + t noise, the network is told the whole
part of 1000 t, and learns noise - x_0. Times are as dense as the sampler's own steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.toy.data import Data
from tools.toy.prompts import Sentences, said_of, use_pads_as_one
from tools.toy.training import Schedule, train
from wanc.spec.model import TRAIN_TIMESTEPS, Expert, Sampling, Task

BATCH = 8

SCHEDULES: dict[Task, Schedule] = {
    "t2v": Schedule(steps=9_000, learning_rate=1e-3, average=0.999, seed=3),
    "i2v": Schedule(steps=2_000, learning_rate=5e-4, average=0.999, seed=4),
}
"""Image to video starts from what text to video has learned."""


@dataclass(frozen=True, slots=True)
class Times:
    """Where on the flow an expert is asked, as the sampler's grid has it."""

    shift: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, expert: Expert, sampling: Sampling) -> "Times":
        """High noise from the boundary up."""
        assert sampling.boundary is not None
        sides = {"high_noise": (sampling.boundary, 1.0), "low_noise": (0.0, sampling.boundary)}
        return cls(sampling.flow_shift, *sides[expert])

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """(B,) in [lowest, highest): s u / (1 + (s - 1) u) of even u."""
        low, high = (t / (self.shift - (self.shift - 1) * t) for t in (self.lowest, self.highest))
        # one from each of so many equal parts: a batch sees all of the range
        u = (torch.arange(count) + torch.rand(count, generator=generator)) / count
        u = low + (high - low) * u
        return self.shift * u / (1 + (self.shift - 1) * u)


def train_expert(
    transformer: Any,
    times: Times,
    read_data: Callable[[], Data],
    sentences: Sentences,
    schedule: Schedule,
    *,
    folder: Path,
    name: str,
) -> None:
    """Trains in place; data are read only where there is a step to make."""
    data = cache(read_data)
    processors = use_pads_as_one(transformer)

    def loss_of(_: int, generator: torch.Generator) -> Tensor:
        latents, conditions = data().latents_BCFHW, data().conditions_BCFHW
        rows = torch.randint(len(latents), (BATCH,), generator=generator)
        clean = latents[rows]
        noise = torch.randn(clean.shape, generator=generator)
        t = times.draw(BATCH, generator)
        t_B1111 = t.reshape(-1, 1, 1, 1, 1)
        noisy = torch.lerp(clean, noise, t_B1111)
        if conditions is not None:
            noisy = torch.cat([noisy, conditions[rows]], dim=1)
        said = [said_of(data().scene(row), generator) for row in rows.tolist()]
        text, bias = sentences.encoded(said)
        for processor in processors:
            processor.bias = bias
        seen = transformer(
            hidden_states=noisy,
            timestep=(t * TRAIN_TIMESTEPS).floor(),
            encoder_hidden_states=text,
            return_dict=False,
        )[0]
        return (seen - (noise - clean)).square().mean()

    train(transformer, loss_of, schedule, folder=folder, name=name)

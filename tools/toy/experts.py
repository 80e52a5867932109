"""Trains one expert of the toy on its side of the boundary. Knows no pixels.

Flow matching as the sampler sees it: x_t = (1 - t) x_0 + t noise, the network is told the whole
part of 1000 t, and learns noise - x_0. Times are as dense as the sampler's own steps.
"""

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.toy.data import Data
from tools.toy.prompts import Sentences, said_of, use_pads_as_one
from tools.toy.training import Schedule, train
from wanc.spec.model import TRAIN_TIMESTEPS, Expert, Sampling, Task

BATCH = 8

BASE = Schedule(steps=2_500, learning_rate=1e-3, average=0.99, seed=3)
"""Of one network at all times, which both experts start from: what a shape is shows where there is
little noise, and the high-noise expert, alone, is long in finding it."""

ROUNDS: dict[Task, tuple[Schedule, ...]] = {
    "t2v": (
        Schedule(steps=4_000, learning_rate=1e-3, average=0.998, seed=4),
        Schedule(steps=7_500, learning_rate=1e-3, average=0.998, seed=6),
    ),
    "i2v": (Schedule(steps=1_500, learning_rate=5e-4, average=0.998, seed=5),),
}
"""Of the experts, those of image to video starting from those of text to video. The rate falls in
each round, so that what one leaves can be looked at."""


@dataclass(frozen=True, slots=True)
class Times:
    """Where on the flow an expert is asked, as the sampler's grid has it."""

    shift: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, expert: Expert | None, sampling: Sampling) -> "Times":
        """High noise from the boundary up; None for all times."""
        assert sampling.boundary is not None
        sides: dict[Expert | None, tuple[float, float]] = {
            "high_noise": (sampling.boundary, 1.0),
            "low_noise": (0.0, sampling.boundary),
            None: (0.0, 1.0),
        }
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
    data_file: Path,
    sentences: Sentences,
    schedule: Schedule,
    *,
    folder: Path,
    name: str,
) -> None:
    """Trains in place; data are read only where there is a step to make."""
    data = cache(partial(Data.read, data_file))
    processors = use_pads_as_one(transformer)

    def loss_of(generator: torch.Generator) -> Tensor:
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

    depends_on = f"{data_file.name} {times}"
    train(transformer, loss_of, schedule, folder=folder, name=name, data=depends_on)

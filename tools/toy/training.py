"""A training loop that can be stopped anywhere and goes on where it was. Knows no networks.

Everything random of step i is drawn from a generator seeded by i, so a resumed run sees what an
uninterrupted one would have seen.
"""

import io
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tools.toy.curves import save_curve
from wanc.digest import of_bytes, of_json
from wanc.files import write_whole

_SAVE_EVERY_S = 60.0
_WARM_UP_STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long, and how fast."""

    steps: int
    learning_rate: float
    """The greatest; it falls to a fiftieth by a cosine."""
    average: float = 0.0
    """Of the running average of the weights that is kept at the end; 0 keeps the last ones."""
    seed: int = 0


def train(
    network: nn.Module,
    loss_of: Callable[[torch.Generator], Tensor],
    schedule: Schedule,
    *,
    folder: Path,
    name: str,
    data: str = "",
    evaluate: Callable[[], str] | None = None,
) -> None:
    """Trains in place; leaves the state in the folder, and the loss curve as ``name``.png.

    A state is named by what it is made of: the schedule, the first weights, and ``data``, which
    says what else the loss depends on. A finished training is read and not repeated.
    ``loss_of`` is given the step's generator.
    """
    made_of = of_json([asdict(schedule), digest_of(network), data])
    saved = folder / f"{name}-{short(made_of)}.pt"
    training = _Training(network, schedule)
    if saved.is_file():
        training.read(saved)
    first, began = len(training.losses), time.monotonic()
    last = began
    for step in range(first, schedule.steps):
        training.step(loss_of)
        if time.monotonic() - last > _SAVE_EVERY_S or step + 1 == schedule.steps:
            training.save(saved)
            save_curve(training.losses, folder / f"{name}.png", title=name)
            last = time.monotonic()
            left_s = (last - began) / (step + 1 - first) * (schedule.steps - step - 1)
            seen = evaluate() if evaluate else ""
            print(f"{name}: {training} {seen} ({left_s / 60:.1f} min left)", flush=True)
    network.load_state_dict(training.averaged)


def digest_of(network: nn.Module) -> str:
    """Of its weights."""
    weights = network.state_dict().items()
    return of_json({name: of_bytes(weight.numpy().tobytes()) for name, weight in weights})


def short(digest: str) -> str:
    """Enough of a digest for the name of a file."""
    return digest.removeprefix("sha256:")[:8]


class _Training:
    """A network, as far as it is trained."""

    def __init__(self, network: nn.Module, schedule: Schedule) -> None:
        self.network, self.schedule = network, schedule
        self.optimizer = torch.optim.AdamW(
            network.parameters(), lr=schedule.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.averaged = {key: value.clone() for key, value in network.state_dict().items()}
        self.losses: list[float] = []
        """Of every step so far."""

    def __str__(self) -> str:
        recent = self.losses[-200:]
        loss = sum(recent) / len(recent)
        return f"step {len(self.losses)} of {self.schedule.steps}, loss {loss:.4f}"

    def step(self, loss_of: Callable[[torch.Generator], Tensor]) -> None:
        """The next one."""
        step = len(self.losses)
        for group in self.optimizer.param_groups:
            group["lr"] = _rate(step, self.schedule)
        seed = self.schedule.seed * self.schedule.steps + step
        loss = loss_of(torch.Generator().manual_seed(seed))
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.item())
        keep = min(self.schedule.average, (1 + step) / (10 + step))
        for key, value in self.network.state_dict().items():
            self.averaged[key].lerp_(value, 1 - keep)

    def save(self, file: Path) -> None:
        """Writes a file, whole or not at all."""
        whole = io.BytesIO()
        state = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "averaged": self.averaged,
            "losses": self.losses,
        }
        torch.save(state, whole)
        write_whole(file, whole.getvalue())

    def read(self, file: Path) -> None:
        """Goes on from what ``save`` wrote."""
        state = torch.load(file, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.averaged, self.losses = state["averaged"], state["losses"]


def _rate(step: int, schedule: Schedule) -> float:
    warm = min(1.0, (step + 1) / _WARM_UP_STEPS)
    fall = 0.5 * (1 + math.cos(math.pi * step / schedule.steps))
    return schedule.learning_rate * warm * (0.02 + 0.98 * fall)

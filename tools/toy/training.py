"""A training loop that can be stopped anywhere and goes on where it was. Knows no networks.

Everything random of step i is drawn from a generator seeded by i, so a resumed run sees what an
uninterrupted one would have seen.
"""

import io
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tools.toy.curves import save_curve
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
    evaluate: Callable[[], str] | None = None,
) -> None:
    """Trains in place; leaves ``name``.pt and the loss curve ``name``.png in the folder.

    ``loss_of`` is given the step's generator. A finished training is read and not repeated.
    """
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=schedule.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
    )
    averaged = {key: value.detach().clone() for key, value in network.state_dict().items()}
    losses: list[float] = []
    saved = folder / f"{name}.pt"
    if saved.is_file():
        state = torch.load(saved, weights_only=True)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        averaged, losses = state["averaged"], state["losses"]

    def save() -> None:
        state = {
            "network": network.state_dict(),
            "optimizer": optimizer.state_dict(),
            "averaged": averaged,
            "losses": losses,
        }
        whole = io.BytesIO()
        torch.save(state, whole)
        write_whole(saved, whole.getvalue())
        save_curve(losses, folder / f"{name}.png", title=name)

    began = last = time.monotonic()
    first = len(losses)
    for step in range(first, schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = _rate(step, schedule)
        generator = torch.Generator().manual_seed(schedule.seed * schedule.steps + step)
        loss = loss_of(generator)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        keep = min(schedule.average, (1 + step) / (10 + step))
        for key, value in network.state_dict().items():
            averaged[key].lerp_(value, 1 - keep)
        if time.monotonic() - last > _SAVE_EVERY_S or step + 1 == schedule.steps:
            save()
            last = time.monotonic()
            left = (last - began) / (step + 1 - first) * (schedule.steps - step - 1)
            recent = losses[-200:]
            seen = evaluate() if evaluate else ""
            print(
                f"{name}: step {step + 1} of {schedule.steps}, loss "
                f"{sum(recent) / len(recent):.4f} {seen} ({left / 60:.1f} min left)",
                flush=True,
            )
    network.load_state_dict(averaged)


def _rate(step: int, schedule: Schedule) -> float:
    warm = min(1.0, (step + 1) / _WARM_UP_STEPS)
    fall = 0.5 * (1 + math.cos(math.pi * step / schedule.steps))
    return schedule.learning_rate * warm * (0.02 + 0.98 * fall)

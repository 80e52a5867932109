"""The processes of one run, as one of them sees them: who hosts which ranks, and what they swap.

Knows arrays and texts, and nothing of programs. Its sockets bind the launch's address alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from wanc.errors import RunError

Array = np.ndarray[Any, Any]


class World(Protocol):
    """Every process makes the same calls in the same order; each waits for the others."""

    @property
    def process(self) -> int:
        """This process."""

    @property
    def processes(self) -> int:
        """How many there are."""

    @property
    def address(self) -> str:
        """Where sockets of this process bind."""

    def hosted(self, ranks: int, process: int | None = None) -> tuple[int, ...]:
        """The ranks, of so many, that a process hosts; raises RequestError."""

    def tell(self, subject: str, say: Callable[[], str]) -> str:
        """What process 0 says of a subject, to all. Only process 0 calls ``say``."""

    def spread(self, subject: str, give: Callable[[], bytes]) -> bytes:
        """Bytes that process 0 has, to all. Only process 0 calls ``give``."""

    def everyone(self, subject: str, text: str) -> list[str]:
        """What each process says of a subject, by process."""

    def gather(self, parts: Sequence[Array | None], owners: Sequence[int]) -> list[Array] | None:
        """Every part, in process 0; None elsewhere. A process gives those that it owns."""

    def close(self) -> None:
        """Leave, once all others do."""


class Alone:
    """One process, which hosts every rank."""

    process = 0
    processes = 1
    address = ""

    def hosted(self, ranks: int, process: int | None = None) -> tuple[int, ...]:
        """All ranks."""
        return tuple(range(ranks))

    def tell(self, subject: str, say: Callable[[], str]) -> str:
        """What this process says."""
        return say()

    def spread(self, subject: str, give: Callable[[], bytes]) -> bytes:
        """The bytes."""
        return give()

    def everyone(self, subject: str, text: str) -> list[str]:
        """What this process says."""
        return [text]

    def gather(self, parts: Sequence[Array | None], owners: Sequence[int]) -> list[Array] | None:
        """The parts."""
        return [part for part in parts if part is not None]

    def close(self) -> None:
        """Nothing to leave."""


def check_agreement(world: World, subject: str, text: str) -> None:
    """Raise RunError where processes do not all say the same of a subject."""
    said = world.everyone(subject, text)
    if len(set(said)) > 1:
        common = max(said, key=said.count)
        odd = [f"process {k} has {each}" for k, each in enumerate(said) if each != common]
        raise RunError(
            f"{subject}: {'; '.join(odd)}; {said.count(common)} of {world.processes} have {common}"
        )

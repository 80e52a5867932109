"""How often what may pass is tried again, and how long is waited. Knows no network."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from wanc.errors import RegistryError

SOMETHING_BYTES = 1 << 20
"""A try that moved so many is none of those that brought nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """What a registry is given of time and tries."""

    tries: int = 6
    """In a row that bring nothing; the last one's failure is the end."""
    first_wait_seconds: float = 0.5
    """After the first failure, and twice as long after each other, less some chance."""
    longest_wait_seconds: float = 30.0
    longest_asked_seconds: float = 120.0
    """Of a wait that a registry asks for."""
    connect_seconds: float = 10.0
    silence_seconds: float = 60.0
    """In which not one byte comes or goes."""
    commit_seconds: float = 600.0
    """As silence_seconds, after a blob or a manifest, while a registry puts it away."""
    answer_seconds: float = 300.0
    """For an answer that is read into memory."""
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic


class PassingError(Exception):
    """Something failed that may pass: no failure before the tries are at their end."""

    def __init__(self, why: str, asked_seconds: float | None = None) -> None:
        """asked_seconds: how long the registry wants to be left alone, where it says so."""
        super().__init__(why)
        self.asked_seconds = asked_seconds


class Attempts:
    """The tries of one piece of work."""

    def __init__(self, patience: Patience, what: str) -> None:
        self._patience, self._what = patience, what
        self._began = patience.clock()
        self._failed = self._failed_in_all = 0

    def brought_something(self) -> None:
        """The last try got further, even if not to the end: what follows is counted anew."""
        self._failed = 0

    def again(self, cause: PassingError) -> None:
        """Wait before the next try; raises RegistryError where there is none."""
        patience = self._patience
        self._failed += 1
        self._failed_in_all += 1
        if self._failed >= patience.tries:
            took = patience.clock() - self._began
            raise RegistryError(
                f"{self._what}: {cause}; given up after {self._failed_in_all} failures in "
                f"{took:.0f} s"
            ) from cause
        usual = min(
            patience.longest_wait_seconds, patience.first_wait_seconds * 2**self._failed / 2
        )
        wait = usual * (1 + patience.chance()) / 2
        if cause.asked_seconds is not None:
            wait = min(patience.longest_asked_seconds, max(wait, cause.asked_seconds))
        patience.sleep(wait)

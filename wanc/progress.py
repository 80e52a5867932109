"""How long work reports itself. Knows no terminal: the command line draws, a library is silent."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, done: str = "") -> None:
        """One step more is done; ``done`` says which."""

    def doing(self, what: str) -> None:
        """Say what is under way; may be said again and again."""


class Transfer(Protocol):
    """Bytes on their way; told of from several threads."""

    def moved(self, moved: int, reused: int) -> None:
        """So many more bytes went over the network, and so many did not have to."""


class Progress(Protocol):
    """Reports work as it goes."""

    def task(self, name: str, total: int) -> AbstractContextManager[Task]:
        """A context that holds one piece of work of so many steps."""

    def note(self, text: str) -> None:
        """Say something once."""


class TransferProgress(Progress, Protocol):
    """Reports bytes that move, too."""

    def transfer(self, name: str, total_bytes: int) -> AbstractContextManager[Transfer]:
        """A context that holds one transfer of so many bytes, moved or reused."""


class _SilentTask:
    def advance(self, done: str = "") -> None:
        """Say nothing."""

    def doing(self, what: str) -> None:
        """Say nothing."""

    def moved(self, moved: int, reused: int) -> None:
        """Say nothing."""


class Silent:
    """Reports nothing."""

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Task]:
        """Say nothing."""
        yield _SilentTask()

    @contextmanager
    def transfer(self, name: str, total_bytes: int) -> Iterator[Transfer]:
        """Say nothing."""
        yield _SilentTask()

    def note(self, text: str) -> None:
        """Say nothing."""

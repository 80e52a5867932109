"""Blobs moved by several threads at once, and told of as they move.

Knows nothing of registries: what moves a blob is given.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import TypeVar

from wanc.progress import Transfer
from wanc.registry.repository import OnBytes

Blob = TypeVar("Blob")


@dataclass(slots=True, kw_only=True)
class Moved:
    """How much went over the network, and how much did not have to."""

    moved_bytes: int = 0
    reused_bytes: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, moved: int, reused: int) -> None:
        """Count more; from any thread."""
        with self._lock:
            self.moved_bytes += moved
            self.reused_bytes += reused


class _StoppedError(Exception):
    """Another thread has failed, or the user has had enough."""


def move(
    blobs: Iterable[Blob],
    one: Callable[[Blob, OnBytes], object],
    *,
    jobs: int,
    transfer: Transfer,
    counted: Moved,
) -> None:
    """Move every blob; raises what the first of them raises, and then leaves the others.

    Args:
        blobs: what is to be moved.
        one: moves one blob, and tells of bytes as they move.
        jobs: threads.
        transfer: is told of all.
        counted: is added to.
    """
    stop = Event()

    def on_bytes(moved: int, reused: int) -> None:
        if stop.is_set():
            raise _StoppedError
        counted.add(moved, reused)
        transfer.moved(moved, reused)

    with ThreadPoolExecutor(max_workers=jobs) as threads:
        try:
            running = [threads.submit(one, blob, on_bytes) for blob in blobs]
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            for future in ended:
                future.result()
        except BaseException:
            stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise

"""Blobs moved by several threads at once, and told of as they move.

Knows nothing of registries: what moves a blob is given.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import TypeVar

from wanc.progress import Transfer
from wanc.registry.repository import OnBytes

Blob = TypeVar("Blob")

STOP_SECONDS = 1.0
"""For threads to end once one has failed, or the user has had enough. One that waits for a registry
or a disk is then left behind: it ends with its next byte, or with the process."""


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
    """Move every blob; raises what the first that fails raises, and then leaves the others.

    Args:
        blobs: what is to be moved.
        one: moves one blob, and tells of bytes as they move.
        jobs: threads.
        transfer: is told of all.
        counted: is added to.
    """
    stop = Event()
    waiting: SimpleQueue[Blob] = SimpleQueue()
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def on_bytes(moved: int, reused: int) -> None:
        if stop.is_set():
            raise _StoppedError
        counted.add(moved, reused)
        transfer.moved(moved, reused)

    def work() -> None:
        try:
            while not stop.is_set():
                one(waiting.get_nowait(), on_bytes)
        except Empty:
            ended.put(None)
        except BaseException as error:  # for the thread that waits to raise
            ended.put(error)

    for blob in blobs:
        waiting.put(blob)
    # no pool: Python waits for a pool's threads before it ends, for minutes where one is in a wait
    threads = [Thread(target=work, daemon=True) for _ in range(min(jobs, waiting.qsize()))]
    try:
        for thread in threads:
            thread.start()
        for _ in threads:
            if (error := ended.get()) is not None:
                raise error
    except BaseException:
        stop.set()
        _let_end(threads)
        raise


def _let_end(threads: list[Thread]) -> None:
    until = time.monotonic() + STOP_SECONDS
    for thread in threads:
        if thread.is_alive():
            thread.join(max(until - time.monotonic(), 0))

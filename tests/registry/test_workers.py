"""Blobs moved by several threads: the first failure is told, and ends the others soon."""

import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from wanc.share import workers
from wanc.share.workers import Moved, move

LONG_SECONDS = 30.0
"""Of a thread that waits for a registry: no end of a command may wait for it."""
SOON_SECONDS = 10.0


class Silent:
    def moved(self, moved: int, reused: int) -> None:
        pass


def moving(blobs: Any, one: Any, jobs: int = 4) -> Moved:
    counted = Moved()
    move(blobs, one, jobs=jobs, transfer=Silent(), counted=counted)
    return counted


@pytest.mark.parametrize("jobs", [1, 3, 50])
def test_every_blob_moves_once(jobs):
    seen: list[int] = []

    def one(blob: int, on_bytes: Any) -> None:
        seen.append(blob)
        on_bytes(blob, 1)

    counted = moving(range(20), one, jobs)
    assert sorted(seen) == list(range(20))
    assert (counted.moved_bytes, counted.reused_bytes) == (190, 20)
    assert moving([], one).moved_bytes == 0


def test_the_first_failure_is_raised_and_no_blob_begun_after_it(monkeypatch):
    monkeypatch.setattr(workers, "STOP_SECONDS", 0.2)
    begun: list[int] = []
    release = threading.Event()

    def one(blob: int, on_bytes: Any) -> None:
        begun.append(blob)
        if blob == 0:
            raise ValueError("first")
        release.wait(LONG_SECONDS)
        on_bytes(1, 0)

    began = time.monotonic()
    with pytest.raises(ValueError, match="first"):
        moving(range(10), one, jobs=2)
    assert time.monotonic() - began < SOON_SECONDS
    there = list(begun)
    release.set()
    time.sleep(0.05)
    assert begun == there
    assert len(there) <= 2


def test_an_interrupt_ends_the_process_though_threads_wait():
    """Ctrl-C: Python waits for threads of a pool before it ends."""
    program = f"""
import time
from wanc.share.workers import Moved, move
def one(blob, on_bytes):
    print("begun\\n", end="", flush=True)  # in one piece, for there are two threads
    time.sleep({LONG_SECONDS})
try:
    move([1, 2], one, jobs=2, transfer=None, counted=Moved())
except KeyboardInterrupt:
    print("interrupted")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=2 * LONG_SECONDS)
    assert time.monotonic() - began < SOON_SECONDS
    assert "interrupted" in said, errors

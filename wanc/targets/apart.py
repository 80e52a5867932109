"""Runs a command in a session of its own, and leaves nothing of it running.

Knows nothing of compilers. A compiler that starts others is killed with all of them: when it is
stopped, when its time is up, and when it has ended itself and left some behind.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Literal

_POLL_SECONDS = 0.02

End = Literal["itself", "stopped", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    by: End
    status: int
    """Exit status; the negative number of the signal that killed it, as subprocess has it."""


def run_apart(
    command: Sequence[str],
    *,
    room: Path,
    log: Path,
    environment: Mapping[str, str],
    timeout_seconds: float,
    stop: Event,
) -> Ended:
    """Run in the folder room until the end, what it writes going to log; raises OSError."""
    with log.open("ab") as writing:
        leader = subprocess.Popen(
            command,
            cwd=room,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
        )
    try:
        by = _wait(leader.pid, time.monotonic() + timeout_seconds, stop)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()
    return Ended(by=by, status=leader.returncode)


def _wait(pid: int, deadline: float, stop: Event) -> End:
    """Until it has ended, without taking its status: the group's number stays its own so long."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if stop.wait(_POLL_SECONDS):
            return "stopped"
        if time.monotonic() > deadline:
            return "timeout"
    return "itself"

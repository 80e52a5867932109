"""Runs over supervised processes in which something goes wrong at a chosen place."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wanc.bundle.store import open_bundle
from wanc.errors import WancError
from wanc.processes.supervisor import Supervisor, worker_command
from wanc.progress import Silent
from wanc.run.outputs import Outputs
from wanc.run.request import LoadRequest, RunRequest, as_plain
from wanc.run.start import Processes, plan_spread

START = "start"
STEPS = 4
DELAYS = {START: 2.0, "encode text": 0.3, "denoise": 0.1, "decode": 0.05}
"""Seconds after a stage begins within which a signal comes, at random."""


@dataclass
class Strike(Silent):
    """Progress that sends a process a signal once the run is in a stage."""

    stage: str
    process: int
    number: signal.Signals
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    supervisor: Supervisor | None = None
    pids: list[int] = field(default_factory=list)
    at: float | None = None
    """When it was sent."""

    def watch_start(self) -> None:
        """Strike some time after the processes are there."""
        assert self.supervisor is not None
        while not self.supervisor.pids[self.process : self.process + 1]:
            time.sleep(0.01)
        self.send()

    def send(self) -> None:
        assert self.supervisor is not None
        time.sleep(self.chance.uniform(0, DELAYS[self.stage]))
        self.pids = self.supervisor.pids
        os.kill(self.pids[self.process], self.number)
        self.at = time.monotonic()

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Any]:
        step = self.chance.randrange(total) if name == "denoise" else 0
        if name == self.stage and step == 0:
            self.send()
        yield _Steps(self, name, step)


@dataclass
class _Steps:
    strike: Strike
    name: str
    left: int

    def advance(self, done: str = "") -> None:
        self.left -= 1
        if self.name == self.strike.stage and self.left == 0:
            self.strike.send()

    def doing(self, what: str) -> None:
        pass


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    error: WancError | None
    seconds: float
    """From the signal to the end; of the whole run, where none was sent."""
    pids: list[int]
    files: list[str]
    """What is left in its folder."""
    record: dict[str, Any] | None = None

    @property
    def alive(self) -> list[int]:
        """Processes that outlived the run."""
        return [pid for pid in self.pids if Path(f"/proc/{pid}").exists()]


def run(
    bundle: Path,
    weights: Path,
    folder: Path,
    *,
    processes: int,
    progress: Any = None,
    stall_seconds: float | None = 20.0,
    **request: Any,
) -> Outcome:
    """Run a bundle over supervised processes, come what may."""
    strike = progress or Silent()
    load = LoadRequest(bundle=bundle, weights=weights)
    asked = RunRequest(**{"prompt": "a ship", "steps": STEPS, "seed": 1, **request})
    how = Processes(count=processes, start_seconds=60.0, stall_seconds=stall_seconds)
    spread = plan_spread(open_bundle(bundle).variants[0].config, how)
    assert spread is not None
    supervisor = Supervisor(spread, worker_command(), strike)
    began, error, record = time.monotonic(), None, None
    pids: list[int] = []
    try:
        with Outputs(folder / "v.mp4", form="mp4", saves=asked.save_every is not None) as outputs:
            if isinstance(strike, Strike):
                strike.supervisor = supervisor
                if strike.stage == START:
                    threading.Thread(target=strike.watch_start, daemon=True).start()
            supervisor.start("load", {"load": as_plain(load), "patience": as_plain(how.patience)})
            pids = supervisor.pids
            wanted = {"run": as_plain(asked), "files": as_plain(outputs.files)}
            record = supervisor.ask("run", wanted)
            outputs.commit(record)
        supervisor.close()
    except WancError as failure:
        error = failure
    since = getattr(strike, "at", None) or began
    return Outcome(
        error=error,
        seconds=time.monotonic() - since,
        pids=pids or getattr(strike, "pids", []),
        files=sorted(file.name for file in folder.iterdir()),
        record=record,
    )

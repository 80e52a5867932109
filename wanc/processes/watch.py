"""Watches a run whose processes another launcher started: each tells its marks through the store.

Process 0 judges them all; the others hear its verdict, and notice when it is silent itself. A
thread of each process does this, so that a main thread that waits for the dead ends too.
"""

import os
import sys
import threading
import time

import msgspec

from wanc.errors import LostError, RunError, WancError
from wanc.files import discard_unfinished
from wanc.processes.marker import BEAT_SECONDS, Marker
from wanc.processes.messages import Mark
from wanc.processes.observer import SILENCE_SECONDS, Observer
from wanc.processes.store import StoreWorld

_VERDICT = "verdict"


class Watch:
    """One process's part in watching all."""

    def __init__(self, world: StoreWorld, marker: Marker, names: list[str]) -> None:
        self._world, self._marker = world, marker
        self._store = world.clone()
        self._observer = Observer(names, float("inf"), time.monotonic())
        self._ended, self._left = threading.Event(), threading.Event()
        self._beats_since_look = 0
        for act in (self._run, self._keep_watch):
            threading.Thread(target=act, daemon=True).start()

    def name(self, ranks: list[str]) -> None:
        """What each process hosts, once that is known."""
        self._observer.names = [f"process {k} ({each})" for k, each in enumerate(ranks)]

    def close(self) -> None:
        """Watch no longer."""
        self._ended.set()
        self._left.set()

    def verdict(self, error: BaseException) -> str:
        """What ended the run, once this process fails: the first cause that any process saw."""
        if isinstance(error, LostError):
            time.sleep(SILENCE_SECONDS + 2 * BEAT_SECONDS)  # who is gone will have been silent
        self._ended.set()
        what = error if isinstance(error, WancError) else f"{type(error).__name__} {error}"
        verdict = self._judge(f"{self._own_name}: {what}")
        self._left.set()
        self._let_others_hear()
        return verdict

    @property
    def _own_name(self) -> str:
        return self._observer.names[self._world.process]

    def _run(self) -> None:
        try:
            while not self._ended.wait(BEAT_SECONDS):
                if verdict := self._look():
                    self._die(verdict)
                self._beats_since_look = 0
        except RuntimeError:  # the store does not answer
            if not self._ended.is_set():
                self._die("process 0, which keeps the processes' store, is gone")

    def _keep_watch(self) -> None:
        """See that the other thread gets its answers: a stopped store gives none, and no error."""
        while not self._left.wait(BEAT_SECONDS):
            self._beats_since_look += 1
            if self._beats_since_look * BEAT_SECONDS > SILENCE_SECONDS:
                self._die(f"{self._observer.names[0]} gave no answer for {SILENCE_SECONDS:.0f} s")

    def _look(self) -> str | None:
        mark = msgspec.json.encode(self._marker.current())
        self._store.set(f"mark/{self._world.process}", mark)
        if self._store.check([_VERDICT]):
            return bytes(self._store.get(_VERDICT)).decode()
        first = self._world.process == 0
        judged = range(self._world.processes) if first else (0,)
        now = time.monotonic()
        for process in judged:
            if self._store.check([f"mark/{process}"]):
                said = self._store.get(f"mark/{process}")
                self._observer.hear(process, msgspec.json.decode(said, type=Mark), now)
        fault = self._observer.fault(now) if first else self._observer.silence(now)
        return self._judge(fault) if fault else None

    def _judge(self, fault: str) -> str:
        """The first fault that any process found."""
        fault = fault.encode(errors="backslashreplace").decode()
        try:
            return bytes(self._store.compare_set(_VERDICT, "", fault)).decode()
        except RuntimeError:
            return fault

    def _die(self, verdict: str) -> None:
        discard_unfinished()
        sys.stderr.write(f"wanc: {self._own_name} ends: {verdict}\n")
        sys.stderr.flush()
        self._let_others_hear()
        os._exit(RunError.exit_code)

    def _let_others_hear(self) -> None:
        """The verdict goes with the store."""
        if self._world.process == 0:
            time.sleep(2 * BEAT_SECONDS)

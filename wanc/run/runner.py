"""Runs in this very process: alone with all ranks, or as one of a launcher's processes."""

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wanc.errors import RunError, WeightsError
from wanc.processes.launch import Launch, named
from wanc.processes.marker import IDLE, OPEN, Marker, Patience
from wanc.processes.store import join
from wanc.processes.watch import Watch
from wanc.processes.world import Alone
from wanc.progress import Progress, Silent
from wanc.run.outputs import Files
from wanc.run.patience import step_seconds
from wanc.run.pipeline import generate, load_variant
from wanc.run.request import LoadRequest, RunRequest, check_request


class Here:
    """A variant with all its ranks in this process."""

    alive = replaceable = True

    def __init__(self, request: LoadRequest, progress: Progress) -> None:
        self._progress = progress
        self._loaded = load_variant(request, Alone(), progress)

    def agree(self, subject: str, say: Callable[[], str]) -> str:
        """What is said: there is no other process."""
        return say()

    def run(self, request: RunRequest, files: Files) -> dict[str, Any]:
        """Generate, and return the run's record."""
        check_request(request, self._loaded.session.config)
        return generate(self._loaded, request, files, self._progress).to_json()

    def close(self, error: BaseException | None = None) -> None:
        """Let go of the ranks."""
        self._loaded.close()


class Joined:
    """A variant whose ranks are spread over the processes of a launch, of which this is one."""

    replaceable = False

    def __init__(
        self, launch: Launch, request: LoadRequest, patience: Patience, progress: Progress
    ) -> None:
        self._stdout = _clean_stdout()
        self._failed = False
        self._marker = Marker(
            patience, lambda mark: None, progress if launch.process == 0 else Silent()
        )
        self._world = join(launch, within_seconds=patience.start_seconds)
        self._marker.move(OPEN)
        self._watch = Watch(
            self._world, self._marker, [f"process {k}" for k in range(launch.processes)]
        )
        with self._judged():
            self._loaded = load_variant(request, self._world, self._marker)
            config = self._loaded.session.config
            patience.predicted = step_seconds(config)
            ranks = config.variant.topology.ranks
            self._watch.name([named(self._world.hosted(ranks, k)) for k in range(launch.processes)])
            self._marker.move(IDLE)

    @property
    def alive(self) -> bool:
        """Whether no error has ended the processes."""
        return not self._failed

    def agree(self, subject: str, say: Callable[[], str]) -> str:
        """What process 0 says."""
        with self._judged():
            return self._world.tell(subject, say)

    def run(self, request: RunRequest, files: Files) -> dict[str, Any]:
        """Generate, with every other process; returns the run's record."""
        if self._failed:
            raise RunError("the processes have ended with an earlier error: load again")
        check_request(request, self._loaded.session.config)
        with self._judged():
            record = generate(self._loaded, request, files, self._marker).to_json()
            self._marker.move(IDLE)
        return record

    def close(self, error: BaseException | None = None) -> None:
        """Leave, with every other process; after an error, tell them of it and leave alone."""
        if error is not None and not self._failed:
            self._fail(error)
        if self._failed:
            return
        self._world.everyone("leaving", "")
        self._watch.close()
        self._loaded.close()
        self._world.close()
        os.dup2(self._stdout, 1)

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """Tell the others of an error, and raise what came first."""
        try:
            yield
        except BaseException as error:
            verdict = self._fail(error)
            if isinstance(error, RunError) and not isinstance(error, WeightsError):
                raise RunError(verdict) from error
            raise

    def _fail(self, error: BaseException) -> str:
        self._failed = True
        atexit.register(_leave, _exit_code(error))
        return self._watch.verdict(error)


def _exit_code(error: BaseException) -> int:
    """What a process that ends by an error exits with."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    code: int = getattr(error, "exit_code", RunError.exit_code)
    return code


def _leave(code: int) -> None:
    """Exit without what libraries do then: they may wait for processes that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _clean_stdout() -> int:
    """gloo greets every peer on descriptor 1: let it lead nowhere, and sys.stdout where it did.

    Returns a descriptor of what 1 was.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    if sys.stdout is sys.__stdout__:
        sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    return kept

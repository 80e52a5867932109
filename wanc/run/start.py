"""Starts a run: in this process, in local processes of its own, or as one of a launcher's.

Loads no framework, for a supervisor needs none. Knows processes, and not how videos are made.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from wanc.bundle.config import VariantConfig
from wanc.errors import RequestError
from wanc.processes.launch import (
    LOOPBACK,
    START_SECONDS,
    Launch,
    hosted_ranks,
    interface_address,
    named,
)
from wanc.processes.marker import Patience
from wanc.processes.supervisor import Spread, Supervisor, worker_command
from wanc.progress import Progress
from wanc.run.outputs import Files
from wanc.run.request import LoadRequest, RunRequest, as_plain, check_request
from wanc.runtime.runtime import runtime_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """How a run is spread over processes, where no launcher has done that."""

    count: int | None = None
    """Local processes; None for as many as suit the target, which on a CPU is this one alone."""
    interface: str | None = None
    """Name or address of the network interface that sockets bind; None for loopback, or for the
    one that leads to a launcher's MASTER_ADDR."""
    start_seconds: float = START_SECONDS
    """For processes to start and meet."""
    stall_seconds: float | None = None
    """For any one step; None to judge by the plan's times and by the steps seen."""

    @property
    def address(self) -> str | None:
        """Of the interface, where one is named; raises RequestError."""
        return interface_address(self.interface) if self.interface else None

    @property
    def patience(self) -> Patience:
        """How long a start and a step may take."""
        return Patience(start_seconds=self.start_seconds, stall_seconds=self.stall_seconds)


class Runner(Protocol):
    """A loaded variant, in this process or in others."""

    @property
    def alive(self) -> bool:
        """Whether it can run more, and no error has ended it."""

    @property
    def replaceable(self) -> bool:
        """Whether one that has ended may be followed by another."""

    def agree(self, subject: str, say: Callable[[], str]) -> str:
        """What the process that writes says, to all that make this call."""

    def run(self, request: RunRequest, files: Files) -> dict[str, Any]:
        """Generate, and return the run's record."""

    def close(self, error: BaseException | None = None) -> None:
        """Let go of the ranks, after an error or without one."""


Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]


def closes(runner: Runner) -> Exit:
    """What closes a runner at the end of a block."""
    return lambda kind, error, trace: runner.close(error)


def find_launch(processes: Processes) -> Launch | None:
    """This process's place, where a launcher gave it one; raises RequestError."""
    return Launch.of(os.environ, address=processes.address, within_seconds=processes.start_seconds)


def start(
    request: LoadRequest,
    config: VariantConfig,
    launch: Launch | None,
    processes: Processes,
    progress: Progress,
) -> Runner:
    """Load the variant in this process, in local processes of its own, or as the launch has it."""
    if launch is not None:
        if processes.count not in (None, launch.processes):
            raise RequestError(
                f"{processes.count} processes are asked for, and the launcher's WORLD_SIZE is "
                f"{launch.processes}: leave --processes out"
            )
        from wanc.run.runner import Joined

        return Joined(launch, request, processes.patience, progress)
    spread = plan_spread(config, processes)
    if spread is None:
        from wanc.run.runner import Here

        return Here(request, progress)
    return Supervised(request, config, spread, progress)


def plan_spread(config: VariantConfig, processes: Processes) -> Spread | None:
    """Which ranks each local process hosts; None where this one hosts all. Raises RequestError."""
    count = processes.count or runtime_of(config.variant.target).processes(config)
    if processes.count is None and count == 1:
        return None
    ranks = config.variant.topology.ranks
    return Spread(
        ranks=tuple(named(hosted_ranks(ranks, process, count)) for process in range(count)),
        patience=processes.patience,
        address=processes.address or LOOPBACK,
    )


class Supervised:
    """A variant in processes of its own."""

    replaceable = True

    def __init__(
        self, request: LoadRequest, config: VariantConfig, spread: Spread, progress: Progress
    ) -> None:
        self._config = config
        self._supervisor = Supervisor(spread, worker_command(), progress)
        asked = {"load": as_plain(request), "patience": as_plain(spread.patience)}
        self._supervisor.start("load", asked)
        self.alive = True

    def agree(self, subject: str, say: Callable[[], str]) -> str:
        """What is said: no other process makes this call."""
        return say()

    def run(self, request: RunRequest, files: Files) -> dict[str, Any]:
        """Generate in every process; raises what ended them. A bad request ends none."""
        check_request(request, self._config)
        asked = {"run": as_plain(request), "files": as_plain(files)}
        self.alive = False
        record: dict[str, Any] = self._supervisor.ask("run", asked)
        self.alive = True
        return record

    def close(self, error: BaseException | None = None) -> None:
        """Let the processes leave; after an error, end them."""
        if error is None:
            self._supervisor.close()
        else:
            self._supervisor.kill()

"""NeuronCores of one process: a thread for each, and memory on them that is used again.

Knows nrtpy's tensors, and no programs. All that is done on a core is done by its thread, in the
order in which it was asked for. So collectives of several cores meet, and memory whose last user is
gone can be given away while calls that read it still wait: whoever writes to it comes after them.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from wanc.errors import RunError, WancError
from wanc.runtime.engine import TensorType
from wanc.runtime.neuron_status import blame

T = TypeVar("T")
_Task = tuple[Callable[[], Any], str, type[WancError], "Future[Any]"]

_LEAVE_SECONDS = 5.0
"""For threads to come back from a device before it is closed; one that hangs never does."""


class Failure:
    """The first failure on any core. From then on ranks are out of step, and no task is begun."""

    def __init__(self) -> None:
        self._first: Future[None] = Future()

    def note(self, error: WancError) -> None:
        """Keep the error, if it is the first."""
        with suppress(InvalidStateError):
            self._first.set_exception(error)

    @property
    def first(self) -> BaseException | None:
        """It, if there is one."""
        return self._first.exception() if self._first.done() else None

    def check(self) -> None:
        """Raise it, if there is one."""
        if (error := self.first) is not None:
            raise error

    def settle(self, done: "Future[T]") -> T:
        """What a task gives; raises the first failure on any core, whichever task it waits for."""
        either: list[Future[Any]] = [done, self._first]
        wait(either, return_when=FIRST_COMPLETED)
        self.check()
        return done.result()


@dataclass(slots=True, kw_only=True, eq=False)
class Memory:
    """Room for one shard on a core. Only the core's thread touches what is there."""

    core: "Core"
    type: TensorType
    _device: Any = None
    """The NrtpyTensor; allocated at the first use."""

    def free(self) -> None:
        """Let the core give it away."""
        self.core.free.setdefault(self.type, []).append(self)

    def device(self) -> Any:
        """The NrtpyTensor, for a model's call."""
        if self._device is None:
            self.write(np.zeros(self.type.shape, self.type.dtype))
        return self._device

    def write(self, shard: np.ndarray[Any, Any]) -> None:
        """Copy a shard there."""
        if self._device is None:
            self._device = self.core.tensors.from_numpy(shard, core_id=self.core.index)
        else:
            self._device.write_from_numpy(shard)

    def read(self) -> np.ndarray[Any, Any]:
        """A copy of the shard. libnrt may not know the dtype of its own tensors."""
        host: np.ndarray[Any, Any] = self._device.numpy()
        return host.view(self.type.dtype).reshape(self.type.shape)


class Core:
    """One logical core, and the thread that does all that is done on it."""

    def __init__(
        self, *, rank: int, number: int, index: int, tensors: Any, failure: Failure
    ) -> None:
        self.rank, self.number, self.index = rank, number, index
        """Its rank; its number on the machine; its number among those that nrtpy sees."""
        self.tensors = tensors
        """nrtpy's class of tensors."""
        self.free: dict[TensorType, list[Memory]] = {}
        self._failure = failure
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=f"core {number}", daemon=True)
        self._thread.start()

    def __str__(self) -> str:
        return f"rank {self.rank}, core {self.number}"

    def take(self, kind: TensorType) -> Memory:
        """Memory that nobody uses; what it held may stand in it."""
        known = self.free.get(kind)
        return known.pop() if known else Memory(core=self, type=kind)

    def run(
        self, task: Callable[[], T], what: str, kind: type[WancError] = RunError
    ) -> "Future[T]":
        """Do something once all that was asked for before is done; what and kind are of errors."""
        done: Future[T] = Future()
        self._tasks.put((task, what, kind, done))
        return done

    def end(self) -> Thread:
        """Let the thread end once it is through with what was asked for."""
        self._tasks.put(None)
        self.free.clear()
        return self._thread

    def _work(self) -> None:
        while (given := self._tasks.get()) is not None:
            self._do(*given)
            del given  # while it waits, it holds on to no array

    def _do(
        self, task: Callable[[], Any], what: str, kind: type[WancError], done: "Future[Any]"
    ) -> None:
        if (earlier := self._failure.first) is not None:
            done.set_exception(earlier)
            return
        try:
            done.set_result(task())
        except Exception as error:  # nrtpy's own, and what it raises for arguments
            blamed = blame(kind, f"{what}, {self}", error)
            self._failure.note(blamed)
            done.set_exception(blamed)


def leave(cores: Iterable[Core]) -> bool:
    """End the threads of all cores; False where one hangs in the runtime."""
    threads = [core.end() for core in cores]
    deadline = time.monotonic() + _LEAVE_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)

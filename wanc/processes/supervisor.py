"""Starts, watches and ends the local processes of a run. Hosts no rank, and loads no framework.

Every process is in a session of its own and tells its marks over a socket. The first failure, death
or stall ends all of them; none outlives the supervisor.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wanc import errors
from wanc.errors import LostError, RunError
from wanc.processes.launch import LOOPBACK
from wanc.processes.marker import START, Patience
from wanc.processes.messages import Answer, Ask, Channel, Failed, Mark, Message, Note
from wanc.processes.observer import Observer
from wanc.progress import Progress, Task

CHANNEL, LISTENING = "WANC_CHANNEL", "WANC_LISTENING"
"""Variables with the numbers of the descriptors that a process inherits."""

_LOOK_SECONDS = 0.2
_GRACE_SECONDS = 0.5
"""After the first failure, for its cause to show: those who lose a peer often speak first."""
_END_SECONDS = 1.0
"""For killed processes to be gone; one that hangs in the kernel is left to it."""
_LEAVE_SECONDS = 20.0
_STARTS = 3
"""A start that dies by itself is tried again: meetings of many processes fail now and then."""
_BY_ITSELF = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}
_LAST_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a run is spread over local processes, and how long it may stand still."""

    ranks: tuple[str, ...]
    """What each process hosts, for people."""
    patience: Patience
    address: str = LOOPBACK
    """Where sockets bind."""


@dataclass(slots=True, kw_only=True)
class _Worker:
    process: int
    popen: "subprocess.Popen[bytes]"
    channel: Channel
    errors: Any
    """What it writes on stderr."""
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    rest: bytes = b""
    """Of stderr: a line that has not ended."""
    answer: Answer | None = None
    failed: Failed | None = None
    gone: bool = False


class Supervisor:
    """The processes of one run."""

    def __init__(self, spread: Spread, command: Sequence[str], progress: Progress) -> None:
        self._spread = spread
        self._command = list(command)
        self._progress = progress
        self._workers: list[_Worker] = []
        self._shown: tuple[str, Any, Task, int] | None = None

    def start(self, subject: str, value: Any) -> Any:
        """Start all processes and have them do the first work; returns process 0's answer."""
        self._progress.note(f"starting {len(self._spread.ranks)} processes")
        for attempt in range(1, _STARTS + 1):
            self._spawn()
            try:
                return self.ask(subject, value)
            except LostError as error:
                if attempt == _STARTS or not self._starting:
                    raise RunError(str(error)) from error
                self._progress.note(f"{error}; starting again")
        raise AssertionError("the last attempt raises")

    def ask(self, subject: str, value: Any) -> Any:
        """Have every process do some work; returns process 0's answer. Raises what ended them."""
        if not self._workers:
            raise RunError("the processes have ended with an earlier error: load again")
        try:
            for worker in self._workers:
                worker.answer = None
                worker.channel.send(Ask(subject=subject, value=value))
            self._watch()
            assert self._workers[0].answer is not None
            return self._workers[0].answer.value
        except BaseException:
            self._stop_showing(*sys.exc_info())
            self.kill()
            raise
        finally:
            self._stop_showing(None, None, None)

    @property
    def pids(self) -> list[int]:
        """The processes that run now, process 0 first."""
        return [worker.popen.pid for worker in self._workers]

    def close(self) -> None:
        """Let the processes leave; those that do not are killed."""
        try:
            for worker in self._workers:
                worker.channel.close()
            self._wait(_LEAVE_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """End every process and all that it started."""
        for ending in (signal.SIGTERM, signal.SIGKILL):
            for worker in self._workers:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.popen.pid, ending)
            self._wait(_END_SECONDS)
        for worker in self._workers:
            worker.channel.close()
            worker.errors.close()
        self._workers = []

    def _wait(self, seconds: float) -> None:
        """For all processes to end, so long at most."""
        deadline = time.monotonic() + seconds
        for worker in self._workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.popen.wait(max(0.0, deadline - time.monotonic()))

    # --- starting ---------------------------------------------------------------------------------

    def _spawn(self) -> None:
        spread = self._spread
        now = time.monotonic()
        names = [f"process {k} ({ranks})" for k, ranks in enumerate(spread.ranks)]
        self._observer = Observer(names, spread.patience.start_seconds, now)
        try:
            with socket.create_server((spread.address, 0), backlog=len(names)) as server:
                for process in range(len(names)):
                    self._workers.append(self._spawn_one(process, server))
        except OSError as error:
            self.kill()
            raise RunError(f"no process can be started: {error.strerror or error}") from error
        except BaseException:
            self.kill()
            raise

    def _spawn_one(self, process: int, server: socket.socket) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            passed = [theirs.fileno(), *([server.fileno()] if process == 0 else [])]
            popen = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # gloo greets every peer there
                stderr=subprocess.PIPE,
                pass_fds=passed,
                env=self._environment(process, server, theirs),
                start_new_session=True,
            )
        assert popen.stderr is not None
        os.set_blocking(popen.stderr.fileno(), False)
        return _Worker(process=process, popen=popen, channel=Channel(ours), errors=popen.stderr)

    def _environment(
        self, process: int, server: socket.socket, theirs: socket.socket
    ) -> dict[str, str]:
        count = len(self._spread.ranks)
        cores = len(os.sched_getaffinity(0))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TORCHELASTIC_")}
        own = {
            "RANK": process,
            "WORLD_SIZE": count,
            "MASTER_ADDR": self._spread.address,
            "MASTER_PORT": server.getsockname()[1],
            CHANNEL: theirs.fileno(),
            **({LISTENING: server.fileno()} if process == 0 else {}),
        }
        quiet = {
            "OMP_NUM_THREADS": max(1, cores // count),
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "TF_CPP_MIN_LOG_LEVEL": 1,
        }
        texts = {name: str(value) for name, value in {**quiet, **own}.items()}
        return {**texts, **inherited, **{name: texts[name] for name in own}}

    # --- watching ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Until every process has answered; raises what ended one."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.channel, selectors.EVENT_READ, (worker, self._hear))
                selector.register(worker.errors, selectors.EVENT_READ, (worker, self._log))
            while not all(worker.answer for worker in self._workers):
                self._look(selector)
                if any(worker.failed or worker.gone for worker in self._workers):
                    until = time.monotonic() + _GRACE_SECONDS
                    while time.monotonic() < until:
                        self._look(selector)
                    raise self._cause()
                if fault := self._observer.fault(time.monotonic()):
                    raise RunError(fault)

    def _look(self, selector: selectors.BaseSelector) -> None:
        for key, _ in selector.select(_LOOK_SECONDS):
            worker, act = key.data
            if not act(worker):
                selector.unregister(key.fileobj)
        for worker in self._workers:
            worker.gone = worker.gone or worker.popen.poll() is not None
            for stopped in _stops(worker.popen.pid):
                if stopped:
                    self._observer.stop(worker.process, time.monotonic())
                else:
                    self._observer.resume(worker.process, time.monotonic())

    def _hear(self, worker: _Worker) -> bool:
        messages = worker.channel.receive()
        for message in messages or ():
            self._take(worker, message)
        return messages is not None

    def _take(self, worker: _Worker, message: Message) -> None:
        if isinstance(message, Mark):
            new = self._observer.hear(worker.process, message, time.monotonic())
            if new and worker.process == 0:
                self._show(message)
        elif isinstance(message, Answer):
            worker.answer = message
        elif isinstance(message, Failed):
            worker.failed = worker.failed or message
        elif isinstance(message, Note) and worker.process == 0:
            self._progress.note(message.text)

    def _log(self, worker: _Worker) -> bool:
        """Pass a process's own words on, with its ranks."""
        data = os.read(worker.errors.fileno(), 1 << 16)
        *lines, worker.rest = (worker.rest + data).split(b"\n")
        if not data and worker.rest:  # what a crash cut off may be all that it says
            lines, worker.rest = [worker.rest], b""
        for line in [text.decode(errors="replace") for text in lines]:
            worker.last_lines.append(line)
            self._progress.note(f"[{self._spread.ranks[worker.process]}] {line}")
        return bool(data)

    def _show(self, mark: Mark) -> None:
        """Draw process 0's progress."""
        if self._shown and mark.stage != self._shown[0]:
            self._stop_showing(None, None, None)
        if not mark.total:
            return
        if not self._shown:
            context = self._progress.task(mark.stage, mark.total)
            self._shown = (mark.stage, context, context.__enter__(), 0)
        stage, context, task, step = self._shown
        for _ in range(step, mark.step):
            task.advance(mark.text)
        if mark.text:
            task.doing(mark.text)
        self._shown = (stage, context, task, max(step, mark.step))

    def _stop_showing(self, *error: Any) -> None:
        if self._shown:
            self._shown[1].__exit__(*error)
            self._shown = None

    # --- failures ---------------------------------------------------------------------------------

    @property
    def _starting(self) -> bool:
        return any(self._observer.mark(p).stage == START for p in range(len(self._spread.ranks)))

    def _cause(self) -> Exception:
        """Of all that went wrong, what went wrong first."""
        wrong = [worker for worker in self._workers if worker.failed or worker.gone]
        worker = min(wrong, key=_lateness)
        if worker.failed:
            return self._told(worker, worker.failed)
        code = worker.popen.returncode
        if code >= 0:
            at = self._observer.at(worker.process)
            return RunError(f"{at} ended with exit code {code}{_words(worker)}")
        number = signal.Signals(-code)
        text = f"{self._observer.at(worker.process)} was ended by {number.name}"
        if number == signal.SIGKILL:
            text += "; where nobody sent it, the machine was out of memory"
        by_itself = number in _BY_ITSELF and self._starting
        return (LostError if by_itself else RunError)(f"{text}{_words(worker)}")

    def _told(self, worker: _Worker, failed: Failed) -> Exception:
        kind: type[Exception] = getattr(errors, failed.kind, RunError)
        if not issubclass(kind, RunError) or kind is errors.WeightsError:
            return kind(failed.message)  # of the request or the files: any process would say it
        return kind(f"{self._observer.at(worker.process)}: {failed.message}")


def _lateness(worker: _Worker) -> int:
    """Where a process's end stands between cause and consequence."""
    if worker.failed:
        return 3 if worker.failed.kind == LostError.__name__ else 1
    code = worker.popen.returncode
    if code < 0 and -code not in _BY_ITSELF:
        return 0  # from outside
    return 2  # libraries crash where another process is gone


def worker_command() -> list[str]:
    """What starts a process."""
    return [sys.executable, "-P", "-m", "wanc.worker"]


def _stops(pid: int) -> Iterator[bool]:
    """Whether signals stopped a child or let it go on since the last look."""
    with contextlib.suppress(ChildProcessError):
        while found := os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG):
            yield found.si_code == os.CLD_STOPPED


def _words(worker: _Worker) -> str:
    if not worker.last_lines:
        return ""
    return "; its last words:\n  " + "\n  ".join(worker.last_lines)

"""Single programs, step by step: lowered and compiled, once, with the cache's help.

What compile.py tells of whole variants rests on these steps. Has no branch on target or model.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from wanc.bundle.config import Blob, ProgramRecord
from wanc.cache.store import Cache
from wanc.digest import of_bytes, of_json
from wanc.identity import lint_key
from wanc.plan.abi import Program
from wanc.progress import Task
from wanc.spec.target import Accelerator, target_facts
from wanc.targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredProgram:
    """A program's StableHLO, traced now or found in the cache or in a bundle."""

    program: Program
    stablehlo: Blob
    """Portable artifact."""
    collectives: dict[str, int]
    seconds: float
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """A program's executable, compiled now or found in the cache."""

    lowered: LoweredProgram
    executable: Blob | None
    """None where compiling was asked to stop before it."""
    key: dict[str, Any]
    seconds: float
    cached: bool

    @property
    def record(self) -> ProgramRecord:
        """The program as a bundle's config has it."""
        return ProgramRecord(
            program=self.lowered.program,
            collectives=self.lowered.collectives,
            stablehlo=self.lowered.stablehlo,
            executable=self.executable,
            compile_key=self.key,
        )


_SAID_SECONDS = 1.0

Step = Callable[[LoweredProgram, Target, Cache, Event], CompiledProgram]
"""What is done with a lowered program, in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredRecord:
    """What the cache keeps of a lowering, under its spec key."""

    digest: str
    collectives: dict[str, int]
    program: str = ""
    """Its name, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRecord:
    """What the cache keeps of a compile, under its compile key."""

    digest: str
    program: str = ""
    """Its name, for people, as the target's."""
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LintRecord:
    """That a program's StableHLO has no finding, under its lint key."""

    digest: str


def lower_cached(program: Program, key: str, target: str, cache: Cache) -> LoweredProgram:
    """The program's StableHLO, from the cache where its spec key is known; linted for a target."""
    started = time.monotonic()
    found = cache.find("stablehlo", key, LoweredRecord)
    sources: Sequence[str | None] = ()
    if found:
        known, data = found
    else:
        from wanc.lower.lower import lower
        from wanc.trace import trace

        lowered = lower(trace(program))
        data, sources = lowered.stablehlo, lowered.sources
        known = LoweredRecord(
            digest=of_bytes(data), collectives=lowered.collectives, program=program.name
        )
        cache.keep("stablehlo", key, known, data)
    lint_cached(program, data, known.digest, target_facts(target).accelerator, cache, sources)
    return LoweredProgram(
        program=program,
        stablehlo=Blob(digest=known.digest, size_bytes=len(data)),
        collectives=known.collectives,
        seconds=time.monotonic() - started,
        cached=found is not None,
    )


def lint_cached(
    program: Program,
    stablehlo: bytes,
    digest: str,
    accelerator: Accelerator | None,
    cache: Cache,
    sources: Sequence[str | None] = (),
) -> None:
    """Lint an artifact before any compiler sees it; one that passed is not looked at again."""
    key = lint_key(digest, program.replica_count, accelerator)
    if cache.get_record("lint", key, LintRecord) is None:
        from wanc.lower.lint import check

        check(
            stablehlo,
            name=program.name,
            ranks=program.replica_count,
            accelerator=accelerator,
            sources=sources,
        )
        cache.put_record("lint", key, LintRecord(digest=digest))


def compile_cached(
    lowered: LoweredProgram, target: Target, cache: Cache, stop: Event
) -> CompiledProgram:
    """The program's executable, from the cache where its compile key is known."""
    started = time.monotonic()
    key = target.compile_key(lowered.program, lowered.stablehlo.digest)
    found = cache.find("executables", of_json(key), CompiledRecord)
    if found:
        known, data = found
    else:
        stablehlo = cache.read_blob(lowered.stablehlo.digest)
        data = target.compile(lowered.program, stablehlo, stop=stop)
        known = CompiledRecord(
            digest=of_bytes(data), program=lowered.program.name, target=target.name
        )
        cache.keep("executables", of_json(key), known, data)
    return CompiledProgram(
        lowered=lowered,
        executable=Blob(digest=known.digest, size_bytes=len(data)),
        key=key,
        seconds=time.monotonic() - started,
        cached=found is not None,
    )


def leave_uncompiled(
    lowered: LoweredProgram, target: Target, cache: Cache, stop: Event
) -> CompiledProgram:
    """Stop after lowering: the program has an identity and no executable."""
    return CompiledProgram(lowered=lowered, executable=None, key={}, seconds=0.0, cached=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Programs whose last step runs in threads; tells the task of what is done and under way."""

    threads: ThreadPoolExecutor
    stop: Event
    task: Task
    step: Step
    cache: Cache
    _futures: dict[str, Future[CompiledProgram]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def submit(self, key: str, lowered: LoweredProgram, target: Target) -> None:
        """Begin a program's step, under a key; raises what an earlier one has raised."""
        future = self.threads.submit(self.step, lowered, target, self.cache, self.stop)
        future.add_done_callback(self._tell)
        self._futures[key], self._names[key] = future, lowered.program.name
        raise_failures(self._futures.values())

    def results(self) -> dict[str, CompiledProgram]:
        """Wait for every program, saying which run and since when; raises what one does."""
        started = time.monotonic()
        waiting = set(self._futures.values())
        while waiting:
            running = [self._names[key] for key, f in self._futures.items() if f.running()]
            self.task.doing(f"{', '.join(running)} {clock(time.monotonic() - started)}")
            ended, waiting = wait(waiting, timeout=_SAID_SECONDS, return_when=FIRST_COMPLETED)
            raise_failures(ended)
        return {key: future.result() for key, future in self._futures.items()}

    def _tell(self, future: Future[CompiledProgram]) -> None:
        """Say that a program is done; nothing where its step failed."""
        if not future.cancelled() and future.exception() is None:
            done = future.result()
            what = "compiled" if done.executable else "left as StableHLO"
            self.task.advance(f"{done.lowered.program.name} {what}")


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def raise_failures(futures: Iterable[Future[CompiledProgram]]) -> None:
    """Raise the error of a compile that has failed, while others are still to be lowered."""
    for future in futures:
        if future.done():
            future.result()


@contextmanager
def compilers(jobs: int, task: Task, step: Step, cache: Cache) -> Iterator[Pool]:
    """A pool of so many compilers at once, which an error or Ctrl-C stops."""
    stop = Event()
    with ThreadPoolExecutor(max_workers=jobs) as threads:
        try:
            yield Pool(threads=threads, stop=stop, task=task, step=step, cache=cache)
        except BaseException:
            stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise

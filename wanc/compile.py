"""The compile story: a request becomes plans, programs, StableHLO, executables and a bundle.

Reads from top to bottom. Has no branch on target, model or rank.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from wanc.bundle.config import FORMAT_VERSION, Blob, ProgramRecord, VariantConfig
from wanc.bundle.store import NewVariant, check_destination, write_bundle
from wanc.cache import Cache
from wanc.digest import of_json
from wanc.identity import spec_key
from wanc.plan.abi import Program
from wanc.plan.plan import Plan
from wanc.progress import Progress
from wanc.spec.variant import Until
from wanc.targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredProgram:
    """A program's StableHLO, traced now or found in the cache."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileReport:
    """What a compile did."""

    bundle: Path
    digest: str
    replaced: tuple[str, ...]
    """Variants that the bundle had with other programs."""
    programs: tuple[CompiledProgram, ...]
    """Each distinct program once; none where compiling stopped after the plan."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "bundle": str(self.bundle),
            "digest": self.digest,
            "replaced": list(self.replaced),
            "seconds": round(self.seconds, 3),
            "programs": [
                {
                    "name": done.lowered.program.name,
                    "stablehlo": done.lowered.stablehlo.digest,
                    "executable": done.executable.digest if done.executable else None,
                    "lowered_from_cache": done.lowered.cached,
                    "compiled_from_cache": done.cached,
                }
                for done in self.programs
            ],
        }


def compile_bundle(
    plans: Sequence[Plan],
    target: Target,
    output: Path,
    *,
    cache: Cache,
    jobs: int,
    progress: Progress,
    until: Until = "compile",
) -> CompileReport:
    """Compile every program of the plans once, and add their variants to the bundle."""
    started = time.monotonic()
    check_destination(output)
    cache.check_writable()
    programs = {} if until == "plan" else distinct_programs(plans)
    step = compile_cached if until == "compile" else leave_uncompiled
    compiled: dict[str, Future[CompiledProgram]] = {}
    with progress.task("compile", 2 * len(programs)) as task, compilers(jobs) as (threads, stop):
        for key, program in programs.items():
            lowered = lower_cached(program, key, cache)
            task.advance(f"{program.name} lowered")
            compiled[key] = threads.submit(step, lowered, target, cache, stop, task.advance)
            raise_failures(compiled.values())
        done = {key: future.result() for key, future in compiled.items()}
    variants = [variant_of(plan, target, done) for plan in plans]
    written = write_bundle(output, variants, blobs_of(done.values(), cache))
    return CompileReport(
        bundle=output,
        digest=written.digest,
        replaced=written.replaced,
        programs=tuple(done.values()),
        seconds=time.monotonic() - started,
    )


def raise_failures(futures: Iterable[Future[CompiledProgram]]) -> None:
    """Raise the error of a compile that has failed, while others are still to be lowered."""
    for future in futures:
        if future.done():
            future.result()


@contextmanager
def compilers(jobs: int) -> Iterator[tuple[ThreadPoolExecutor, Event]]:
    """Threads for so many compilers at once, and what stops them: an error or Ctrl-C does."""
    stop = Event()
    with ThreadPoolExecutor(max_workers=jobs) as threads:
        try:
            yield threads, stop
        except BaseException:
            stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def distinct_programs(plans: Sequence[Plan]) -> dict[str, Program]:
    """The plans' programs by spec key: equal ones are traced and compiled once."""
    return {spec_key(program): program for plan in plans for program in plan.programs}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredRecord:
    """What the cache keeps of a lowering, under its spec key."""

    digest: str
    collectives: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRecord:
    """What the cache keeps of a compile, under its compile key."""

    digest: str


def lower_cached(program: Program, key: str, cache: Cache) -> LoweredProgram:
    """The program's StableHLO, from the cache where its spec key is known."""
    started = time.monotonic()
    known = cache.get_record("stablehlo", key, LoweredRecord)
    data = cache.get_blob(known.digest) if known else None
    cached = data is not None
    if known is None or data is None:
        from wanc.lower.lower import lower
        from wanc.trace import trace

        lowered = lower(trace(program))
        data = lowered.stablehlo
        known = LoweredRecord(digest=cache.put_blob(data), collectives=lowered.collectives)
        cache.put_record("stablehlo", key, known)
    return LoweredProgram(
        program=program,
        stablehlo=Blob(digest=known.digest, size_bytes=len(data)),
        collectives=known.collectives,
        seconds=time.monotonic() - started,
        cached=cached,
    )


def compile_cached(
    lowered: LoweredProgram,
    target: Target,
    cache: Cache,
    stop: Event,
    report: Callable[[str], None],
) -> CompiledProgram:
    """The program's executable, from the cache where its compile key is known."""
    started = time.monotonic()
    program = lowered.program
    key = target.compile_key(
        stablehlo=lowered.stablehlo.digest, replica_count=program.replica_count
    )
    known = cache.get_record("executables", of_json(key), CompiledRecord)
    data = cache.get_blob(known.digest) if known else None
    cached = data is not None
    if known is None or data is None:
        stablehlo = cache.get_blob(lowered.stablehlo.digest)
        assert stablehlo is not None, "lower_cached has just put or read it"
        data = target.compile(stablehlo, replica_count=program.replica_count, stop=stop)
        known = CompiledRecord(digest=cache.put_blob(data))
        cache.put_record("executables", of_json(key), known)
    report(f"{program.name} compiled")
    return CompiledProgram(
        lowered=lowered,
        executable=Blob(digest=known.digest, size_bytes=len(data)),
        key=key,
        seconds=time.monotonic() - started,
        cached=cached,
    )


def leave_uncompiled(
    lowered: LoweredProgram,
    target: Target,
    cache: Cache,
    stop: Event,
    report: Callable[[str], None],
) -> CompiledProgram:
    """Stop after lowering: the program has an identity and no executable."""
    report(f"{lowered.program.name} left as StableHLO")
    return CompiledProgram(lowered=lowered, executable=None, key={}, seconds=0.0, cached=False)


def variant_of(plan: Plan, target: Target, compiled: dict[str, CompiledProgram]) -> NewVariant:
    """The variant as the bundle holds it."""
    assert plan.variant.target == target.name, "planned for the target that compiles"
    records = [record_of(program, compiled.get(spec_key(program))) for program in plan.programs]
    config = VariantConfig(
        format_version=FORMAT_VERSION,
        variant=plan.variant,
        model=plan.model,
        options=plan.options,
        geometry=plan.geometry,
        tokens=plan.tokens,
        mesh=plan.mesh,
        tiles=plan.tiles,
        programs=tuple(records),
        schedule=plan.schedule,
        requires=target.requires(),
    )
    return NewVariant(config=config, executable_type=target.executable_type)


def record_of(program: Program, done: CompiledProgram | None) -> ProgramRecord:
    """A program as the bundle's config has it, as far as it was compiled."""
    return ProgramRecord(
        program=program,
        collectives=done.lowered.collectives if done else {},
        stablehlo=done.lowered.stablehlo if done else None,
        executable=done.executable if done else None,
        compile_key=done.key if done else {},
    )


def blobs_of(compiled: Iterable[CompiledProgram], cache: Cache) -> dict[str, bytes]:
    """Every blob of the programs, each once."""
    blobs: dict[str, bytes] = {}
    for done in compiled:
        for blob in (done.lowered.stablehlo, done.executable):
            if blob is not None and blob.digest not in blobs:
                data = cache.get_blob(blob.digest)
                assert data is not None, f"{blob.digest} was put into the cache a moment ago"
                blobs[blob.digest] = data
    return blobs

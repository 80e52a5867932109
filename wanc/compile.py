"""The compile story: a request becomes plans, programs, StableHLO, executables and a bundle.

Reads from top to bottom. Has no branch on target, model or rank. finish_bundle takes up a bundle
whose story stopped after lowering, on a host that may have neither torch nor the model's code.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wanc.build import (
    CompiledProgram,
    LoweredProgram,
    compile_cached,
    compilers,
    leave_uncompiled,
    lint_cached,
    lower_cached,
)
from wanc.bundle.config import ProgramRecord, VariantConfig, config_of
from wanc.bundle.store import (
    Bundle,
    NewVariant,
    check_destination,
    config_blobs,
    write_bundle,
)
from wanc.cache.store import Cache
from wanc.digest import of_json
from wanc.errors import BundleError
from wanc.identity import spec_key
from wanc.plan.abi import Program
from wanc.plan.plan import Plan, make_plan
from wanc.progress import Progress
from wanc.spec.target import target_facts
from wanc.spec.variant import Until, Variant
from wanc.targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileReport:
    """What a compile did."""

    bundle: Path | None
    """None where none was asked for."""
    digest: str | None
    replaced: tuple[str, ...]
    """Variants that the bundle had with other programs."""
    configs: tuple[VariantConfig, ...]
    """The variants that were written."""
    programs: tuple[CompiledProgram, ...]
    """Each distinct program once; none where compiling stopped after the plan."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "bundle": str(self.bundle) if self.bundle else None,
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
    output: Path | None,
    *,
    cache: Cache,
    jobs: int | None = None,
    progress: Progress,
    until: Until = "compile",
) -> CompileReport:
    """Compile every program of the plans once, and add their variants to the bundle, if any."""
    started = time.monotonic()
    if output:
        check_destination(output)
    cache.check_writable()
    step = leave_uncompiled
    if until == "compile":
        step = compile_cached
        target.check_toolchain()
        jobs = jobs or default_jobs([target], progress)
    programs = {} if until == "plan" else distinct_programs(plans)
    with cache.in_use():
        with (
            progress.task("compile", 2 * len(programs)) as task,
            compilers(jobs or 1, task, step, cache) as pool,
        ):
            for key, program in programs.items():
                task.doing(f"lowering {program.name}")
                lowered = lower_cached(program, key, target.name, cache)
                task.advance(f"{program.name} lowered")
                pool.submit(key, lowered, target)
            done = pool.results()
        variants = [variant_of(plan, target, done, until) for plan in plans]
        return written(output, variants, tuple(done.values()), cache.read_blob, started)


def finish_bundle(
    bundle: Bundle,
    target_named: Callable[[str], Target],
    output: Path,
    *,
    wanted: str | None = None,
    cache: Cache,
    jobs: int | None = None,
    progress: Progress,
) -> CompileReport:
    """Compile a bundle from its StableHLO alone, for its own targets or for the wanted one.

    Variants that are complete for their own target stay as they are.
    """
    started = time.monotonic()
    check_destination(output)
    cache.check_writable()
    configs = retargeted(bundle, wanted)
    kept = [] if wanted or output == bundle.path else complete_variants(bundle, target_named)
    if not configs:
        progress.note(f"{bundle.path}: every variant is complete already")
    targets = {name: target_named(name) for name in {c.variant.target for c in configs}}
    for target in targets.values():
        target.check_toolchain()
    jobs = jobs or (default_jobs(targets.values(), progress) if targets else 1)
    stored = stored_programs(bundle, configs, targets)
    with cache.in_use():
        with (
            progress.task("compile", len(stored)) as task,
            compilers(jobs, task, compile_cached, cache) as pool,
        ):
            for key, (lowered, target) in stored.items():
                take_stored(bundle, lowered, target, cache)
                pool.submit(key, lowered, target)
            done = pool.results()
        variants = [finished(config, targets[config.variant.target], done) for config in configs]
        read = reader(bundle, kept, cache)
        return written(output, [*variants, *kept], tuple(done.values()), read, started)


# --- steps of compile_bundle ---------------------------------------------------------------


def distinct_programs(plans: Sequence[Plan]) -> dict[str, Program]:
    """The plans' programs by spec key: equal ones are traced and compiled once."""
    return {spec_key(program): program for plan in plans for program in plan.programs}


def default_jobs(targets: Iterable[Target], progress: Progress) -> int:
    """How many compilers at once the targets advise; says why."""
    jobs, why = min(target.default_jobs() for target in targets)
    progress.note(f"compilers at once: {jobs} ({why})")
    return jobs


def variant_of(
    plan: Plan, target: Target, compiled: Mapping[str, CompiledProgram], until: Until
) -> NewVariant:
    """The variant as the bundle holds it."""
    assert plan.variant.target == target.name, "planned for the target that compiles"
    config = replace(
        config_of(plan),
        programs=tuple(record_of(p, compiled.get(spec_key(p))) for p in plan.programs),
        requires=target.requires() if until == "compile" else {"target": target.name},
    )
    return NewVariant(config=config, executable_type=target.executable_type)


def record_of(program: Program, done: CompiledProgram | None) -> ProgramRecord:
    """A program as the bundle's config has it, as far as it was compiled."""
    if done is None:
        return ProgramRecord(program=program)
    return replace(done.record, program=program)


def written(
    output: Path | None,
    variants: Sequence[NewVariant],
    programs: tuple[CompiledProgram, ...],
    read_blob: Callable[[str], bytes],
    started: float,
) -> CompileReport:
    """Write the bundle, if any, and report."""
    result = write_bundle(output, variants, read_blob) if output else None
    return CompileReport(
        bundle=output,
        digest=result.digest if result else None,
        replaced=result.replaced if result else (),
        configs=tuple(variant.config for variant in variants),
        programs=programs,
        seconds=time.monotonic() - started,
    )


# --- steps of finish_bundle ----------------------------------------------------------------


def retargeted(bundle: Bundle, wanted: str | None) -> list[VariantConfig]:
    """The variants to be compiled, for another target where one is wanted.

    Raises RefusedError where that target would refuse one. Of those that become one, that which was
    for the target already stays.
    """
    found: dict[tuple[str, Variant], VariantConfig] = {}
    configs = [entry.config for entry in bundle.variants]
    unfinished = [config for config in configs if wanted or config.stage != "compile"]
    for config in sorted(unfinished, key=lambda c: c.variant.target == wanted):
        variant = replace(config.variant, target=wanted or config.variant.target)
        if target_facts(variant.target).accelerator:
            try:
                make_plan(config.model, variant, config.options)
            except (ArithmeticError, LookupError, ValueError) as error:  # anybody may have made it
                raise BundleError(
                    f"{bundle.path}: {variant} has numbers that no model has: {error!r}"
                ) from error
        found[config.model.name, variant] = replace(config, variant=variant)
    return list(found.values())


def complete_variants(bundle: Bundle, target_named: Callable[[str], Target]) -> list[NewVariant]:
    """The variants that have all executables, as another bundle is to have them."""
    return [
        NewVariant(
            config=entry.config,
            executable_type=target_named(entry.config.variant.target).executable_type,
        )
        for entry in bundle.variants
        if entry.config.stage == "compile"
    ]


def reader(bundle: Bundle, kept: Sequence[NewVariant], cache: Cache) -> Callable[[str], bytes]:
    """Where blobs come from: those of kept variants from their bundle, never into the cache."""
    stored = {blob.digest: blob for new in kept for blob in config_blobs(new.config)}
    return lambda digest: (
        bundle.read(stored[digest]) if digest in stored else cache.read_blob(digest)
    )


def stored_programs(
    bundle: Bundle, configs: Sequence[VariantConfig], targets: Mapping[str, Target]
) -> dict[str, tuple[LoweredProgram, Target]]:
    """Each distinct program of a bundle by its compile key, and the target that compiles it."""
    found = {}
    for config in configs:
        target = targets[config.variant.target]
        for record in config.programs:
            if record.stablehlo is None:
                raise BundleError(
                    f"{bundle.path}: program {record.program.name} of {config.variant} has no "
                    "StableHLO: its compile stopped after the plan; compile it from its request"
                )
            lowered = LoweredProgram(
                program=record.program,
                stablehlo=record.stablehlo,
                collectives=record.collectives,
                seconds=0.0,
                cached=True,
            )
            found[stored_key(record, target)] = (lowered, target)
    return found


def stored_key(record: ProgramRecord, target: Target) -> str:
    """What tells an executable of a bundle's program from every other."""
    assert record.stablehlo is not None, "stored_programs refuses those without"
    return of_json(target.compile_key(record.program, record.stablehlo.digest))


def take_stored(bundle: Bundle, lowered: LoweredProgram, target: Target, cache: Cache) -> None:
    """Verify a program's StableHLO, lint it for the target, and keep it in the cache."""
    data = bundle.read(lowered.stablehlo)
    accelerator = target_facts(target.name).accelerator
    lint_cached(lowered.program, data, lowered.stablehlo.digest, accelerator, cache)
    cache.put_blob(data)


def finished(
    config: VariantConfig, target: Target, compiled: Mapping[str, CompiledProgram]
) -> NewVariant:
    """The variant with executables."""
    records = [
        replace(compiled[stored_key(record, target)].record, program=record.program)
        for record in config.programs
    ]
    config = replace(config, programs=tuple(records), requires=target.requires())
    return NewVariant(config=config, executable_type=target.executable_type)

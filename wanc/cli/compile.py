"""wanc compile: a request, or a bundle that was only lowered, to a bundle."""

import shlex
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wanc.bundle.lock import LOCK_SUFFIX, lock_of, write_lock
from wanc.bundle.store import open_bundle
from wanc.cache.store import Cache, default_cache
from wanc.cli import options
from wanc.cli.bundles import local_bundle
from wanc.cli.plan import print_plans
from wanc.cli.request import plans_of
from wanc.cli.sharing import sharing_json, sharing_line
from wanc.cli.terminal import Terminal, emit, emit_json, note, table
from wanc.errors import RefusedError, RequestError
from wanc.plan.plan import Plan
from wanc.spec.resolve import choose_target
from wanc.spec.sets import Request
from wanc.spec.variant import Until
from wanc.units import count, size

if TYPE_CHECKING:
    from wanc.compile import CompileReport
    from wanc.targets.target import Target

STAGES = ("plan", "trace", "lower")
STORE = Path("bundles/store")
LOCKS = Path("bundles")


def compile_command(
    set_file: options.SetFile = None,
    model: options.Model = None,
    shape: options.Shapes = None,
    topology: options.Topologies = None,
    precision: options.PrecisionName = None,
    placement: options.PlacementName = None,
    target: options.TargetName = None,
    blocks_per_program: options.Blocks = None,
    attention: options.AttentionName = None,
    vae_tiles: options.VaeTiles = None,
    max_ranks: options.MaxRanks = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="BUNDLE",
            help="Finish a bundle from its StableHLO: no model code, no checkpoint, no torch. "
            "Into itself, or into -o; for its own targets, or for --target.",
        ),
    ] = None,
    isa: Annotated[
        str | None,
        typer.Option("--isa", help="x86-64-v3 or x86-64-v4, for target cpu. [default: x86-64-v3]"),
    ] = None,
    neuron_flags: Annotated[
        str | None,
        typer.Option("--neuron-flags", help="More flags for neuronx-cc, as one text; in the key."),
    ] = None,
    neuron_input: Annotated[
        str | None,
        typer.Option(
            "--neuron-input", help="What neuronx-cc reads: hlo or stablehlo. [default: hlo]"
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", min=1, help="Minutes for one program of neuronx-cc. [default: 240]"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The bundle. [default: bundles/store/MODEL]"),
    ] = None,
    stop_after: Annotated[
        str | None,
        typer.Option(
            "--stop-after",
            help="plan, trace or lower: print that stage's text, or "
            "with -o write the bundle so far.",
        ),
    ] = None,
    lock: Annotated[
        bool,
        typer.Option(
            "--lock",
            help="Write bundles/SET.lock.json: the StableHLO digest of each program of a set.",
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, help="Compilers at once. [default: as memory and cores say]"),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            "--cache",
            metavar="REF",
            help="A repository of a registry as a compile cache that others share.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Compile variants into a bundle.

    Every program is traced, lowered and compiled once, ahead of time, from configs alone.
    """
    compilers = Compilers(
        isa=isa,
        neuron_flags=neuron_flags,
        neuron_input=neuron_input,
        timeout_minutes=timeout,
    )
    flags = Request(
        model=model,
        shapes=tuple(shape or ()),
        topologies=tuple(topology or ()),
        precision=precision,
        placement=placement,
        target=target,
        blocks_per_program=blocks_per_program,
        attention=attention,
        vae_tiles=vae_tiles,
    )
    if source is not None:
        if set_file or stop_after or lock or max_ranks or flags != Request(target=target):
            raise RequestError("--from takes all but --target from the bundle; leave the rest out")
        print_report(finish(source, target, compilers, output or source, jobs, cache), json)
        return
    if lock and flags != Request():
        raise RequestError("--lock is of a shape set as it stands: leave out what overrides it")
    until = until_of(stop_after, output, lock)
    locked = lock_path(set_file, until) if lock else None
    spec, plans = plans_of(set_file, flags, max_ranks)
    if stop_after == "plan" and until is None:
        print_plans(plans, json)
        return
    for plan in plans:
        if plan.not_compilable:
            raise RefusedError(f"{plan.variant}: {plan.not_compilable}")
    if until is None:
        print_stage(str(stop_after), plans, json)
        return
    compilers.check({spec.variants[0].target})
    chosen = compilers.target(spec.variants[0].target)
    report = build(plans, chosen, output, until, locked, jobs, cache)
    print_report(report, json)


# --- what is asked for ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilers:
    """Options of the targets' compilers, as given."""

    isa: str | None
    neuron_flags: str | None
    neuron_input: str | None
    timeout_minutes: float | None

    def check(self, targets: Collection[str]) -> None:
        """Raise RequestError for an option that none of the targets takes, or that is no option."""
        given = {
            "--neuron-flags": self.neuron_flags,
            "--neuron-input": self.neuron_input,
            "--timeout": self.timeout_minutes,
        }
        unused = [option for option, value in given.items() if value is not None]
        if unused and set(targets) == {"cpu"}:
            raise RequestError(f"{', '.join(unused)}: for Trainium; the target is cpu")
        if self.isa and "cpu" not in targets:
            raise RequestError(f"--isa: for target cpu; the target is {', '.join(sorted(targets))}")
        self.flags()

    def flags(self) -> tuple[str, ...]:
        """Flags for neuronx-cc; raises RequestError."""
        try:
            return tuple(shlex.split(self.neuron_flags or ""))
        except ValueError as error:
            raise RequestError(f"--neuron-flags {self.neuron_flags!r}: {error}") from error

    def target(self, name: str) -> "Target":
        """The target of a name."""
        from wanc.targets.choose import NeuronOptions, target_named

        minutes = self.timeout_minutes
        neuron = NeuronOptions(
            flags=self.flags(),
            input_form=self.neuron_input or "hlo",
            keep=default_cache() / "failed",
            **({} if minutes is None else {"timeout_seconds": 60 * minutes}),
        )
        return target_named(name, self.isa or "x86-64-v3", neuron)


def until_of(stop_after: str | None, output: Path | None, lock: bool) -> Until | None:
    """The last stage of a bundle or a lock; None where a stage's text is printed instead."""
    if stop_after is not None and stop_after not in STAGES:
        raise RequestError(f"--stop-after {stop_after!r}: stages are {', '.join(STAGES)}")
    if stop_after is None:
        return "compile"
    if output is None and not lock:
        return None
    if stop_after == "trace":
        raise RequestError("bundles and locks hold no traces; stop after plan or lower")
    return "plan" if stop_after == "plan" else "lower"


def lock_path(set_file: Path | None, until: Until | None) -> Path:
    """Where a shape set's lock lies."""
    if set_file is None:
        raise RequestError("--lock needs a shape set: the lock is named after it")
    if until == "plan":
        raise RequestError("--lock needs StableHLO: stop after lower, or not at all")
    return LOCKS / f"{set_file.stem}{LOCK_SUFFIX}"


# --- what is done --------------------------------------------------------------------------


def build(
    plans: list[Plan],
    target: "Target",
    output: Path | None,
    until: Until,
    locked: Path | None,
    jobs: int | None,
    shared: str | None,
) -> "CompileReport":
    """Compile as far as asked, into a bundle, a lock or both."""
    from wanc.compile import compile_bundle

    lock_only = output is None and locked is not None and until == "lower"
    with compile_cache(shared) as cache:
        report = compile_bundle(
            plans,
            target,
            None if lock_only else output or STORE / plans[0].model.name,
            cache=cache,
            jobs=jobs,
            progress=Terminal(),
            until=until,
        )
    if locked is not None:
        write_lock(locked, lock_of(report.configs))
        note(f"wrote {locked}")
    return report


def finish(
    source: Path,
    target: str | None,
    compilers: Compilers,
    output: Path,
    jobs: int | None,
    shared: str | None,
) -> "CompileReport":
    """Compile what a bundle holds as StableHLO."""
    from wanc.compile import finish_bundle

    wanted = None
    if target is not None:
        wanted, why = choose_target(target)
        note(f"target {wanted} ({why})")
    bundle = open_bundle(local_bundle(source, "all"))
    compilers.check({wanted or entry.config.variant.target for entry in bundle.variants})
    with compile_cache(shared) as cache:
        return finish_bundle(
            bundle,
            compilers.target,
            output,
            wanted=wanted,
            cache=cache,
            jobs=jobs,
            progress=Terminal(),
        )


@contextmanager
def compile_cache(shared: str | None) -> Iterator[Cache]:
    """The user's cache, and upstream of it a repository that others share; raises RequestError."""
    if shared is None:
        yield Cache(default_cache())
        return
    from wanc.registry.reference import Reference
    from wanc.registry.repository import connect
    from wanc.share.compile_cache import RegistryCache

    reference = Reference.parse(shared)
    if reference.tag or reference.digest:
        raise RequestError(f"--cache {shared}: names a repository, without a tag or a digest")
    with closing(connect(reference)) as repository:
        yield Cache(default_cache(), RegistryCache(repository, Terminal()))


# --- what is shown -------------------------------------------------------------------------


def print_report(report: "CompileReport", as_json: bool) -> None:
    """What was made."""
    if as_json:
        emit_json({**report.to_json(), "sharing": sharing_json(report.configs)})
        return
    made = {
        (done.lowered.program.name, done.lowered.stablehlo.digest, done.executable): done
        for done in reversed(report.programs)
    }
    rows = [
        (
            done.lowered.program.name,
            done.lowered.stablehlo.digest[7:19],
            "cache" if done.lowered.cached else f"{done.lowered.seconds:.1f} s",
            size(done.executable.size_bytes) if done.executable else "-",
            ("cache" if done.cached else f"{done.seconds:.1f} s") if done.executable else "-",
        )
        for done in reversed(made.values())
    ]
    if rows:
        table("Programs", ("program", "stablehlo", "lowered>", "executable>", "compiled>"), rows)
        note(sharing_line(report.configs))
    for variant in report.replaced:
        note(f"replaced variant {variant}, which the bundle had with other programs")
    note(f"{count(len(report.configs), 'variant')} in {report.seconds:.1f} s")
    if any(config.stage == "lower" for config in report.configs) and report.bundle:
        note(
            f"no executables: `wanc compile --from {report.bundle}` makes them on any host that "
            "has the target's compiler"
        )
    if report.bundle:
        emit(f"{report.bundle} {report.digest}")


def print_stage(stage: str, plans: list[Plan], as_json: bool) -> None:
    """The text of tracing or lowering, of every program once."""
    texts = stage_texts(stage, plans)
    if as_json:
        emit_json({"programs": [{"name": name, "text": text} for name, text in texts]})
        return
    for name, text in texts:
        emit(f"// program {name}")
        emit(text)


def stage_texts(stage: str, plans: list[Plan]) -> list[tuple[str, str]]:
    """Each distinct program's name and its text after tracing or lowering."""
    from wanc.compile import distinct_programs
    from wanc.lower.lower import lower
    from wanc.trace import trace

    texts = []
    for program in distinct_programs(plans).values():
        traced = trace(program)
        texts.append((program.name, traced.text if stage == "trace" else lower(traced).text))
    return texts

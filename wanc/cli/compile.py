"""wanc compile: a request to a bundle."""

import os
from pathlib import Path
from typing import Annotated

import typer

from wanc.cli import options
from wanc.cli.plan import print_plans
from wanc.cli.request import plans_of
from wanc.cli.terminal import Terminal, count, emit, emit_json, note, size, table
from wanc.errors import RequestError
from wanc.plan.plan import Plan
from wanc.spec.sets import Request
from wanc.spec.variant import Spec, Until

STAGES = ("plan", "trace", "lower")
STORE = Path("bundles/store")


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
    isa: Annotated[
        str, typer.Option("--isa", help="x86-64-v3 or x86-64-v4, for target cpu.")
    ] = "x86-64-v3",
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
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Compilers at once. [default: cores]")
    ] = None,
    json: options.Json = False,
) -> None:
    """Compile variants into a bundle.

    Every program is traced, lowered and compiled once, ahead of time, from configs alone.
    """
    if stop_after is not None and stop_after not in STAGES:
        raise RequestError(f"--stop-after {stop_after!r}: stages are {', '.join(STAGES)}")
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
    spec, plans = plans_of(set_file, flags, max_ranks)
    if stop_after and (output is None or stop_after == "trace"):
        if output is not None:
            raise RequestError("a bundle holds no traces; with -o stop after plan or lower")
        print_stage(stop_after, plans, json)
        return
    bundle = output or STORE / spec.model.name
    until: Until = "compile" if stop_after is None else "plan" if stop_after == "plan" else "lower"
    write(spec, plans, bundle, isa, jobs or os.cpu_count() or 1, until, json)


def write(
    spec: Spec,
    plans: list[Plan],
    output: Path,
    isa: str,
    jobs: int,
    until: Until,
    as_json: bool,
) -> None:
    """Compile, as far as asked, and say what was made."""
    from wanc.cache import Cache, default_cache
    from wanc.compile import compile_bundle
    from wanc.targets.choose import target_named

    report = compile_bundle(
        plans,
        target_named(spec.variants[0].target, isa),
        output,
        cache=Cache(default_cache()),
        jobs=jobs,
        progress=Terminal(),
        until=until,
    )
    if as_json:
        emit_json(report.to_json())
        return
    rows = [
        (
            done.lowered.program.name,
            done.lowered.stablehlo.digest[7:19],
            "cache" if done.lowered.cached else f"{done.lowered.seconds:.1f} s",
            size(done.executable.size_bytes) if done.executable else "-",
            ("cache" if done.cached else f"{done.seconds:.1f} s") if done.executable else "-",
        )
        for done in report.programs
    ]
    if rows:
        table("Programs", ("program", "stablehlo", "lowered>", "executable>", "compiled>"), rows)
    for variant in report.replaced:
        note(f"replaced variant {variant}, which the bundle had with other programs")
    note(f"{count(len(plans), 'variant')} in {report.seconds:.1f} s")
    emit(f"{output} {report.digest}")


def print_stage(stage: str, plans: list[Plan], as_json: bool) -> None:
    """The text of a stage, of every program once."""
    if stage == "plan":
        print_plans(plans, as_json)
        return
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

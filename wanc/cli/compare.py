"""wanc compare: a bundle beside diffusers, or beside another bundle."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wanc.cli import options
from wanc.cli.bundles import local_bundle
from wanc.cli.generate import quiet_frameworks
from wanc.cli.terminal import Terminal, emit, emit_json, note, table
from wanc.errors import RequestError, RunError
from wanc.units import count

if TYPE_CHECKING:
    from wanc.compare.bundle import Compared


def compare_command(
    bundle: options.BundlePath,
    weights: Annotated[
        Path,
        options.weights(
            "A checkpoint directory, as diffusers loads it; toy-t2v and toy-i2v come with wanc."
        ),
    ],
    prompt: options.Prompt,
    beside: Annotated[
        Path | None,
        typer.Option("--with", help="Another bundle to compare with. [default: diffusers]"),
    ] = None,
    with_topology: Annotated[
        str | None,
        typer.Option("--with-topology", help="Of that one, or of another variant of the bundle."),
    ] = None,
    negative: options.Negative = None,
    image: options.FirstImage = None,
    last_image: options.LastImage = None,
    fit: options.FitName = None,
    shape: options.WhichShape = None,
    topology: options.WhichTopology = None,
    precision: options.WhichPrecision = None,
    preset: options.PresetName = None,
    steps: options.Steps = None,
    guidance: options.GuidanceScale = None,
    flow_shift: options.FlowShift = None,
    sampler: options.SamplerName = None,
    expert: options.ExpertName = None,
    seed: options.Seed = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw errors over steps and frames, as PNG.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write all that was found, as JSON.")
    ] = None,
    attach: Annotated[
        bool, typer.Option("--attach", help="Attach that to the bundle, by its programs' digests.")
    ] = False,
    softmax_bound: Annotated[
        bool,
        typer.Option(
            "--softmax-bound", help="Whether attention with a static bound would lose rows."
        ),
    ] = False,
    require_signature: options.RequireSignature = None,
    json: options.Json = False,
) -> None:
    """Compare a bundle's run with diffusers', from the same noise.

    Stage by stage and step by step; exit 6 where it is less exact than it must be."""
    quiet_frameworks()
    from wanc.bundle.reports import attach_report
    from wanc.compare.bundle import compare_with_bundle, compare_with_diffusers
    from wanc.compare.plot import write_plot
    from wanc.digest import canonical_json
    from wanc.files import write_whole
    from wanc.run.outputs import as_run_error
    from wanc.run.request import Guidance, LoadRequest, RunRequest

    signers = tuple(require_signature or ())
    bundle = local_bundle(bundle, "executables", signers=signers)
    beside = beside and local_bundle(beside, "executables", signers=signers)
    beside = bundle if beside is None and with_topology else beside
    if beside and (softmax_bound or attach):
        raise RequestError("--softmax-bound and --attach are of a comparison with diffusers")
    packages = ["skimage", *(["matplotlib"] if plot else []), *([] if beside else ["accelerate"])]
    _check_early(packages, plot, report, attach_to=bundle if attach else None)
    load = LoadRequest(
        bundle=bundle,
        weights=weights,
        shape=shape,
        topology=topology,
        precision=precision,
        signers=signers,
    )
    request = RunRequest(
        prompt=prompt,
        negative=negative,
        image=image,
        last_image=last_image,
        fit=fit,
        preset=preset,
        steps=steps,
        guidance=None if guidance is None else Guidance.parse(guidance),
        flow_shift=flow_shift,
        sampler=sampler,
        expert=expert,
        seed=seed,
    )
    if beside:
        other = LoadRequest(
            bundle=beside,
            weights=weights,
            shape=shape,
            topology=with_topology,
            precision=precision,
            signers=signers,
        )
        compared = compare_with_bundle(load, other, request, Terminal())
    else:
        compared = compare_with_diffusers(load, request, Terminal(), softmax_bounds=softmax_bound)
    plain = _plain(compared)
    if plot:
        write_plot(plot, compared.found)
        note(f"plot {plot}")
    if report:
        with as_run_error(report):
            write_whole(report, canonical_json(plain))
        note(f"report {report}")
    if attach:
        digest = attach_report(bundle, canonical_json(plain), compared.found.subject.covers)
        note(f"attached {digest}")
    if json:
        emit_json(plain)
    else:
        _show(compared)
    if compared.found.failures:
        said = "less exact than it must be:\n  " + "\n  ".join(compared.found.failures)
        if not json:
            raise RunError(said)
        note(said)  # programs have their one JSON document already
        raise typer.Exit(RunError.exit_code)


def _check_early(
    packages: list[str], plot: Path | None, report: Path | None, *, attach_to: Path | None
) -> None:
    """Raise RequestError, RunError, BundleError now for what would fail after the runs."""
    from wanc.bundle.store import check_destination
    from wanc.compare.metrics import check_installed
    from wanc.files import Reserved
    from wanc.run.outputs import as_run_error

    check_installed("wanc compare", *packages)
    if plot and report and plot.resolve() == report.resolve():
        raise RequestError(f"{plot}: --plot and --report need a name each")
    for file in filter(None, (plot, report)):
        with as_run_error(file), Reserved(file):
            pass
    if attach_to:
        check_destination(attach_to)


def _plain(compared: "Compared") -> dict[str, Any]:
    import msgspec

    bounds = msgspec.to_builtins(compared.bounds)
    return {**compared.found.to_json(), **({"softmax_bound": bounds} if bounds else {})}


def _show(compared: "Compared") -> None:
    from wanc.compare.report import COLUMNS, FRAME_COLUMNS, frame_rows, table_rows

    found, variant = compared.found, compared.found.subject.variant
    title = f"{variant['task']} {variant['shape']} {variant['topology']} {variant['precision']}"
    table(title, COLUMNS, table_rows(found))
    if frames := frame_rows(found):
        table("Frames", FRAME_COLUMNS, frames)
    if compared.bounds:
        rows = [
            (
                str(bound.step),
                bound.expert,
                f"{bound.largest_excess:.1f}",
                str(bound.layer),
                f"{bound.lost_rows:,} of {bound.rows:,}",
            )
            for bound in compared.bounds
        ]
        columns = ("step>", "expert", "largest excess>", "in layer>", "rows lost>")
        table("Static bound over row maxima", columns, rows)
    covered = count(len(found.subject.covers), "program")
    verdict = "passes" if found.criteria else "not judged: there is no rule for these precisions"
    emit(f"{verdict}; {covered} covered" if not found.failures else "fails")

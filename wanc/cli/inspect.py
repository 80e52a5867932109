"""wanc inspect: what a bundle holds, without loading any of it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from wanc.bundle.attached import attachments
from wanc.bundle.config import ProgramRecord, VariantConfig
from wanc.bundle.described import calls_by_stage
from wanc.bundle.reports import read_reports
from wanc.bundle.store import Bundle, BundleVariant, open_bundle
from wanc.cli import options
from wanc.cli.bundles import local_bundle
from wanc.cli.inspected import print_bundle, print_program, print_variant
from wanc.cli.neff import print_neff
from wanc.cli.sharing import sharing_json
from wanc.cli.terminal import emit_json, note
from wanc.errors import RequestError
from wanc.units import size


def inspect_command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle, or a NEFF.")],
    variant: Annotated[
        int | None, typer.Argument(metavar="[VARIANT]", help="Its number, from 1.")
    ] = None,
    program: Annotated[str | None, typer.Argument(metavar="[PROGRAM]", help="Its name.")] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write one HTML page on it, with drawings."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show what a bundle holds.

    Its variants; with VARIANT its programs and schedule; with PROGRAM one interface."""
    bundle = local_bundle(bundle)
    if html is not None:
        _check_page(bundle, program, json)
        _write_page(open_bundle(bundle), variant, html)
        return
    if bundle.is_file() and variant is None:
        print_neff(bundle, json)
        return
    opened = open_bundle(bundle)
    entry = None if variant is None else chosen(opened, variant)
    record = None if entry is None or program is None else entry.config.program(program)
    if json:
        emit_json(selected_json(opened, entry, record))
    elif record is not None:
        print_program(record)
    elif entry is not None:
        print_variant(entry.config)
    else:
        print_bundle(opened)


def _check_page(bundle: Path, program: str | None, json: bool) -> None:
    """Raise RequestError where there is no page of what is asked for."""
    if json or program is not None:
        other = "--json" if json else f"the program {program}"
        raise RequestError(f"--html makes a page of a bundle or of a variant: leave out {other}")
    if bundle.is_file():
        raise RequestError(f"--html makes a page of a bundle: {bundle} is a file")


def _write_page(bundle: Bundle, number: int | None, file: Path) -> None:
    from wanc.page.write import write_page  # with Jinja, which nothing else here needs

    if number is not None:
        chosen(bundle, number)
    written = write_page(bundle, file, number)
    note(f"{file}: a page of {size(written)} on {bundle.digest}")


def chosen(bundle: Bundle, number: int) -> BundleVariant:
    """A variant by its number, from 1."""
    if not 1 <= number <= len(bundle.variants):
        raise RequestError(f"variant {number}: the bundle has 1 to {len(bundle.variants)}")
    return bundle.variants[number - 1]


def selected_json(
    bundle: Bundle, entry: BundleVariant | None, record: ProgramRecord | None
) -> dict[str, Any]:
    """The bundle, one variant or one program, for programs."""
    if entry is None:
        return bundle_json(bundle)
    return _variant_json(entry) if record is None else _program_json(record, entry.config)


def bundle_json(bundle: Bundle) -> dict[str, Any]:
    """Everything of a bundle, for programs."""
    return {
        "bundle": str(bundle.path),
        "digest": bundle.digest,
        "sharing": sharing_json(entry.config for entry in bundle.variants),
        "variants": [_variant_json(entry) for entry in bundle.variants],
        "reports": [
            {"digest": report.digest, "covers": list(report.covers)}
            for report in read_reports(bundle)
        ],
        "attached": [
            {
                "artifact_type": each.artifact_type,
                "digest": each.blob.digest,
                "manifest": each.entry.digest,
                "annotations": each.entry.annotations,
                "is_current": each.subject.digest == bundle.digest,
            }
            for each in attachments(bundle.path)
        ],
    }


def _variant_json(entry: BundleVariant) -> dict[str, Any]:
    import msgspec

    from wanc.run.environment import environment

    config = entry.config
    return {
        **config.variant.texts(),
        "model": config.model.name,
        "manifest": entry.manifest.digest,
        "stage": config.stage,
        "requires": config.requires,
        "environment": environment(config),
        "ranks": msgspec.to_builtins(config.mesh.coordinates),
        "cores": list(config.mesh.cores),
        "tiles": msgspec.to_builtins(config.tiles),
        "schedule": msgspec.to_builtins(config.schedule),
        "programs": [_program_json(record, config) for record in config.programs],
    }


def _program_json(record: ProgramRecord, config: VariantConfig) -> dict[str, Any]:
    import msgspec

    program = record.program
    return {
        "name": program.name,
        "stablehlo": record.stablehlo.digest if record.stablehlo else None,
        "executable": record.executable.digest if record.executable else None,
        "bytes": record.executable.size_bytes if record.executable else 0,
        "replica_count": program.replica_count,
        "collectives": record.collectives,
        "calls": calls_by_stage(config).get(program.name, {}),
        "compile_key": record.compile_key,
        "weights": msgspec.to_builtins(program.weights),
        "inputs": msgspec.to_builtins(program.inputs),
        "outputs": msgspec.to_builtins(program.outputs),
        "donated": program.donated,
    }

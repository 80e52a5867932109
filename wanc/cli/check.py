"""wanc check: whether this machine can run a bundle, without loading any of it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wanc.bundle.store import open_bundle
from wanc.cli import options
from wanc.cli.bundles import local_bundle
from wanc.cli.terminal import emit, emit_json, table
from wanc.errors import BundleError
from wanc.units import count

if TYPE_CHECKING:
    from wanc.run.check import VariantCheck


def check_command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle.")],
    weights: Annotated[
        Path | None,
        options.weights("Check this checkpoint too; toy-t2v and toy-i2v come with wanc."),
    ] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", help="Check only variants of this shape.")
    ] = None,
    topology: Annotated[
        str | None, typer.Option("--topology", help="Check only variants of this topology.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="Check only variants of this precision.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Check whether this machine can run a bundle.

    What each variant needs and what was found: ok, degraded or incompatible. Loads nothing."""
    from wanc.run.check import check_bundle

    wanted = (shape, topology, precision)
    opened = open_bundle(local_bundle(bundle, "executables", wanted))
    checks = check_bundle(opened, weights, shape=shape, topology=topology, precision=precision)
    able = [check for check in checks if check.verdict != "incompatible"]
    if json:
        variants = [check_json(check) for check in checks]
        emit_json({"bundle": str(opened.path), "digest": opened.digest, "variants": variants})
    else:
        emit(f"{opened.path} {opened.digest}\n")
        for check in checks:
            print_check(check)
        emit(f"{len(able)} of {count(len(checks), 'variant')} can run here")
    if not able:
        raise typer.Exit(BundleError.exit_code)


def check_json(check: "VariantCheck") -> dict[str, Any]:
    """One variant, for programs."""
    return {
        "number": check.number,
        **check.config.variant.texts(),
        "model": check.config.model.name,
        "verdict": check.verdict,
        "requirements": [asdict(each) for each in check.requirements],
    }


def print_check(check: "VariantCheck") -> None:
    """One variant: a line for each requirement; below, particulars and what would work."""
    variant, model = check.config.variant, check.config.model.name
    table(
        f"{check.number}  {variant}, model {model}: {check.verdict}",
        ("", "needed", "found", ""),
        [(r.what, r.needed, r.found.partition("\n")[0], r.verdict) for r in check.requirements],
    )
    told: dict[str, list[str]] = {}
    for each in check.requirements:
        if each.verdict != "ok":
            lines = (*each.found.splitlines()[1:], each.remedy)
            told.setdefault("\n  ".join(filter(None, lines)), []).append(each.what)
    for text, names in told.items():
        emit(f"{', '.join(names)}:\n  {text}\n")

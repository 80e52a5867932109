"""wanc pull: a bundle from a registry."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from wanc.cli import options
from wanc.cli.terminal import Terminal, emit, emit_json, note
from wanc.units import count

STORE = Path("bundles/store")


def pull_command(
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="As registry.example/wan/bundle@sha256:….")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The bundle. [default: bundles/store/NAME]"),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            help="Programs of this one alone, as '832x480x81 tp4-cp8-cfg2'; may be repeated.",
        ),
    ] = None,
    to_run: Annotated[
        bool, typer.Option("--to-run", help="Executables alone, without their StableHLO.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Lose variants that are there and not in REF.")
    ] = False,
    plain_http: options.PlainHttp = False,
    jobs: options.Transfers = 4,
    json: options.Json = False,
) -> None:
    """Pull a bundle from a registry.

    Only what is not there moves, and all of it is checked by digest."""
    from wanc.registry.reference import Reference
    from wanc.registry.repository import connect
    from wanc.share.pull import Wanted, pull_bundle

    source = Reference.parse(reference)
    path = output or STORE / source.name.rpartition("/")[2]
    wanted = Wanted(
        variants=tuple(variant or ()),
        programs="executables" if to_run else "all",
        replace=replace,
    )
    with closing(connect(source, plain_http=plain_http or None)) as repository:
        pulled = pull_bundle(
            source, path, repository, wanted=wanted, jobs=jobs, progress=Terminal()
        )
    if json:
        emit_json(
            {
                "bundle": str(pulled.bundle),
                "reference": str(pulled.reference),
                "digest": pulled.reference.digest,
                "variants": list(pulled.variants),
                "variants_left": pulled.left,
                "attached": pulled.attached,
                "moved_bytes": pulled.moved_bytes,
                "reused_bytes": pulled.reused_bytes,
            }
        )
        return
    if pulled.left:
        note(f"programs of {count(pulled.left, 'variant')} were left in the registry")
    if pulled.attached:
        note(f"{count(pulled.attached, 'attachment')} pulled with it")
    emit(f"{pulled.bundle} {pulled.reference.digest}")

"""wanc verify: whether a bundle is whole, and what it says of itself is so."""

import os
from pathlib import Path
from typing import Annotated

import typer

from wanc.cli import options
from wanc.cli.terminal import Terminal, emit, emit_json, note, plain, table
from wanc.errors import BundleError
from wanc.units import count, size


def verify_command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle.")],
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Threads that read. [default: the cores]")
    ] = None,
    json: options.Json = False,
) -> None:
    """Verify a bundle, without running it.

    Every digest and reference, every config, schedule and interface; exit 5 where one is wrong."""
    import msgspec

    from wanc.verify.verify import verify_bundle

    cores = len(os.sched_getaffinity(0))
    verified = verify_bundle(bundle, jobs=jobs or cores, progress=Terminal())
    if json:
        emit_json({**msgspec.to_builtins(verified), "is_sound": verified.is_sound})
    else:
        if verified.findings:
            rows = [
                ("fault" if f.is_fault else "notice", f.kind, plain(f"{f.where}: {f.what}"))
                for f in verified.findings
            ]
            table("Findings", ("", "of", "what"), rows)
        if verified.findings_left_out:
            emit(f"and {count(verified.findings_left_out, 'more finding')}, not shown\n")
        read = f"{count(verified.blobs, 'blob')} of {size(verified.bytes)}"
        emit(f"{verified.bundle or bundle}: {count(verified.variants, 'variant')}, {read}")
    if not verified.is_sound:
        said = f"{bundle} is not sound: {count(verified.faults, 'fault')}"
        if not json:
            raise BundleError(said)
        note(said)  # programs have their one JSON document already
        raise typer.Exit(BundleError.exit_code)

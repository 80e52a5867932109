"""wanc verify: whether a bundle is whole, what it says of itself is so, and who signed it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wanc.cli import options
from wanc.cli.bundles import local_bundle
from wanc.cli.terminal import Terminal, emit, emit_json, note, plain, table
from wanc.errors import BundleError
from wanc.units import count, size

if TYPE_CHECKING:
    from wanc.verify.verify import Verified


def verify_command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle.")],
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Threads that read. [default: the cores]")
    ] = None,
    key: Annotated[
        list[Path] | None,
        typer.Option(
            "--key",
            metavar="PUBLIC_KEY",
            help="It must have signed the bundle; may be repeated: any one will do.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Verify a bundle, without running it.

    Every digest and reference, every config, schedule and interface, and with --key who signed it;
    exit 5 where one is wrong."""
    import msgspec

    from wanc.verify.verify import verify_bundle

    bundle = local_bundle(bundle, "all", signers=key or ())
    jobs = jobs or len(os.sched_getaffinity(0))
    if key:
        from wanc.cli.signatures import signature_lines, signatures_json, verify_signed

        verified, held = verify_signed(bundle, key, jobs)
        more, lines = signatures_json(held), signature_lines(held)
    else:
        verified = verify_bundle(bundle, jobs=jobs, progress=Terminal())
        more, lines = {}, []
    if json:
        emit_json({**msgspec.to_builtins(verified), "is_sound": verified.is_sound, **more})
    else:
        _print(verified, bundle)
        for line in lines:
            emit(plain(line))
    if not verified.is_sound:
        said = f"{bundle} is not sound: {count(verified.faults, 'fault')}"
        if not json:
            raise BundleError(said)
        note(said)  # programs have their one JSON document already
        raise typer.Exit(BundleError.exit_code)


def _print(verified: "Verified", bundle: Path) -> None:
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

"""wanc diff: which programs two locks, or two bundles, have differently."""

from pathlib import Path
from typing import Annotated

import typer

from wanc.bundle.lock import Difference, differences, read_lock
from wanc.cli import options
from wanc.cli.terminal import count, emit, emit_json, table


def diff_command(
    before: Annotated[Path, typer.Argument(metavar="A", help="A lock file, or a bundle.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="A lock file, or a bundle.")],
    json: options.Json = False,
) -> None:
    """Show which programs change.

    By the digest of their StableHLO: those are the ones that are compiled again."""
    found = differences(read_lock(before), read_lock(after))
    if json:
        emit_json({"changes": [difference_json(entry) for entry in found]})
        return
    for variant in dict.fromkeys(entry.variant for entry in found):
        rows = [
            (entry.program, short(entry.before), short(entry.after))
            for entry in found
            if entry.variant == variant
        ]
        table(variant, ("program", "before", "after"), rows)
    emit(summary(found))


def difference_json(entry: Difference) -> dict[str, str | None]:
    """A difference, for programs."""
    return {
        "variant": entry.variant,
        "program": entry.program,
        "before": entry.before,
        "after": entry.after,
    }


def summary(found: tuple[Difference, ...]) -> str:
    """How much there is to compile again."""
    if not found:
        return "no program changes"
    variants = len({entry.variant for entry in found})
    new = len({entry.after for entry in found if entry.after})
    return (
        f"{count(len(found), 'program')} of {count(variants, 'variant')} change; {new} to compile"
    )


def short(digest: str | None) -> str:
    """The start of a digest, for people."""
    return digest[7:19] if digest else "-"

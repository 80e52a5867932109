"""wanc diff: which programs two locks, or two bundles, have differently."""

from pathlib import Path
from typing import Annotated

import typer

from wanc.bundle.lock import Difference, differences, new_programs, read_lock
from wanc.cli import options
from wanc.cli.terminal import count, emit, emit_json, table


def diff_command(
    before: Annotated[Path, typer.Argument(metavar="A", help="A lock file, or a bundle.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="A lock file, or a bundle.")],
    json: options.Json = False,
) -> None:
    """Show which programs change.

    By the digest of their StableHLO: those are the ones that are compiled again."""
    old, new = read_lock(before), read_lock(after)
    found, fresh = differences(old, new), len(new_programs(old, new))
    if json:
        emit_json({"changes": [difference_json(entry) for entry in found], "new_programs": fresh})
        return
    for variant in dict.fromkeys(entry.variant for entry in found):
        changes = [entry for entry in found if entry.variant == variant]
        if variant in old.variants and variant in new.variants:
            emit(variant)
            rows = [(entry.program, short(entry.before), short(entry.after)) for entry in changes]
            table("", ("program", "before", "after"), rows)
        else:
            emit(f"only in {before if variant in old.variants else after}: {variant}")
    emit(summary(found, fresh))


def difference_json(entry: Difference) -> dict[str, str | None]:
    """A difference, for programs."""
    return {
        "variant": entry.variant,
        "program": entry.program,
        "before": entry.before,
        "after": entry.after,
    }


def summary(found: tuple[Difference, ...], fresh: int) -> str:
    """How much differs, and how much of it is in no variant of the first."""
    if not found:
        return "no program changes"
    variants = len({entry.variant for entry in found})
    return (
        f"{count(len(found), 'program')} of {count(variants, 'variant')} differ; "
        f"{count(fresh, 'program')} to compile that A has nowhere"
    )


def short(digest: str | None) -> str:
    """The start of a digest, for people."""
    return digest[7:19] if digest else "-"

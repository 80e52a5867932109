"""wanc gc: clear away what nothing refers to, of a bundle or of the compile cache."""

import re
from pathlib import Path
from typing import Annotated

import typer

from wanc.bundle.loose import clear_bundle
from wanc.cache.store import Cache, default_cache
from wanc.cache.upkeep import prune
from wanc.clearing import Cleared
from wanc.cli import options
from wanc.cli.terminal import emit, emit_json, note, plain, table
from wanc.units import count, size

SHOWN = 20
"""Rows of a table, the largest files; --json has all."""
HEX = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")
"""A digest, and enough of it."""


def gc_command(
    bundle: Annotated[
        Path | None, typer.Argument(metavar="[BUNDLE]", help="A bundle. [default: the cache]")
    ] = None,
    delete: options.Delete = False,
    json: options.Json = False,
) -> None:
    """Clear away what nothing refers to.

    Of a bundle: programs of replaced variants, and files of writes that were ended early. Without
    one, of the compile cache. Only shows them, unless --delete; safe beside a running compile."""
    if bundle is None:
        cache = Cache(default_cache())
        print_cleared(cache.path, prune(cache, delete=delete), json)
    else:
        print_cleared(bundle, clear_bundle(bundle, delete=delete), json)


def print_cleared(folder: Path, cleared: Cleared, as_json: bool) -> None:
    """What was cleared away, or would be."""
    if as_json:
        emit_json(cleared_json(folder, cleared))
        return
    shown = sorted(cleared.removables, key=lambda each: -each.bytes)[:SHOWN]
    if shown:
        rows = [(plain(HEX.sub(r"\1", each.name)), each.why, size(each.bytes)) for each in shown]
        table("", ("file", "why", "size>"), rows)
    if left := len(cleared.removables) - len(shown):
        emit(f"and {left} more; --json names all")
    what = f"{count(len(cleared.removables), 'file')}, {size(cleared.bytes)}"
    done = "removed" if cleared.removed else "to remove"
    emit(f"{folder}: {done} {what}; {size(cleared.kept_bytes)} stay")
    if cleared.spared:
        note(f"{count(cleared.spared, 'blob')} in use by work under way: left alone")
    if cleared.removables and not cleared.removed:
        note("nothing was removed; --delete removes")


def cleared_json(folder: Path, cleared: Cleared) -> dict[str, object]:
    """The same, for programs."""
    return {
        "folder": str(folder),
        "removed": cleared.removed,
        "bytes": cleared.bytes,
        "kept_bytes": cleared.kept_bytes,
        "spared": cleared.spared,
        "files": [
            {"name": each.name, "why": each.why, "bytes": each.bytes} for each in cleared.removables
        ],
    }

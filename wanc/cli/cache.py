"""wanc cache: what the compile cache holds, and how it is kept small."""

import re
from datetime import UTC, datetime
from typing import Annotated

import typer

from wanc.cache.store import Cache, default_cache
from wanc.cache.upkeep import USELESS, Entry, entries, prune
from wanc.cli import options
from wanc.cli.gc import HEX, print_cleared
from wanc.cli.terminal import emit, emit_json, plain, table
from wanc.errors import RequestError
from wanc.units import count, size

cache_app = typer.Typer(
    name="cache",
    help="Look at the compile cache, and keep it small. It is $XDG_CACHE_HOME/wanc.",
    rich_markup_mode=None,
)

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kKMGT]?)(i?)B?")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
_DAY_SECONDS = 86_400


@cache_app.command("ls")
def ls_command(json: options.Json = False) -> None:
    """List what the cache holds, what was used last first."""
    cache = Cache(default_cache())
    listed = entries(cache)
    if json:
        emit_json({"cache": str(cache.path), "entries": [entry_json(entry) for entry in listed]})
        return
    if listed:
        rows = [
            (
                used(entry),
                entry.kind,
                plain(short(entry)),
                plain(", ".join(entry.programs)),
                size(entry.bytes),
            )
            for entry in listed
        ]
        table("", ("used", "kind", "name", "of", "size>"), rows)
    useless = sum(entry.kind in USELESS for entry in listed)
    bundles = sum(entry.kind == "bundle" for entry in listed)
    what = count(len(listed) - bundles, "blob") + (f", {count(bundles, 'bundle')}" * bool(bundles))
    emit(f"{cache.path}: {what}, {size(sum(e.bytes for e in listed))}")
    if useless:
        emit(f"{useless} that no compile will find: `wanc gc --delete` removes them")


@cache_app.command("prune")
def prune_command(
    max_size: Annotated[
        str | None,
        typer.Option("--max-size", metavar="SIZE", help="What may stay, as 20GB or 500MiB."),
    ] = None,
    unused_days: Annotated[
        float | None,
        typer.Option("--unused-days", min=0, help="What was not used for so long goes."),
    ] = None,
    delete: options.Delete = False,
    json: options.Json = False,
) -> None:
    """Clear away what was unused longest, until the cache is small enough.

    Only shows it, unless --delete. What a running compile has used stays."""
    if max_size is None and unused_days is None:
        raise RequestError("say what may stay: --max-size 20GB, --unused-days 30, or both")
    cache = Cache(default_cache())
    cleared = prune(
        cache,
        max_bytes=None if max_size is None else bytes_of(max_size),
        unused_seconds=None if unused_days is None else unused_days * _DAY_SECONDS,
        delete=delete,
    )
    print_cleared(cache.path, cleared, json)


def bytes_of(text: str) -> int:
    """Bytes of a size as people write it: powers of 1000, and of 1024 with an i."""
    parts = _SIZE.fullmatch(text)
    if not parts:
        raise RequestError(f"--max-size {text!r}: needs a size, as 20GB, 1.5GiB or 500MB")
    number, unit, binary = parts.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit])


def entry_json(entry: Entry) -> dict[str, object]:
    """An entry, for programs."""
    return {
        "name": entry.name,
        "kind": entry.kind,
        "programs": list(entry.programs),
        "bytes": entry.bytes,
        "used": moment(entry).isoformat(),
    }


def used(entry: Entry) -> str:
    """When, to the minute, where the reader is."""
    return moment(entry).astimezone().strftime("%Y-%m-%d %H:%M")


def moment(entry: Entry) -> datetime:
    """When an entry was used last."""
    return datetime.fromtimestamp(entry.used_ns / 1e9, UTC)


def short(entry: Entry) -> str:
    """Enough of a digest, or the name of a folder."""
    if entry.kind == "bundle":
        return HEX.sub(r"\1", entry.name.rpartition("-")[2])
    return entry.name[7:19] if entry.name.startswith("sha256:") else entry.name

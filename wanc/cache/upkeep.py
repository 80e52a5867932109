"""What the cache holds, and how what nobody needs is cleared away.

While anything is cleared away nobody reads or writes, and no work begins; what work under way has
used since it began stays, whatever the limits say.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from wanc.cache.store import BLOBS, BUNDLES, FAILED, RECORDS, USERS, Cache
from wanc.clearing import Cleared, Lying, lying, removable, remove, total
from wanc.errors import RunError
from wanc.files import is_unfinished, locked

Kind = Literal["stablehlo", "executable", "bundle", "failed", "unreferenced", "unfinished"]
USELESS: frozenset[Kind] = frozenset({"unreferenced", "unfinished"})
"""Kinds that go whatever the limits are."""

_KINDS: dict[str, Kind] = {"executables": "executable", "stablehlo": "stablehlo"}
"""By the folder of a record, what its blob is. Lint records are of blobs that others name."""
_NEVER_NS = 1 << 63
"""Later than any time: no work is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A blob with the records that refer to it, a bundle, or what a failed compile left."""

    name: str
    """Digest, or folder."""
    kind: Kind
    """What it is, or that no compile will find it."""
    programs: tuple[str, ...]
    """What it is of, as far as records say."""
    bytes: int
    """With its records."""
    used_ns: int
    """When it was used last, in nanoseconds since 1970."""
    files: tuple[Lying, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """As much of a record as all kinds have."""

    digest: str
    program: str = ""
    target: str = ""


def entries(cache: Cache) -> tuple[Entry, ...]:
    """All that the cache holds, what was used last before the rest; raises RunError."""
    with _held(cache, shared=True):
        return tuple(sorted(_entries(cache.path), key=lambda entry: -entry.used_ns))


def prune(
    cache: Cache,
    *,
    max_bytes: int | None = None,
    unused_seconds: float | None = None,
    delete: bool,
) -> Cleared:
    """Clear away what no compile will find, and what is over the limits; raises RunError.

    Args:
        cache: the cache.
        max_bytes: what may stay; what was used longest ago goes first.
        unused_seconds: what was not used for so long goes.
        delete: whether it is cleared away, and not only looked for.
    """
    oldest_ns = 0 if unused_seconds is None else time.time_ns() - int(unused_seconds * 1e9)
    with _held(cache, shared=False):
        begun_ns = _work_began_ns(cache.path)
        listed = sorted(_entries(cache.path), key=lambda e: (e.kind not in USELESS, e.used_ns))
        gone: list[Entry] = []
        spared, kept_bytes = 0, sum(entry.bytes for entry in listed)
        for entry in listed:
            too_much = max_bytes is not None and kept_bytes > max_bytes
            if not (entry.kind in USELESS or entry.used_ns < oldest_ns or too_much):
                continue
            if entry.used_ns >= begun_ns:
                spared += 1
            else:
                gone.append(entry)
                kept_bytes -= entry.bytes
        removables = tuple(
            removable(file, cache.path, entry.kind) for entry in gone for file in entry.files
        )
        if delete:
            remove(cache.path, removables)
    return Cleared(removables=removables, removed=delete, kept_bytes=kept_bytes, spared=spared)


@contextlib.contextmanager
def _held(cache: Cache, *, shared: bool) -> Iterator[None]:
    try:
        with locked(cache.path, shared=shared):
            for name in (BLOBS, *RECORDS, FAILED, BUNDLES, USERS):
                if (cache.path / name).is_symlink():
                    raise RunError(
                        f"{cache.path / name} is a link, so what is in it may be another's: "
                        "XDG_CACHE_HOME names another folder for all of the cache"
                    )
            yield
    except FileNotFoundError:
        raise RunError(f"no cache at {cache.path}: nothing was compiled yet") from None
    except OSError as error:
        raise RunError(f"cannot look through the cache {cache.path}: {error.strerror}") from error


def _work_began_ns(root: Path) -> int:
    """When the longest of the work under way began; marks of work that was killed are removed."""
    began_ns = _NEVER_NS
    for mark in lying(root / USERS):
        with mark.path.open("rb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                began_ns = min(began_ns, mark.changed_ns)
            else:
                mark.path.unlink(missing_ok=True)
    return began_ns


# --- what there is ---------------------------------------------------------------------------


def _entries(root: Path) -> list[Entry]:
    referring: dict[str, list[tuple[str, _Record, Lying]]] = {}
    useless: list[Entry] = []
    blobs = {
        f"sha256:{f.path.name}": f for f in lying(root / BLOBS) if not is_unfinished(f.path.name)
    }
    for kind in RECORDS:
        for file in lying(root / kind):
            record = None if is_unfinished(file.path.name) else _record(file)
            if record is not None and record.digest in blobs:
                referring.setdefault(record.digest, []).append((kind, record, file))
            else:
                useless.append(_alone(file, root))
    useless += [_alone(file, root) for file in lying(root / BLOBS) if is_unfinished(file.path.name)]
    useless += [_alone(file, root) for file in lying(root) if is_unfinished(file.path.name)]
    return [
        *(_entry(digest, blob, referring.get(digest, [])) for digest, blob in blobs.items()),
        *useless,
        *_folders(root, FAILED, "failed"),
        *_folders(root, BUNDLES, "bundle"),
    ]


def _entry(digest: str, blob: Lying, referring: list[tuple[str, _Record, Lying]]) -> Entry:
    kinds = {kind for kind, _, _ in referring}
    kind: Kind = next((name for folder, name in _KINDS.items() if folder in kinds), "unreferenced")
    files = (blob, *(file for _, _, file in referring))
    said = (f"{record.program} {record.target}".strip() for _, record, _ in referring)
    return Entry(
        name=digest,
        kind=kind,
        programs=tuple(sorted({text for text in said if text})),
        bytes=total(files),
        used_ns=blob.changed_ns,
        files=files,
    )


def _alone(file: Lying, root: Path) -> Entry:
    """A record whose blob has gone, or a file that is not finished."""
    kind: Kind = "unfinished" if is_unfinished(file.path.name) else "unreferenced"
    return Entry(
        name=str(file.path.relative_to(root)),
        kind=kind,
        programs=(),
        bytes=file.bytes,
        used_ns=file.changed_ns,
        files=(file,),
    )


def _folders(root: Path, name: str, kind: Kind) -> Iterator[Entry]:
    """What failed compiles left, and bundles: a folder each, and its index.json goes first.

    What is then killed leaves no bundle that lacks something, but one that is pulled anew.
    """
    if not (root / name).is_dir():
        return
    for each in sorted((root / name).iterdir()):
        if each.is_symlink() or not each.is_dir():
            continue
        inner = [f for folder, _, _ in os.walk(each) for f in lying(Path(folder))]
        first = [file for file in inner if file.path == each / "index.json"]
        rest = Lying(
            path=each,
            bytes=total(inner) - total(first),
            changed_ns=each.stat().st_mtime_ns,
        )
        yield Entry(
            name=f"{name}/{each.name}",
            kind=kind,
            programs=(),
            bytes=total(inner),
            used_ns=rest.changed_ns,
            files=(*first, rest),
        )


def _record(file: Lying) -> _Record | None:
    """A record, or None where it is damaged: no compile will find it."""
    with contextlib.suppress(OSError, msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(file.path.read_bytes(), type=_Record)
    return None

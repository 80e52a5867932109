"""The user's compile cache: what a program's definition lowered to, and what that compiled to.

Keys and digests only; knows no model and no target. Whatever is damaged counts as absent. A blob's
time of change is when it was used last, and work that counts on blobs says that it goes on, so that
upkeep takes none from under it.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from wanc.digest import canonical_json, of_bytes
from wanc.errors import RunError
from wanc.files import check_folder, locked, write_whole

Record = TypeVar("Record")


class Upstream(Protocol):
    """A cache that others share: asked for what this one lacks, and given what is made here."""

    def fetch(self, kind: str, key: str) -> tuple[bytes, bytes] | None:
        """The record under a key, as JSON, and its blob; None where it is not there, or not had."""

    def offer(self, kind: str, key: str, record: bytes, blob: bytes) -> None:
        """Take a record and its blob, where that can be done."""


BLOBS = "blobs"
RECORDS = ("stablehlo", "executables", "lint")
"""Kinds of records, and their folders; each record names the digest of a blob."""
FAILED = "failed"
"""Folder of what compilers left that failed."""
BUNDLES = "bundles"
"""Folder of bundles that were pulled to be run, one for each digest."""
USERS = "in-use"
"""Folder of a locked file for each work that goes on."""


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/wanc``, or ``~/.cache/wanc``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "wanc"


@dataclass(frozen=True, slots=True)
class Cache:
    """A directory of blobs by digest and of records by key."""

    path: Path
    upstream: Upstream | None = None

    def get_blob(self, digest: str) -> bytes | None:
        """A blob whose bytes are what its digest says, or None."""
        with self._beside_others():
            data = _read(self._blob(digest))
            if data is None or of_bytes(data) != digest:
                return None
            _touch(self._blob(digest))
            return data

    def use(self, folder: Path) -> None:
        """Say that a folder of the cache is used now."""
        with self._beside_others():
            _touch(folder)

    def read_blob(self, digest: str) -> bytes:
        """A blob that was put or read a moment ago; raises RunError where it has gone since."""
        data = self.get_blob(digest)
        if data is None:
            raise RunError(f"the cache {self.path} lost {digest} during the work; run again")
        return data

    def put_blob(self, data: bytes) -> str:
        """Keep a blob; returns its digest; raises RunError."""
        digest = of_bytes(data)
        self._write(self._blob(digest), data)
        return digest

    def check_writable(self) -> None:
        """Raise RunError, before any work, where the cache takes no file."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            check_folder(self.path)
        except OSError as error:
            raise self._not_written(error) from error

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Say that work goes on: no blob that it gets or puts is cleared away; raises RunError."""
        with contextlib.ExitStack() as stack:
            try:
                (self.path / USERS).mkdir(parents=True, exist_ok=True)
                with locked(self.path, shared=True):  # no clearing away has begun
                    mark = stack.enter_context(
                        tempfile.NamedTemporaryFile(dir=self.path / USERS, delete=True)
                    )
                    fcntl.flock(mark, fcntl.LOCK_EX)
            except OSError as error:
                raise self._not_written(error) from error
            yield

    def find(self, kind: str, key: str, fields: type[Record]) -> tuple[Record, bytes] | None:
        """A record and the blob that it names, from upstream where it is not here."""
        record = self.get_record(kind, key, fields)
        data = self.get_blob(_named(record)) if record else None
        if record is not None and data is not None:
            return record, data
        found = self.upstream.fetch(kind, key) if self.upstream else None
        if found is None:
            return None
        record = _decoded(found[0], fields)
        if record is None or _named(record) != of_bytes(found[1]):
            return None
        self.put_blob(found[1])
        self.put_record(kind, key, record)
        return record, found[1]

    def keep(self, kind: str, key: str, record: Any, data: bytes) -> None:
        """Keep a record and the blob that it names, upstream too; raises RunError."""
        self.put_blob(data)
        self.put_record(kind, key, record)
        if self.upstream:
            self.upstream.offer(kind, key, canonical_json(msgspec.to_builtins(record)), data)

    def get_record(self, kind: str, key: str, fields: type[Record]) -> Record | None:
        """The record under a key, or None where it is absent or lacks a field."""
        return _decoded(_read(self._record(kind, key)) or b"", fields)

    def put_record(self, kind: str, key: str, record: Any) -> None:
        """Keep a record under a key; raises RunError."""
        self._write(self._record(kind, key), canonical_json(msgspec.to_builtins(record)))

    def _blob(self, digest: str) -> Path:
        return self.path / BLOBS / digest.removeprefix("sha256:")

    def _record(self, kind: str, key: str) -> Path:
        return self.path / kind / f"{key.removeprefix('sha256:')}.json"

    def _write(self, file: Path, data: bytes) -> None:
        """Another process may write the same file at the same time: either one's bytes will do."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with self._beside_others():
                write_whole(file, data)
        except OSError as error:
            raise self._not_written(error) from error

    @contextmanager
    def _beside_others(self) -> Iterator[None]:
        """Not while something is cleared away; as it is where nothing is, or no lock is to be had.

        A file system without locks costs the safety of upkeep, and no hit of the cache.
        """
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                stack.enter_context(locked(self.path, shared=True))
            yield

    def _not_written(self, error: OSError) -> RunError:
        return RunError(
            f"cannot write the cache {self.path}: {error.strerror}; `wanc cache prune` makes room, "
            "and XDG_CACHE_HOME names another folder"
        )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):  # a cache may be read-only
        os.utime(path)


def _decoded(data: bytes, fields: type[Record]) -> Record | None:
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(data, type=fields)
    return None


def _named(record: Any) -> str:
    """The digest that every record of a blob has."""
    return str(record.digest)

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
from typing import Any, TypeVar

import msgspec

from wanc.digest import canonical_json, of_bytes
from wanc.errors import RunError
from wanc.files import check_folder, locked, write_whole

Record = TypeVar("Record")

BLOBS = "blobs"
RECORDS = ("stablehlo", "executables", "lint")
"""Kinds of records, and their folders; each record names the digest of a blob."""
FAILED = "failed"
"""Folder of what compilers left that failed."""
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

    def get_blob(self, digest: str) -> bytes | None:
        """A blob whose bytes are what its digest says, or None."""
        with self._beside_others():
            data = _read(self._blob(digest))
            if data is None or of_bytes(data) != digest:
                return None
            with contextlib.suppress(OSError):  # a cache may be read-only
                os.utime(self._blob(digest))
            return data

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

    def get_record(self, kind: str, key: str, fields: type[Record]) -> Record | None:
        """The record under a key, or None where it is absent or lacks a field."""
        data = _read(self._record(kind, key))
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(data or b"", type=fields)
        return None

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

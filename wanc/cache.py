"""The user's compile cache: what a program's definition lowered to, and what that compiled to.

Keys and digests only; knows no model and no target. Whatever is damaged counts as absent.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wanc.digest import canonical_json, of_bytes
from wanc.errors import RunError
from wanc.files import check_folder, write_whole

Record = TypeVar("Record")


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
        data = _read(self._blob(digest))
        return data if data is not None and of_bytes(data) == digest else None

    def read_blob(self, digest: str) -> bytes:
        """A blob that was put or read a moment ago; raises RunError where it has gone since."""
        data = self.get_blob(digest)
        if data is None:
            raise RunError(f"the cache {self.path} lost {digest} during the work; run again")
        return data

    def put_blob(self, data: bytes) -> str:
        """Keep a blob; returns its digest."""
        digest = of_bytes(data)
        _write(self._blob(digest), data)
        return digest

    def check_writable(self) -> None:
        """Raise RunError, before any work, where the cache takes no file."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            check_folder(self.path)
        except OSError as error:
            raise RunError(
                f"cannot write the cache {self.path}: {error.strerror}; "
                "set XDG_CACHE_HOME to a folder that takes files"
            ) from error

    def get_record(self, kind: str, key: str, fields: type[Record]) -> Record | None:
        """The record under a key, or None where it is absent or lacks a field."""
        data = _read(self._record(kind, key))
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(data or b"", type=fields)
        return None

    def put_record(self, kind: str, key: str, record: Any) -> None:
        """Keep a record under a key."""
        _write(self._record(kind, key), canonical_json(msgspec.to_builtins(record)))

    def _blob(self, digest: str) -> Path:
        return self.path / "blobs" / digest.removeprefix("sha256:")

    def _record(self, kind: str, key: str) -> Path:
        return self.path / kind / f"{key.removeprefix('sha256:')}.json"


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _write(path: Path, data: bytes) -> None:
    """Another process may write the same file at the same time: either one's bytes will do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)

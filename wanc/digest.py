"""Canonical JSON and sha256: the only hashing. Knows nothing of what is hashed."""

import hashlib
import json
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

PIECE_BYTES = 256 << 10
"""Of a file that is read: it stays in a core's own cache while it is hashed and looked at."""


def canonical_json(value: Any) -> bytes:
    """The one spelling of a JSON value: sorted keys, no spaces, UTF-8, no NaN."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def of_bytes(data: bytes) -> str:
    """``sha256:<hex>`` of the bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def of_json(value: Any) -> str:
    """Digest of the value's canonical JSON."""
    return of_bytes(canonical_json(value))


def of_file(path: Path) -> str:
    """Digest of a file's bytes, which are never in memory whole; raises OSError."""
    with path.open("rb", buffering=0) as stream:
        return Reading(stream).digest()


class Reading:
    """Reads an open file once, and hashes all that passes, whoever looks at it meanwhile."""

    def __init__(self, stream: FileIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self._room = memoryview(bytearray(PIECE_BYTES))

    def __iter__(self) -> Iterator[memoryview]:
        """What is left, each piece until the next is asked for; raises OSError."""
        while count := self._stream.readinto(self._room):
            piece = self._room[:count]
            self._hash.update(piece)
            yield piece

    def digest(self) -> str:
        """Digest of the whole, of which what is left is read; raises OSError."""
        for _ in self:
            pass
        return f"sha256:{self._hash.hexdigest()}"


class Running:
    """The digest of bytes that come one after the other."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, data: bytes) -> None:
        """The next bytes."""
        self._hash.update(data)

    @property
    def digest(self) -> str:
        """Of all that came so far."""
        return f"sha256:{self._hash.hexdigest()}"

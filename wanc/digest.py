"""Canonical JSON and sha256: the only hashing. Knows nothing of what is hashed."""

import hashlib
import json
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any


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
    """Digest of a file's bytes; raises OSError."""
    with path.open("rb") as stream:
        return of_stream(stream)


def of_stream(stream: BufferedReader | FileIO) -> str:
    """Digest of what is left of an open file, which is never in memory whole; raises OSError."""
    return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"

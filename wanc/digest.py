"""Canonical JSON and sha256: the only hashing. Knows nothing of what is hashed."""

import hashlib
import json
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 20


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
    """Digest of a file's bytes, read in chunks."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            state.update(chunk)
    return "sha256:" + state.hexdigest()

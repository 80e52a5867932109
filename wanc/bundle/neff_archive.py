"""Reads the members of a tar, gzipped or plain, that anybody may have made.

Knows nothing of what members hold. Goes through the archive once, in memory, and keeps only what it
is asked for: nothing is unpacked to disk, and no link or path is followed. The standard library's
reader would take an extension header of any stated size into memory.
"""

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MOST_CONTENT_BYTES = 16 << 30
"""What an archive may unpack to."""
MOST_MEMBERS = 100_000
MOST_KEPT_BYTES = 256 << 20
"""What all kept members may have together: they are JSON, which takes more room when parsed."""

_BLOCK_BYTES = 512
_CHUNK_BYTES = 1 << 20
_MOST_NAME_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_FILES = (b"\0", b"0", b"7")
_WITHOUT_CONTENT = (b"1", b"2", b"3", b"4", b"5", b"6")
_GNU_NAME, _PAX = b"L", b"x"


class DamageError(Exception):
    """What is wrong with the bytes; whoever knows where they are from says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file of the archive."""

    name: str
    size_bytes: int
    content: bytes | None
    """None where it was not asked for."""


def members(archive: bytes, keep: Callable[[str], bool]) -> Iterator[Member]:
    """The archive's files in order; raises DamageError."""
    stream = _Stream(archive)
    name, count, kept_bytes = "", 0, 0
    while any(header := stream.take(_BLOCK_BYTES)):
        count += 1
        if count > MOST_MEMBERS:
            raise DamageError(f"more than {MOST_MEMBERS} members")
        own_name, size_bytes, kind = _entry(header)
        if kind in (_GNU_NAME, _PAX):
            name = _long_name(stream, size_bytes, kind) or name
            continue
        name = (name or own_name).removeprefix("./")
        content = None
        if kind in _FILES:
            if keep(name):
                kept_bytes += size_bytes
                if kept_bytes > MOST_KEPT_BYTES:
                    raise DamageError(f"{name}: more than {MOST_KEPT_BYTES} bytes of JSON")
                content = stream.take(size_bytes)
            else:
                stream.skip(size_bytes)
            stream.skip(-size_bytes % _BLOCK_BYTES)
            yield Member(name=name, size_bytes=size_bytes, content=content)
        elif kind not in _WITHOUT_CONTENT:
            stream.skip(size_bytes + -size_bytes % _BLOCK_BYTES)
        name = ""
    stream.finish()


class _Stream:
    """Bytes of the unpacked archive, up to the bound."""

    def __init__(self, archive: bytes) -> None:
        file = io.BytesIO(archive)
        self._file = gzip.GzipFile(fileobj=file) if archive.startswith(_GZIP) else file
        self._left_bytes = MOST_CONTENT_BYTES

    def take(self, size_bytes: int) -> bytes:
        """So many bytes, neither more nor fewer."""
        parts = []
        while size_bytes:
            parts.append(self._chunk(min(size_bytes, _CHUNK_BYTES)))
            size_bytes -= len(parts[-1])
        return b"".join(parts)

    def skip(self, size_bytes: int) -> None:
        """Go past so many bytes."""
        while size_bytes:
            size_bytes -= len(self._chunk(min(size_bytes, _CHUNK_BYTES)))

    def finish(self) -> None:
        """Go to the end, where gzip has its checksum."""
        while self._read(_CHUNK_BYTES):
            pass

    def _chunk(self, most_bytes: int) -> bytes:
        chunk = self._read(most_bytes)
        if not chunk:
            raise DamageError("its tar is cut off")
        return chunk

    def _read(self, most_bytes: int) -> bytes:
        try:
            chunk = self._file.read(most_bytes)
        except (OSError, EOFError, zlib.error) as error:
            raise DamageError(f"its gzip stream is damaged: {error}") from None
        self._left_bytes -= len(chunk)
        if self._left_bytes < 0:
            raise DamageError(f"it unpacks to more than {MOST_CONTENT_BYTES} bytes")
        return chunk


def _entry(header: bytes) -> tuple[str, int, bytes]:
    """A header's name, size in bytes and kind."""
    summed = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if _number(header[148:156]) != summed:
        raise DamageError("its tar has a header with another checksum")
    name = _text(header[:100])
    if header[257:263] == b"ustar\0" and (prefix := _text(header[345:500])):
        name = f"{prefix}/{name}"
    return name, _number(header[124:136]), header[156:157]


def _number(field: bytes) -> int:
    """A tar number: octal digits, or the bytes of a large one."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.strip(b" \0")
    if not re.fullmatch(rb"[0-7]*", digits):
        raise DamageError(f"its tar has {field!r} where a number belongs")
    return int(digits or b"0", 8)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="replace")


def _long_name(stream: _Stream, size_bytes: int, kind: bytes) -> str:
    """The next member's name from an extension header, empty where it states none."""
    if size_bytes > _MOST_NAME_BYTES:
        raise DamageError(f"its tar has an extension header of {size_bytes} bytes")
    content = stream.take(size_bytes)
    stream.skip(-size_bytes % _BLOCK_BYTES)
    if kind == _GNU_NAME:
        return _text(content)
    found = re.search(rb"(?:^|\n)\d+ path=([^\n]*)\n", content)
    return found[1].decode(errors="replace") if found else ""

"""Reads the members of a tar, gzipped or plain, that anybody may have made.

Knows nothing of what members hold. Goes through the archive once, piece by piece, and keeps only
what it is asked for: nothing is unpacked to disk, and no link or path is followed. The standard
library's reader would take an extension header of any stated size into memory.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from wanc.bundle.pieces import Pieces

MOST_CONTENT_BYTES = 16 << 30
"""What an archive may unpack to."""
MOST_MEMBERS = 100_000
MOST_KEPT_BYTES = 128 << 20
"""What all kept members and long names may have together."""

_BLOCK_BYTES = 512
_UNPACKED_BYTES = 256 << 10
"""At a time."""
_MOST_STREAMS = 1000
"""One gzip stream after the other; each costs some work, whatever its size."""
_MOST_NAME_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31
"""zlib's number for gzip's format, with its checksum."""
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


def members(archive: Pieces, size_bytes: int, keep: Callable[[str], bool]) -> Iterator[Member]:
    """The files, in order, of an archive of so many bytes; raises DamageError."""
    content = Pieces(_bounded(_content(archive, size_bytes)))
    try:
        yield from _members(content, keep)
    except EOFError:
        raise DamageError("its tar is cut off") from None
    content.finish()  # where gzip has its checksum


def _members(stream: Pieces, keep: Callable[[str], bool]) -> Iterator[Member]:
    name, count, kept_bytes = "", 0, 0
    while any(header := stream.take(_BLOCK_BYTES)):
        count += 1
        if count > MOST_MEMBERS:
            raise DamageError(f"more than {MOST_MEMBERS} members")
        own_name, size_bytes, kind = _entry(header)
        if kind in (_GNU_NAME, _PAX):
            kept_bytes += size_bytes
            name = _long_name(stream, size_bytes, kind) or name
            continue
        name = (name or own_name).removeprefix("./")
        kept = kind in _FILES and keep(name)
        kept_bytes += size_bytes if kept else 0
        if kept_bytes > MOST_KEPT_BYTES:
            raise DamageError(f"{name[:80]}: more than {MOST_KEPT_BYTES} bytes of JSON and names")
        if kind in _FILES:
            content = stream.take(size_bytes) if kept else None
            if not kept:
                stream.skip(size_bytes)
            stream.skip(-size_bytes % _BLOCK_BYTES)
            yield Member(name=name, size_bytes=size_bytes, content=content)
        elif kind not in _WITHOUT_CONTENT:
            stream.skip(size_bytes + -size_bytes % _BLOCK_BYTES)
        name = ""


def _content(archive: Pieces, size_bytes: int) -> Iterator[memoryview]:
    """The tar, unpacked where it is gzipped."""
    start = archive.take(min(size_bytes, len(_GZIP)))
    rest = archive.within(size_bytes - len(start))
    if start != _GZIP:
        yield memoryview(start)
        yield from rest
        return
    try:
        yield from _unpacked(start, rest)
    except zlib.error as error:
        raise DamageError(f"its gzip stream is damaged: {error}") from None


def _unpacked(start: bytes, rest: Iterator[memoryview]) -> Iterator[memoryview]:
    """One gzip stream after the other, and zeros that may follow each, as gzip reads them."""
    unpacker, streams = zlib.decompressobj(_GZIP_WINDOW), 1
    for piece in chain((memoryview(start),), rest):
        left: bytes | memoryview = piece
        while True:
            if unpacker.eof:
                left = bytes(left).lstrip(b"\0")
                if not left:
                    break
                unpacker, streams = zlib.decompressobj(_GZIP_WINDOW), streams + 1
                if streams > _MOST_STREAMS:
                    raise DamageError(f"more than {_MOST_STREAMS} gzip streams")
            part = unpacker.decompress(left, _UNPACKED_BYTES)
            left = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            if part:
                yield memoryview(part)
            elif not left:
                break
    if not unpacker.eof:
        raise DamageError("its gzip stream is damaged: it is cut off")


def _bounded(content: Iterator[memoryview]) -> Iterator[memoryview]:
    left_bytes = MOST_CONTENT_BYTES
    for piece in content:
        left_bytes -= len(piece)
        if left_bytes < 0:
            raise DamageError(f"it unpacks to more than {MOST_CONTENT_BYTES} bytes")
        yield piece


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


def _long_name(stream: Pieces, size_bytes: int, kind: bytes) -> str:
    """The next member's name from an extension header, empty where it states none."""
    if size_bytes > _MOST_NAME_BYTES:
        raise DamageError(f"its tar has an extension header of {size_bytes} bytes")
    content = stream.take(size_bytes)
    stream.skip(-size_bytes % _BLOCK_BYTES)
    if kind == _GNU_NAME:
        return _text(content)
    found = re.search(rb"(?:^|\n)\d+ path=([^\n]*)\n", content)
    return found[1].decode(errors="replace") if found else ""

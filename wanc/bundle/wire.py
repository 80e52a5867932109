"""The wire format of protocol buffers, as far as the containers of executables need it.

Knows no message. Input is untrusted: whatever is wrong is a BundleError.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from wanc.errors import BundleError

VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message."""

    number: int
    wire: int
    record: memoryview
    """The whole field, tag and length too."""
    content: memoryview


def fields_of(message: Field) -> Iterator[Field]:
    """The fields of a field that is a message."""
    if message.wire != BYTES:
        raise damaged(f"field {message.number} is no message")
    return fields_in(message.content)


def fields_in(data: memoryview) -> Iterator[Field]:
    """The fields of a message's bytes; raises BundleError where they end too early."""
    at = 0
    while at < len(data):
        start = at
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        content_at = at
        if wire == VARINT:
            _, at = varint(data, at)
        elif wire == BYTES:
            size_bytes, content_at = varint(data, at)
            at = content_at + size_bytes
        elif wire in _FIXED_BYTES:
            at += _FIXED_BYTES[wire]
        else:
            raise damaged(f"wire type {wire}")
        if not number or at > len(data):
            raise damaged(f"field {number} ends at {at} of {len(data)} bytes")
        yield Field(number, wire, data[start:at], data[content_at:at])


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = 0
    for i, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, at + i + 1
    raise damaged("a number that does not end")


def numbers_of(field: Field) -> list[int]:
    """The whole numbers of a field: one, or as many as are packed into its bytes."""
    if field.wire == VARINT:
        return [varint(field.content, 0)[0]]
    if field.wire != BYTES:
        raise damaged(f"field {field.number} holds no whole numbers")
    found, at = [], 0
    while at < len(field.content):
        number, at = varint(field.content, at)
        found.append(number)
    return found


def record_of(number: int, content: bytes) -> bytes:
    """A field that holds bytes."""
    return _encoded(number << 3 | BYTES) + _encoded(len(content)) + content


def _encoded(value: int) -> bytes:
    """A number as a varint."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def text_of(field: Field) -> str:
    """A field's text; raises BundleError."""
    if field.wire != BYTES:
        raise damaged(f"field {field.number} is no text")
    try:
        return str(field.content, "utf-8")
    except UnicodeDecodeError as error:
        raise damaged(f"field {field.number}: {error}") from None


def damaged(what: str) -> BundleError:
    """The error of what cannot be read."""
    return BundleError(f"not an executable of XLA:CPU, or a damaged one: {what}")

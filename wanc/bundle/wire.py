"""The wire format of protocol buffers, as far as the containers of executables need it.

Knows no message. Input is untrusted: whatever is wrong is a BundleError.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from wanc.bundle.pieces import Pieces
from wanc.errors import BundleError

VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10

MOST_FIELDS = 200_000
"""Gone past in a file; executables have some hundreds."""
MOST_KEPT_BYTES = 1 << 20
"""Of a file, as fields that are looked into."""

Wanted = Mapping[int, "Wanted | None"]
"""By numbers of fields: None for one that is kept, else what of that message is wanted, if any."""
FieldPath = tuple[int, ...]
"""Numbers of fields, one inside the other."""
Picked = dict[FieldPath, list[bytes]]
"""Contents of fields, in order; none of those that were entered."""


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
    return text_in(field.content, field.number)


def text_in(content: bytes | memoryview, number: int) -> str:
    """The text that a field's content is; raises BundleError."""
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError as error:
        raise damaged(f"field {number}: {error}") from None


def damaged(what: str) -> BundleError:
    """The error of what cannot be read."""
    return BundleError(f"not an executable of XLA:CPU, or a damaged one: {what}")


# --- files that are never in memory whole ---------------------------------------------------------


def picked(source: Pieces, end: int, wanted: Wanted) -> Picked:
    """What is wanted of the message that comes next and ends at a position of the source.

    All else is gone past. Raises BundleError.
    """
    picking = _Picking(source)
    try:
        picking.message(end, wanted, ())
    except EOFError as error:
        raise damaged(str(error)) from None
    return picking.found


def only(found: Picked, path: FieldPath) -> bytes:
    """The one field of a path; raises BundleError."""
    contents = found.get(path, [])
    if len(contents) != 1:
        raise damaged(f"{len(contents)} fields {path[-1]} where one belongs")
    return contents[0]


def varint_in(source: Pieces) -> int:
    """The number that comes next; raises BundleError, EOFError."""
    value = 0
    for i in range(_MAX_VARINT_BYTES):
        (byte,) = source.take(1)
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value
    raise damaged("a number that does not end")


@dataclass(slots=True)
class _Picking:
    source: Pieces
    found: Picked = field(default_factory=dict)
    fields: int = 0
    kept_bytes: int = 0

    def message(self, end: int, wanted: Wanted, path: FieldPath) -> None:
        while self.source.at < end:
            number, wire = divmod(varint_in(self.source), 8)
            content_bytes = self._content_bytes(wire)
            stop = self.source.at + content_bytes
            self.fields += 1
            if not number or stop > end:
                raise damaged(f"field {number} ends at {stop} of {end} bytes")
            if self.fields > MOST_FIELDS:
                raise damaged(f"more than {MOST_FIELDS} fields")
            if number not in wanted:
                self.source.skip(content_bytes)
            elif wire != BYTES:
                raise damaged(f"field {number} is no message")
            else:
                self._wanted(stop, wanted[number], (*path, number))

    def _content_bytes(self, wire: int) -> int:
        """What of a field is still to come, where its number and wire type are read."""
        if wire == VARINT:
            varint_in(self.source)
            return 0
        if wire == BYTES:
            return varint_in(self.source)
        if wire not in _FIXED_BYTES:
            raise damaged(f"wire type {wire}")
        return _FIXED_BYTES[wire]

    def _wanted(self, stop: int, inner: Wanted | None, path: FieldPath) -> None:
        contents = self.found.setdefault(path, [])
        if inner is not None:
            contents.append(b"")
            if inner:
                self.message(stop, inner, path)
            else:
                self.source.skip(stop - self.source.at)
            return
        self.kept_bytes += stop - self.source.at
        if self.kept_bytes > MOST_KEPT_BYTES:
            raise damaged(f"more than {MOST_KEPT_BYTES} bytes of interface")
        contents.append(self.source.take(stop - self.source.at))

"""Reads the container that XLA:CPU puts an executable into, without jaxlib.

Knows the wire format only, not what a program does; its input is untrusted. The container: a length
and as many bytes of header, then a protobuf message {1: result, 2: compile options}, and in the
result (xla.cpu.CompilationResultProto) 8: one message {1: ELF, 2: name} per object file, in the
order in which compiler threads ended, and 9: the machine that the code is for {1: triple, 2: cpu,
3: features}. Everything else is kept byte by byte.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from wanc.bundle.x86 import machine_flags, missing_features
from wanc.errors import BundleError

THREADS = 8
"""XLA splits loops for as many threads as it compiles on, and a pool of one or two gives other
bits: so programs are compiled and run with this many on any machine."""

TRIPLE = "x86_64-unknown-linux-gnu"

_RESULT = 1
_OPTIONS = 2
_OBJECT_FILES = 8
_OBJECT_FILE = 1
_TARGET = 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTarget:
    """The machine that an executable's code is for."""

    triple: str
    cpu: str
    """LLVM's name of the processor that the code is tuned for; it runs on others."""
    features: frozenset[str]
    """LLVM's names of the features that a machine must have or that tune."""


def target_of(executable: bytes) -> HostTarget:
    """The machine that the code is for; raises BundleError."""
    values = {}
    for field in _fields(_result(executable).only(_TARGET)):
        if field.number in (1, 2, 3):
            values[field.number] = _text(field)
    listed = values.get(3, "").split(",") if values.get(3) else []
    if any(feature[:1] not in ("+", "-") for feature in listed):
        raise _damaged(f"features {values[3][:80]!r}")
    return HostTarget(
        triple=values.get(1, ""),
        cpu=values.get(2, ""),
        features=frozenset(feature[1:] for feature in listed if feature[0] == "+"),
    )


def object_files(executable: bytes) -> list[bytes]:
    """The ELF object files of the executable; raises BundleError."""
    result = _result(executable)
    return [
        bytes(part.content)
        for field in result.fields
        if field.number == _OBJECT_FILES
        for part in _fields(field)
        if part.number == _OBJECT_FILE
    ]


def canonical(executable: bytes) -> bytes:
    """The executable with its object files sorted, so that two compiles give the same bytes."""
    result = _result(executable)
    objects = [field for field in result.fields if field.number == _OBJECT_FILES]
    ordered = iter(sorted(bytes(field.record) for field in objects))
    return result.with_records(
        lambda field: next(ordered) if field.number == _OBJECT_FILES else None
    )


def with_features(executable: bytes, features: frozenset[str]) -> bytes:
    """The executable stating that it needs these features and no others."""
    result = _result(executable)
    stated = ",".join(f"+{feature}" for feature in sorted(features)).encode()
    kept = b"".join(
        bytes(part.record) for part in _fields(result.only(_TARGET)) if part.number != 3
    )
    record = _record(_TARGET, kept + _record(3, stated))
    return result.with_records(lambda field: record if field.number == _TARGET else None)


def check_features(executable: bytes, program: str) -> None:
    """Raise BundleError where this machine cannot run the code: XLA would only log and then crash.

    program names the executable in messages.
    """
    target = target_of(executable)
    if target.triple != TRIPLE:
        raise BundleError(f"program {program} is compiled for {target.triple}, not {TRIPLE}")
    missing = missing_features(target.features, machine_flags())
    if missing:
        raise BundleError(
            f"program {program} needs CPU features that this machine lacks: {', '.join(missing)}; "
            "compile for an older ISA (--isa) or run on a newer machine"
        )


# --- the wire -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a message."""

    number: int
    wire: int
    record: memoryview
    """The whole field, tag and length too."""
    content: memoryview


@dataclass(frozen=True, slots=True)
class _Result:
    """The result message, and what lies around it."""

    before: bytes
    fields: tuple[_Field, ...]
    after: bytes

    def only(self, number: int) -> _Field:
        """The one message of this number."""
        found = [field for field in self.fields if field.number == number]
        if len(found) != 1 or found[0].wire != _BYTES:
            raise _damaged(f"{len(found)} fields {number} where one message belongs")
        return found[0]

    def with_records(self, replace: Callable[[_Field], bytes | None]) -> bytes:
        """The executable with some of the result's fields replaced, None for one that stays."""
        records = []
        for field in self.fields:
            record = replace(field)
            records.append(bytes(field.record) if record is None else record)
        return self.before + _record(_RESULT, b"".join(records)) + self.after


def _result(executable: bytes) -> _Result:
    data = memoryview(executable)
    header_bytes, start = _varint(data, 0)
    start += header_bytes
    if start > len(data):
        raise _damaged(f"a header of {header_bytes} bytes in {len(data)} bytes")
    parts = list(_fields_of(data[start:]))
    numbers = [field.number for field in parts]
    if numbers.count(_RESULT) != 1 or numbers.count(_OPTIONS) != 1:
        raise _damaged(f"fields {numbers} where one {_RESULT} and one {_OPTIONS} belong")
    at = numbers.index(_RESULT)
    before, after = parts[:at], parts[at + 1 :]
    return _Result(
        before=bytes(data[:start]) + b"".join(field.record for field in before),
        fields=tuple(_fields(parts[at])),
        after=b"".join(field.record for field in after),
    )


def _fields(message: _Field) -> Iterator[_Field]:
    """The fields of a field that is a message."""
    if message.wire != _BYTES:
        raise _damaged(f"field {message.number} is no message")
    return _fields_of(message.content)


def _fields_of(data: memoryview) -> Iterator[_Field]:
    at = 0
    while at < len(data):
        start = at
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        content_at = at
        if wire == _VARINT:
            _, at = _varint(data, at)
        elif wire == _BYTES:
            size_bytes, content_at = _varint(data, at)
            at = content_at + size_bytes
        elif wire in _FIXED_BYTES:
            at += _FIXED_BYTES[wire]
        else:
            raise _damaged(f"wire type {wire}")
        if not number or at > len(data):
            raise _damaged(f"field {number} ends at {at} of {len(data)} bytes")
        yield _Field(number, wire, data[start:at], data[content_at:at])


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = 0
    for i, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, at + i + 1
    raise _damaged("a number that does not end")


def _record(number: int, content: bytes) -> bytes:
    """A field that holds bytes."""
    return _encoded(number << 3 | _BYTES) + _encoded(len(content)) + content


def _encoded(value: int) -> bytes:
    """A number as a varint."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _text(field: _Field) -> str:
    if field.wire != _BYTES:
        raise _damaged(f"field {field.number} of the target is no text")
    try:
        return str(field.content, "utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(f"field {field.number} of the target: {error}") from None


def _damaged(what: str) -> BundleError:
    return BundleError(f"not an executable of XLA:CPU, or a damaged one: {what}")

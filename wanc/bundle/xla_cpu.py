"""Reads the container that XLA:CPU puts an executable into, without jaxlib.

Knows the wire format only, not what a program does; its input is untrusted. The container: a length
and as many bytes of header, then a protobuf message {1: result, 2: compile options}, and in the
result (xla.cpu.CompilationResultProto) 8: one message {1: ELF, 2: name} per object file, in the
order in which compiler threads ended, and 9: the machine that the code is for {1: triple, 2: cpu,
3: features}. Everything else is kept byte by byte.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wanc.bundle.pieces import Pieces, pieces_of
from wanc.bundle.wire import (
    BYTES,
    Field,
    Picked,
    Wanted,
    damaged,
    fields_in,
    fields_of,
    only,
    picked,
    record_of,
    text_of,
    varint,
    varint_in,
)
from wanc.bundle.x86 import machine_flags, missing_features
from wanc.errors import BundleError

THREADS = 8
"""XLA splits loops for as many threads as it compiles on, and a pool of one or two gives other
bits: so programs are compiled and run with this many on any machine."""

TRIPLE = "x86_64-unknown-linux-gnu"

RESULT, OPTIONS = 1, 2
"""Of the container's message."""
MODULE, TARGET = 1, 9
"""Of a CompilationResultProto; what is in a MODULE is an HloModuleProto."""
_OBJECT_FILES = 8
_OBJECT_FILE = 1


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
    wanted = {RESULT: {TARGET: None}, OPTIONS: {}}
    found = container_parts(pieces_of(executable), len(executable), wanted)
    return host_target(only(found, (RESULT, TARGET)))


def container_parts(pieces: Iterable[memoryview], size_bytes: int, wanted: Wanted) -> Picked:
    """What is wanted of a container of so many bytes, gone through once; raises BundleError."""
    source = Pieces(pieces)
    try:
        header_bytes = varint_in(source)
        source.skip(header_bytes)
    except EOFError:
        raise damaged(f"its header ends beyond its {size_bytes} bytes") from None
    found = picked(source, size_bytes, wanted)
    for number in (RESULT, OPTIONS):
        only(found, (number,))
    return found


def host_target(message: bytes) -> HostTarget:
    """The machine that a TARGET names; raises BundleError."""
    values = {}
    for field in fields_in(memoryview(message)):
        if field.number in (1, 2, 3):
            values[field.number] = text_of(field)
    listed = values.get(3, "").split(",") if values.get(3) else []
    if any(feature[:1] not in ("+", "-") for feature in listed):
        raise damaged(f"features {values[3][:80]!r}")
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
        for part in fields_of(field)
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
        bytes(part.record) for part in fields_of(result.only(TARGET)) if part.number != 3
    )
    record = record_of(TARGET, kept + record_of(3, stated))
    return result.with_records(lambda field: record if field.number == TARGET else None)


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
class _Result:
    """The result message, and what lies around it."""

    before: bytes
    fields: tuple[Field, ...]
    after: bytes

    def only(self, number: int) -> Field:
        """The one message of this number."""
        found = [field for field in self.fields if field.number == number]
        if len(found) != 1 or found[0].wire != BYTES:
            raise damaged(f"{len(found)} fields {number} where one message belongs")
        return found[0]

    def with_records(self, replace: Callable[[Field], bytes | None]) -> bytes:
        """The executable with some of the result's fields replaced, None for one that stays."""
        records = []
        for field in self.fields:
            record = replace(field)
            records.append(bytes(field.record) if record is None else record)
        return self.before + record_of(RESULT, b"".join(records)) + self.after


def _result(executable: bytes) -> _Result:
    data = memoryview(executable)
    header_bytes, start = varint(data, 0)
    start += header_bytes
    if start > len(data):
        raise damaged(f"a header of {header_bytes} bytes in {len(data)} bytes")
    parts = list(fields_in(data[start:]))
    numbers = [field.number for field in parts]
    if numbers.count(RESULT) != 1 or numbers.count(OPTIONS) != 1:
        raise damaged(f"fields {numbers} where one {RESULT} and one {OPTIONS} belong")
    at = numbers.index(RESULT)
    before, after = parts[:at], parts[at + 1 :]
    return _Result(
        before=bytes(data[:start]) + b"".join(field.record for field in before),
        fields=tuple(fields_of(parts[at])),
        after=b"".join(field.record for field in after),
    )

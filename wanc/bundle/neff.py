"""Reads NEFF files, which neuronx-cc writes and the Neuron runtime loads, without either of them.

Knows the container and the interface only, not what a program does; its input is untrusted. By
AWS's page "Work with NEFF Files" a NEFF is a header of 1024 bytes and a tar, which by default is
gzipped. Each subgraph is a folder ``sg00`` .. ``sgNN`` there, and its ``def.json`` declares the
variables: each has a type, an id and a size in bytes.

That page states neither shapes nor dtypes, how variables are named, which values the versions take,
nor how a NEFF says that an output takes an input's buffer. So sizes stand for shapes, versions are
read and not judged, fields that it does not name are left alone, and aliasing is compared only
where a name shows it. Names are those that wanc asks the compiler for (neff_names).
"""

import json
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wanc.bundle.neff_archive import DamageError, members
from wanc.bundle.neff_names import ALIASED, input_name, output_name
from wanc.bundle.pieces import Pieces, pieces_of
from wanc.errors import BundleError
from wanc.plan.abi import Program, Tensor, Weight

HEADER_BYTES = 1024

_HEADER = struct.Struct("<5Q128sI32s16s256sI64sQI468x")
"""neff_header_t: C aligns these fields without a gap."""
_DEFINITION = re.compile(r"(sg\d+)/def\.json")
_MOST_SIZE_BYTES = 1 << 50
MOST_VALUES = 5_000_000
"""Of JSON, in all definitions of a file: Python takes about a hundred bytes for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeffHeader:
    """What the header states."""

    package_version: int
    version: tuple[int, int]
    build: str
    name: str
    uuid: str
    """Hexadecimal, as the hash."""
    hash: str
    tpb_count: int
    """Physical cores for efficient execution."""
    requested_tpb_count: int
    feature_bits: int
    """Features that a runtime must have; which bit means what is not documented."""
    lnc: int
    """Physical cores of a logical one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeffVariable:
    """A buffer that a subgraph declares."""

    subgraph: str
    name: str
    kind: str
    """input, output, state-buffer, file, tmp-buf, virtual, pointer, dge-table, or a newer one."""
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NeffTensor:
    """An input or output of the whole NEFF."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NeffMember:
    """A file of the tar."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Neff:
    """A NEFF, read."""

    header: NeffHeader
    members: tuple[NeffMember, ...]
    variables: tuple[NeffVariable, ...]

    @property
    def inputs(self) -> tuple[NeffTensor, ...]:
        """What it takes. Once check_abi has passed, in the order of the program's arguments."""
        return _tensors(self.variables, "input")

    @property
    def outputs(self) -> tuple[NeffTensor, ...]:
        """What it gives. Once check_abi has passed, in the order of the program's outputs."""
        return _tensors(self.variables, "output")


def read_neff(data: bytes, where: str) -> Neff:
    """The NEFF; where names it in messages. Raises BundleError."""
    return neff_from(pieces_of(data), len(data), where)


def neff_from(pieces: Iterable[memoryview], size_bytes: int, where: str) -> Neff:
    """The NEFF of so many bytes, which is never in memory whole. Raises BundleError."""
    file = Pieces(pieces)
    try:
        header, data_bytes = _header(file, size_bytes)
        return _contents(header, file, data_bytes)
    except (DamageError, EOFError) as damage:
        raise BundleError(f"{where}: not a NEFF, or a damaged one: {damage}") from None


def check_abi(neff: Neff, program: Program, *, lnc: int, where: str) -> None:
    """Raise BundleError with everything in which the NEFF's interface is not the program's."""
    problems = []
    if neff.header.lnc != lnc:
        problems.append(f"LNC {neff.header.lnc}; needed is {lnc}")
    problems += _differences("input", input_name, neff.inputs, program.arguments)
    problems += _differences("output", output_name, neff.outputs, program.outputs)
    kept = {
        input_name(position) + ALIASED
        for position, argument in enumerate(program.arguments)
        if argument.name not in program.donated
    }
    problems += [
        f"{tensor.name}: an output takes its buffer; needed is that none does"
        for tensor in neff.inputs
        if tensor.name in kept
    ]
    if problems:
        raise BundleError(
            f"{where}: its interface is not that of program {program.name}:\n  "
            + "\n  ".join(problems)
        )


def _differences(
    kind: str,
    name_at: Callable[[int], str],
    found: Sequence[NeffTensor],
    needed: Sequence[Tensor | Weight],
) -> list[str]:
    problems = []
    if len(found) != len(needed):
        problems.append(f"{len(found)} {kind}s; needed are {len(needed)}")
    rest: dict[str, list[int]] = {}
    for tensor in found:
        rest.setdefault(tensor.name.removesuffix(ALIASED), []).append(tensor.size_bytes)
    for position, argument in enumerate(needed):
        name = name_at(position)
        sizes = rest.pop(name, [])
        if sizes != [argument.bytes]:
            have = " and ".join(f"{size_bytes} bytes" for size_bytes in sizes) or "absent"
            shape = "x".join(map(str, argument.shape))
            needs = f"{argument.bytes}, {argument.dtype} {shape}"
            problems.append(f"{name} ({argument.name}): {have}; needed are {needs}")
    return problems + [
        f"{name[:80]!r}: {kind} of {size_bytes} bytes; needed is none"
        for name, sizes in rest.items()
        for size_bytes in sizes
    ]


def _tensors(variables: Iterable[NeffVariable], kind: str) -> tuple[NeffTensor, ...]:
    """Variables of a kind by their number; several subgraphs may declare the same one."""
    found = {(v.name, v.size_bytes) for v in variables if v.kind == kind}
    ordered = sorted(found, key=lambda each: (_position(each[0]), each))
    return tuple(NeffTensor(name=name, size_bytes=size_bytes) for name, size_bytes in ordered)


def _position(name: str) -> float:
    number = re.search(r"(\d{1,9})$", name.removesuffix(ALIASED))
    return int(number[1]) if number else float("inf")


# --- the file -------------------------------------------------------------------------------------


def _header(file: Pieces, size_bytes: int) -> tuple[NeffHeader, int]:
    """The header, and how many bytes of contents follow it."""
    if size_bytes < HEADER_BYTES:
        raise DamageError(f"{size_bytes} bytes, where a header of {HEADER_BYTES} belongs")
    fields = _HEADER.unpack(file.take(HEADER_BYTES))
    package_version, header_bytes, data_bytes, major, minor, build, tpb_count, hashed = fields[:8]
    uuid, name, requested_tpb_count, _per_node, feature_bits, lnc = fields[8:]
    if header_bytes != HEADER_BYTES:
        raise DamageError(f"a header that calls itself {header_bytes} bytes, not {HEADER_BYTES}")
    if data_bytes > size_bytes - HEADER_BYTES:
        raise DamageError(
            f"{size_bytes - HEADER_BYTES} bytes after the header, which states {data_bytes}"
        )
    header = NeffHeader(
        package_version=package_version,
        version=(major, minor),
        build=_text(build),
        name=_text(name),
        uuid=uuid.hex(),
        hash=hashed.hex(),
        tpb_count=tpb_count,
        requested_tpb_count=requested_tpb_count,
        feature_bits=feature_bits,
        lnc=lnc,
    )
    return header, data_bytes


def _text(field: bytes) -> str:
    text = field.partition(b"\0")[0].decode(errors="replace")
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _contents(header: NeffHeader, archive: Pieces, size_bytes: int) -> Neff:
    names: list[NeffMember] = []
    definitions: dict[str, list[NeffVariable]] = {}
    values = 0
    for member in members(archive, size_bytes, lambda name: bool(_DEFINITION.fullmatch(name))):
        names.append(NeffMember(name=member.name, size_bytes=member.size_bytes))
        if member.content is not None:
            if member.name in definitions:
                raise DamageError(f"two members {member.name}")
            values += sum(map(member.content.count, (b",", b"[", b"{")))
            if values > MOST_VALUES:
                raise DamageError(f"{member.name}: more than {MOST_VALUES} values of JSON")
            definitions[member.name] = _variables(member.name, member.content)
    if not definitions:
        raise DamageError(f"no sg00/def.json among {len(names)} members")
    variables = [variable for name in sorted(definitions) for variable in definitions[name]]
    return Neff(header=header, members=tuple(names), variables=tuple(variables))


def _variables(member: str, content: bytes) -> list[NeffVariable]:
    """What a subgraph's def.json declares."""
    try:
        definition = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{member} is not JSON: {error}") from None
    declared = definition.get("var") if isinstance(definition, dict) else None
    if not isinstance(declared, dict):
        raise DamageError(f"{member} has no object var")
    subgraph = member.partition("/")[0]
    return [_variable(subgraph, name, fields) for name, fields in declared.items()]


def _variable(subgraph: str, name: str, fields: Any) -> NeffVariable:
    kind = fields.get("type") if isinstance(fields, dict) else None
    if not isinstance(kind, str):
        raise DamageError(f"variable {name[:80]!r} of {subgraph} has no type")
    size_bytes = fields.get("size", 0 if kind not in ("input", "output") else None)
    if type(size_bytes) is not int or not 0 <= size_bytes <= _MOST_SIZE_BYTES:
        raise DamageError(f"variable {name[:80]!r} of {subgraph} has no size in bytes")
    return NeffVariable(subgraph=subgraph, name=name, kind=kind, size_bytes=size_bytes)

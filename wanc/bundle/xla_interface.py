"""What an XLA:CPU executable is called with, and what code it holds, read without jaxlib.

From the HLO module that the container carries (xla/service/hlo.proto, xla/xla_data.proto), and
without holding the container. Knows the wire format only; its input is untrusted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wanc.bundle.wire import Field, damaged, fields_in, fields_of, numbers_of, only, text_in
from wanc.bundle.xla_cpu import (
    MODULE,
    OPTIONS,
    RESULT,
    TARGET,
    HostTarget,
    container_parts,
    host_target,
)
from wanc.errors import BundleError
from wanc.plan.abi import Program, Tensor, Weight

_NAME, _PROGRAM_SHAPE, _DEVICE_ASSIGNMENT = 1, 4, 15
"""Of an HloModuleProto."""
_PARAMETERS, _SHAPE_OF_RESULT = 1, 2
"""Of a ProgramShapeProto."""
_ELEMENT_TYPE, _DIMENSIONS, _TUPLE_SHAPES = 2, 3, 4
"""Of a ShapeProto."""
_REPLICAS = 1
"""Of a DeviceAssignmentProto."""
_TUPLE = 13
_DTYPES = {11: "float32", 16: "bfloat16"}
"""Element types that programs have."""
_HLO_MODULE = (RESULT, MODULE, 1)
_WANTED = {
    RESULT: {
        MODULE: {1: {_NAME: None, _PROGRAM_SHAPE: None, _DEVICE_ASSIGNMENT: None}},
        TARGET: None,
    },
    OPTIONS: {},
}

Shaped = tuple[str, tuple[int, ...]]
"""A dtype and a shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaInterface:
    """What an executable is called with, what it gives, and what runs it."""

    name: str
    arguments: tuple[Shaped, ...]
    results: tuple[Shaped, ...]
    replicas: int
    target: HostTarget


def interface_from(pieces: Iterable[memoryview], size_bytes: int) -> XlaInterface:
    """The interface of an executable of so many bytes; raises BundleError."""
    found = container_parts(pieces, size_bytes, _WANTED)
    only(found, (RESULT, MODULE))
    shape = list(fields_in(memoryview(only(found, (*_HLO_MODULE, _PROGRAM_SHAPE)))))
    return XlaInterface(
        name=text_in(only(found, (*_HLO_MODULE, _NAME)), _NAME),
        arguments=tuple(s for f in shape if f.number == _PARAMETERS for s in _shaped(f)),
        results=tuple(s for f in shape if f.number == _SHAPE_OF_RESULT for s in _shaped(f)),
        replicas=_replicas(found.get((*_HLO_MODULE, _DEVICE_ASSIGNMENT), [])),
        target=host_target(only(found, (RESULT, TARGET))),
    )


def check_interface(found: XlaInterface, program: Program) -> None:
    """Raise BundleError where an executable is not of a program's interface."""
    faults = [
        *_differences("arguments", found.arguments, program.arguments),
        *_differences("results", found.results, program.outputs),
    ]
    if found.name != program.kind:
        faults.append(f"it is of {found.name!r}, and the program of {program.kind!r}")
    if found.replicas != program.replica_count:
        faults.append(f"{found.replicas} replicas, and the program has {program.replica_count}")
    if faults:
        raise BundleError("its interface is not the program's: " + "; ".join(faults))


def _differences(
    what: str, found: Sequence[Shaped], wanted: Sequence[Weight | Tensor]
) -> list[str]:
    needed = [(tensor.dtype, tensor.shape) for tensor in wanted]
    if len(found) != len(needed):
        return [f"{len(found)} {what}, and the program has {len(needed)}"]
    return [
        f"{what[:-1]} {k} is {one[0]} {list(one[1])}, needs {two[0]} {list(two[1])}"
        for k, (one, two) in enumerate(zip(found, needed, strict=True))
        if one != two
    ][:3]


def _shaped(field: Field) -> list[Shaped]:
    """The tensors of a ShapeProto: one, or those of a flat tuple."""
    fields = list(fields_of(field))
    if _number(fields, _ELEMENT_TYPE) == _TUPLE:
        return [_tensor(list(fields_of(f))) for f in fields if f.number == _TUPLE_SHAPES]
    return [_tensor(fields)]


def _tensor(fields: list[Field]) -> Shaped:
    kind = _number(fields, _ELEMENT_TYPE)
    sizes = [number for f in fields if f.number == _DIMENSIONS for number in numbers_of(f)]
    return _DTYPES.get(kind, f"type {kind}"), tuple(sizes)


def _replicas(assignments: list[bytes]) -> int:
    """Of a module that says how many, else one."""
    if len(assignments) > 1:
        raise damaged(f"{len(assignments)} device assignments where one belongs")
    return _number([f for a in assignments for f in fields_in(memoryview(a))], _REPLICAS) or 1


def _number(fields: Iterable[Field], number: int) -> int:
    """The one number of a field, 0 where it is not there."""
    found = [value for f in fields if f.number == number for value in numbers_of(f)]
    if len(found) > 1:
        raise damaged(f"{len(found)} numbers {number} where one belongs")
    return found[0] if found else 0

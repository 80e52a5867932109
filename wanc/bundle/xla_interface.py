"""The interface of an XLA:CPU executable, read without jaxlib: its arguments, results and replicas.

From the HLO module that the container carries (xla/service/hlo.proto, xla/xla_data.proto). Knows
the wire format only; its input is untrusted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from wanc.bundle.wire import Field, damaged, fields_of, numbers_of, text_of
from wanc.bundle.xla_cpu import module_of
from wanc.errors import BundleError
from wanc.plan.abi import Program, Tensor, Weight

_NAME, _PROGRAM_SHAPE, _DEVICE_ASSIGNMENT = 1, 4, 15
"""Of an HloModuleProto."""
_PARAMETERS, _RESULT = 1, 2
"""Of a ProgramShapeProto."""
_ELEMENT_TYPE, _DIMENSIONS, _TUPLE_SHAPES = 2, 3, 4
"""Of a ShapeProto."""
_REPLICAS = 1
"""Of a DeviceAssignmentProto."""
_TUPLE = 13
_DTYPES = {11: "float32", 16: "bfloat16"}
"""Element types that programs have."""

Shaped = tuple[str, tuple[int, ...]]
"""A dtype and a shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaInterface:
    """What an executable is called with, and what it gives."""

    name: str
    arguments: tuple[Shaped, ...]
    results: tuple[Shaped, ...]
    replicas: int


def interface_of(executable: bytes) -> XlaInterface:
    """The interface of an executable; raises BundleError."""
    module = list(fields_of(module_of(executable)))
    shape = list(fields_of(_only(module, _PROGRAM_SHAPE)))
    assigned = [field for field in module if field.number == _DEVICE_ASSIGNMENT]
    counts = (
        [numbers_of(f) for f in fields_of(assigned[0]) if f.number == _REPLICAS] if assigned else []
    )
    return XlaInterface(
        name=text_of(_only(module, _NAME)),
        arguments=tuple(s for f in shape if f.number == _PARAMETERS for s in _shaped(f)),
        results=tuple(s for f in shape if f.number == _RESULT for s in _shaped(f)),
        replicas=counts[0][0] if counts and counts[0] else 1,
    )


def check_interface(executable: bytes, program: Program) -> None:
    """Raise BundleError where an executable is not of a program's interface."""
    found = interface_of(executable)
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
    kinds = [numbers_of(f) for f in fields if f.number == _ELEMENT_TYPE]
    kind = kinds[0][0] if kinds and kinds[0] else 0
    if kind == _TUPLE:
        inner = [list(fields_of(f)) for f in fields if f.number == _TUPLE_SHAPES]
        return [_tensor(each) for each in inner]
    return [_tensor(fields)]


def _tensor(fields: list[Field]) -> Shaped:
    kinds = [number for f in fields if f.number == _ELEMENT_TYPE for number in numbers_of(f)]
    dims = [number for f in fields if f.number == _DIMENSIONS for number in numbers_of(f)]
    dtype = _DTYPES.get(kinds[0], f"type {kinds[0]}") if kinds else "no type"
    return dtype, tuple(dims)


def _only(fields: Sequence[Field], number: int) -> Field:
    found = [field for field in fields if field.number == number]
    if len(found) != 1:
        raise damaged(f"{len(found)} fields {number} where one belongs in its module")
    return found[0]

"""A portable artifact read back: its operations, their types and whom its collectives join.

Knows MLIR and no rule. Imports neither jax nor torch, so that a process without them can look into
what a bundle holds.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from wanc.errors import ToolchainError
from wanc.plan.mesh import Groups

COLLECTIVES = (
    "stablehlo.all_gather",
    "stablehlo.all_reduce",
    "stablehlo.all_to_all",
    "stablehlo.collective_broadcast",
    "stablehlo.collective_permute",
    "stablehlo.reduce_scatter",
)

PERMUTE = "stablehlo.collective_permute"

_OUTER = ("builtin.module", "func.func")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """The type of a value."""

    text: str
    """As MLIR writes it."""
    dtype: str | None
    """None where the value is no tensor."""
    dims: tuple[int | None, ...] | None
    """None stands for a size, or for all of them, that is known at run time only."""

    @property
    def static(self) -> bool:
        """Whether every size is known."""
        return self.dims is not None and None not in self.dims

    @property
    def elements(self) -> int:
        """How many, with one for each unknown size."""
        return prod(1 if size is None else size for size in self.dims or ())

    @property
    def bytes(self) -> int:
        """Size in memory, where less than a byte takes one."""
        width = re.search(r"\d+", self.dtype or "")
        parts = 2 if (self.dtype or "").startswith("complex") else 1
        return self.elements * parts * -(-int(width.group()) // 8) if width else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of a module."""

    ordinal: int
    """Its place among all operations in the order of the text; the module is number 0."""
    name: str
    """With its dialect: stablehlo.add."""
    function: str
    """Name of the function that it belongs to; empty for the module."""
    nested: bool
    """Whether it lies in another operation's region, as a reduction's sum does."""
    results: tuple[TensorType, ...]
    arguments: tuple[TensorType, ...]
    """Arguments of its regions' blocks; those of a function are its inputs."""
    mlir: Any

    def __str__(self) -> str:
        if self.name == "func.func":
            return f"func.func @{self.function}"
        results = ", ".join(result.text for result in self.results)
        return f"{self.name} (operation {self.ordinal}){' -> ' if results else ''}{results}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective and the ranks that it joins."""

    operation: Operation
    permute: bool
    groups: Groups
    """For a permute, pairs of source and target."""


class Artifact:
    """A module's operations, in the order of its text."""

    def __init__(self, module: ir.Module) -> None:
        self._module = module  # walked operations do not keep it alive
        self._types: dict[ir.Type, TensorType] = {}
        self.operations = tuple(self._read(module))
        self.collectives = tuple(_collectives(self.operations))

    @property
    def text(self) -> str:
        """The module as MLIR prints it, with every constant whole."""
        return str(self._module)

    @property
    def communicators(self) -> tuple[Collective, ...]:
        """The first collective of each distinct list of groups, or of a permute's pairs."""
        first: dict[tuple[bool, Groups], Collective] = {}
        for each in self.collectives:
            first.setdefault((each.permute, each.groups), each)
        return tuple(first.values())

    def operands(self, operation: Operation) -> tuple[TensorType, ...]:
        """Types of what an operation takes."""
        return self._all(operation.mlir.operands)

    def _read(self, module: ir.Module) -> Iterator[Operation]:
        function = ""
        for ordinal, op in enumerate(walk(module)):
            name: str = op.name
            if name == "func.func":
                function = ir.StringAttr(op.attributes["sym_name"]).value
            yield Operation(
                ordinal=ordinal,
                name=name,
                function=function,
                nested=op.parent is not None and op.parent.name not in _OUTER,
                results=self._all(op.results),
                arguments=tuple(
                    self._type(value.type)
                    for region in op.regions
                    for block in region.blocks
                    for value in block.arguments
                ),
                mlir=op,
            )

    def _all(self, values: Any) -> tuple[TensorType, ...]:
        return tuple(self._type(value.type) for value in values)

    def _type(self, mlir: ir.Type) -> TensorType:
        if mlir not in self._types:
            self._types[mlir] = _tensor_type(mlir)
        return self._types[mlir]


def read_artifact(data: bytes) -> Artifact:
    """Read a portable artifact; raises ToolchainError where it is none or has no main function."""
    said: list[str] = []

    def listen(diagnostic: Any) -> bool:
        said.append(str(diagnostic.message))
        return True

    context = ir.Context()
    stablehlo.register_dialect(context)
    context.attach_diagnostic_handler(listen)
    try:
        artifact = Artifact(stablehlo.deserialize_portable_artifact(context, data))
    except ValueError as error:
        why = "; ".join([str(error), *said])
        raise ToolchainError(f"jaxlib cannot read a program's StableHLO: {why}") from error
    if not any(op.function == "main" for op in artifact.operations):
        raise ToolchainError("a program's StableHLO has no function called main")
    return artifact


def walk(module: ir.Module) -> list[ir.Operation]:
    """All operations in the order of the module's text, the module first."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def callee(call: Any) -> str:
    """Name of the function that a func.call calls."""
    name: str = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
    return name


def contraction(dot: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dims of a dot_general's left operand: those summed over, and those of the batch."""
    dims = stablehlo.DotDimensionNumbers(dot.attributes["dot_dimension_numbers"])
    return tuple(dims.lhs_contracting_dimensions), tuple(dims.lhs_batching_dimensions)


def channel_dims(convolution: Any) -> tuple[int, int]:
    """Dims of a convolution's kernel: of the channels that it takes, and of those that it gives."""
    dims = stablehlo.ConvDimensionNumbers(convolution.attributes["dimension_numbers"])
    return dims.kernel_input_feature_dimension, dims.kernel_output_feature_dimension


def _tensor_type(mlir: Any) -> TensorType:
    dims: tuple[int | None, ...] | None = None
    if isinstance(mlir, ir.RankedTensorType):
        sizes = range(mlir.rank)
        dims = tuple(None if mlir.is_dynamic_dim(i) else mlir.get_dim_size(i) for i in sizes)
    elif not isinstance(mlir, ir.UnrankedTensorType):
        return TensorType(text=str(mlir), dtype=None, dims=None)
    return TensorType(text=str(mlir), dtype=str(mlir.element_type), dims=dims)


def _collectives(operations: tuple[Operation, ...]) -> Iterator[Collective]:
    known: dict[ir.Attribute, Groups] = {}
    for operation in operations:
        if operation.name not in COLLECTIVES:
            continue
        permute = operation.name == PERMUTE
        groups = operation.mlir.attributes["source_target_pairs" if permute else "replica_groups"]
        if groups not in known:
            known[groups] = _groups(groups)
        yield Collective(operation=operation, permute=permute, groups=known[groups])


def _groups(attribute: ir.Attribute) -> Groups:
    rows: list[list[int]] = np.array(ir.DenseIntElementsAttr(attribute)).tolist()
    return tuple(tuple(row) for row in rows)

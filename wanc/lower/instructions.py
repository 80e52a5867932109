"""About how many instructions a lowered program is, from the operations of its StableHLO.

Knows no target's limits. The count of instructions is an estimate: plan/instructions.py says of
what kind, and has the matrix products. Besides them:

- A convolution is one such product for each tap of its kernel, summed in place.
- What works element by element, or reduces, takes a tile of 128 partitions x 512 values.
- What moves data, a collective too, takes 64 KiB: 128 partitions x 512 bytes.
- Reshapes, slices and broadcasts count nothing: they are how the next instruction reads.
- A call counts what it calls. A kernel (custom call) counts as if it worked element by element.
"""

from collections import Counter
from math import prod

from wanc.lower.artifact import (
    COLLECTIVES,
    Artifact,
    Operation,
    TensorType,
    callee,
    channel_dims,
    contraction,
)
from wanc.plan.instructions import PARTITIONS, TILE_ELEMENTS, product, tiles

TRANSFER_BYTES = PARTITIONS * 512

_FREE = {
    *("builtin.module", "func.func", "func.return"),
    *("stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.reshape", "stablehlo.slice"),
}

_MOVES = {*COLLECTIVES, "stablehlo.concatenate", "stablehlo.pad", "stablehlo.transpose"}


def instructions(artifact: Artifact) -> int:
    """Estimate of the instructions of a program; see the module's text."""
    own: Counter[str] = Counter()
    calls: dict[str, Counter[str]] = {}
    for op in artifact.operations:
        if op.name == "func.call":
            calls.setdefault(op.function, Counter())[callee(op.mlir)] += 1
        elif not op.nested:
            own[op.function] += operation_instructions(op, artifact.operands(op))

    def total(function: str, callers: frozenset[str]) -> int:
        if function in callers:  # what calls itself counts once
            return 0
        within = callers | {function}
        called = calls.get(function, Counter()).items()
        return own[function] + sum(times * total(name, within) for name, times in called)

    return total("main", frozenset())


def operation_instructions(op: Operation, operands: tuple[TensorType, ...]) -> int:
    """Estimate of one operation's."""
    if op.name in _FREE:
        return 0
    if op.name == "stablehlo.dot_general":
        return _dot(op, *operands)
    if op.name == "stablehlo.convolution":
        return _convolution(op, operands[1])
    if op.name in _MOVES:
        return sum(tiles(result.bytes, TRANSFER_BYTES) for result in op.results)
    sizes = [each.elements for each in (*operands, *op.results)]
    return tiles(max(sizes, default=0), TILE_ELEMENTS)


def _dot(op: Operation, left: TensorType, right: TensorType) -> int:
    contracted, batched = contraction(op.mlir)
    depth = prod((left.dims or ())[dim] or 1 for dim in contracted)
    batch = prod((left.dims or ())[dim] or 1 for dim in batched)
    rows, columns = (side.elements // (depth * batch) for side in (left, right))
    return batch * product(rows, depth, columns)


def _convolution(op: Operation, kernel: TensorType) -> int:
    takes, gives = channel_dims(op.mlir)
    sizes = [size or 1 for size in kernel.dims or ()]
    inputs, outputs = sizes[takes], sizes[gives]
    taps = kernel.elements // (inputs * outputs)
    return product(op.results[0].elements // outputs, inputs, outputs, taps)

"""Sums over ranks in the order of their group: a rewrite of the cpu target.

Knows no model. XLA:CPU adds in one order among the ranks of a process, and between processes in
another, gloo's. Two members give the same sum in both. The parts of more are brought here by
collectives that only copy, and the program adds them: so the bits of a sum do not depend on how
ranks are spread over processes.
"""

import functools
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from wanc.targets.cpu_layout import converted, cut, element_of, reshape, shape_of, type_like, wide

_SUMS = ("stablehlo.all_reduce", "stablehlo.reduce_scatter")
_ATTRIBUTES = {"replica_groups", "scatter_dimension"}
"""Of a sum whose groups name replicas; one with channels may mean others."""


def order_sums(module: Any) -> bool:
    """Rewrite the module's sums over more than two ranks in place; False where it has none."""
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name in _SUMS and _adds(op) and _members(op) > 2:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    with module.context, ir.Location.unknown():
        for op in found:
            with ir.InsertionPoint(op):
                op.result.replace_all_uses_with(_ordered(op))
            op.erase()
        module.operation.verify()
    return bool(found)


def _adds(op: Any) -> bool:
    """Whether a reduction over ranks is a plain sum of one tensor of floats."""
    (block,) = op.regions[0].blocks
    names = [inner.operation.name for inner in block.operations]
    return (
        names == ["stablehlo.add", "stablehlo.return"]
        and list(block.operations[0].operands) == list(block.arguments)
        and len(op.operands) == 1
        and isinstance(element_of(op.operands[0]), ir.FloatType)
        and set(op.attributes) <= _ATTRIBUTES
    )


def _members(op: Any) -> int:
    """How many ranks each group has; 0 where some have fewer, for their rows end in -1."""
    groups: Any = ir.DenseIntElementsAttr(op.attributes["replica_groups"])
    return 0 if -1 in groups else ir.ShapedType(groups.type).shape[1]


def _ordered(op: Any) -> Any:
    """What the reduction means, its parts added one after the other."""
    (x,) = op.operands
    members, groups = _members(op), op.attributes["replica_groups"]
    row = reshape(x, [1, *shape_of(x)])
    parts: Any
    if "scatter_dimension" in op.attributes:
        dim = ir.IntegerAttr(op.attributes["scatter_dimension"]).value
        parts = stablehlo.all_to_all([row], dim + 1, 0, members, groups)
    else:
        kind = type_like(x, [members, *shape_of(x)])
        parts = stablehlo.all_gather([kind], [row], 0, groups)
    terms = [converted(cut(parts, 0, at, at + 1), wide(x)) for at in range(members)]
    total = converted(functools.reduce(stablehlo.add, terms), element_of(x))
    return reshape(total, shape_of(op.result))

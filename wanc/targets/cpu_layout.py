"""Tensors of a StableHLO module that lie in memory in another order of dims than is named.

Knows nothing of convolutions or of what order is good, only how other operations follow: those
between two convolutions that want channels last then need no transpose.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

_ELEMENTWISE = (
    "abs add and ceil clamp compare convert cosine divide exponential exponential_minus_one floor"
    " is_finite log log_plus_one logistic maximum minimum multiply negate not or power remainder"
    " round_nearest_even rsqrt select sign sine sqrt subtract tanh xor"
)
"""Operations of StableHLO whose operands are scalars or of their result's shape."""


@dataclass(frozen=True, slots=True)
class Laid:
    """A tensor and how it lies: dim ``i`` of value is dim ``order[i]`` of the tensor."""

    value: Any
    order: tuple[int, ...]

    @property
    def plain(self) -> bool:
        """Whether value is the tensor as it is named."""
        return self.order == tuple(range(len(self.order)))


Rule = Callable[[Any, Sequence[Laid]], Laid | None]
"""Emits what an operation means for operands as they lie; None where it takes them plain."""


def shape_of(value: Any) -> list[int]:
    """Sizes of a ranked tensor."""
    return list(ir.RankedTensorType(value.type).shape)


def element_of(value: Any) -> Any:
    """Type of a tensor's elements."""
    return ir.RankedTensorType(value.type).element_type


def type_like(value: Any, shape: Sequence[int]) -> Any:
    """A tensor type of the value's elements."""
    return ir.RankedTensorType.get(list(shape), element_of(value))


def i64s(values: Sequence[int]) -> Any:
    """The attribute in which StableHLO lists sizes and dims."""
    return ir.DenseI64ArrayAttr.get(list(values))


def reshape(value: Any, shape: Sequence[int]) -> Any:
    """The value itself where it has the shape."""
    if shape_of(value) == list(shape):
        return value
    return stablehlo.reshape(type_like(value, shape), value)


def cut(value: Any, dim: int, start: int, stop: int) -> Any:
    """The value from start to stop along one dim."""
    starts, stops = [0] * len(shape_of(value)), shape_of(value)
    if (start, stop) == (0, stops[dim]):
        return value
    starts[dim], stops[dim] = start, stop
    return stablehlo.slice(value, i64s(starts), i64s(stops), i64s([1] * len(stops)))


def wide(value: Any) -> Any:
    """The element type of sums: fp32 for narrower floats, as one operation of XLA's would sum."""
    element = element_of(value)
    return ir.F32Type.get() if ir.FloatType(element).width < 32 else element


def converted(value: Any, element: Any) -> Any:
    """The value itself where it has elements of the type."""
    target = ir.RankedTensorType.get(shape_of(value), element)
    return value if value.type == target else stablehlo.convert(target, value)


def plain(value: Any) -> Laid:
    """A tensor as it is named."""
    return Laid(value, tuple(range(len(shape_of(value)))))


def lie(x: Laid, order: Sequence[int] | None = None) -> Any:
    """The tensor's value in another order, by default the one that is named."""
    order = range(len(x.order)) if order is None else order
    if tuple(order) == x.order:
        return x.value
    source = x.value.owner
    if not isinstance(source, ir.Block) and source.name == "stablehlo.broadcast_in_dim":
        dims = ir.DenseI64ArrayAttr(source.attributes["broadcast_dimensions"])
        sizes = shape_of(x.value)
        return stablehlo.broadcast_in_dim(
            type_like(x.value, [sizes[x.order.index(dim)] for dim in order]),
            source.operands[0],
            i64s([list(order).index(x.order[dim]) for dim in dims]),
        )
    return stablehlo.transpose(x.value, i64s([x.order.index(dim) for dim in order]))


def again(op: Any, operands: Sequence[Any], order: Sequence[int]) -> Laid:
    """The operation on operands that lie in another order, and so its one result."""
    clone = op.operation.clone()
    for i, value in enumerate(operands):
        clone.operands[i] = value
    result = clone.results[0]
    sizes = shape_of(result)
    result.set_type(type_like(result, [sizes[dim] for dim in order]))
    return Laid(result, tuple(order))


# --- rules: each is asked only where an operand lies in another order than is named ---------------


def _elementwise(op: Any, xs: Sequence[Laid]) -> Laid | None:
    order = next(x.order for x in xs if not x.plain)
    return again(op, [lie(x, order) if x.order else x.value for x in xs], order)


def _transpose(op: Any, xs: Sequence[Laid]) -> Laid:
    permutation = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
    return Laid(xs[0].value, tuple(permutation.index(dim) for dim in xs[0].order))


def _reshape(op: Any, xs: Sequence[Laid]) -> Laid | None:
    (x,) = xs
    before = [0] * len(x.order)
    for dim, size in zip(x.order, shape_of(x.value), strict=True):
        before[dim] = size
    after = shape_of(op.results[0])
    order = reshaped_order(x.order, before, after)
    if order is None:
        return None
    return Laid(reshape(x.value, [after[dim] for dim in order]), order)


def reshaped_order(
    order: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> tuple[int, ...] | None:
    """How a tensor that lies in this order lies after a reshape of no cost; None where it has one.

    Dims that merge must lie side by side. A dim of one lies anywhere, so they come first.
    """
    if 0 in before:
        return None
    lying = [dim for dim in order if before[dim] != 1]
    olds = [dim for dim in range(len(before)) if before[dim] != 1]
    news = [dim for dim in range(len(after)) if after[dim] != 1]
    placed: dict[int, list[int]] = {}
    while olds:
        merged, split = [olds.pop(0)], [news.pop(0)]
        old, new = before[merged[0]], after[split[0]]
        while old != new:
            if old < new:
                merged.append(olds.pop(0))
                old *= before[merged[-1]]
            else:
                split.append(news.pop(0))
                new *= after[split[-1]]
        at = lying.index(merged[0])
        if lying[at : at + len(merged)] != merged:
            return None
        placed[merged[0]] = split
    ones = [dim for dim, size in enumerate(after) if size == 1]
    return (*ones, *(dim for first in lying for dim in placed.get(first, ())))


def _broadcast(op: Any, xs: Sequence[Laid]) -> Laid:
    (x,) = xs
    dims = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
    order = [dims[dim] for dim in x.order]
    for dim in range(len(shape_of(op.results[0]))):
        if dim not in order:  # a new dim lies after the one that is named before it
            order.insert(order.index(dim - 1) + 1 if dim else 0, dim)
    laid = again(op, [x.value], order)
    laid.value.owner.attributes["broadcast_dimensions"] = i64s(
        [order.index(dims[dim]) for dim in x.order]
    )
    return laid


def _concatenate(op: Any, xs: Sequence[Laid]) -> Laid:
    order = next(x.order for x in xs if not x.plain)
    laid = again(op, [lie(x, order) for x in xs], order)
    attributes = laid.value.owner.attributes
    at = order.index(ir.IntegerAttr(attributes["dimension"]).value)
    attributes["dimension"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), at)
    return laid


def _reordered(*names: str) -> Rule:
    """Slices and pads: lists of one number a dim; a second operand is a scalar."""

    def rule(op: Any, xs: Sequence[Laid]) -> Laid:
        order = xs[0].order
        laid = again(op, [x.value for x in xs], order)
        for name in names:
            numbers = list(ir.DenseI64ArrayAttr(op.attributes[name]))
            laid.value.owner.attributes[name] = i64s([numbers[dim] for dim in order])
        return laid

    return rule


def _reduce(op: Any, xs: Sequence[Laid]) -> Laid | None:
    if len(op.results) != 1:
        return None
    x, initial = xs
    dims = list(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    kept = [dim for dim in x.order if dim not in dims]
    laid = again(op, [x.value, initial.value], [sorted(kept).index(dim) for dim in kept])
    laid.value.owner.attributes["dimensions"] = i64s(sorted(x.order.index(dim) for dim in dims))
    return laid


FOLLOWING: dict[str, Rule] = {
    **{f"stablehlo.{name}": _elementwise for name in _ELEMENTWISE.split()},
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.pad": _reordered("edge_padding_low", "edge_padding_high", "interior_padding"),
    "stablehlo.reduce": _reduce,
    "stablehlo.reshape": _reshape,
    "stablehlo.slice": _reordered("start_indices", "limit_indices", "strides"),
    "stablehlo.transpose": _transpose,
}
"""Rules of operations that take operands however they lie, by the operation's name."""

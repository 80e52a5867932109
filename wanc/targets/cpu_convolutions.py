"""Convolutions as XLA:CPU is fast at them: a rule of the cpu target's rewrite.

Knows XLA:CPU's speed and no model. Measured with jaxlib 0.10.2 on two cores of a Zen 5, in GFLOP/s
of fp32 where a plain matrix product runs at 460:

- 3-D convolutions, and 2-D ones with channels first, run at 100 to 180. The kernels of YNNPACK,
  which run at 300 to 430, know 2-D convolutions with channels last only: a 3-D one becomes the sum
  of one over each tap in time, a convolution in time alone one over (frames, rows x columns).
- A convolution whose input was padded before it, and which pads nothing itself, runs at 25 to 90:
  YNNPACK then gathers its input anew for each block of outputs. So paddings move into it, and
  where there are none it computes one more row, which is cut off again.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from wanc.targets.cpu_layout import (
    Laid,
    converted,
    cut,
    element_of,
    i64s,
    lie,
    reshape,
    shape_of,
    wide,
)

Pads = list[list[int]]
"""Zeros before and after, per spatial dim."""

_LARGE_BYTES = 32 << 20
"""Larger inputs go through image by image: the kernels allocate room of the size of their input,
and glibc gets more than this from the system each time, which then costs as much as the sums."""

_CHANNELS_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
"""By rank: where batch, channels and space of a tensor lie."""


@dataclass(frozen=True, slots=True)
class _Window:
    """What a convolution does besides multiplying."""

    strides: list[int]
    pads: Pads


def convolution(op: Any, xs: Sequence[Laid]) -> Laid | None:
    """A convolution of images or of one video, batch and channels first as torch has it."""
    x, weight = xs
    sizes = shape_of(op.results[0])
    order = _CHANNELS_LAST.get(len(sizes))
    window = _window(op)
    floats = isinstance(element_of(op.results[0]), ir.FloatType)
    if window is None or order is None or not floats or (len(sizes) == 5 and sizes[0] != 1):
        return None
    x, window = _unpadded(x, window)
    source, kernel = lie(x, order), lie(weight)
    if len(sizes) == 4:
        value = _images(source, kernel, window, sizes[2:])
    else:
        frames = reshape(source, shape_of(source)[1:])
        frames = _video(frames, kernel, window, sizes[2:])
        value = None if frames is None else reshape(frames, [1, *shape_of(frames)])
    return None if value is None else Laid(converted(value, element_of(op.results[0])), order)


def _window(op: Any) -> _Window | None:
    """None where the convolution is grouped, dilated or lies otherwise than torch's."""
    attributes = op.attributes
    spatial = len(shape_of(op.results[0])) - 2
    space = list(range(2, 2 + spatial))
    numbers = stablehlo.ConvDimensionNumbers(attributes["dimension_numbers"])
    usual = stablehlo.ConvDimensionNumbers.get(0, 1, space, 1, 0, space, 0, 1, space)
    groups = [
        ir.IntegerAttr(attributes[f"{kind}_group_count"]).value for kind in ("batch", "feature")
    ]
    dilations = [
        factor
        for name in ("lhs_dilation", "rhs_dilation")
        if name in attributes
        for factor in ir.DenseI64ArrayAttr(attributes[name])
    ]
    reversals = "window_reversal" in attributes and any(
        ir.DenseBoolArrayAttr(attributes["window_reversal"])
    )
    if numbers != usual or groups != [1, 1] or set(dilations) - {1} or reversals:
        return None
    strides, pads = [1] * spatial, [[0, 0] for _ in range(spatial)]
    if "window_strides" in attributes:
        strides = list(ir.DenseI64ArrayAttr(attributes["window_strides"]))
    if "padding" in attributes:
        flat: Any = ir.DenseIntElementsAttr(attributes["padding"])
        padding = list(flat)
        pads = [padding[2 * dim : 2 * dim + 2] for dim in range(spatial)]
    return _Window(strides, pads)


def _unpadded(x: Laid, window: _Window) -> tuple[Laid, _Window]:
    """The input before its padding with zeros, and the window that pads as much."""
    pad = x.value.owner
    if isinstance(pad, ir.Block) or pad.name != "stablehlo.pad" or not _is_zero(pad.operands[1]):
        return x, window
    places = [x.order.index(dim) for dim in range(len(x.order))]
    low, high, inner = (
        [list(ir.DenseI64ArrayAttr(pad.attributes[name]))[at] for at in places]
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    if any(inner) or min(low + high) < 0 or any(low[:2] + high[:2]):
        return x, window
    pads = [
        [before + low[dim], after + high[dim]]
        for dim, (before, after) in enumerate(window.pads, start=2)
    ]
    return Laid(pad.operands[0], x.order), _Window(window.strides, pads)


def _is_zero(value: Any) -> bool:
    """Whether a scalar is the constant zero."""
    source = value.owner
    if isinstance(source, ir.Block):
        return False
    if source.name == "stablehlo.convert":
        return _is_zero(source.operands[0])
    if source.name != "stablehlo.constant":
        return False
    number = ir.DenseElementsAttr(source.attributes["value"]).get_splat_value()
    return not ir.FloatAttr(number).value


def _images(x: Any, kernel: Any, window: _Window, sizes: list[int]) -> Any:
    """x [N,H,W,C], kernel [O,C,h,w] -> [N,H,W,O] of the rows and columns in sizes."""
    count, *_, channels = shape_of(x)
    outputs, _, *taps = shape_of(kernel)
    if taps == [1, 1] and window == _Window([1, 1], [[0, 0], [0, 0]]):
        return _pointwise(x, reshape(kernel, [outputs, channels]))
    if count > 1 and _bytes(x) > _LARGE_BYTES:
        images = [cut(x, 0, at, at + 1) for at in range(count)]
        return stablehlo.concatenate([_images(y, kernel, window, sizes) for y in images], 0)
    rows = sizes[0]
    pads = window.pads
    if not any(map(any, pads)) and taps[1] > 1:
        pads = [[0, window.strides[0]], [0, 0]]
        rows += 1
    y = stablehlo.convolution(
        ir.RankedTensorType.get([count, rows, sizes[1], outputs], wide(x)),
        x,
        kernel,
        stablehlo.ConvDimensionNumbers.get(0, 3, [1, 2], 1, 0, [2, 3], 0, 3, [1, 2]),
        1,
        1,
        window_strides=i64s(window.strides),
        padding=_pairs(pads),
    )
    return cut(y, 1, 0, sizes[0])


def _pairs(pads: Pads) -> Any:
    """The attribute in which StableHLO lists paddings."""
    numbers: Any = np.array(pads, np.int64)
    return ir.DenseIntElementsAttr.get(numbers)


def _pointwise(x: Any, kernel: Any) -> Any:
    """x [...,C], kernel [O,C] -> [...,O]."""
    *space, _ = shape_of(x)
    outputs, _ = shape_of(kernel)
    dims = stablehlo.DotDimensionNumbers.get([], [], [len(space)], [1])
    return stablehlo.dot_general(
        ir.RankedTensorType.get([*space, outputs], wide(x)), x, kernel, dims
    )


def _video(x: Any, kernel: Any, window: _Window, sizes: list[int]) -> Any | None:
    """x [F,H,W,C], kernel [O,C,f,h,w] -> [F,H,W,O] of the frames, rows and columns in sizes."""
    outputs, channels, frames, *taps = shape_of(kernel)
    before, after = window.pads[0]
    image = _Window(window.strides[1:], window.pads[1:])
    if taps == [1, 1] and frames > 1 and image == _Window([1, 1], [[0, 0], [0, 0]]):
        x = _frames(x, -before, shape_of(x)[0] + after)
        count, rows, columns, _ = shape_of(x)
        y = _images(
            reshape(x, [1, count, rows * columns, channels]),
            reshape(kernel, [outputs, channels, frames, 1]),
            _Window([window.strides[0], 1], [[0, 0], [0, 0]]),
            [sizes[0], rows * columns],
        )
        return reshape(y, [*sizes, outputs])
    if window.strides[0] != 1:
        return None
    taps_OChw = [
        reshape(cut(kernel, 2, at, at + 1), [outputs, channels, *taps]) for at in range(frames)
    ]
    at_once = sizes[0] if _bytes(x) <= _LARGE_BYTES else 1
    parts = []
    for first in range(-before, sizes[0] - before, at_once):
        seen = [(_frames(x, at, at + at_once), tap) for at, tap in enumerate(taps_OChw, first)]
        sums = [_images(y, tap, image, sizes[1:]) for y, tap in seen if y is not None]
        if not sums:
            return None
        parts.append(functools.reduce(stablehlo.add, sums))
    return parts[0] if len(parts) == 1 else stablehlo.concatenate(parts, 0)


def _frames(x: Any, start: int, stop: int) -> Any | None:
    """The frames from start to stop, zeros where there are none; None where there is none."""
    count = shape_of(x)[0]
    if stop <= 0 or start >= count:
        return None
    kept = cut(x, 0, max(start, 0), min(stop, count))
    if (start, stop) == (max(start, 0), min(stop, count)):
        return kept
    element = element_of(x)
    zero = ir.DenseElementsAttr.get_splat(
        ir.RankedTensorType.get([], element), ir.FloatAttr.get(element, 0.0)
    )
    low, high, inner = ([amount, 0, 0, 0] for amount in (max(-start, 0), max(stop - count, 0), 0))
    return stablehlo.pad(kept, stablehlo.constant(zero), i64s(low), i64s(high), i64s(inner))


def _bytes(value: Any) -> int:
    element = element_of(value)
    return math.prod(shape_of(value)) * ir.FloatType(element).width // 8

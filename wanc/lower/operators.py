"""The operator table: what each ATen operator of an exported graph is in jax.

Knows arrays only: no program, no rank. Integers are 32 bits wide whatever torch says, and nothing
is 64 bits wide or complex, for Trainium's compiler takes neither.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

import wanc.model.ops  # noqa: F401  registers wanc's own operations

Array = jax.Array
Rule = Callable[..., Any]

aten = torch.ops.aten

DTYPES: dict[torch.dtype, Any] = {
    torch.float32: jnp.float32,
    torch.bfloat16: jnp.bfloat16,
    torch.int64: jnp.int32,
    torch.int32: jnp.int32,
    torch.bool: jnp.bool_,
}


def _strong(combine: Rule) -> Rule:
    """jax types weakly what a scalar decides: that would give way to bf16, as torch's does not."""

    @functools.wraps(combine)
    def rule(*args: Any, **kwargs: Any) -> Array:
        y = combine(*args, **kwargs)
        return lax.convert_element_type(y, y.dtype)

    return rule


def _scaled(combine: Callable[[Any, Any], Any]) -> Rule:
    """add and sub take alpha, a factor of the second operand."""
    return _strong(lambda a, b, alpha=1: combine(a, b if alpha == 1 else b * alpha))


def _slice(x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    first, last, step = slice(start, end, step).indices(x.shape[dim])
    return lax.slice_in_dim(x, first, max(first, last), stride=step, axis=dim)


def _expand(x: Array, shape: Sequence[int], implicit: bool = False) -> Array:
    new = len(shape) - x.ndim
    kept = [x.shape[i - new] if size == -1 else size for i, size in enumerate(shape)]
    return jnp.broadcast_to(x, kept)


def _split(x: Array, sizes: Sequence[int], dim: int = 0) -> list[Array]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [
        lax.slice_in_dim(x, end - size, end, axis=dim)
        for size, end in zip(sizes, ends, strict=True)
    ]


def _squeeze(x: Array, dims: Sequence[int]) -> Array:
    return jnp.squeeze(x, tuple(dim for dim in dims if x.shape[dim] == 1))


def _pad(x: Array, pad: Sequence[int], value: float = 0.0) -> Array:
    """torch lists (before, after) from the last dimension backwards; negative pads cut."""
    pairs = [(0, 0)] * (x.ndim - len(pad) // 2)
    pairs += [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    config = [(before, after, 0) for before, after in pairs]
    return lax.pad(x, jnp.asarray(value, x.dtype), config)


def _to_copy(x: Array, dtype: torch.dtype | None = None, **_: Any) -> Array:
    return x if dtype is None else x.astype(DTYPES[dtype])


@_strong
def _full(shape: Sequence[int], value: Any, dtype: torch.dtype | None = None, **_: Any) -> Array:
    return jnp.full(shape, value, DTYPES[dtype] if dtype else None)


def _full_like(x: Array, value: Any, dtype: torch.dtype | None = None, **_: Any) -> Array:
    return jnp.full_like(x, value, DTYPES[dtype] if dtype else None)


@_strong
def _arange(
    start: float, end: float, step: float = 1, dtype: torch.dtype | None = None, **_: Any
) -> Array:
    return jnp.arange(start, end, step, dtype=DTYPES[dtype] if dtype else None)


def _layer_norm(
    x: Array, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Array, Array, Array]:
    axes = tuple(range(-len(shape), 0))
    mean = x.mean(axes, keepdims=True)
    centred = x - mean
    scale = lax.rsqrt((centred * centred).mean(axes, keepdims=True) + eps)
    y = centred * scale
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias, mean, scale)


def _convolution(
    x: Array,
    weight: Array,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    assert not transposed, "no transposed convolution in Wan"
    space = "DHW"[-(x.ndim - 2) :]
    y = lax.conv_general_dilated(
        x,
        weight,
        tuple(stride),
        [(p, p) for p in padding],
        rhs_dilation=tuple(dilation),
        dimension_numbers=(f"NC{space}", f"OI{space}", f"NC{space}"),
        feature_group_count=groups,
    )
    return y if bias is None else y + bias.reshape(1, -1, *[1] * len(space))


def _attention(
    q: Array,
    k: Array,
    v: Array,
    mask: None = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """Plain attention, as the VAE's one head has it."""
    assert mask is None, "only full attention"
    assert not causal, "only full attention"
    assert not enable_gqa, "only as many key heads as query heads"
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = matmul_fp32(q, jnp.swapaxes(k, -1, -2)) * scale
    return matmul_fp32(jax.nn.softmax(scores, axis=-1).astype(v.dtype), v).astype(q.dtype)


def matmul_fp32(a: Array, b: Array) -> Array:
    """Batched matrix product with fp32 sums and result."""
    batch = tuple(range(a.ndim - 2))
    contracted = ((a.ndim - 1,), (b.ndim - 2,))
    return lax.dot_general(a, b, (contracted, (batch, batch)), preferred_element_type=jnp.float32)


def _nearest_exact(x: Array, size: Any, factors: Sequence[float] | None = None) -> Array:
    """Upsampling of rows and columns by whole factors: every value is repeated."""
    sizes = size or [int(n * f) for n, f in zip(x.shape[2:], factors or (), strict=True)]
    for axis, wanted in enumerate(sizes, start=2):
        assert wanted % x.shape[axis] == 0, "only whole factors"
        factor = wanted // x.shape[axis]
        shape = (*x.shape[: axis + 1], factor, *x.shape[axis + 1 :])
        x = jnp.broadcast_to(jnp.expand_dims(x, axis + 1), shape)
        x = x.reshape(*shape[:axis], wanted, *shape[axis + 2 :])
    return x


def _reduction(reduce: Callable[..., Array]) -> Rule:
    """torch reduces all dimensions where none is named, and converts before it reduces."""

    def rule(
        x: Array, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> Array:
        return reduce(_to_copy(x, dtype), tuple(dim) if dim else None, keepdims=keepdim)

    return rule


def _vector_norm(x: Array, ord: float = 2, *args: Any, **kwargs: Any) -> Array:
    assert ord == 2, "only the Euclidean norm"
    return _reduction(_root_of_squares)(x, *args, **kwargs)


def _root_of_squares(x: Array, dims: Any, *, keepdims: bool) -> Array:
    return jnp.sqrt((x * x).sum(dims, keepdims=keepdims))


def _power(x: Array, exponent: float) -> Array:
    y = x * x if exponent == 2 else x**exponent
    return y.astype(jnp.result_type(x, exponent))


def _gelu(x: Array, approximate: str = "none") -> Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _same(x: Array, **_: Any) -> Array:
    return x


TABLE: dict[Any, Rule] = {
    operator.getitem: lambda x, i: x[i],
    aten._assert_tensor_metadata.default: lambda *_, **__: None,
    # shape
    aten.view.default: lambda x, shape: jnp.reshape(x, shape),
    aten.permute.default: jnp.transpose,
    aten.expand.default: _expand,
    aten.unsqueeze.default: jnp.expand_dims,
    aten.squeeze.dims: _squeeze,
    aten.slice.Tensor: _slice,
    aten.select.int: lambda x, dim, i: lax.index_in_dim(x, i, dim, keepdims=False),
    aten.split_with_sizes.default: _split,
    aten.cat.default: lambda parts, dim=0: jnp.concatenate(parts, dim),
    aten.constant_pad_nd.default: _pad,
    aten._upsample_nearest_exact2d.vec: _nearest_exact,
    # the same values
    aten.alias.default: _same,
    aten.clone.default: _same,
    aten.lift_fresh_copy.default: _same,
    aten._to_copy.default: _to_copy,
    # constants
    aten.full.default: _full,
    aten.full_like.default: _full_like,
    aten.arange.start_step: _arange,
    # element by element
    aten.add.Tensor: _scaled(operator.add),
    aten.sub.Tensor: _scaled(operator.sub),
    aten.mul.Tensor: _strong(operator.mul),
    aten.div.Tensor: _strong(operator.truediv),
    aten.pow.Tensor_Scalar: _power,
    aten.rsqrt.default: lax.rsqrt,
    aten.exp.default: jnp.exp,
    aten.sigmoid.default: jax.nn.sigmoid,
    aten.gelu.default: _gelu,
    aten.clamp.default: lambda x, low=None, high=None: jnp.clip(x, low, high),
    aten.maximum.default: jnp.maximum,
    aten.where.self: jnp.where,
    aten.eq.Tensor: operator.eq,
    aten.gt.Scalar: operator.gt,
    # reductions and products
    aten.sum.dim_IntList: _reduction(jnp.sum),
    aten.mean.dim: _reduction(jnp.mean),
    aten.amax.default: _reduction(jnp.max),
    aten.linalg_vector_norm.default: _vector_norm,
    aten.native_layer_norm.default: _layer_norm,
    aten.mm.default: jnp.matmul,
    aten.addmm.default: lambda bias, a, b: jnp.matmul(a, b) + bias,
    aten.convolution.default: _convolution,
    aten.scaled_dot_product_attention.default: _attention,
    torch.ops.wanc.matmul_fp32.default: matmul_fp32,
}

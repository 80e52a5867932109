"""All that makes StableHLO beyond jax's and jaxlib's public interfaces, in one file.

Collectives as StableHLO operations in replica mode, where operations come from, and the canonical
form of a module: its bytes are a program's identity. Knows no operator table and no model.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

from wanc.lower.artifact import callee, walk
from wanc.plan.mesh import Groups

Value = Any

PORTABLE_VERSION = "1.10.0"
"""StableHLO version of the artifacts: readers of this version or newer accept them."""


# --- collectives ---------------------------------------------------------------------------


def _type(aval: Any) -> ir.Type:
    return ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(aval.dtype))


def _groups(groups: Groups) -> ir.Attribute:
    return ir.DenseIntElementsAttr.get(np.asarray(groups, np.int64))  # type: ignore[call-overload]


def _sum_region(op: Any, dtype: Any) -> None:
    scalar = ir.RankedTensorType.get([], mlir.dtype_to_ir_type(dtype))
    block = op.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.return_([stablehlo.add(*block.arguments)])


def _resized(x: Any, dim: int, size: int) -> jax.core.ShapedArray:
    shape = tuple(size if i == dim else n for i, n in enumerate(x.shape))
    return jax.core.ShapedArray(shape, x.dtype)


def _lower_all_reduce(ctx: Any, x: Value, *, groups: Groups) -> Sequence[Value]:
    op = stablehlo.AllReduceOp([x.type], [x], replica_groups=_groups(groups))
    _sum_region(op, ctx.avals_in[0].dtype)
    results: Sequence[Value] = op.results
    return results


def _lower_all_gather(ctx: Any, x: Value, *, groups: Groups, dim: int) -> Sequence[Value]:
    out = [_type(ctx.avals_out[0])]
    results: Sequence[Value] = stablehlo.AllGatherOp(out, [x], dim, _groups(groups)).results
    return results


def _lower_reduce_scatter(ctx: Any, x: Value, *, groups: Groups, dim: int) -> Sequence[Value]:
    op = stablehlo.ReduceScatterOp(_type(ctx.avals_out[0]), x, dim, _groups(groups))
    _sum_region(op, ctx.avals_in[0].dtype)
    results: Sequence[Value] = op.results
    return results


def _lower_ring_shift(ctx: Any, x: Value, *, groups: Groups) -> Sequence[Value]:
    pairs = tuple(
        (rank, group[(i + 1) % len(group)]) for group in groups for i, rank in enumerate(group)
    )
    results: Sequence[Value] = stablehlo.CollectivePermuteOp(x, _groups(pairs)).results
    return results


def _primitive(name: str, shape: Callable[..., Any], lowering: Callable[..., Any]) -> Primitive:
    primitive = Primitive(name)
    primitive.def_abstract_eval(shape)
    mlir.register_lowering(primitive, lowering)
    return primitive


_all_reduce = _primitive("wanc_all_reduce", lambda x, groups: x.update(), _lower_all_reduce)
_ring_shift = _primitive("wanc_ring_shift", lambda x, groups: x.update(), _lower_ring_shift)
_all_gather = _primitive(
    "wanc_all_gather",
    lambda x, groups, dim: _resized(x, dim, x.shape[dim] * len(groups[0])),
    _lower_all_gather,
)
_reduce_scatter = _primitive(
    "wanc_reduce_scatter",
    lambda x, groups, dim: _resized(x, dim, x.shape[dim] // len(groups[0])),
    _lower_reduce_scatter,
)


def collective_rules(groups: Mapping[str, Groups]) -> dict[str, Callable[..., Any]]:
    """Rules of wanc's collective operations for these rank groups, by the operation's name."""
    return {
        "all_reduce": lambda x, axis: _all_reduce.bind(x, groups=groups[axis]),
        "all_gather": lambda x, axis, degree, dim: _all_gather.bind(
            x, groups=groups[axis], dim=dim
        ),
        "reduce_scatter": lambda x, axis, degree, dim: _reduce_scatter.bind(
            x, groups=groups[axis], dim=dim
        ),
        "ring_shift": lambda x, axis: _ring_shift.bind(x, groups=groups[axis]),
    }


# --- where operations come from ------------------------------------------------------------

_MARK = "wanc:"


def origin(name: str) -> AbstractContextManager[Any]:
    """What is traced in this context has that origin."""
    return jax.named_scope(_MARK + name)


def origins(lowered: jax.stages.Lowered) -> list[str | None]:
    """The origin of each operation in the order of the text; canonical_module removes all traces.

    What a private function holds has the origin of the first call of it. Constants that jax
    shares have none.
    """
    known: dict[str, str | None] = {}
    found: list[tuple[str, str | None]] = []
    function = ""
    for op in walk(lowered.compiler_ir("stablehlo")):  # type: ignore[arg-type]
        if op.name == "func.func":
            function = ir.StringAttr(op.attributes["sym_name"]).value
        own = re.search(rf'{_MARK}([^/"]+)', str(op.location))
        found.append((function, own.group(1) if own else None))
        if op.name == "func.call":
            known.setdefault(callee(op), found[-1][1] or known.get(function))
    return [own or known.get(function) for function, own in found]


# --- identity ------------------------------------------------------------------------------


def canonical_module(
    lowered: jax.stages.Lowered,
    *,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    donated: Mapping[str, str],
) -> ir.Module:
    """The module without traces of its making: no locations, no jax attributes, ABI names."""
    module: Any = lowered.compiler_ir("stablehlo")
    with module.context:
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        _keep_only(module.operation.attributes, {"sym_name"})
        module.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        main = next(
            op for op in module.body.operations if op.attributes["sym_name"].value == "main"
        )
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [_argument(name, outputs, donated) for name in inputs]
        )
        main.attributes["res_attrs"] = ir.ArrayAttr.get([_named(name) for name in outputs])
    return module


def _keep_only(attributes: Any, kept: set[str]) -> None:
    for key in list(attributes):
        if key not in kept:
            del attributes[key]


def _named(name: str) -> ir.Attribute:
    return ir.DictAttr.get({"wanc.name": ir.StringAttr.get(name)})


def _argument(name: str, outputs: Sequence[str], donated: Mapping[str, str]) -> ir.Attribute:
    entries: dict[str, ir.Attribute] = {"wanc.name": ir.StringAttr.get(name)}
    if name in donated:
        at = outputs.index(donated[name])
        entries["tf.aliasing_output"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), at)
    return ir.DictAttr.get(entries)


def portable_artifact(module: ir.Module) -> bytes:
    """The module as a StableHLO portable artifact: the bytes whose digest names a program."""
    with module.context:
        artifact: bytes = stablehlo.serialize_portable_artifact(module, PORTABLE_VERSION)
    return artifact


def operations(module: ir.Module) -> list[str]:
    """Names of all operations of a module, nested ones too."""
    return [op.name for op in walk(module)]

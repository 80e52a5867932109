"""The operator table against torch itself, and what stands in lowered programs."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tests.cpu.conftest import tiny_plan
from wanc.compile import distinct_programs
from wanc.errors import ToolchainError
from wanc.lower.lower import Lowered, lower
from wanc.lower.operators import DTYPES, TABLE
from wanc.lower.stablehlo import collective_rules, operations
from wanc.model import ops
from wanc.plan.abi import Program
from wanc.trace import trace

TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2**-7}
"""fp32: sums of up to 81 products in another order. bf16: torch rounds a function's result once,
jax each of its steps; two units of the last of 8 bits. Integers and truth values are exact."""

aten = torch.ops.aten
bf16, fp32, int64 = torch.bfloat16, torch.float32, torch.int64
END = 2**63 - 1
"""What export writes for a slice without an end."""
CONTIGUOUS = {"memory_format": torch.contiguous_format}
FACTORY = {"layout": torch.strided, "device": torch.device("cpu"), "pin_memory": False}

_chance = torch.Generator().manual_seed(0)


def real(*shape: int, dtype: torch.dtype = fp32) -> torch.Tensor:
    return torch.randn(shape, generator=_chance).to(dtype)


def half(*shape: int) -> torch.Tensor:
    return real(*shape, dtype=bf16)


def whole(*shape: int) -> torch.Tensor:
    return torch.randint(-4, 5, shape, generator=_chance)


def truth(*shape: int) -> torch.Tensor:
    return whole(*shape) > 0


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def convolution(x, weight, bias, stride, padding, dilation=None, groups=1):
    space = x.ndim - 2
    return call(
        *(x, weight, bias, [stride] * space, padding, [dilation or 1] * space),
        *(False, [0] * space, groups),
    )


CASES: dict[Any, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    operator.getitem: [call((real(2), whole(3)), 1), call([half(2), real(3)], 0)],
    aten._assert_tensor_metadata.default: [
        call(half(2), None, None, bf16, device=torch.device("cpu"), layout=torch.strided)
    ],
    # shape
    aten.view.default: [call(real(2, 6), [3, 4]), call(half(2, 6), [-1, 2]), call(real(1), [])],
    aten.permute.default: [call(real(2, 3, 4), [0, 2, 1]), call(half(2, 3, 4), [-1, 0, 1])],
    aten.expand.default: [
        call(real(4, 1, 3), [-1, 5, -1]),
        call(half(1, 3), [2, 4, -1]),
        call(whole(3, 1), [3, 2], implicit=True),
    ],
    aten.unsqueeze.default: [call(real(2, 3), 0), call(half(2, 3), -1), call(truth(2), 1)],
    aten.squeeze.dims: [
        call(real(2, 1, 3, 1), [1]),
        call(half(2, 1, 3, 1), [-1, -3]),
        call(real(2, 1, 3), [0, 1]),
    ],
    aten.slice.Tensor: [
        call(real(2, 5, 3), 1, 1, 4),
        call(half(2, 5), -1, -2, END),
        call(real(4, 2)),
        call(whole(7), 0, 0, END, 3),
        call(real(3, 2), 0, 2, 9),
        call(real(3, 2), 0, 2, 1),
    ],
    aten.select.int: [
        call(real(2, 3), 0, 0),
        call(half(2, 3, 4), 2, -1),
        call(truth(2, 3), -2, 1),
    ],
    aten.split_with_sizes.default: [
        call(real(2, 6), [1, 2, 3], -1),
        call(half(4, 2), [3, 1]),
        call(real(1, 2, 3), [1, 1], 1),
    ],
    aten.cat.default: [
        call([real(2, 3)], 1),
        call([half(2, 3), half(2, 1)], -1),
        call([real(1, 2), real(2, 2)]),
        call([real(2), half(2)]),
    ],
    aten.constant_pad_nd.default: [
        call(real(1, 2, 3, 2, 3), [1, 1, 1, 1, 2, 0], 0.0),
        call(half(2, 3), [0, 1], 0.0),
        call(real(3, 4), [-1, 2, 0, -1]),
        call(real(3, 4), [0, 0, -2, 0], 1.5),
        call(whole(3), [1, 1], 7),
    ],
    aten._upsample_nearest_exact2d.vec: [
        call(real(2, 3, 2, 4), None, [2.0, 2.0]),
        call(half(1, 2, 3, 2), [6, 6], None),
    ],
    # the same values
    aten.alias.default: [call(real(2, 3)), call(half(2))],
    aten.clone.default: [call(real(2, 3)), call(half(2, 3), **CONTIGUOUS)],
    aten.lift_fresh_copy.default: [call(whole(3)), call(real(3))],
    aten._to_copy.default: [
        call(half(2, 3), dtype=fp32),
        call(real(2, 3), dtype=bf16),
        call(truth(4), dtype=fp32),
        call(truth(4), dtype=bf16),
        call(whole(4), dtype=fp32),
        call(real(4), dtype=int64),
        call(real(4), device=torch.device("cpu")),
    ],
    # constants
    aten.full.default: [
        call([2, 3], 0, dtype=fp32, **FACTORY),
        call([2], 1.5, dtype=bf16),
        call([2], 3),
        call([], 0.5),
        call([2], True),
    ],
    aten.full_like.default: [
        call(real(2, 3), -1e30, pin_memory=False),
        call(half(2), 0, pin_memory=False, memory_format=torch.preserve_format),
        call(whole(2), 1.5, dtype=fp32),
        call(real(2), 1, dtype=torch.bool),
    ],
    aten.arange.start_step: [
        call(0, 5, **FACTORY),
        call(1, 8, 3),
        call(0.0, 1.0, 0.25),
        call(0, 1, 0.25),
        call(0, 4, dtype=fp32),
    ],
    # element by element
    aten.add.Tensor: [
        call(real(2, 3), real(3)),
        call(half(2, 3), half(3)),
        call(half(2, 3), real(1, 3)),
        call(real(2), 1e-6),
        call(half(2), 1),
        call(whole(2), 1.5),
        call(whole(2), real(2)),
        call(real(2), real(2), alpha=2),
    ],
    aten.sub.Tensor: [
        call(real(2, 3), real(2, 1)),
        call(real(3), 1.0, alpha=0.5),
        call(whole(3), whole(3)),
    ],
    aten.mul.Tensor: [
        call(half(2, 3), real(3)),
        call(half(2, 3), half(2, 3)),
        call(real(2, 3), 4.0),
        call(half(2), 0.5),
        call(truth(4), real(4)),
    ],
    aten.div.Tensor: [
        call(real(2, 3), 192),
        call(real(2, 3), real(2, 1)),
        call(half(3), half(3)),
        call(whole(3), 2),
    ],
    aten.pow.Tensor_Scalar: [
        call(real(3), 2),
        call(half(3), 2),
        call(real(3), 3),
        call(real(3).abs(), 0.5),
        call(whole(3), 2),
        call(whole(3), 2.0),
    ],
    aten.rsqrt.default: [call(real(5).abs() + 0.1)],
    aten.exp.default: [call(real(5)), call(torch.tensor([-1e30, 0.0]))],
    aten.sigmoid.default: [call(real(5)), call(half(5))],
    aten.gelu.default: [
        call(real(9), approximate="tanh"),
        call(half(9), approximate="tanh"),
        call(real(9)),
    ],
    aten.clamp.default: [
        call(real(9), 1e-12),
        call(real(9), None, 0.5),
        call(half(9), -1, 1.0),
        call(whole(9), 0),
    ],
    aten.maximum.default: [call(real(2, 3), real(2, 3)), call(half(2, 3), half(3))],
    aten.where.self: [
        call(truth(3), real(2, 3), real(2, 3)),
        call(truth(2, 1), half(2, 3), half(2, 3)),
        call(truth(2, 1), real(3), torch.tensor(0.0)),
    ],
    aten.eq.Tensor: [call(whole(4, 1), whole(3)), call(truth(4), truth(4))],
    aten.gt.Scalar: [call(real(4), 0), call(whole(4), 1.5), call(half(4), 0.0)],
    # reductions and products
    aten.sum.dim_IntList: [
        call(real(2, 3, 4), [-1]),
        call(half(2, 9), [-1], True),
        call(real(2, 3, 4), [0, -1]),
        call(real(2, 3), []),
        call(real(2, 3), None),
        call(truth(2, 3), [1]),
        call(half(2, 9), [1], dtype=fp32),
    ],
    aten.mean.dim: [
        call(real(2, 3), [-1], True),
        call(half(2, 9), [1]),
        call(real(2, 3), None),
        call(whole(2, 3), [1], dtype=fp32),
    ],
    aten.amax.default: [
        call(real(2, 3), [-1], True),
        call(half(2, 3), [0, 1]),
        call(real(2, 3)),
        call(whole(2, 3), [0]),
    ],
    aten.linalg_vector_norm.default: [
        call(real(2, 3, 2), 2.0, [1], True),
        call(half(2, 9), 2, [-1]),
        call(real(2, 3)),
        call(half(2, 9), 2, [-1], dtype=fp32),
    ],
    aten.native_layer_norm.default: [
        call(real(2, 3, 8), [8], None, None, 1e-6),
        call(real(2, 3, 4), [3, 4], real(3, 4), real(3, 4), 1e-5),
    ],
    aten.mm.default: [call(real(3, 9), real(9, 2)), call(half(3, 9), half(9, 2))],
    aten.addmm.default: [
        call(real(2), real(3, 9), real(9, 2)),
        call(half(2), half(3, 9), half(9, 2)),
    ],
    aten.convolution.default: [
        convolution(real(1, 2, 3, 4, 5), real(4, 2, 3, 3, 3), real(4), 1, [0, 0, 0]),
        convolution(real(2, 3, 4, 4, 4), real(2, 3, 1, 2, 2), None, 2, [0, 1, 1]),
        convolution(real(2, 3, 6, 5), real(4, 3, 3, 3), real(4), 1, [1, 1]),
        convolution(real(1, 4, 6, 5), real(6, 2, 2, 2), None, 2, [1, 0], groups=2),
        convolution(real(1, 2, 7, 7), real(2, 2, 3, 3), None, 1, [0, 0], dilation=2),
        convolution(half(1, 3, 4, 4), half(2, 3, 2, 2), half(2), 2, [0, 0]),
    ],
    aten.scaled_dot_product_attention.default: [
        call(real(1, 1, 6, 8), real(1, 1, 6, 8), real(1, 1, 6, 8)),
        call(real(2, 2, 3, 8), real(2, 2, 5, 8), real(2, 2, 5, 4), scale=0.5),
        call(half(1, 1, 6, 8), half(1, 1, 6, 8), half(1, 1, 6, 8)),
    ],
    torch.ops.wanc.matmul_fp32.default: [
        call(half(2, 3, 9), half(2, 9, 2)),
        call(real(1, 2, 3, 9), real(1, 2, 9, 2)),
    ],
}


# --- operators ------------------------------------------------------------------------------------


def as_jax(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    numbers = (value.float() if value.dtype == bf16 else value).numpy()
    return jnp.asarray(numbers, DTYPES[value.dtype])


def check(got: Any, wanted: Any) -> None:
    if not isinstance(wanted, torch.Tensor):
        assert type(got) is type(wanted)
        for one, other in zip(got or (), wanted or (), strict=True):
            check(one, other)
        return
    assert got.dtype == DTYPES[wanted.dtype]
    assert wanted.dtype == torch.bool or not got.weak_type, "a weak type gives way to narrower ones"
    assert got.shape == tuple(wanted.shape)
    tolerance = TOLERANCES.get(wanted.dtype, 0)
    numbers = (wanted.float() if wanted.dtype == bf16 else wanted).numpy()
    np.testing.assert_allclose(
        np.asarray(got).astype(numbers.dtype), numbers, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("target", CASES, ids=str)
def test_operator_gives_what_torch_gives(target: Any):
    for args, kwargs in CASES[target]:
        wanted = target(*args, **kwargs)
        check(TABLE[target](*jax.tree.map(as_jax, args), **jax.tree.map(as_jax, kwargs)), wanted)


def test_every_operator_of_the_table_has_a_case():
    assert CASES.keys() == TABLE.keys()
    assert all(CASES.values())


# --- collectives ----------------------------------------------------------------------------------

GROUPS = {"tp": ((0, 2), (1, 3)), "cp": ((2, 0, 3, 1),)}
"""Of four ranks; cp's order is no order of ranks."""


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        (
            "all_reduce",
            ("tp",),
            ["dense<[[0, 2], [1, 3]]>", "stablehlo.add", "-> tensor<2x8xbf16>"],
        ),
        ("all_reduce", ("cp",), ["dense<[[2, 0, 3, 1]]>", "-> tensor<2x8xbf16>"]),
        (
            "all_gather",
            ("tp", 2, 0),
            ["dense<[[0, 2], [1, 3]]>", "all_gather_dim = 0", "-> tensor<4x8xbf16>"],
        ),
        (
            "all_gather",
            ("cp", 4, 1),
            ["dense<[[2, 0, 3, 1]]>", "all_gather_dim = 1", "-> tensor<2x32xbf16>"],
        ),
        (
            "reduce_scatter",
            ("cp", 4, 1),
            ["dense<[[2, 0, 3, 1]]>", "scatter_dimension = 1", "-> tensor<2x2xbf16>"],
        ),
        (
            "ring_shift",
            ("cp",),
            ["source_target_pairs = dense<[[2, 0], [0, 3], [3, 1], [1, 2]]>"],
        ),
        (
            "ring_shift",
            ("tp",),
            ["source_target_pairs = dense<[[0, 2], [2, 0], [1, 3], [3, 1]]>"],
        ),
    ],
)
def test_collective_joins_the_groups(name: str, arguments: tuple[Any, ...], expected: list[str]):
    rule = collective_rules(GROUPS)[name]
    x = jax.ShapeDtypeStruct((2, 8), jnp.bfloat16)
    text = jax.jit(lambda x: rule(x, *arguments)).lower(x).as_text("stablehlo")
    op = {"ring_shift": "collective_permute"}.get(name, name)
    assert text.count(f"stablehlo.{op}") == 1
    for part in expected:
        assert part in text


def test_every_operation_of_wanc_has_a_rule():
    ours = {name for name, op in vars(ops).items() if isinstance(op, torch.library.CustomOpDef)}
    assert collective_rules(GROUPS).keys() | {"matmul_fp32"} == ours


# --- programs -------------------------------------------------------------------------------------


def _programs() -> dict[str, Program]:
    """The tiny model's programs, whole and with masked keys, by a label; equal ones once."""
    plans = [
        tiny_plan(shape, "tp2-cp2-cfg2", precision)
        for shape in ("208x128x5", "80x48x9")
        for precision in ("fp32", "bf16")
    ]
    labels = {
        key: f"{plan.variant.shape}-{plan.variant.precision}-{program.name}"
        for plan in reversed(plans)
        for key, program in distinct_programs([plan]).items()
    }
    return {labels[key]: program for key, program in distinct_programs(plans).items()}


PROGRAMS = _programs()
ELEMENTS = {"f32", "bf16", "i32", "i1"}
"""What Trainium's compiler takes of what jax might make."""
FORBIDDEN = {f"stablehlo.{name}" for name in ("partition_id", "replica_id", "while")}


def module_of(artifact: bytes) -> ir.Module:
    context = ir.Context()
    stablehlo.register_dialect(context)
    return stablehlo.deserialize_portable_artifact(context, artifact)


def main_of(module: ir.Module) -> Any:
    (main,) = (op for op in module.body.operations if op.attributes["sym_name"].value == "main")
    return main


def types_of(module: ir.Module) -> set[ir.RankedTensorType]:
    """Types of all values of a module."""
    found: set[ir.Type] = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.update(value.type for value in op.results)
        blocks = (block for region in op.regions for block in region)
        found.update(value.type for block in blocks for value in block.arguments)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return {ir.RankedTensorType(kind) for kind in found}


def check_interface(program: Program, main: Any) -> None:
    for kinds, attributes, tensors in (
        (main.type.inputs, main.attributes["arg_attrs"], program.arguments),
        (main.type.results, main.attributes["res_attrs"], program.outputs),
    ):
        types = list(map(ir.RankedTensorType, kinds))
        assert [tuple(kind.shape) for kind in types] == [tensor.shape for tensor in tensors]
        assert [str(kind.element_type) for kind in types] == [
            {"float32": "f32", "bfloat16": "bf16"}[tensor.dtype] for tensor in tensors
        ]
        assert [at["wanc.name"].value for at in attributes] == [tensor.name for tensor in tensors]


def check_donations(program: Program, main: Any) -> None:
    aliases = {
        attributes["wanc.name"].value: attributes["tf.aliasing_output"].value
        for attributes in main.attributes["arg_attrs"]
        if "tf.aliasing_output" in attributes
    }
    names = [tensor.name for tensor in program.outputs]
    assert {name: names[at] for name, at in aliases.items()} == program.donated


@functools.cache
def lowered(label: str) -> Lowered:
    return lower(trace(PROGRAMS[label]))


@pytest.mark.parametrize("label", PROGRAMS)
def test_lowered_program(label: str):
    program, artifact = PROGRAMS[label], lowered(label).stablehlo
    module = module_of(artifact)
    check_interface(program, main_of(module))
    check_donations(program, main_of(module))
    types = types_of(module)
    assert all(kind.has_static_shape for kind in types)
    assert {str(kind.element_type) for kind in types} <= ELEMENTS
    found = set(operations(module))
    assert not found & FORBIDDEN
    assert {name.partition(".")[0] for name in found} == {"builtin", "func", "stablehlo"}


@pytest.mark.parametrize("kind", ["dit_blocks", "vae_decode_rest"])
def test_lowering_again_gives_the_same_bytes(kind: str):
    label = f"208x128x5-fp32-{kind}"
    again = lower(trace(PROGRAMS[label]))
    assert again.stablehlo == lowered(label).stablehlo
    assert again.digest == lowered(label).digest


def test_operator_without_a_rule_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(TABLE, aten.addmm.default)
    monkeypatch.delitem(TABLE, aten.rsqrt.default)
    with pytest.raises(ToolchainError, match=r"dit_context: .*aten\.addmm\.default, aten\.rsqrt"):
        lower(trace(PROGRAMS["208x128x5-fp32-dit_context"]))

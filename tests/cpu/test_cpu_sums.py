"""Sums over more than two ranks: added in the order of the group, and nothing else is touched."""

import itertools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.artifacts import artifact, parsed
from tests.programs import replicas
from wanc.runtime.engine import Interface, TensorType
from wanc.targets.cpu import CpuTarget
from wanc.targets.cpu_sums import order_sums

DTYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16)}
FOUR, SIX = [[3, 1, 0, 2]], [[2, 0, 1], [3, 5, 4]]
TWO = [[0, 3], [1, 2]]


def of(groups: Sequence[Sequence[int]]) -> str:
    return f"replica_groups = dense<{groups}> : tensor<{len(groups)}x{len(groups[0])}xi64>"


def program(
    groups: Sequence[Sequence[int]], dtype: str, body: str = "stablehlo.add %a, %b", more: str = ""
) -> str:
    """An all_reduce in a function that is called, and a reduce_scatter by rows."""
    members = len(groups[0])
    x, part = f"tensor<2x12x5x{dtype}>", f"tensor<2x{12 // members}x5x{dtype}>"
    region = f"""({{
      ^bb0(%a: tensor<{dtype}>, %b: tensor<{dtype}>):
        %c = {body} : tensor<{dtype}>
        stablehlo.return %c : tensor<{dtype}>
    }})"""
    return f"""
module @sums {{
  func.func public @main(%x: {x}) -> ({x}, {part}) {{
    %y = call @inner(%x) : ({x}) -> {x}
    %z = "stablehlo.reduce_scatter"(%x) {region} {{scatter_dimension = 1 : i64, {of(groups)}{more}}}
      : ({x}) -> {part}
    return %y, %z : {x}, {part}
  }}
  func.func private @inner(%x: {x}) -> {x} {{
    %y = "stablehlo.all_reduce"(%x) {region} {{{of(groups)}{more}}} : ({x}) -> {x}
    return %y : {x}
  }}
}}
"""


def run(text: str, xs: np.ndarray[Any, Any], part: tuple[int, ...]) -> list[list[Any]]:
    """Compile and run on so many ranks; per result, what each rank has."""
    from wanc.runtime.cpu import CpuEngine

    ranks = tuple(range(len(xs)))
    x, z = (TensorType(shape=shape, dtype=xs.dtype) for shape in (xs.shape[1:], part))
    engine = CpuEngine(len(ranks))
    executable = CpuTarget().compile(replicas(len(ranks)), artifact(text))
    interface = Interface(name="sums", parameters=(x,), results=(x, z))
    loaded = engine.load(executable, interface, ranks=ranks)
    results = engine.call(loaded, [engine.put(list(xs), ranks=ranks)])
    fetched = [[engine.fetch(result, rank=rank) for rank in ranks] for result in results]
    engine.close()
    return fetched


def ordered(parts: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """One after the other in fp32, rounded at the end."""
    *_, total = itertools.accumulate(part.astype(np.float32) for part in parts)
    return total.astype(parts[0].dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [FOUR, SIX], ids=["4", "3"])
def test_members_are_added_in_order(groups: list[list[int]], dtype: str):
    chance = np.random.default_rng(0)
    size = (sum(map(len, groups)), 2, 12, 5)
    xs = (chance.standard_normal(size) * 10.0 ** chance.integers(-3, 3, size)).astype(DTYPES[dtype])
    rows = 12 // len(groups[0])
    reduced, scattered = run(program(groups, dtype), xs, (2, rows, 5))
    for group in groups:
        total = ordered(xs[group])
        for place, rank in enumerate(group):
            np.testing.assert_array_equal(reduced[rank], total)
            mine = total[:, rows * place : rows * (place + 1)]
            np.testing.assert_array_equal(scattered[rank], mine)
        if dtype == "f32":
            assert (ordered(xs[sorted(group, reverse=True)]) != total).any()


def test_only_copies_cross_ranks():
    module = parsed(program(FOUR, "bf16"))
    assert order_sums(module)
    text = str(module)
    assert "reduce" not in text
    assert text.count("stablehlo.all_gather") == text.count("stablehlo.all_to_all") == 1
    assert text.count("stablehlo.add") == 2 * 3
    assert not order_sums(module)


@pytest.mark.parametrize(
    "text",
    [
        program(TWO, "f32"),
        program([[0], [1]], "bf16"),
        program(TWO, "f32").replace(f"{{{of(TWO)}", f"{{{of([[0, 1, 2], [3, -1, -1]])}"),
        program(FOUR, "i32"),
        program(FOUR, "f32", "stablehlo.maximum %a, %b"),
        program(FOUR, "f32", "stablehlo.add %b, %b"),
        program(FOUR, "f32", more=", channel_handle = #stablehlo.channel_handle<handle=1, type=1>"),
    ],
    ids=["two", "one", "uneven", "integers", "maximum", "another sum", "channels"],
)
def test_others_stay_as_they_are(text: str):
    module = parsed(text)
    before = str(module)
    assert not order_sums(module)
    assert str(module) == before

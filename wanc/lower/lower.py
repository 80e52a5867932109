"""Traced -> Lowered: a program's StableHLO, whose digest is the program's name.

Interprets the exported graph over the operator table under a jax trace. Knows no target.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import fx

from wanc.digest import of_bytes
from wanc.errors import ToolchainError
from wanc.lower.operators import DTYPES, TABLE, Rule
from wanc.lower.stablehlo import (
    canonical_module,
    collective_rules,
    operations,
    portable_artifact,
)
from wanc.plan.abi import Program
from wanc.trace import TORCH_DTYPES, Traced

COLLECTIVES = ("all_gather", "all_reduce", "collective_permute", "reduce_scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A program as StableHLO."""

    program: Program
    stablehlo: bytes
    """Portable artifact."""
    text: str
    """The module, for people."""
    collectives: dict[str, int]
    """How often each collective stands in the program."""

    @property
    def digest(self) -> str:
        """The program's identity."""
        return of_bytes(self.stablehlo)


def lower(traced: Traced) -> Lowered:
    """Lower a traced program; raises ToolchainError naming operators that the table lacks."""
    program = traced.program
    rules = _rules(program)
    _check_operators(traced, rules)
    arguments = [
        jax.ShapeDtypeStruct(tensor.shape, DTYPES[TORCH_DTYPES[tensor.dtype]])
        for tensor in program.arguments
    ]

    def interpret(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        return _interpret(traced.exported, rules, iter(arrays))

    module = canonical_module(
        jax.jit(interpret, keep_unused=True).lower(*arguments),
        name=program.kind,
        inputs=[tensor.name for tensor in program.arguments],
        outputs=[tensor.name for tensor in program.outputs],
        donated=program.donated,
    )
    counts = Counter(name.removeprefix("stablehlo.") for name in operations(module))
    text = str(module)  # before the artifact is written: that turns the module into VHLO
    return Lowered(
        program=program,
        stablehlo=portable_artifact(module),
        text=text,
        collectives={name: counts[name] for name in COLLECTIVES if counts[name]},
    )


def _rules(program: Program) -> dict[Any, Rule]:
    collectives = {
        getattr(torch.ops.wanc, name).default: rule
        for name, rule in collective_rules(program.groups).items()
    }
    return {**TABLE, **collectives}


def _check_operators(traced: Traced, rules: dict[Any, Rule]) -> None:
    nodes = traced.exported.graph.nodes
    called = {node.target for node in nodes if node.op == "call_function"}
    missing = sorted(str(target) for target in called - rules.keys())
    if missing:
        raise ToolchainError(
            f"program {traced.program.name}: no lowering for {', '.join(missing)}; "
            "add them to wanc/lower/operators.py"
        )


def _interpret(
    exported: torch.export.ExportedProgram, rules: dict[Any, Rule], arrays: Iterator[jax.Array]
) -> tuple[jax.Array, ...]:
    constants = exported.graph_signature.inputs_to_lifted_tensor_constants
    values: dict[fx.Node, Any] = {}

    def value(argument: Any) -> Any:
        return fx.node.map_arg(argument, values.__getitem__)

    for node in exported.graph.nodes:
        if node.op == "placeholder":
            if node.name in constants:
                tensor = exported.constants[constants[node.name]]
                values[node] = jnp.asarray(tensor.numpy(), DTYPES[tensor.dtype])
            else:
                values[node] = next(arrays)
        elif node.op == "call_function":
            values[node] = rules[node.target](*value(node.args), **value(node.kwargs))
        elif node.op == "output":
            return tuple(value(node.args[0]))
    raise AssertionError("an exported graph ends with its outputs")

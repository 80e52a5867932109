"""Traced -> Lowered: a program's StableHLO, whose digest is the program's name.

Interprets the exported graph over the operator table under a jax trace. Knows no target.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import fx

from wanc.digest import of_bytes
from wanc.errors import ToolchainError
from wanc.lower.lint import Finding, TextRule, report
from wanc.lower.operators import DTYPES, TABLE, Rule
from wanc.lower.stablehlo import (
    canonical_module,
    collective_rules,
    operations,
    origin,
    origins,
    portable_artifact,
)
from wanc.plan.abi import Program
from wanc.trace import TORCH_DTYPES, Traced

COLLECTIVES = ("all_gather", "all_reduce", "collective_permute", "reduce_scatter")

_PACKAGE = Path(__file__).parents[1]

_DIALECTS = ("builtin", "func", "stablehlo")

_KNOWN = ", ".join(map(str, DTYPES))

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n(.*)')
"""The one frame that tracing leaves a node: file, line, function, code."""


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
    sources: tuple[str | None, ...]
    """The model's line that each operation comes from, by its ordinal; None where unknown."""

    @property
    def digest(self) -> str:
        """The program's identity."""
        return of_bytes(self.stablehlo)


def lower(traced: Traced) -> Lowered:
    """Lower a traced program; raises ToolchainError naming all that has no lowering."""
    program = traced.program
    rules = _rules(program)
    _check_nodes(traced, rules)
    arguments = [
        jax.ShapeDtypeStruct(tensor.shape, DTYPES[TORCH_DTYPES[tensor.dtype]])
        for tensor in program.arguments
    ]

    def interpret(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        return _interpret(traced.exported, rules, iter(arrays))

    interpreted = jax.jit(interpret, keep_unused=True).lower(*arguments)
    sources = _sources(traced, origins(interpreted))
    module = canonical_module(
        interpreted,
        name=program.kind,
        inputs=[tensor.name for tensor in program.arguments],
        outputs=[tensor.name for tensor in program.outputs],
        donated=program.donated,
    )
    names = operations(module)
    _check_dialects(program, names, sources)
    counts = Counter(name.removeprefix("stablehlo.") for name in names)
    text = str(module)  # before the artifact is written: that turns the module into VHLO
    return Lowered(
        program=program,
        stablehlo=portable_artifact(module),
        text=text,
        collectives={name: counts[name] for name in COLLECTIVES if counts[name]},
        sources=sources,
    )


def _rules(program: Program) -> dict[Any, Rule]:
    collectives = {
        getattr(torch.ops.wanc, name).default: rule
        for name, rule in collective_rules(program.groups).items()
    }
    return {**TABLE, **collectives}


def _check_nodes(traced: Traced, rules: dict[Any, Rule]) -> None:
    """Refuse operators that the table lacks, and dtypes that jax would narrow in silence."""
    missing, findings = set(), []
    for node in traced.exported.graph.nodes:
        if node.op == "call_function" and node.target not in rules:
            missing.add(str(node.target))
            findings.append(_finding("operators", f"{node.target} has no lowering", node))
        for dtype in sorted(_dtypes(node.meta.get("val")) - DTYPES.keys(), key=str):
            findings.append(_finding("dtypes", f"{dtype} is not one of {_KNOWN}", node))
    if findings:
        lacks = f"no lowering for {', '.join(sorted(missing))}; add them to wanc/lower/operators.py"
        what = lacks if missing else "cannot be lowered"
        raise ToolchainError(report(traced.program.name, findings, what))


def _finding(rule: TextRule, problem: str, node: fx.Node) -> Finding:
    operation = f"{node.name} of the exported graph"
    return Finding(rule=rule, problem=problem, operation=operation, source=_source(node))


def _check_dialects(program: Program, names: Sequence[str], sources: Sequence[str | None]) -> None:
    """Refuse what jax leaves to compilers of its own: a portable artifact cannot hold it."""
    findings = [
        Finding(rule="operators", problem=f"{name} is no StableHLO", source=source)
        for name, source in zip(names, sources, strict=True)
        if name.partition(".")[0] not in _DIALECTS
    ]
    if findings:
        raise ToolchainError(report(program.name, findings, "cannot be lowered"))


def _dtypes(value: Any) -> set[torch.dtype]:
    """Dtypes of what a node gives: a tensor, several, or no tensor at all."""
    if isinstance(value, torch.Tensor):
        return {value.dtype}
    several = value if isinstance(value, list | tuple) else ()
    return {each.dtype for each in several if isinstance(each, torch.Tensor)}


def _sources(traced: Traced, names: Iterable[str | None]) -> tuple[str | None, ...]:
    nodes = {node.name: _source(node) for node in traced.exported.graph.nodes}
    return tuple(nodes.get(name) if name else None for name in names)


def _source(node: fx.Node) -> str | None:
    """The line that the node comes from: model/ops.py:81 in linear: `F.linear(x, w)`."""
    frame = _FRAME.search(node.meta.get("stack_trace") or "")
    if frame is None:
        return None
    file, line, function, code = frame.groups()
    path = Path(file)
    shown = path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else path.name
    return f"{shown}:{line} in {function}: `{code.strip()}`"


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
            with origin(node.name):
                values[node] = rules[node.target](*value(node.args), **value(node.kwargs))
        elif node.op == "output":
            return tuple(value(node.args[0]))
    raise AssertionError("an exported graph ends with its outputs")

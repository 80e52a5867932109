"""Lint of a program's StableHLO before any compiler sees it: what would fail late, said early.

Reads the artifact that compilers get. Knows neither torch nor jax, nor how the program was made.
A fault of the text is wanc's own: an operator, a dtype, a shape, rank identity, a rank left out.
What the target's fabric cannot route or its compiler would not finish is the request's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir

from wanc.errors import RefusedError, ToolchainError
from wanc.lower.artifact import (
    Artifact,
    Collective,
    Operation,
    TensorType,
    read_artifact,
)
from wanc.lower.instructions import instructions, operation_instructions
from wanc.plan.fabric import group_problem, hop_problem
from wanc.spec.target import GIB, Accelerator, Fabric

TextRule = Literal["operators", "rank identity", "dtypes", "static shapes", "replica groups"]
LimitRule = Literal["fabric", "communicators", "ceilings"]

LIMIT_RULES: tuple[LimitRule, ...] = ("fabric", "communicators", "ceilings")
"""Rules whose findings alone are the request's fault."""

DTYPES = ("i1", "i32", "f32", "bf16")
"""Dtypes of wanc's programs; neuronx-cc takes them all."""

OPERATORS = {
    # structure
    *("builtin.module", "func.func", "func.call", "func.return", "stablehlo.return"),
    # shape and values
    *("stablehlo.broadcast_in_dim", "stablehlo.concatenate", "stablehlo.constant"),
    *("stablehlo.convert", "stablehlo.iota", "stablehlo.pad", "stablehlo.reshape"),
    *("stablehlo.slice", "stablehlo.transpose"),
    # element by element
    *("stablehlo.abs", "stablehlo.add", "stablehlo.and", "stablehlo.ceil", "stablehlo.clamp"),
    *("stablehlo.compare", "stablehlo.cosine", "stablehlo.divide", "stablehlo.exponential"),
    *("stablehlo.floor", "stablehlo.log", "stablehlo.logistic", "stablehlo.maximum"),
    *("stablehlo.minimum", "stablehlo.multiply", "stablehlo.negate", "stablehlo.not"),
    *("stablehlo.or", "stablehlo.rsqrt", "stablehlo.select", "stablehlo.sign"),
    *("stablehlo.sine", "stablehlo.sqrt", "stablehlo.subtract", "stablehlo.tanh"),
    # reductions and products
    *("stablehlo.convolution", "stablehlo.dot_general", "stablehlo.reduce"),
    # collectives
    *("stablehlo.all_gather", "stablehlo.all_reduce", "stablehlo.collective_permute"),
    "stablehlo.reduce_scatter",
}
"""Operations of wanc's programs, and close relatives that neuronx-cc lists as well."""

KERNEL = "AwsNeuronCustomNativeKernel"
"""Target of the custom call that holds an NKI kernel."""

RANK_IDENTITY = ("stablehlo.partition_id", "stablehlo.replica_id")

_LOOPS = "neuronx-cc takes no dynamic loop and no conditional: unroll it"
_SIZES = "every size and offset has to be a constant"
_HOST = "a program meets the host in its inputs and outputs only"
_REASONS = {
    **dict.fromkeys(("stablehlo.while", "stablehlo.case", "stablehlo.if"), _LOOPS),
    **dict.fromkeys(("stablehlo.infeed", "stablehlo.outfeed"), _HOST),
    **dict.fromkeys(("stablehlo.send", "stablehlo.recv"), _HOST),
    **dict.fromkeys(("stablehlo.get_dimension_size", "stablehlo.set_dimension_size"), _SIZES),
    "stablehlo.real_dynamic_slice": _SIZES,
    **dict.fromkeys(
        ("stablehlo.rng", "stablehlo.rng_bit_generator"),
        "noise comes from the host, so that a seed means the same on every machine",
    ),
    **dict.fromkeys(
        ("stablehlo.fft", "stablehlo.complex", "stablehlo.real", "stablehlo.imag"),
        "nothing is complex on the device",
    ),
    "stablehlo.sort": "neuronx-cc fails on sorts",
}
_UNKNOWN = "no program of wanc needs it; where neuronx-cc takes it, lower/lint.py may list it"

_DTYPE_REASONS = {
    "f64": "neuronx-cc has no 64-bit floats",
    **dict.fromkeys(("i64", "ui64"), "neuronx-cc narrows 64-bit integers to 32 bits"),
    **dict.fromkeys(("complex<f32>", "complex<f64>"), "nothing is complex on the device"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that a compiler or a fabric would refuse."""

    rule: TextRule | LimitRule
    problem: str
    """What was seen, and what was needed or would work."""
    operation: str | None = None
    """The operation, its ordinal in the module's text and its results."""
    source: str | None = None
    """The model's line that it comes from, where that is known."""


def check(
    artifact: bytes,
    *,
    name: str,
    ranks: int,
    accelerator: Accelerator | None,
    sources: Sequence[str | None] = (),
) -> None:
    """Raise an error that lists every finding; see lint.

    A ToolchainError where the text has a fault, a RefusedError where only limits are passed.
    """
    findings = lint(artifact, ranks=ranks, accelerator=accelerator, sources=sources)
    if findings:
        refused = all(finding.rule in LIMIT_RULES for finding in findings)
        raise (RefusedError if refused else ToolchainError)(report(name, findings))


def report(name: str, findings: Sequence[Finding], what: str = "fails lint") -> str:
    """All findings of a program, for people; those that differ in the operation only are one."""
    places: dict[tuple[str, str, str | None], list[str]] = {}
    for finding in findings:
        place = places.setdefault((finding.rule, finding.problem, finding.source), [])
        place += [finding.operation] if finding.operation else []
    lines = [f"program {name}: {what}{f' ({len(findings)} findings)' if findings[1:] else ''}"]
    for (rule, problem, source), operations in places.items():
        lines.append(f"  {rule}: {problem}")
        if operations:
            more = f" and {len(operations) - 1} more" if operations[1:] else ""
            lines.append(f"    at {operations[0]}{more}")
        if source:
            lines.append(f"    from {source}")
    return "\n".join(lines)


def lint(
    artifact: bytes,
    *,
    ranks: int,
    accelerator: Accelerator | None,
    sources: Sequence[str | None] = (),
) -> tuple[Finding, ...]:
    """Every finding in a portable artifact; raises ToolchainError where it is none.

    accelerator: whose fabric and limits hold, each rank on the core of its number; None for a CPU.
    sources: the model's line of each operation by its ordinal, as lowering knows them; or empty.
    """
    read = read_artifact(artifact)
    assert not sources or len(sources) == len(read.operations), "sources of another program"
    program = _Program(artifact=read, sources=tuple(sources))
    found = [*_operators(program), *_values(program), *_groups(program, ranks)]
    if accelerator:
        limits = accelerator.limits
        found += _fabric(program, accelerator.fabric, ranks)
        found += _communicators(program, limits.communicators)
        found += _tensors(program, limits.tensor_bytes)
        found += _operations(program, limits.operation_instructions)
        found += _instructions(program, limits.instructions)
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """What rules look at."""

    artifact: Artifact
    sources: tuple[str | None, ...]

    def finding(
        self, rule: TextRule | LimitRule, problem: str, op: Operation, place: str = ""
    ) -> Finding:
        source = self.sources[op.ordinal] if self.sources else None
        return Finding(rule=rule, problem=problem, operation=f"{place}{op}", source=source)

    def values(self) -> Iterator[tuple[Operation, str, TensorType]]:
        """Every value: the operation that has it, which argument it is there, its type."""
        for op in self.artifact.operations:
            for result in op.results:
                yield op, "", result
            for i, argument in enumerate(op.arguments):
                yield op, f"argument {i} of ", argument


# --- faults of the text --------------------------------------------------------------------


def _operators(program: _Program) -> Iterator[Finding]:
    for op in program.artifact.operations:
        if op.name in OPERATORS:
            continue
        if op.name in RANK_IDENTITY:
            problem = f"{op.name}: one program serves all ranks; what differs is an input"
            yield program.finding("rank identity", problem, op)
        else:
            reason = _operator_problem(op)
            if reason:
                yield program.finding("operators", reason, op)


def _operator_problem(op: Operation) -> str | None:
    if op.name == "stablehlo.custom_call":
        target = ir.StringAttr(op.mlir.attributes["call_target_name"]).value
        if target == KERNEL:
            return None
        return f"custom call of {target}: the one that wanc makes is {KERNEL}, an NKI kernel"
    dynamic = op.name.startswith("stablehlo.dynamic_")
    return f"{op.name}: {_SIZES if dynamic else _REASONS.get(op.name, _UNKNOWN)}"


def _values(program: _Program) -> Iterator[Finding]:
    for op, place, each in program.values():
        if each.dtype not in DTYPES:
            seen = each.dtype or each.text
            reason = _DTYPE_REASONS.get(seen, "it has not been seen to compile")
            problem = f"{seen} is not one of {', '.join(DTYPES)}: {reason}"
            yield program.finding("dtypes", problem, op, place)
        elif not each.static:
            yield program.finding("static shapes", f"{each.text}: {_SIZES}", op, place)


def _groups(program: _Program, ranks: int) -> Iterator[Finding]:
    for each in program.artifact.collectives:
        for handle in ("channel_handle", "use_global_device_ids"):
            if handle in each.operation.mlir.attributes:
                problem = f"{handle} is set: groups are to be of replicas, in one partition"
                yield program.finding("replica groups", problem, each.operation)
        for problem in _cover_problems(each, ranks):
            yield program.finding("replica groups", problem, each.operation)


def _cover_problems(collective: Collective, ranks: int) -> Iterator[str]:
    """Which ranks a collective leaves out or invents; MLIR itself refuses those named twice."""
    sides: dict[str, list[int]] = {}
    if collective.permute:
        sides["sources"] = [source for source, _ in collective.groups]
        sides["targets"] = [target for _, target in collective.groups]
    else:
        sides["groups"] = [rank for group in collective.groups for rank in group]
    for side, named in sides.items():
        missing = sorted({*range(ranks)} - {*named})
        beyond = sorted({*named} - {*range(ranks)})
        if missing:
            yield f"{side} leave out ranks: {_few(missing)}"
        if beyond:
            yield f"{side} name what is none of the {ranks} ranks: {_few(beyond)}"


# --- what a target refuses -----------------------------------------------------------------


def _fabric(program: _Program, fabric: Fabric, ranks: int) -> Iterator[Finding]:
    """Each distinct list of groups that the fabric cannot route, once."""
    if ranks > fabric.cores:
        problem = f"{ranks} ranks are more than the {fabric.cores} cores of one machine"
        yield Finding(rule="fabric", problem=problem)
    for each in program.artifact.communicators:
        problems = [found for group in each.groups if (found := _route(fabric, each, group))]
        if problems:
            what = f"{len(problems)} of {len(each.groups)} {'steps' if each.permute else 'groups'}"
            problem = f"{what} have no route: {_few(problems, 2, '; ')}"
            yield program.finding("fabric", problem, each.operation)


def _route(fabric: Fabric, collective: Collective, cores: Sequence[int]) -> str | None:
    if collective.permute:
        return hop_problem(fabric, *cores)
    return group_problem(fabric, cores)


def _communicators(program: _Program, most: int) -> Iterator[Finding]:
    seen = len(program.artifact.communicators)
    if seen > most:
        problem = f"{seen} distinct lists of replica groups; one program has at most {most}"
        yield Finding(rule="communicators", problem=problem)


def _tensors(program: _Program, most_bytes: int) -> Iterator[Finding]:
    for op, place, each in program.values():
        if each.bytes > most_bytes:
            problem = (
                f"{each.text} takes {each.bytes / GIB:.2f} GiB, and a tensor at most "
                f"{most_bytes / GIB:.2f}; a larger tp or cp makes it smaller"
            )
            yield program.finding("ceilings", problem, op, place)


def _operations(program: _Program, most: int) -> Iterator[Finding]:
    for op in program.artifact.operations:
        if op.nested or op.name == "func.call":
            continue
        seen = operation_instructions(op, program.artifact.operands(op))
        if seen > most:
            problem = (
                f"about {seen:,} instructions, and one operation has at most {most:,}; smaller "
                "tiles or more ranks make fewer"
            )
            yield program.finding("ceilings", problem, op)


def _instructions(program: _Program, most: int) -> Iterator[Finding]:
    seen = instructions(program.artifact)
    if seen > most:
        problem = (
            f"about {seen:,} instructions, and a program has at most {most:,}; fewer blocks per "
            "program, smaller tiles or more ranks make fewer"
        )
        yield Finding(rule="ceilings", problem=problem)


def _few(values: Sequence[object], most: int = 8, between: str = ", ") -> str:
    shown = between.join(map(str, values[:most]))
    return f"{shown}{between}…" if len(values) > most else shown

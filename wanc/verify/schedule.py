"""A schedule, type-checked: it is run on shapes and dtypes in place of tensors.

Every input is there when it is wanted, in the right shape and dtype, for every guidance branch that
wants it; what a call donates is not used again. Knows records, and nothing of Wan.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from wanc.bundle.config import VariantConfig
from wanc.plan.abi import Program, Tensor
from wanc.plan.schedule import Binding, Call, Feed, Slice, Stage
from wanc.spec.topology import AXES, GUIDANCE_BRANCHES
from wanc.verify.findings import Findings

MOST_CALLS = 100_000
MOST_TENSORS = 1_000_000
"""Of all calls together, weights too."""
_LAYER = re.compile(r"\{(0|[1-9][0-9]{0,3})\}")
"""What stands for one of a call's layers in a weight's name."""
_BRANCHES = frozenset(range(GUIDANCE_BRANCHES))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """What a call gave."""

    tensor: Tensor
    branches: frozenset[int]
    single: bool
    """Whether it is on one rank, which is chosen."""


@dataclass(slots=True)
class _Scope:
    """Values by name, and names whose buffers are gone."""

    values: dict[str, _Value] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


def check_schedule(where: str, config: VariantConfig, found: Findings) -> None:
    """Go through every stage in order; all that does not fit is a finding."""
    stages = config.schedule.stages
    if sum(len(stage.calls) for stage in stages) > MOST_CALLS:
        found.fault("schedule", where, f"more than {MOST_CALLS:,} calls")
        return
    programs = {record.program.name: record.program for record in config.programs}
    tensors = {name: _tensors(program) for name, program in programs.items()}
    if sum(tensors[call.program] for stage in stages for call in stage.calls) > MOST_TENSORS:
        found.fault("schedule", where, f"calls of more than {MOST_TENSORS:,} tensors")
        return
    for name, times in Counter(stage.name for stage in stages).items():
        if times > 1:
            found.fault("schedule", where, f"stage {name} stands twice")
    feeds = {feed.name: feed for feed in config.schedule.feeds}
    if len(feeds) != len(config.schedule.feeds):
        found.fault("schedule", where, "two feeds have one name")
    if len(programs) != len(config.programs):
        found.fault("schedule", where, "two programs have one name")
    shared, tiles = _Scope(), dict[str, _Scope]()
    for stage in stages:
        scope = shared
        if any(programs[call.program].ranks == "one" for call in stage.calls):
            half, _, suffix = stage.name.replace("_first", "_rest").partition("_rest")
            scope = tiles.setdefault(half + suffix, _Scope())
        for fault in _stage_faults(stage, programs, feeds, scope, config):
            found.fault("schedule", f"{where}, stage {stage.name}", fault)


def _tensors(program: Program) -> int:
    """As many as each call of it is looked through for."""
    return len(program.arguments) + len(program.outputs) + len(program.donated)


def _stage_faults(
    stage: Stage,
    programs: dict[str, Program],
    feeds: dict[str, Feed],
    scope: _Scope,
    config: VariantConfig,
) -> Iterator[str]:
    for call in stage.calls:
        program = programs[call.program]
        for fault in _call_faults(call, program, feeds, scope, config):
            yield f"{call.program}: {fault}"
        for name, tensor in zip(call.outputs, program.outputs, strict=True):
            scope.gone.discard(name)
            scope.values[name] = _Value(
                tensor=tensor,
                branches=frozenset(call.branches),
                single=program.ranks == "one",
            )
    for result in stage.results:
        value = scope.values.get(result.value)
        if value is None or result.value in scope.gone:
            yield f"result {result.value!r} is of no call"
        elif not set(result.branches) <= value.branches:
            yield f"result {result.value!r} is not there for every branch"
        elif value.single is bool(result.ranks):
            yield f"result {result.value!r} names {len(result.ranks)} ranks"


def _call_faults(
    call: Call, program: Program, feeds: dict[str, Feed], scope: _Scope, config: VariantConfig
) -> Iterator[str]:
    if not call.branches or not set(call.branches) <= _BRANCHES:
        yield f"branches {list(call.branches)}; needs some of {sorted(_BRANCHES)}"
    if len(set(call.outputs)) != len(call.outputs):
        yield "two outputs have one name"
    yield from _layer_faults(call, program, config)
    bound: dict[str, str] = {}
    for tensor, binding in zip(program.inputs, call.inputs, strict=True):
        if (binding.feed is None) is (binding.value is None):
            yield f"input {tensor.name} comes from a feed and a value, or from neither"
        elif binding.feed is not None:
            yield from _feed_faults(tensor, binding, feeds[binding.feed], config)
        elif binding.value is not None:
            yield from _value_faults(tensor, binding.value, scope, call, program)
            bound[tensor.name] = binding.value
    yield from _donation_faults(program, bound, scope)


def _donation_faults(program: Program, bound: dict[str, str], scope: _Scope) -> Iterator[str]:
    """Of the values that inputs are bound to; those that are donated are gone."""
    inputs = {tensor.name: tensor for tensor in program.inputs}
    outputs = {tensor.name: tensor for tensor in program.outputs}
    times = Counter(bound.values())
    for taken, becomes in program.donated.items():
        value, output = bound.get(taken), outputs.get(becomes)
        if value is None:
            yield f"donated input {taken} is not a value of an earlier call"
            continue
        if times[value] > 1:
            yield f"{value!r} is donated, and an input twice"
        if output is None:
            yield f"donated input {taken} becomes {becomes}, which is no output"
        elif (output.shape, output.dtype) != (inputs[taken].shape, inputs[taken].dtype):
            yield f"donated input {taken} becomes {becomes}, which is of another shape or dtype"
        scope.gone.add(value)


def _layer_faults(call: Call, program: Program, config: VariantConfig) -> Iterator[str]:
    layers, model = call.layers, config.model
    most = max(model.transformer.layers, model.text_encoder.layers)
    if any(not 0 <= layer < most for layer in layers) or len(set(layers)) != len(layers):
        yield f"layers {list(layers)[:8]}; the model has {most}"
    wanted = {int(k) for weight in program.weights for k in _LAYER.findall(weight.tensor)}
    if wanted and wanted != set(range(len(layers))):
        yield f"{len(layers)} layers, and its weights are of {len(wanted)}"


def _value_faults(
    tensor: Tensor, name: str, scope: _Scope, call: Call, program: Program
) -> Iterator[str]:
    value = scope.values.get(name)
    if value is None:
        yield f"input {tensor.name} is {name!r}, which no earlier call gives"
        return
    if name in scope.gone:
        yield f"input {tensor.name} is {name!r}, which was donated"
    if (value.tensor.shape, value.tensor.dtype) != (tensor.shape, tensor.dtype):
        yield (
            f"input {tensor.name} needs {tensor.dtype} {list(tensor.shape)}; {name!r} is "
            f"{value.tensor.dtype} {list(value.tensor.shape)}"
        )
    if not set(call.branches) <= value.branches:
        yield f"input {tensor.name} is {name!r}, which is not there for every branch"
    if value.single is not (program.ranks == "one"):
        yield f"input {tensor.name} is {name!r}, which is on other ranks"


def _feed_faults(
    tensor: Tensor, binding: Binding, feed: Feed, config: VariantConfig
) -> Iterator[str]:
    shape = list(feed.shape)
    for cut in binding.slices:
        fault = _cut(shape, cut, config)
        if fault:
            yield f"input {tensor.name}: feed {feed.name}: {fault}"
            return
    if feed.dtype != tensor.dtype:
        yield f"input {tensor.name} needs {tensor.dtype}; feed {feed.name} is {feed.dtype}"
    if prod(shape) != prod(tensor.shape):
        yield f"input {tensor.name} needs {list(tensor.shape)}; feed {feed.name} gives {shape}"


def _cut(shape: list[int], cut: Slice, config: VariantConfig) -> str | None:
    """Cut a shape as a slice does; what is wrong with that, else None."""
    if not 0 <= cut.dim < len(shape):
        return f"no dimension {cut.dim}"
    if cut.kind == "take":
        if cut.index is None or not 0 <= cut.index < shape[cut.dim]:
            return f"no index {cut.index} of {shape[cut.dim]}"
        shape[cut.dim] = 1
        return None
    if cut.axis not in AXES:
        return f"no axis {cut.axis!r}"
    size = shape[cut.dim] if cut.pad_to is None else cut.pad_to
    degree = config.variant.topology.degree(cut.axis)
    if size < shape[cut.dim] or degree < 1 or size % degree:
        return f"{shape[cut.dim]} padded to {size} is not cut by {cut.axis} {degree}"
    shape[cut.dim] = size // degree
    return None

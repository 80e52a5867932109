"""Schedules run on shapes: real plans pass, and each planted fault is told with its stage."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from tests.unit.conftest import variant_of
from wanc.bundle.config import (
    VariantConfig,
    config_of,
    inconsistencies,
)
from wanc.errors import RefusedError
from wanc.plan.plan import make_plan
from wanc.spec.presets import PRESETS
from wanc.spec.shape import Shape
from wanc.spec.topology import Topology
from wanc.spec.variant import Options, Variant
from wanc.verify import schedule
from wanc.verify.findings import Findings
from wanc.verify.plans import check_plan, check_sizes
from wanc.verify.schedule import check_schedule


def told(config: VariantConfig) -> list[tuple[str, str]]:
    """(stage, what) of each fault; inconsistencies are seen when the config is decoded."""
    assert not inconsistencies(config)
    found = Findings()
    check_schedule("v", config, found)
    assert all(fault.kind == "schedule" and fault.is_fault for fault in found.shown)
    return [(fault.where.removeprefix("v, stage "), fault.what) for fault in found.shown]


# --- real plans -----------------------------------------------------------------------------------

TOPOLOGIES = ("tp1", "cp3", "tp2-cp2", "cfg2", "tp4-cp8-cfg2", "cp8")


@pytest.mark.parametrize("attention", ["ring", "allgather"])
@pytest.mark.parametrize("name", PRESETS)
def test_real_plans_have_no_finding(name: str, attention: Any):
    model, seen, masked = PRESETS[name], 0, 0
    shapes = ("224x128x5", "448x256x33", "832x480x81")
    for shape, topology, tiles, blocks in [
        (shapes[0], "tp1", "even", 1),
        (shapes[1], "tp2-cp2", "diffusers", 1),
        *((shape, topology, "even", None) for shape in shapes for topology in TOPOLOGIES),
    ]:
        variant = Variant(
            task=model.task,
            shape=Shape.parse(shape),
            topology=Topology.parse(topology),
            placement="linear",
            precision="bf16",
            target="cpu",
        )
        options = Options(attention=attention, vae_tiles=tiles, blocks_per_program=blocks)
        try:
            plan = make_plan(model, variant, options)
        except RefusedError:
            continue
        found = Findings()
        check_schedule("v", config_of(plan), found)
        assert check_sizes("v", config_of(plan), found)
        check_plan("v", config_of(plan), found)
        assert found.shown == []
        seen, masked = seen + 1, masked + plan.tokens.masked
    assert seen > 6
    assert 0 < masked < seen


# --- planted faults -------------------------------------------------------------------------------


def at(record: Any, path: str, change: Callable[[Any], Any]) -> Any:
    """The record with one part changed: ``stages.1.calls.0``, or a stage's name for its number."""
    if not path:
        return change(record)
    head, _, rest = path.partition(".")
    if is_dataclass(record) and head in {field.name for field in fields(record)}:
        return replace(record, **{head: at(getattr(record, head), rest, change)})
    names = [getattr(each, "name", None) for each in record]
    number = names.index(head.replace("/", ".")) if head.replace("/", ".") in names else int(head)
    changed = list(record)
    changed[number] = at(record[number], rest, change)
    return tuple(changed)


def to(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def changed(path: str, change: Callable[[Any], Any], **how: Any) -> list[tuple[str, str]]:
    return told(at(variant_of(**how).config, path, change))


STEP = "schedule.stages.step/high_noise"
EMBED, BLOCKS, HEAD = f"{STEP}.calls.0", f"{STEP}.calls.1", f"{STEP}.calls.2"
TEXT = "schedule.stages.encode_text"
CONTEXT = "schedule.stages.context/high_noise"
FIRST, REST = "schedule.stages.vae_decode_first", "schedule.stages.vae_decode_rest"


READERS = {
    "encode_text": ("context.high_noise", "context.low_noise"),
    "vae_decode_first": ("vae_decode_rest",),
}
"""Stages that read what another one gives, and so may be told of too."""


def without(**fields: Any) -> Callable[[Any], Any]:
    return lambda record: replace(record, **fields)


@pytest.mark.parametrize(
    ("path", "change", "stage", "what"),
    [
        (f"{BLOCKS}.inputs.0", without(value="nobody"), "step.high_noise", "no earlier call gives"),
        (f"{HEAD}.inputs.0", without(value="noise.0"), "step.high_noise", "no earlier call gives"),
        (f"{BLOCKS}.inputs.0", without(value="modulation"), "step.high_noise", "needs float32"),
        (f"{BLOCKS}.inputs.0", without(value=None), "step.high_noise", "or from neither"),
        (f"{BLOCKS}.inputs.0", without(feed="tokens"), "step.high_noise", "a feed and a value"),
        (f"{EMBED}.inputs.0.slices.0", without(dim=3), "step.high_noise", "no dimension 3"),
        (f"{EMBED}.inputs.0.slices.0", without(dim=-1), "step.high_noise", "no dimension -1"),
        (f"{EMBED}.inputs.0.slices.0", without(axis=None), "step.high_noise", "no axis None"),
        (f"{EMBED}.inputs.0.slices.0", without(pad_to=1), "step.high_noise", "padded to 1"),
        (f"{EMBED}.inputs.0.slices.0", without(pad_to=-4), "step.high_noise", "padded to -4"),
        (f"{EMBED}.inputs.0.slices.0", without(pad_to=10**30), "step.high_noise", "padded to"),
        (f"{TEXT}.calls.0.inputs.0.slices.0", without(index=2), "encode_text", "no index 2 of 2"),
        (f"{TEXT}.calls.0.inputs.0.slices.0", without(index=-1), "encode_text", "no index -1"),
        (f"{TEXT}.calls.0.inputs.0.slices.0", without(index=None), "encode_text", "no index None"),
        (f"{TEXT}.calls.0.inputs.0", without(slices=()), "encode_text", "gives [2, 512, "),
        (f"{TEXT}.calls.0", without(branches=()), "encode_text", "branches []"),
        (f"{TEXT}.calls.0", without(branches=(2,)), "encode_text", "branches [2]"),
        (f"{EMBED}", without(branches=(0,)), "step.high_noise", "not there for every branch"),
        (f"{TEXT}.results.0", without(value="nothing"), "encode_text", "is of no call"),
        (f"{TEXT}.results.0", without(branches=(1,)), "encode_text", "not there for every branch"),
        (f"{TEXT}.results.0", without(ranks=()), "encode_text", "names 0 ranks"),
        (f"{FIRST}.results.0", without(ranks=(0,)), "vae_decode_first", "names 1 ranks"),
        (f"{BLOCKS}", without(layers=(0, 4)), "step.high_noise", "the model has"),
        (f"{BLOCKS}", without(layers=(-1, 0)), "step.high_noise", "the model has"),
        (f"{BLOCKS}", without(layers=(1, 1)), "step.high_noise", "the model has"),
        (f"{BLOCKS}", without(layers=(0,)), "step.high_noise", "1 layers, and its weights are of"),
        (f"{BLOCKS}", without(layers=()), "step.high_noise", "0 layers, and its weights are of"),
        (f"{EMBED}", without(outputs=("a", "a", "b")), "step.high_noise", "two outputs have one"),
        (f"{REST}.calls.0.inputs.1", without(value="cache"), "vae_decode_rest", "no earlier call"),
        (f"{REST}.calls.0.inputs.0", without(feed="text_mask"), "vae_decode_rest", "text_mask"),
    ],
)
def test_each_fault_is_told_with_its_stage(
    path: str, change: Callable[[Any], Any], stage: str, what: str
):
    found = changed(path, change)
    assert any(where == stage and what in text for where, text in found), found
    assert {where for where, _ in found} <= {stage, *READERS.get(stage, ())}


@pytest.mark.parametrize(
    ("part", "value"), [("shape", (2, 512, 96)), ("shape", (1, 3, 1)), ("dtype", "bfloat16")]
)
def test_a_feed_of_another_size_or_dtype_is_told(part: str, value: Any):
    found = changed("schedule.feeds.token_embeddings", without(**{part: value}))
    assert found
    assert {where for where, _ in found} == {"encode_text"}


def test_a_value_of_another_stage_must_come_first():
    config = variant_of().config
    text, *others = config.schedule.stages
    late = replace(config, schedule=replace(config.schedule, stages=(*others, text)))
    found = told(late)
    assert {where for where, _ in found} == {"context.high_noise", "context.low_noise"}
    assert all("which no earlier call gives" in what for _, what in found)


def test_shapes_and_dtypes_of_values_are_compared():
    programs = [record.program.name for record in variant_of().config.programs]
    head = programs.index("dit_head")
    for change in (without(shape=(1, 1, 1)), without(dtype="bfloat16")):
        found = changed(f"programs.{head}.program.inputs.0", change)
        assert {where for where, _ in found} == {"step.high_noise", "step.low_noise"}
        assert all("dit_head: input" in what and "'hidden" in what for _, what in found)


# --- donation -------------------------------------------------------------------------------------


def test_a_donated_value_is_not_used_again():
    """Its buffer is bound anew under the output's name, so a name kept is a buffer that is gone."""
    config = variant_of().config
    (call,) = next(s for s in config.schedule.stages if s.name == "vae_decode_rest").calls
    renamed = tuple(f"new {name}" for name in call.outputs)
    once = at(config, f"{REST}.calls.0", without(outputs=renamed))
    once = at(once, f"{REST}.results.0", without(value=renamed[0]))
    assert told(once) == []
    again = at(once, f"{REST}.calls", lambda calls: calls * 2)
    found = told(again)
    assert found
    assert all(where == "vae_decode_rest" and "was donated" in what for where, what in found)


def test_a_result_that_was_donated_is_no_result():
    config = variant_of().config
    (call,) = next(s for s in config.schedule.stages if s.name == "vae_decode_rest").calls
    renamed = tuple(f"new {name}" for name in call.outputs)
    gone = at(config, f"{REST}.calls.0", without(outputs=renamed))
    gone = at(gone, f"{REST}.results.0", without(value=call.inputs[1].value))
    assert told(gone) == [
        ("vae_decode_rest", f"result {call.inputs[1].value!r} is of no call"),
    ]


def test_donations_name_values_and_outputs():
    config = variant_of().config
    number = [r.program.name for r in config.programs].index("vae_decode_rest")
    path = f"programs.{number}.program"
    program = config.programs[number].program
    taken = program.inputs[1].name
    frames = program.inputs[0].name
    found = told(at(config, path, without(donated={**program.donated, taken: "nothing"})))
    assert found == [
        (
            "vae_decode_rest",
            f"vae_decode_rest: donated input {taken} becomes nothing, which is no output",
        )
    ]
    found = told(at(config, path, without(donated={frames: program.outputs[0].name})))
    assert found == [
        (
            "vae_decode_rest",
            f"vae_decode_rest: donated input {frames} is not a value of an earlier call",
        )
    ]


def test_a_donated_value_is_an_input_once():
    config = variant_of().config
    record = next(r for r in config.programs if r.program.name == "vae_decode_rest")
    tensors = [(t.shape, t.dtype) for t in record.program.inputs]
    one, two = next(
        (i, j)
        for i in range(1, len(tensors))
        for j in range(i + 1, len(tensors))
        if tensors[i] == tensors[j]
    )
    call = next(s for s in config.schedule.stages if s.name == "vae_decode_rest").calls[0]
    found = told(at(config, f"{REST}.calls.0.inputs.{two}", to(call.inputs[one])))
    assert ("vae_decode_rest", f"vae_decode_rest: {call.inputs[one].value!r} is donated, and an "
            "input twice") in found  # fmt: skip


def test_a_donated_buffer_is_of_its_outputs_shape():
    config = variant_of().config
    number = [r.program.name for r in config.programs].index("vae_decode_rest")
    program = config.programs[number].program
    taken = program.inputs[1].name
    other = next(o.name for o in program.outputs if o.shape != program.inputs[1].shape)
    path = f"programs.{number}.program"
    (found,) = told(at(config, path, without(donated={**program.donated, taken: other})))
    assert found == (
        "vae_decode_rest",
        f"vae_decode_rest: donated input {taken} becomes {other}, which is of another shape or "
        "dtype",
    )


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("schedule.stages", "stage encode_text stands twice"),
        ("schedule.feeds", "two feeds have one name"),
        ("programs", "two programs have one name"),
    ],
)
def test_names_stand_once(path: str, what: str):
    assert ("v", what) in changed(path, lambda listed: (*listed, listed[0]))


def test_calls_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedule, "MOST_CALLS", 10)
    assert told(variant_of().config) == [("v", "more than 10 calls")]


def test_tensors_of_calls_are_bounded():
    """Each call of a program costs as much as the program has tensors."""
    config = variant_of().config
    number = [r.program.name for r in config.programs].index("dit_embed")
    many = at(config, f"programs.{number}.program.weights", lambda listed: listed * 20_000)
    many = at(many, f"{STEP}.calls", lambda calls: (calls[0],) * 50_000)
    assert told(many) == [("v", "calls of more than 1,000,000 tensors")]


def test_very_many_stages_are_looked_through_quickly():
    config = variant_of().config
    empty = replace(config.schedule.stages[0], calls=(), results=())
    many = tuple(replace(empty, name=str(number)) for number in range(50_000))
    assert told(replace(config, schedule=replace(config.schedule, stages=many))) == []


def test_one_stage_of_tiles_of_another_shape_has_no_values_of_this_one():
    """A tile's caches are its own: another tile shape's first group does not give them."""
    how = {"shape": "432x240x33", "vae_tiles": "diffusers"}
    config = variant_of(**how).config
    names = [s.name for s in config.schedule.stages if s.name.startswith("vae_decode_first")]
    assert len(names) > 1
    stages = tuple(s for s in config.schedule.stages if s.name != names[-1])
    found = told(replace(config, schedule=replace(config.schedule, stages=stages)))
    assert {where for where, _ in found} == {names[-1].replace("first", "rest")}
    assert all("no earlier call gives" in what for _, what in found)

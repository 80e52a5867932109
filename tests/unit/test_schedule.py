"""Schedules make sense to whoever interprets them: every read has a writer, ABIs agree."""

from collections import Counter
from dataclasses import replace
from math import prod

import pytest

from wanc.plan.schedule import Binding, Slice
from wanc.spec.presets import TINY
from wanc.weights.needs import calls

PLANS = [
    {"topology": "tp1"},
    {"topology": "cfg2"},
    {"topology": "tp4-cp8-cfg2"},
    {"topology": "tp2-cp3", "blocks_per_program": 1},
    {"topology": "tp2-cp2", "shape": "432x240x33", "vae_tiles": "diffusers", "precision": "bf16"},
    {"topology": "cp8", "shape": "432x240x33", "attention": "allgather"},
    {"topology": "tp4-cp8-cfg2", "shape": "1280x720x81", "model": "wan2.2-t2v-a14b"},
]


@pytest.fixture(params=PLANS, ids=lambda kwargs: " ".join(map(str, kwargs.values())))
def planned(plan, request):
    return plan(**request.param)


def programs_of(planned):
    return {program.name: program for program in planned.programs}


def stage_named(planned, name):
    return next(stage for stage in planned.schedule.stages if stage.name == name)


def call_counts(planned, stage):
    return Counter(call.program for call in stage_named(planned, stage).calls)


def cut_shape(shape, slices, mesh):
    """Shape of a feed after the cuts, on any rank."""
    sizes = list(shape)
    for one in slices:
        if one.kind == "take":
            assert one.axis is None
            assert 0 <= one.index < sizes[one.dim]
            sizes[one.dim] = 1
        else:
            whole = sizes[one.dim] if one.pad_to is None else one.pad_to
            degree = mesh.topology.degree(one.axis)
            assert whole >= sizes[one.dim], "a split never drops the end of a feed"
            assert whole % degree == 0, "a split has equal parts"
            sizes[one.dim] = whole // degree
    return tuple(sizes)


@pytest.mark.parametrize("wanted", [{0}, {0, 1}])
def test_every_value_read_was_written_by_an_earlier_call_of_these_branches(planned, wanted):
    """Also where calls for the unconditioned branch are left out; tiles start with nothing."""
    programs, written = programs_of(planned), {}
    for stage in planned.schedule.stages:
        if stage.name.startswith("vae_decode_first"):
            written = {}
        for call in stage.calls:
            if not wanted & set(call.branches):
                continue
            program = programs[call.program]
            for binding, tensor in zip(call.inputs, program.inputs, strict=True):
                if binding.value is not None:
                    assert binding.value in written, f"{stage.name}: {binding.value}"
                    source = written[binding.value]
                    assert (source.shape, source.dtype) == (tensor.shape, tensor.dtype)
            written |= dict(zip(call.outputs, program.outputs, strict=True))
        for result in stage.results:
            assert result.value in written or not wanted & set(result.branches)


def test_inputs_and_outputs_agree_in_number_with_the_program(planned):
    programs = programs_of(planned)
    for call in calls(planned.schedule):
        program = programs[call.program]
        assert len(call.inputs) == len(program.inputs)
        assert len(call.outputs) == len(program.outputs)
        assert len(set(call.outputs)) == len(call.outputs)


def test_every_binding_is_a_feed_or_a_value(planned):
    for call in calls(planned.schedule):
        for binding in call.inputs:
            assert (binding.feed is None) != (binding.value is None)
            assert binding.feed or not binding.slices, "values are on their ranks already"


def test_every_feed_is_declared_and_used_and_fits_the_abi(planned):
    feeds = {feed.name: feed for feed in planned.schedule.feeds}
    assert len(feeds) == len(planned.schedule.feeds)
    programs, used = programs_of(planned), set()
    for call in calls(planned.schedule):
        for binding, tensor in zip(call.inputs, programs[call.program].inputs, strict=True):
            if binding.feed is None:
                continue
            feed = feeds[binding.feed]
            used.add(feed.name)
            part = cut_shape(feed.shape, binding.slices, planned.mesh)
            assert prod(part) == prod(tensor.shape)
            assert part[-1] == tensor.shape[-1]
            assert feed.dtype == tensor.dtype
    assert used == feeds.keys()


def test_every_program_is_called_and_every_call_has_a_program(planned):
    assert {call.program for call in calls(planned.schedule)} == programs_of(planned).keys()


def test_stages_have_names_of_their_own_in_the_order_of_a_run(planned):
    names = [stage.name for stage in planned.schedule.stages]
    assert len(set(names)) == len(names)
    assert names[:5] == [
        "encode_text",
        *("context.high_noise", "step.high_noise", "context.low_noise", "step.low_noise"),
    ]
    decodes = [name for name in names[5:] if "first" in name]
    assert names[5:] == [
        name for first in decodes for name in (first, first.replace("first", "rest"))
    ]


def test_both_experts_run_the_same_programs_with_weights_of_their_own(planned):
    high, low = (stage_named(planned, f"step.{e}") for e in ("high_noise", "low_noise"))
    assert [c.program for c in high.calls] == [c.program for c in low.calls]
    assert {c.component for c in high.calls} == {"transformer"}
    assert {c.component for c in low.calls} == {"transformer_2"}


def test_every_layer_is_called_once_for_every_branch_in_order(planned):
    layers = planned.model.transformer.layers
    for stage in planned.schedule.stages:
        for program in ("dit_blocks", "dit_context"):
            for branch in (0, 1):
                found = [
                    layer
                    for call in stage.calls
                    if call.program == program and branch in call.branches
                    for layer in call.layers
                ]
                assert found in ([], list(range(layers)))


def test_head_reads_what_every_layer_made_in_order_from_the_embedding(planned):
    """Each branch starts at the embedding anew, and no group of layers is passed by."""
    layers = list(range(planned.model.transformer.layers))
    for expert in planned.model.experts:
        passed, heads = {}, []
        for call in stage_named(planned, f"step.{expert}").calls:
            source = call.inputs[0].value
            if call.program == "dit_embed":
                passed[call.outputs[0]] = []
            elif call.program == "dit_blocks":
                passed[call.outputs[0]] = [*passed[source], *call.layers]
            else:
                heads.append(passed[source])
        assert heads
        assert all(head == layers for head in heads)


def test_blocks_read_keys_and_values_of_their_own_layers_expert_and_branches(planned):
    programs = programs_of(planned)
    for expert in planned.model.experts:
        made = {
            value: (tensor.name.split("_")[0], call.layers[int(tensor.name.split("_")[1])], call)
            for call in stage_named(planned, f"context.{expert}").calls
            for value, tensor in zip(call.outputs, programs[call.program].outputs, strict=True)
        }
        for call in stage_named(planned, f"step.{expert}").calls:
            if call.program != "dit_blocks":
                continue
            read = [made[one.value] for one in call.inputs if one.value in made]
            assert [(kind, layer) for kind, layer, _ in read] == [
                (kind, layer) for layer in call.layers for kind in ("key", "value")
            ]
            assert all(source.component == call.component for _, _, source in read)
            assert all(source.branches == call.branches for _, _, source in read)


def test_weights_of_a_call_are_filled_in_and_distinct(planned):
    programs = programs_of(planned)
    for call in calls(planned.schedule):
        names = [weight.tensor_in(call.layers) for weight in programs[call.program].weights]
        assert not [name for name in names if "{" in name]
        assert len(set(names)) == len(names)


def test_results_join_to_one_row_for_every_branch(planned):
    for name in ("encode_text", "step.high_noise", "step.low_noise"):
        results = stage_named(planned, name).results
        assert [branch for result in results for branch in result.branches] == [0, 1]
        ranks = {rank for result in results for rank in result.ranks}
        assert ranks <= set(range(planned.variant.topology.ranks))


def test_donated_caches_are_read_and_written_by_the_same_call(planned):
    programs = programs_of(planned)
    for call in calls(planned.schedule):
        program = programs[call.program]
        inputs = {tensor.name: tensor for tensor in program.inputs}
        outputs = {tensor.name: tensor for tensor in program.outputs}
        bound = dict(zip(inputs, call.inputs, strict=True))
        named = dict(zip(outputs, call.outputs, strict=True))
        for source, target in program.donated.items():
            assert inputs[source].shape == outputs[target].shape
            assert bound[source].value == named[target], "the buffer's name is bound anew"
        assert bool(program.donated) == (program.kind == "vae_decode_rest")


@pytest.mark.parametrize(
    ("topology", "blocks", "text", "context", "step"),
    [
        ("tp1", 2, 2, 2, {"dit_embed": 1, "dit_blocks": 2, "dit_head": 2}),
        ("tp1", 1, 2, 4, {"dit_embed": 1, "dit_blocks": 4, "dit_head": 2}),
        ("cfg2", 2, 1, 1, {"dit_embed": 1, "dit_blocks": 1, "dit_head": 1}),
        ("tp2-cp2-cfg2", 1, 1, 2, {"dit_embed": 1, "dit_blocks": 2, "dit_head": 1}),
    ],
)
def test_call_counts_of_the_tiny_model(plan, topology, blocks, text, context, step):
    planned = plan(topology=topology, blocks_per_program=blocks)
    assert call_counts(planned, "encode_text") == {"text_encoder": text}
    for expert in ("high_noise", "low_noise"):
        assert call_counts(planned, f"context.{expert}") == {"dit_context": context}
        assert call_counts(planned, f"step.{expert}") == step


def test_forty_layers_in_programs_of_ten(plan):
    planned = plan("832x480x81", "cfg2", model="wan2.2-t2v-a14b", blocks_per_program=10)
    blocks = [c for c in stage_named(planned, "step.low_noise").calls if c.layers]
    assert [call.layers for call in blocks] == [
        tuple(range(first, first + 10)) for first in (0, 10, 20, 30)
    ]


def test_branches_of_cfg1_are_passes_and_of_cfg2_are_ranks(plan):
    one, two = plan(topology="tp2"), plan(topology="tp2-cfg2")
    passes = [call.branches for call in stage_named(one, "step.high_noise").calls]
    assert passes == [(0, 1), (0,), (0,), (1,), (1,)]
    assert {call.branches for call in calls(two.schedule)} == {(0, 1)}
    halves = [result.ranks for result in stage_named(two, "encode_text").results]
    half = two.variant.topology.ranks // 2
    assert halves == [tuple(range(half)), tuple(range(half, 2 * half))]  # by cfg
    (noise,) = stage_named(two, "step.high_noise").results
    assert noise.ranks == two.mesh.ranks
    assert {result.ranks for result in stage_named(one, "encode_text").results} == {one.mesh.ranks}


def test_prompt_of_a_branch_by_hand(plan):
    (call,) = stage_named(plan(topology="cfg2"), "encode_text").calls
    cut = (Slice(kind="split", dim=0, axis="cfg"),)
    assert call.inputs == (
        Binding(feed="token_embeddings", slices=cut),
        Binding(feed="text_mask", slices=cut),
    )
    first, second = stage_named(plan(topology="cp2"), "encode_text").calls
    for branch, call in enumerate((first, second)):
        assert call.inputs[0].slices == (Slice(kind="take", dim=0, index=branch),)


def test_tokens_are_split_over_cp_then_tp_with_both_paddings(plan):
    embed = stage_named(plan(topology="tp4-cp8"), "step.high_noise").calls[0]
    assert embed.inputs[0].slices == (
        Slice(kind="split", dim=1, axis="cp", pad_to=208),
        Slice(kind="split", dim=1, axis="tp", pad_to=28),
    )
    masked = stage_named(plan("432x240x33", "cp8"), "step.high_noise").calls[0]
    assert masked.inputs[0].slices[0].pad_to == 8 * 456


def test_key_mask_is_fed_only_where_cp_leaves_a_rest(plan):
    def feeds(planned):
        return {feed.name: feed for feed in planned.schedule.feeds}

    assert "key_mask" not in feeds(plan("208x128x5", "tp4-cp8"))
    assert feeds(plan("432x240x33", "cp8"))["key_mask"].shape == (8, 8, 456)


def test_one_expert_has_one_context_and_one_step(plan):
    planned = plan(model=replace(TINY, experts=("high_noise",)))
    names = [stage.name for stage in planned.schedule.stages]
    assert names[:3] == ["encode_text", "context.high_noise", "step.high_noise"]
    assert names[3].startswith("vae_decode_first")
    assert "transformer_2" not in {call.component for call in calls(planned.schedule)}

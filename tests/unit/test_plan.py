"""Plans of variants: programs, what they share, what is refused and what is warned of."""

from dataclasses import replace

import msgspec
import pytest

from wanc.errors import RefusedError
from wanc.plan.plan import Plan
from wanc.spec.presets import TINY, TINY_MODELS
from wanc.spec.target import TARGETS

A14B = "wan2.2-t2v-a14b"
NARROW = {"float32", "bfloat16"}


def named(planned):
    return {program.name: program for program in planned.programs}


def tensors(program):
    return (*program.weights, *program.inputs, *program.outputs)


def test_programs_of_a_plain_variant(plan):
    assert [program.name for program in plan(topology="tp2-cp2-cfg2").programs] == [
        *("text_encoder", "dit_context", "dit_embed", "dit_blocks", "dit_head"),
        *("vae_decode_first", "vae_decode_rest"),
    ]


def test_every_rank_has_one_replica_and_the_vae_has_one_alone(plan):
    for program in plan(topology="tp2-cp2-cfg2").programs:
        single = program.name.startswith("vae")
        assert program.ranks == ("one" if single else "all")
        assert program.replica_count == (1 if single else 8)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("topology", ["tp1", "tp4-cp8-cfg2", "cp7"])
@pytest.mark.parametrize("model", TINY_MODELS.values(), ids=lambda model: model.task)
def test_no_program_has_a_wide_or_complex_dtype(plan, model, precision, topology):
    """huggingface/diffusers #10986: float64 RoPE on a device without it."""
    planned = plan("448x256x33", topology, model=model, precision=precision, vae_tiles="diffusers")
    dtypes = {tensor.dtype for program in planned.programs for tensor in tensors(program)}
    dtypes |= {feed.dtype for feed in planned.schedule.feeds}
    assert dtypes == ({"float32"} if precision == "fp32" else NARROW)


def test_islands_of_fp32_in_bf16(plan):
    programs = named(plan(topology="tp2", precision="bf16"))
    for name, program in programs.items():
        if name.startswith("vae"):
            assert {tensor.dtype for tensor in tensors(program)} == {"float32"}
    wide = {
        weight.name.split(".", 2)[2] if weight.name.startswith("blocks.0.") else weight.name
        for name in ("dit_context", "dit_embed", "dit_blocks", "dit_head")
        for weight in programs[name].weights
        if weight.dtype == "float32" and not weight.name.startswith("blocks.1.")
    }
    time = "condition_embedder.time_embedder.linear"
    assert wide == {
        *("scale_shift_table", "norm2.weight", "norm2.bias"),
        *(f"{time}_{i}.{kind}" for i in (1, 2) for kind in ("weight", "bias")),
    }


def test_two_shapes_share_text_context_and_tile_programs(plan):
    small, large = (
        named(plan(shape, "tp4-cp8-cfg2", model=A14B)) for shape in ("832x480x81", "1280x720x81")
    )
    shared = {name for name in small if small[name] == large[name]}
    assert shared == {"text_encoder", "dit_context", "vae_decode_first", "vae_decode_rest"}


def test_frames_change_only_what_sees_tokens(plan):
    short, long = named(plan("832x480x77")), named(plan("832x480x81"))
    changed = {name for name in short if short[name] != long[name]}
    assert changed == {"dit_embed", "dit_blocks", "dit_head"}


def test_precision_leaves_the_vae_alone(plan):
    wide, narrow = named(plan(precision="fp32")), named(plan(precision="bf16"))
    same = {name for name in wide if wide[name] == narrow[name]}
    assert same == {"vae_decode_first", "vae_decode_rest"}


def test_both_experts_share_every_program(plan):
    one = plan(model=replace(TINY, experts=("high_noise",)))
    assert one.programs == plan(model=TINY).programs


def test_weights_and_names_never_say_which_model_or_variant(plan):
    """Equal numbers are equal programs, whatever the model is called."""
    assert plan(model=replace(TINY, name="tuned")).programs == plan(model=TINY).programs


@pytest.mark.parametrize("topology", ["tp2", "cp2", "cfg2", "tp2-cp2-cfg2"])
def test_groups_of_a_program_cover_every_rank_on_axes_of_more_than_one(plan, topology):
    planned = plan(topology=topology)
    ranks = set(planned.mesh.ranks)
    for program in planned.programs:
        for axis, groups in program.groups.items():
            assert planned.variant.topology.degree(axis) > 1
            assert groups == planned.mesh.groups(axis)
            assert {rank for group in groups for rank in group} == ranks


def test_split_weights_are_equal_parts_of_what_is_stored(plan):
    for program in plan(topology="tp4-cp2").programs:
        for weight in program.weights:
            assert weight.axis in (None, "tp")
            if weight.axis is None:
                assert sorted(weight.stored_shape) == sorted(weight.shape) or (
                    weight.name == "patch_embedding.weight"
                )
                continue
            sizes = list(weight.stored_shape)
            sizes[weight.dim] //= 4
            assert tuple(sizes) == weight.shape
            assert weight.stored_shape[weight.dim] % 4 == 0


@pytest.mark.parametrize(("most", "layers"), [(None, 4), (1, 1), (10, 10), (40, 40)])
def test_blocks_in_a_program_of_forty_layers(plan, most, layers):
    planned = plan("832x480x81", model=A14B, blocks_per_program=most)
    assert named(planned)["dit_blocks"].definition["layers"] == layers


def test_blocks_in_a_program_never_exceed_the_layers(plan):
    assert named(plan())["dit_blocks"].definition["layers"] == 2
    three = replace(TINY, transformer=replace(TINY.transformer, layers=3))
    assert named(plan(model=three))["dit_blocks"].definition["layers"] == 3
    seven = replace(TINY, transformer=replace(TINY.transformer, layers=7))
    assert named(plan(model=seven))["dit_blocks"].definition["layers"] == 1


@pytest.mark.parametrize("blocks", [0, 3, 41, 80, -1])
def test_blocks_that_do_not_divide_the_layers_name_those_that_do(plan, blocks):
    with pytest.raises(RefusedError) as caught:
        plan("832x480x81", model=A14B, blocks_per_program=blocks)
    assert str(caught.value) == (
        f"blocks per program {blocks} does not divide the 40 layers of {A14B}; "
        "try 1, 2, 4, 5, 8, 10, 20, 40"
    )
    assert caught.value.exit_code == 3


def test_more_ranks_than_the_limit_are_refused(plan):
    with pytest.raises(RefusedError, match="64 ranks are more than the limit of 32"):
        plan("832x480x81", "tp4-cp8-cfg2", model=A14B, max_ranks=32)
    assert plan("832x480x81", "tp4-cp8-cfg2", model=A14B, max_ranks=64)


def test_vae_ranks_decode_the_tiles(plan):
    assert set(plan("320x320x9", "tp4").tiles.ranks) == {0, 1, 2, 3}
    assert set(plan("208x128x5", "tp4").tiles.ranks) == {0}


@pytest.mark.parametrize(("frames", "count"), [(5, 0), (77, 0), (81, 0), (85, 1), (121, 1)])
def test_longer_than_trained_is_warned_of(plan, frames, count):
    planned = plan(f"208x128x{frames}")
    assert len(planned.warnings) == count
    assert all("trained on 81 frames" in warning for warning in planned.warnings)


def test_query_tile_keeps_the_scores_within_the_target_s_budget(plan):
    budget = TARGETS["cpu"].score_budget_bytes
    for attention, keys in (("ring", 9_450), ("allgather", 75_600)):
        planned = plan("1280x720x81", "tp4-cp8", model=A14B, attention=attention)
        how = named(planned)["dit_blocks"].definition
        tile, cross = how["query_tile_tokens"], how["cross_query_tile_tokens"]
        assert 4 * 10 * keys * tile <= budget
        assert 4 * 10 * 512 * cross <= budget
        assert tile * -(-9_450 // tile) - 9_450 < tile


def test_plan_round_trips_through_json(plan):
    """A bundle's config carries these records as they are."""
    for planned in (
        plan("432x240x33", "tp2-cp4-cfg2", vae_tiles="diffusers", precision="bf16"),
        plan("832x480x81", "tp4-cp8-cfg2", model=A14B),
    ):
        data = msgspec.json.encode(planned)
        assert msgspec.json.decode(data, type=Plan) == planned


def test_plans_are_the_same_every_time(plan):
    arguments = ("432x240x33", "tp2-cp4-cfg2")
    assert msgspec.json.encode(plan(*arguments)) == msgspec.json.encode(plan(*arguments))

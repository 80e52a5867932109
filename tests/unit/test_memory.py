"""Bytes on a rank, against the sums that are published for the 14B model."""

from dataclasses import replace

import pytest

from tests.planned import A14B, asked, planned
from wanc.errors import RefusedError
from wanc.plan.memory import memory_parts, usable_bytes
from wanc.plan.plan import check_memory, work_out
from wanc.spec.presets import TINY
from wanc.spec.target import TARGETS
from wanc.spec.variant import Options

EXPERTS_BYTES = 57e9
"""Both experts in bf16."""
REPLICATED_BYTES = 0.9e9
"""What tp leaves whole of both: time_proj alone is 0.31 GB an expert."""
TEXT_BYTES = 9.3e9
"""UMT5-XXL without its table, in bf16."""
TWO_DIGITS = 0.02
"""The published sums have two digits, and the sum over tp leaves the replicated part out."""
ONE_DIGIT = 0.2
"""The published sum says `about`: the fp32 time embedder is in ours."""


def parts(planned, *, only=""):
    return {part.name: part.bytes for part in planned.memory if only in part.name}


def split_and_whole(planned, component):
    named = parts(planned)
    return tuple(
        named.get(f"{component} weights, {how}", 0) for how in ("split by tp", "replicated")
    )


def test_experts_whole(plan):
    planned = plan("832x480x81", "cp8", model=A14B, precision="bf16")
    total = sum(parts(planned, only="transformer weights").values())
    total += sum(parts(planned, only="transformer_2 weights").values())
    assert total == pytest.approx(EXPERTS_BYTES, rel=TWO_DIGITS)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_experts_split_over_tp(plan, tp):
    planned = plan("832x480x81", f"tp{tp}-cp8-cfg2", model=A14B, precision="bf16")
    high, low = (split_and_whole(planned, c) for c in ("transformer", "transformer_2"))
    assert high == low
    assert 2 * high[0] == pytest.approx(EXPERTS_BYTES / tp, rel=TWO_DIGITS)
    assert 2 * high[1] == pytest.approx(REPLICATED_BYTES, rel=ONE_DIGIT)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_text_encoder_split_over_tp_without_its_table(plan, tp):
    planned = plan("832x480x81", f"tp{tp}", model=A14B, precision="bf16")
    split, whole = split_and_whole(planned, "text_encoder")
    assert split == pytest.approx(TEXT_BYTES / tp, rel=TWO_DIGITS)
    assert whole == 2 * 4096 * (2 * 24 + 1)  # layer norms


def test_cp_and_cfg_replicate_weights(plan):
    one = parts(plan(topology="tp2"), only="weights")
    assert one == parts(plan(topology="tp2-cp4-cfg2"), only="weights")


def test_prompt_keys_and_values_are_counted_for_every_branch_of_the_rank(plan):
    def context(topology):
        return parts(plan("832x480x81", topology, model=A14B))["prompt keys and values"]

    experts, layers, key_and_value, text, width, fp32 = 2, 40, 2, 512, 5120, 4
    branch = experts * layers * key_and_value * text * width * fp32
    assert context("cfg2") == branch
    assert context("tp1") == 2 * branch  # one rank holds both
    assert context("tp4-cfg2") == branch // 4


def test_fp32_is_twice_bf16_but_for_the_fp32_islands_and_the_vae(plan):
    wide, narrow = (plan("832x480x81", "tp4", model=A14B, precision=p) for p in ("fp32", "bf16"))
    assert split_and_whole(wide, "transformer")[0] == 2 * split_and_whole(narrow, "transformer")[0]
    for name in ("vae weights, replicated", "VAE tile caches"):
        assert parts(wide)[name] == parts(narrow)[name]


def test_experts_are_both_counted_though_they_share_programs(plan):
    one = plan(model=replace(TINY, experts=("high_noise",)))
    two = plan(model=TINY)
    both = sum(parts(two, only="transformer").values()) - parts(two)["transformer work, estimated"]
    alone = sum(parts(one, only="transformer").values()) - parts(one)["transformer work, estimated"]
    assert both == 2 * alone


def test_work_shrinks_with_ranks_and_grows_with_the_picture(plan):
    def work(shape, topology):
        return parts(plan(shape, topology, model=A14B))["transformer work, estimated"]

    assert work("832x480x81", "tp4-cp8") < work("832x480x81", "tp4-cp4")
    assert work("832x480x81", "tp4-cp8") < work("1280x720x81", "tp4-cp8")


def test_whole_is_the_sum_of_its_parts(plan):
    planned = plan("832x480x81", "tp4-cp8", model=A14B)
    assert planned.memory_bytes == sum(parts(planned).values())
    assert len(parts(planned)) == len(planned.memory)
    assert all(size > 0 for size in parts(planned).values())


# --- on a core of trn2 ---------------------------------------------------------------------------

TRN2 = TARGETS["trn2"].accelerator
PUBLISHED = 0.15
"""Published parts have two digits, and nothing says what lies in which."""
COMMON = [
    (shape, topology)
    for shape in ("832x480x81", "1280x720x81")
    for topology in ("tp4-cp8-cfg2", "tp4-cp8", "tp8-cp4", "tp8-cp4-cfg2")
]


def two_whole_graphs(topology):
    """Memory of the published configuration: the first step's and the steady step's whole DiT,
    with attention kernels, and neither text encoder nor VAE."""
    model, variant = asked("1280x720x81", topology, target="cpu", placement="linear")
    whole = work_out(model, variant, Options(blocks_per_program=40))
    programs = [program for program in whole.programs if program.kind.startswith("dit")]
    blocks = next(program for program in programs if program.kind == "dit_blocks")
    names = {program.name for program in programs}
    stages = [s for s in whole.schedule.stages if {call.program for call in s.calls} <= names]
    return memory_parts(
        [*programs, replace(blocks, name="dit_blocks_steady")],
        replace(whole.schedule, stages=tuple(stages)),
        TRN2,
        kernels=True,
    )


def sum_of(found, named=""):
    return sum(part.bytes for part in found if named in part.name)


@pytest.mark.parametrize(
    ("part", "gigabytes"),
    [("weights", 14.7), ("scratchpad", 1.5), ("code and runtime", 0.55), ("DMA rings", 7.4)],
)
def test_published_parts_of_two_whole_graphs(part, gigabytes):
    found = two_whole_graphs("tp4-cp8-cfg2")
    assert sum_of(found, part) == pytest.approx(gigabytes * 1e9, rel=PUBLISHED)


def test_published_sum_of_two_whole_graphs_is_refused():
    found = two_whole_graphs("tp4-cp8-cfg2")
    assert sum_of(found) == pytest.approx(24.4e9, rel=PUBLISHED)
    assert not sum_of(found, "scores")
    _, variant = asked(topology="tp4-cp8-cfg2")
    with pytest.raises(RefusedError, match=r"needs 23\.\d GiB on a core of trn2"):
        check_memory(TRN2, variant, found)


def test_published_way_out_fits():
    found = two_whole_graphs("tp8-cp4-cfg2")
    assert sum_of(found, "weights") == pytest.approx(7.3e9, rel=PUBLISHED)
    _, variant = asked(topology="tp8-cp4-cfg2")
    check_memory(TRN2, variant, found)


def test_what_is_reported_not_to_fit_is_beyond_what_can_be_used():
    assert usable_bytes(TRN2) < 24.4e9 < TRN2.core_hbm_bytes


@pytest.mark.parametrize(("shape", "topology"), COMMON)
def test_wanc_s_own_programs_fit_a_core_of_trn2(shape, topology):
    plan = planned(shape, topology)
    margin = plan.hbm_bytes - plan.memory_bytes
    print(f"\n{shape} {topology}: {plan.memory_bytes / 1e9:.1f} GB, margin {margin / 1e9:.1f} GB")
    assert plan.memory_bytes == sum_of(plan.memory)
    assert 0 < margin < 12e9


def test_refusal_lists_the_parts_and_what_would_work():
    with pytest.raises(RefusedError) as caught:
        planned("1280x720x81", "tp4-cp8-cfg2", options={"blocks_per_program": 40})
    message = str(caught.value)
    assert message.startswith("topology tp4-cp8-cfg2 at 1280x720x81 in bf16 needs ")
    for part in ("6.5 GiB  transformer weights, split by tp", "DMA rings", "scratchpad"):
        assert part in message
    assert " 0.0" not in message
    assert "would work" in message.splitlines()[0]
    assert "would work, with predicted times: --blocks-per-program 10 (" in message
    assert "tp8-cp4-cfg2 (" in message
    assert "--target trn3 (" in message


def test_a_group_of_layers_costs_its_share_of_rings():
    whole, cut = (
        sum_of(planned(options={"blocks_per_program": n}).memory, "DMA rings") for n in (40, 10)
    )
    assert whole > 3.6 * cut


def test_kernels_keep_scores_out_of_memory():
    plan = planned("832x480x81", "tp4-cp8")
    with_kernels = memory_parts(plan.programs, plan.schedule, TRN2, kernels=True)
    scores = sum_of(plan.memory, "attention scores")
    tile = 4_095  # the whole chunk is within the budget
    assert scores == 10 * tile * 4_095 * (4 + 2)
    assert sum_of(with_kernels) == plan.memory_bytes - scores


def test_activations_between_calls_by_hand():
    """480p, tp4-cp8: tokens, hidden twice, time twice, modulations, tables of RoPE, noise."""
    plan = planned("832x480x81", "tp4-cp8")
    shard, chunk, width, patch, bf16, fp32 = 1_024, 4_095, 5_120, 64, 2, 4
    rows = shard * patch * bf16 + 2 * shard * width * bf16
    time = 256 * fp32 + (2 + 6) * width * bf16
    tables, noise = 2 * chunk * 64 * fp32, 8 * chunk * patch * fp32
    assert parts(plan)["activations between calls"] == rows + time + tables + noise


def test_a_small_video_s_scratchpad_is_the_decoder_s():
    """Three tensors as large as what the last upsampler's convolution takes: 32 channels, doubled
    to the whole picture."""
    plan = planned("208x128x5", "tp8", model="tiny")
    assert parts(plan)["scratchpad, estimated"] == 3 * 4 * (32 * 4 * 208 * 128)


def test_gathered_keys_need_more_than_passing_ones():
    ring, gather = (
        sum_of(planned("832x480x81", "tp4-cp8", options={"attention": how}).memory, "collective")
        for how in ("ring", "allgather")
    )
    assert gather - ring == 7 * 2 * 10 * 4_095 * 128 * 2


def test_trn3_has_half_as_much_again():
    assert planned(target="trn3").hbm_bytes == pytest.approx(1.5 * usable_bytes(TRN2), rel=1e-6)

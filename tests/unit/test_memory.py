"""Bytes on a rank, against the sums that are published for the 14B model."""

from dataclasses import replace

import pytest

from wanc.spec.presets import TINY

A14B = "wan2.2-t2v-a14b"

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

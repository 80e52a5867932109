"""Latent grids, tokens, and how they lie on ranks: a table of common sizes, and properties."""

from dataclasses import replace

import pytest

from wanc.errors import RefusedError
from wanc.plan.geometry import geometry, query_tile_tokens, split_tokens
from wanc.spec.presets import WAN22_T2V_A14B
from wanc.spec.shape import Shape
from wanc.spec.topology import Topology

A14B = WAN22_T2V_A14B
TI2V = replace(A14B, name="ti2v", vae=replace(A14B.vae, z_channels=48, spatial_stride=16))
"""The 5B model's grid: 32 px a token side."""


@pytest.mark.parametrize(
    ("shape", "latent", "tokens"),
    [
        ("832x480x81", (21, 60, 104), 32_760),
        ("480x832x81", (21, 104, 60), 32_760),
        ("1280x720x81", (21, 90, 160), 75_600),
        ("208x128x5", (2, 16, 26), 208),
        ("432x240x33", (9, 30, 54), 3_645),
        ("320x320x9", (3, 40, 40), 1_200),
        ("16x16x1", (1, 2, 2), 1),
    ],
)
def test_grid_of_a_shape(shape, latent, tokens):
    grid = geometry(Shape.parse(shape), A14B)
    assert (grid.latent_frames, grid.latent_rows, grid.latent_columns) == latent
    assert (2 * grid.token_rows, 2 * grid.token_columns) == latent[1:]
    assert grid.tokens == tokens


def test_grid_of_the_5b_model():
    assert geometry(Shape.parse("1280x704x121"), TI2V).tokens == 27_280


def test_multiple_of_16_that_this_model_refuses_names_the_nearest():
    with pytest.raises(RefusedError) as caught:
        geometry(Shape.parse("1296x720x121"), TI2V)
    assert str(caught.value) == (
        "shape 1296x720x121 with model ti2v: "
        "width 1296 is not a multiple of 32; nearest are 1280 and 1312; "
        "height 720 is not a multiple of 32; nearest are 704 and 736"
    )
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("shape", ["16400x16x1", "16x16400x1", "16x16x4097"])
def test_grid_past_the_rope_table_is_refused(shape):
    with pytest.raises(RefusedError, match="1024 RoPE positions"):
        geometry(Shape.parse(shape), A14B)
    for side in ("16384x16x1", "16x16384x1", "16x16x4093"):
        geometry(Shape.parse(side), A14B)


@pytest.mark.parametrize(
    ("tokens", "topology", "chunk", "padded", "shard", "masked"),
    [
        (32_760, "tp4-cp8", 4_095, 4_096, 1_024, False),
        (75_600, "tp4-cp8", 9_450, 9_452, 2_363, False),
        (208, "tp4-cp8", 26, 28, 7, False),
        (3_645, "cp8", 456, 456, 456, True),
        (3_645, "tp4-cp8", 456, 456, 114, True),
        (3_645, "tp8-cp5", 729, 736, 92, False),
        (208, "tp1", 208, 208, 208, False),
        (208, "tp4-cfg2", 208, 208, 52, False),
        (3, "cp2", 2, 2, 2, True),
        (10, "cp8", 2, 2, 2, True),
        (1, "tp8", 1, 8, 1, False),
    ],
)
def test_split_of_tokens(tokens, topology, chunk, padded, shard, masked):
    split = split_tokens(tokens, Topology.parse(topology))
    assert split.tokens == tokens
    assert (split.chunk_tokens, split.padded_chunk_tokens) == (chunk, padded)
    assert (split.shard_tokens, split.masked) == (shard, masked)


@pytest.mark.parametrize(("tokens", "rest"), [(32_760, 24), (75_600, 16), (208, 16)])
def test_480p_720p_and_the_tiny_shape_need_tails_and_no_mask(tokens, rest):
    assert tokens % 32 == rest
    split = split_tokens(tokens, Topology(tp=4, cp=8))
    assert not split.masked
    assert split.padded_chunk_tokens > split.chunk_tokens


def test_no_token_is_lost_and_no_pad_is_larger_than_needed():
    for tokens in range(1, 40):
        for tp in (1, 2, 4, 8):
            for cp in range(1, min(tokens, 9) + 1):
                split = split_tokens(tokens, Topology(tp=tp, cp=cp))
                assert 0 <= cp * split.chunk_tokens - tokens < cp
                assert 0 <= split.padded_chunk_tokens - split.chunk_tokens < tp
                assert split.shard_tokens * tp == split.padded_chunk_tokens
                assert split.masked == (cp * split.chunk_tokens != tokens)


@pytest.mark.parametrize(
    ("heads", "queries", "keys", "budget", "tile"),
    [
        (1, 10, 1, 4 * 10, 10),
        (1, 10, 1, 4 * 9, 5),  # two tiles alike, not nine and one
        (1, 10, 1, 14, 3),  # three fit; ten in three tiles would be four
        (2, 10, 3, 4 * 2 * 3 * 4, 4),
        (1, 10, 1, 1, 1),  # one query at least, whatever the budget
        (10, 9_450, 9_450, 256 << 20, 675),  # 720p at tp4-cp8
        (10, 4_095, 4_095, 256 << 20, 1_365),  # 480p at tp4-cp8
    ],
)
def test_query_tile(heads, queries, keys, budget, tile):
    assert query_tile_tokens(heads, queries, keys, budget) == tile


def test_query_tile_keeps_to_the_budget_with_the_fewest_tiles():
    for queries in range(1, 60):
        for most in range(1, 70):
            tile = query_tile_tokens(3, queries, 5, 4 * 3 * 5 * most + 7)
            assert 1 <= tile <= min(most, queries)
            assert -(-queries // tile) == -(-queries // most)

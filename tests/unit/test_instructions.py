"""Blocks of a program: about how many instructions, and how many blocks a target is given."""

import pytest

from tests.planned import A14B, TI2V, planned
from wanc.plan.instructions import SCORE_PASSES, TILE_ELEMENTS, of_blocks, product, tiles
from wanc.spec.target import TARGETS

LIMITS = TARGETS["trn2"].accelerator.limits


def blocks(plan):
    (program,) = (program for program in plan.programs if program.kind == "dit_blocks")
    return program


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "taps", "count"),
    [
        (128, 128, 512, 1, 2),  # one product, and its sums out of PSUM
        (129, 128, 512, 1, 4),
        (512, 128, 128, 1, 2),  # the other factor is the stationary one
        (128, 256, 512, 1, 3),
        (128, 128, 512, 27, 28),
    ],
)
def test_products_by_hand(rows, depth, columns, taps, count):
    assert product(rows, depth, columns, taps) == count


@pytest.mark.parametrize(
    ("shape", "topology", "layers"),
    [
        ("832x480x81", "tp4-cp8-cfg2", 10),
        ("1280x720x81", "tp4-cp8-cfg2", 4),
        ("1280x720x81", "tp8-cp4-cfg2", 4),
    ],
)
def test_blocks_keep_to_the_compiler_s_own_limit(shape, topology, layers):
    program = blocks(planned(shape, topology))
    assert program.definition["layers"] == layers
    assert of_blocks(program) <= LIMITS.usual_instructions


def test_query_tiles_are_counted_one_by_one():
    """642 tiles of 51 of the 32,760 tokens, and one of 18."""
    program = blocks(planned("832x480x81", "tp1", target="cpu"))
    how = program.definition
    chunk, heads, width, text = 32_760, 40, 128, 512
    assert how["query_tile_tokens"] == 51

    def head(keys, tile):
        spans = [min(tile, chunk - start) for start in range(0, chunk, tile)]
        return sum(
            product(span, width, keys)
            + product(span, keys, width)
            + SCORE_PASSES * tiles(span * keys, TILE_ELEMENTS)
            for span in spans
        )

    matrices = [weight.shape for weight in program.weights if len(weight.shape) == 2]
    linears = sum(product(chunk, inputs, outputs) for outputs, inputs in matrices)
    attention = head(chunk, 51) + head(text, how["cross_query_tile_tokens"])
    assert of_blocks(program) == linears + how["layers"] * heads * attention


def test_the_largest_shape_of_all_is_planned_too():
    """A billion tokens, so that a query tile is one token: none of them may be listed."""
    plan = planned("16384x16384x4093", "tp1", target="cpu")
    assert plan.tokens.tokens == 1024**3
    assert of_blocks(blocks(plan)) > 1e15


def test_blocks_that_the_user_names_are_kept():
    asked = planned("1280x720x81", "tp8-cp4-cfg2", options={"blocks_per_program": 10})
    assert blocks(asked).definition["layers"] == 10
    assert asked.not_compilable is None


def test_more_blocks_than_the_compiler_takes_can_be_planned_and_not_compiled():
    plan = planned("1280x720x81", "tp8-cp4-cfg2", options={"blocks_per_program": 20})
    assert "--blocks-per-program" in plan.not_compilable
    most = int(plan.not_compilable.rpartition("--blocks-per-program ")[2].split()[0])
    assert most == 10  # as many as divide the 40 layers


def test_the_whole_model_at_480p_is_within_the_raised_limit():
    plan = planned("832x480x81", "tp4-cp8-cfg2", options={"blocks_per_program": 40})
    assert LIMITS.usual_instructions < of_blocks(blocks(plan)) <= LIMITS.instructions
    assert plan.not_compilable is None


def test_a_cpu_has_no_such_limit():
    plan = planned("1280x720x81", "tp8-cp4-cfg2", target="cpu", options={"blocks_per_program": 40})
    assert plan.not_compilable is None


def test_every_model_has_blocks():
    for model, shape in ((A14B, "832x480x81"), (TI2V, "1280x704x121")):
        assert blocks(planned(shape, "tp4-cp8-cfg2", model=model)).definition["layers"] == 10

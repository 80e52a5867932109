"""What plan takes a group of blocks for, beside a count over the lowered program."""

import pytest

from tests.planned import planned
from wanc.lower.artifact import read_artifact
from wanc.lower.instructions import instructions
from wanc.lower.lower import lower
from wanc.plan.instructions import of_blocks
from wanc.trace import trace


@pytest.mark.parametrize(
    ("shape", "topology", "attention"),
    [
        ("832x480x81", "tp4-cp8-cfg2", "ring"),
        ("1280x720x81", "tp8-cp4-cfg2", "ring"),
        ("832x480x81", "tp4-cp8", "allgather"),
    ],
)
def test_plan_foresees_what_lint_counts(shape, topology, attention):
    """Within a tenth, at full size: plan leaves out norms, RoPE and what collectives move."""
    plan = planned(shape, topology, options={"attention": attention, "blocks_per_program": 1})
    (program,) = (program for program in plan.programs if program.kind == "dit_blocks")
    counted = instructions(read_artifact(lower(trace(program)).stablehlo))
    assert 0.9 * counted < of_blocks(program) <= counted

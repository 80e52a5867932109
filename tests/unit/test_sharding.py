"""Legal degrees: what the model and the limit on ranks refuse, and what is offered instead."""

import re
from dataclasses import replace

import pytest

from wanc.errors import RefusedError
from wanc.plan.sharding import check_topology, legal_tp_degrees, smaller_topologies
from wanc.spec.presets import TINY, WAN22_T2V_A14B
from wanc.spec.topology import Topology

TI2V = replace(
    WAN22_T2V_A14B,
    transformer=replace(WAN22_T2V_A14B.transformer, heads=24, ffn_width=14336),
)
"""The 5B model's split dimensions."""


def refusal(topology, model=WAN22_T2V_A14B, *, tokens=32_760, max_ranks=None) -> str:
    with pytest.raises(RefusedError) as caught:
        check_topology(Topology.parse(topology), model, tokens=tokens, max_ranks=max_ranks)
    assert caught.value.exit_code == 3
    return str(caught.value)


@pytest.mark.parametrize("model", [WAN22_T2V_A14B, TINY, TI2V])
def test_legal_degrees(model):
    assert legal_tp_degrees(model) == (1, 2, 4, 8)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("cp", [1, 3, 8, 32_760])
def test_legal_topology_is_taken(tp, cp):
    check_topology(Topology(tp=tp, cp=cp), WAN22_T2V_A14B, tokens=32_760, max_ranks=None)


def test_tp3_is_refused_with_the_degrees_that_divide():
    message = refusal("tp3")
    assert "tp3: 3 does not divide 40 attention heads" in message
    assert message.endswith("try tp1, tp2, tp4, tp8")
    assert "13824" not in message  # 3 divides it


def test_tp5_divides_the_heads_and_fails_on_the_ffn():
    message = refusal("tp5")
    assert "attention heads" not in message
    assert "tp5: 5 does not divide 13824 ffn width" in message


def test_tp3_of_the_5b_model_fails_on_its_ffn():
    assert "3 does not divide 14336 ffn width" in refusal("tp3", TI2V)


@pytest.mark.parametrize("tp", [3, 5, 6, 7, 9, 10, 16, 20, 40, 99999])
def test_every_other_degree_is_refused(tp):
    assert "try tp1, tp2, tp4, tp8" in refusal(f"tp{tp}")


def test_every_dimension_that_fails_is_named():
    found = re.findall(r"does not divide (\d+)", refusal("tp7"))
    assert found == ["40", "13824", "64", "10240"]


def test_more_chunks_than_tokens_are_refused():
    assert "cp209: there are only 208 tokens to split" in refusal("cp209", tokens=208)
    check_topology(Topology(cp=208), WAN22_T2V_A14B, tokens=208, max_ranks=None)


def test_limit_on_ranks_names_topologies_within_it():
    message = refusal("tp4-cp8-cfg2", max_ranks=32)
    assert "64 ranks are more than the limit of 32" in message
    assert message.endswith("try tp4-cp8, tp4-cp4-cfg2, tp2-cp8-cfg2")
    check_topology(Topology(tp=4, cp=8, cfg=2), WAN22_T2V_A14B, tokens=32_760, max_ranks=64)


def test_every_problem_is_named_at_once():
    message = refusal("tp3-cp300", tokens=208, max_ranks=8)
    for part in ("3 does not divide 40", "only 208 tokens", "900 ranks are more than"):
        assert part in message


@pytest.mark.parametrize("limit", [1, 2, 7, 16, 63])
def test_what_is_offered_would_work(limit):
    topology = Topology(tp=8, cp=4, cfg=2)
    offered = [t for t in smaller_topologies(topology, WAN22_T2V_A14B) if t.ranks <= limit]
    assert offered
    assert topology not in offered
    for smaller in offered:
        check_topology(smaller, WAN22_T2V_A14B, tokens=32_760, max_ranks=limit)
        assert topology.cp % smaller.cp == 0

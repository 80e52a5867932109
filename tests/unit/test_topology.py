"""Topologies as people write them."""

import itertools

import pytest

from wanc.errors import RequestError
from wanc.spec.topology import AXES, Topology


@pytest.mark.parametrize(
    ("text", "degrees", "ranks"),
    [
        ("tp1", (1, 1, 1), 1),
        ("tp4", (4, 1, 1), 4),
        ("cp8", (1, 8, 1), 8),
        ("cfg2", (1, 1, 2), 2),
        ("cfg1", (1, 1, 1), 1),
        ("tp4-cp8-cfg2", (4, 8, 2), 64),
        ("tp2-cfg2", (2, 1, 2), 4),
    ],
)
def test_degrees_and_ranks(text, degrees, ranks):
    topology = Topology.parse(text)
    assert tuple(topology.degree(axis) for axis in AXES) == degrees
    assert topology.ranks == ranks


@pytest.mark.parametrize("parts", list(itertools.permutations(["tp4", "cp8", "cfg2"])))
def test_axes_stand_in_any_order(parts):
    assert Topology.parse("-".join(parts)) == Topology(tp=4, cp=8, cfg=2)


@pytest.mark.parametrize("text", ["tp1", "tp4", "cp8", "cfg2", "tp4-cp8-cfg2", "tp2-cfg2"])
def test_text_comes_back(text):
    assert str(Topology.parse(text)) == text


def test_degree_one_is_left_out_of_the_text():
    assert str(Topology.parse("cfg1-cp8-tp1")) == "cp8"
    assert str(Topology.parse("tp1-cp1-cfg1")) == "tp1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp4-tp4", "tp stands twice"),
        ("cp2-tp1-cp1", "cp stands twice"),
        ("cfg3", "cfg is 1 or 2, for there are two guidance branches"),
        ("tp0", "tp must be at least 1"),
        ("tp4-cp0", "cp must be at least 1"),
        ("", "'' is not an axis and its degree"),
        ("tp", "'tp' is not an axis and its degree"),
        ("4", "'4' is not an axis and its degree"),
        ("tp4-", "'' is not an axis and its degree"),
        ("tp4_cp8", "'tp4_cp8' is not an axis and its degree"),
        ("dp2", "'dp2' is not an axis and its degree"),
        ("TP4", "'TP4' is not an axis and its degree"),
        ("tp-4", "'tp' is not an axis and its degree"),
        ("tp4.0", "'tp4.0' is not an axis and its degree"),
        ("tp４", "'tp４' is not an axis and its degree"),
        ("tp4\n", "is not an axis and its degree"),
    ],
)
def test_refused(text, message):
    with pytest.raises(RequestError) as caught:
        Topology.parse(text)
    assert message in str(caught.value)
    assert repr(text) in str(caught.value)
    assert caught.value.exit_code == 2

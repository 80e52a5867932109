"""Ranks, their coordinates, and the groups that collectives join."""

from dataclasses import replace

import pytest

from wanc.plan.mesh import Coordinates, Mesh
from wanc.spec.topology import AXES, Topology

TOPOLOGIES = [
    Topology(tp=tp, cp=cp, cfg=cfg) for tp in (1, 2, 4) for cp in (1, 2, 3, 8) for cfg in (1, 2)
]


def places(mesh: Mesh) -> list[tuple[int, int, int]]:
    return [(place.cfg, place.cp, place.tp) for place in mesh.coordinates]


def test_tp2_cp2_cfg2_by_hand():
    """sgl-project/sglang PR #16532: sequence groups are not consecutive ranks under tp."""
    mesh = Mesh.ordered(Topology(tp=2, cp=2, cfg=2))
    assert mesh.ranks == (0, 1, 2, 3, 4, 5, 6, 7)
    assert places(mesh) == [
        *((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)),
        *((1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)),
    ]
    assert mesh.groups("tp") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert mesh.groups("cp") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert mesh.groups("cfg") == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_order_names_the_axis_that_varies_fastest():
    """vllm-omni's layout of guidance beside tp: cfg varies before cp."""
    mesh = Mesh.ordered(Topology(tp=2, cp=2, cfg=2), ("tp", "cfg", "cp"))
    assert mesh.groups("cfg") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert mesh.groups("cp") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert mesh.cores == mesh.ranks


def test_groups_follow_coordinates_not_rank_numbers():
    """Another placement than the linear one: ranks turned back to front."""
    linear = Mesh.ordered(Topology(tp=2, cp=2))
    turned = replace(linear, coordinates=linear.coordinates[::-1])
    assert set(turned.groups("tp")) == {(3, 2), (1, 0)}
    assert set(turned.groups("cp")) == {(3, 1), (2, 0)}
    assert turned.rank_at(Coordinates(cfg=0, cp=0, tp=0)) == 3


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_tp_groups_are_consecutive_ranks(topology):
    for group in Mesh.ordered(topology).groups("tp"):
        assert group == tuple(range(group[0], group[0] + topology.tp))


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
@pytest.mark.parametrize("axis", AXES)
def test_groups_cover_every_rank_once_in_the_axis_s_order(topology, axis):
    mesh = Mesh.ordered(topology)
    groups = mesh.groups(axis)
    assert sorted(rank for group in groups for rank in group) == list(range(topology.ranks))
    for group in groups:
        assert [mesh.coordinates[rank].on(axis) for rank in group] == [*range(len(group))]
        for other in set(AXES) - {axis}:
            assert len({mesh.coordinates[rank].on(other) for rank in group}) == 1


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_rank_and_coordinates_round_trip(topology):
    mesh = Mesh.ordered(topology)
    assert len(mesh.coordinates) == topology.ranks
    assert [mesh.rank_at(place) for place in mesh.coordinates] == list(mesh.ranks)

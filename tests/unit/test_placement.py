"""How ranks lie on trn2's torus, and which groups it can route."""

from collections import Counter
from itertools import pairwise, product
from pathlib import Path

import pytest

from wanc.cli.inspected import chip_rows
from wanc.errors import RefusedError
from wanc.plan.fabric import chip_of, group_problem, hop_problem, mesh_problems
from wanc.plan.mesh import Mesh
from wanc.plan.placement import closed_path, lay_out
from wanc.spec.target import ORDERS, PLACEMENTS, TRN2_FABRIC, TRN3_FABRIC
from wanc.spec.topology import Topology

VALIDATED = ("tp4-cp8-cfg2", "tp4-cp8", "tp8-cp4", "tp8-cp4-cfg2")
"""Topologies that others have run on 32 or 64 cores."""

EVERY = [
    Topology(tp=tp, cp=cp, cfg=cfg)
    for tp, cp, cfg in product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32, 64), (1, 2))
    if tp * cp * cfg <= 64
]


def torus(topology: str) -> Mesh:
    return lay_out(Topology.parse(topology), "trn2-torus")


def members(groups) -> set[frozenset[int]]:
    return {frozenset(group) for group in groups}


def test_tp4_cp8_cfg2_lies_as_is_known_to_work():
    """Eight rows of tp and cfg, each on two neighbouring chips; cp runs down the columns."""
    mesh = torus("tp4-cp8-cfg2")
    known_rows = [
        *([0, 1, 2, 3, 12, 13, 14, 15], [*range(4, 12)]),
        *([16, 17, 18, 19, 28, 29, 30, 31], [*range(20, 28)]),
        *([32, 33, 34, 35, 44, 45, 46, 47], [*range(36, 44)]),
        *([48, 49, 50, 51, 60, 61, 62, 63], [*range(52, 60)]),
    ]
    rows = {}
    for rank, place in enumerate(mesh.coordinates):
        rows.setdefault(place.cp, set()).add(rank)
    assert members(rows.values()) == members(known_rows)
    assert mesh.groups("tp")[0] == (0, 1, 2, 3)
    assert mesh.groups("cfg")[0] == (0, 12)
    assert mesh.groups("cp")[0] == (0, 4, 20, 36, 52, 48, 32, 16)


def test_tp8_is_two_neighbouring_chips():
    mesh = torus("tp8-cp4-cfg2")
    for group in mesh.groups("tp"):
        assert len({chip_of(TRN2_FABRIC, rank) for rank in group}) == 2
        assert group_problem(TRN2_FABRIC, group) is None


@pytest.mark.parametrize("topology", EVERY, ids=str)
def test_every_topology_of_powers_of_two_can_be_laid_out(topology):
    mesh = lay_out(topology, "trn2-torus")
    assert mesh_problems(TRN2_FABRIC, mesh, ring=True) == []
    assert Counter(mesh.coordinates) == Counter(Mesh.ordered(topology).coordinates)
    assert mesh.cores == tuple(range(topology.ranks))


@pytest.mark.parametrize("topology", EVERY, ids=str)
def test_cp_follows_links(topology):
    """Looked at with another rule than the product's: rows and columns differ by one step."""
    for group in lay_out(topology, "trn2-torus").groups("cp"):
        chips = [divmod(rank // 4, 4) for rank in group]
        for (row, column), (next_row, next_column) in pairwise([*chips, chips[0]]):
            steps = sorted([(row - next_row) % 4, (column - next_column) % 4])
            assert steps in ([0, 0], [0, 1], [0, 3])


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("topology", VALIDATED)
def test_a_placement_is_a_permutation(placement, topology):
    mesh = lay_out(Topology.parse(topology), placement)
    assert Counter(mesh.coordinates) == Counter(Mesh.ordered(mesh.topology).coordinates)


def test_arithmetic_placements_are_orders_of_the_axes():
    assert len(ORDERS) == 6
    topology = Topology(tp=2, cp=4, cfg=2)
    assert lay_out(topology, "tp-cp-cfg") == lay_out(topology, "linear")
    by_cfg = lay_out(topology, "cfg-tp-cp")
    assert by_cfg.groups("cfg") == tuple((rank, rank + 1) for rank in range(0, 16, 2))


@pytest.mark.parametrize("topology", ["tp4-cp12", "tp8-cp3-cfg2", "tp4-cp3"])
def test_ranks_must_divide_the_cores(topology):
    with pytest.raises(RefusedError, match="must divide the 64 cores"):
        torus(topology)


def test_torus_ends_with_the_machine():
    with pytest.raises(RefusedError, match="128 ranks are more than the 64 cores"):
        torus("tp8-cp8-cfg2")


# --- fabric ---------------------------------------------------------------------------------------


def cores(*chips: int, offset: int = 0) -> list[int]:
    return [4 * chip + offset for chip in chips]


@pytest.mark.parametrize(
    "chips",
    [
        (5,),
        (0, 1),
        (0, 3),  # over the edge
        (2, 14),  # over the other edge
        (4, 5, 6, 7),
        (1, 5, 9, 13),
        (0, 1, 4, 5),
        (0, 3, 12, 15),  # the four corners are one square
        (0, 1, 4, 5, 8, 9, 12, 13),
        (0, 1, 2, 3, 4, 5, 6, 7),
        (1, 2, 3, 5, 6, 7),
        tuple(range(16)),
    ],
)
def test_rings_of_links(chips):
    assert group_problem(TRN2_FABRIC, cores(*chips, offset=2)) is None


@pytest.mark.parametrize(
    "chips",
    [
        (0, 2),  # opposite sides of a row
        (0, 5),  # a diagonal
        (0, 1, 2),  # a line that does not close
        (0, 4, 8),
        (0, 1, 5),  # a corner
        (0, 1, 4, 5, 8),
        (0, 2, 4, 6),  # columns apart
        (0, 1, 8, 9),  # rows apart
    ],
)
def test_what_no_ring_of_links_joins(chips):
    assert "no ring of links" in group_problem(TRN2_FABRIC, cores(*chips))
    assert group_problem(TRN3_FABRIC, cores(*chips)) is None


def test_a_group_has_the_same_cores_of_each_chip():
    assert group_problem(TRN2_FABRIC, [0, 1, 4, 5]) is None
    assert "the same cores" in group_problem(TRN2_FABRIC, [0, 1, 4, 6])


def test_a_group_ends_with_the_machine():
    assert "beyond the 64" in group_problem(TRN2_FABRIC, [0, 64])


def test_a_ring_step_goes_to_a_neighbour():
    assert hop_problem(TRN2_FABRIC, 0, 3) is None  # inside the chip
    assert hop_problem(TRN2_FABRIC, 0, 12) is None
    assert hop_problem(TRN2_FABRIC, 0, 48) is None
    assert "no neighbours" in hop_problem(TRN2_FABRIC, 0, 20)
    assert hop_problem(TRN3_FABRIC, 0, 20) is None


def test_linear_on_the_torus_names_the_axes_that_fail():
    problems = mesh_problems(TRN2_FABRIC, Mesh.ordered(Topology(tp=4, cp=8, cfg=2)), ring=True)
    assert [problem.split(":")[0] for problem in problems] == ["cp8", "cfg2"]
    gathered = mesh_problems(TRN2_FABRIC, Mesh.ordered(Topology(tp=4, cp=8)), ring=False)
    assert gathered == []  # two whole rows: a rectangle, without a ring to follow


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 4), (4, 2), (4, 4), (3, 4), (4, 3)])
def test_closed_paths(rows, columns):
    path = closed_path(rows, columns, TRN2_FABRIC)
    assert sorted(path) == sorted(product(range(rows), range(columns)))
    for (row, column), (next_row, next_column) in pairwise([*path, path[0]]):
        assert abs(row - next_row) + abs(column - next_column) in (1, 3)


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (1, 3), (3, 1)])
def test_no_closed_path(rows, columns):
    """A rectangle of an odd number of chips is like a chess board: no closed path."""
    assert closed_path(rows, columns, TRN2_FABRIC) is None


# --- as it is shown ------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", EVERY, ids=str)
def test_chips_stand_in_columns_that_fit_80(topology):
    mesh = lay_out(topology, "trn2-torus")
    rows = chip_rows(mesh, TRN2_FABRIC)
    chips = -(-topology.ranks // TRN2_FABRIC.cores_per_chip)
    assert sum(row.count(":") for row in rows) == chips
    all_axes_share_a_chip = topology.tp == 2 and topology.cp > 2 and topology.cfg == 2
    assert max(map(len, rows)) <= (94 if all_axes_share_a_chip else 80)
    places = [[i for i, letter in enumerate(row) if letter == ":"] for row in rows]
    assert all(row == places[0] for row in places)


def test_the_docs_show_these_chips():
    page = (Path(__file__).parents[2] / "docs" / "trainium.md").read_text(encoding="utf-8")
    assert "\n".join(chip_rows(torus("tp4-cp8-cfg2"), TRN2_FABRIC)) in page

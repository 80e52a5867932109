"""How ranks lie on a fabric: which coordinates each core gets.

An arithmetic placement counts the axes off in an order. The torus placement fills chips with tp
first, then cuts the rectangle of chips among the axes so that every group is one that the torus
joins, and so that cp follows a closed path of neighbours: ring attention then only ever passes
chunks over one link. Ranks lie on the first cores, each on the core of its own number. Where an
axis lies beyond another one on the same side of the rectangle, the inner one runs back and forth,
so that the outer one's members stay neighbours.
"""

from collections.abc import Iterator
from itertools import product
from typing import cast

from wanc.errors import RefusedError
from wanc.plan.fabric import mesh_problems
from wanc.plan.mesh import Coordinates, Mesh
from wanc.spec.target import TORUS, TRN2_FABRIC, Fabric
from wanc.spec.topology import AXES, Axis, Topology

Place = tuple[int, int]


def lay_out(topology: Topology, placement: str) -> Mesh:
    """The mesh of a placement by name; raises RefusedError where it has none of this topology."""
    if placement == TORUS:
        return _torus(topology, TRN2_FABRIC)
    order = AXES if placement == "linear" else placement.split("-")
    return Mesh.ordered(topology, cast(tuple[Axis, ...], tuple(order)))


def _torus(topology: Topology, fabric: Fabric) -> Mesh:
    """The first cut of a rectangle of chips that the torus can route."""
    if topology.ranks > fabric.cores:
        raise RefusedError(
            f"topology {topology}: {topology.ranks} ranks are more than the {fabric.cores} cores "
            f"of one machine, which is as far as {TORUS} goes"
        )
    if fabric.cores % topology.ranks:
        raise RefusedError(
            f"topology {topology}: {topology.ranks} ranks under {TORUS}: the ranks must divide "
            f"the {fabric.cores} cores of the machine"
        )
    inside = _inside_a_chip(topology, fabric.cores_per_chip)
    for mesh in _candidates(topology, fabric, inside):
        if not mesh_problems(fabric, mesh, ring=True):
            return mesh
    raise RefusedError(
        f"topology {topology}: the {fabric.rows}x{fabric.columns} torus has no rectangle of chips "
        "in which every group is a ring of links"
    )


def _inside_a_chip(topology: Topology, cores: int) -> dict[Axis, int]:
    """How much of each axis lies inside a chip: tp first, then cp, then cfg."""
    inside: dict[Axis, int] = {}
    for axis in AXES:
        inside[axis] = _common(topology.degree(axis), cores)
        cores //= inside[axis]
    return inside


def _common(degree: int, room: int) -> int:
    return max(n for n in range(1, room + 1) if room % n == 0 and degree % n == 0)


def _candidates(topology: Topology, fabric: Fabric, inside: dict[Axis, int]) -> Iterator[Mesh]:
    """Meshes of every way to cut the rectangle of the first chips among the axes."""
    across = {axis: topology.degree(axis) // inside[axis] for axis in AXES}
    chips = _volume(across)
    width = min(chips, fabric.columns)
    for cut in product(*(_divisors(across[axis]) for axis in AXES)):
        rows = dict(zip(AXES, cut, strict=True))
        columns = {axis: across[axis] // rows[axis] for axis in AXES}
        path = closed_path(rows["cp"], columns["cp"], fabric)
        if path and _volume(columns) == width and _volume(rows) * width == chips:
            yield _cut(topology, fabric, inside, rows, columns, path)


def _divisors(number: int) -> list[int]:
    return [n for n in range(number, 0, -1) if number % n == 0]


def _volume(shares: dict[Axis, int]) -> int:
    return shares["tp"] * shares["cp"] * shares["cfg"]


def _cut(
    topology: Topology,
    fabric: Fabric,
    inside: dict[Axis, int],
    rows: dict[Axis, int],
    columns: dict[Axis, int],
    path: list[Place],
) -> Mesh:
    places = []
    for row, column in product(range(_volume(rows)), range(_volume(columns))):
        down, along = _unfold(row, rows), _unfold(column, columns)
        outer: dict[Axis, int] = {axis: down[axis] * columns[axis] + along[axis] for axis in AXES}
        outer["cp"] = path.index((down["cp"], along["cp"]))
        places += [_join(outer, inside, offset) for offset in range(_volume(inside))]
    return Mesh(
        topology=topology,
        coordinates=tuple(places),
        cores=tuple(range(len(places))),
    )


def _unfold(place: int, shares: dict[Axis, int]) -> dict[Axis, int]:
    """Each axis' index at a place of a side: the inner axis runs back where the outer is odd."""
    found: dict[Axis, int] = {}
    for axis in AXES:
        turn, index = divmod(place, shares[axis])
        found[axis] = shares[axis] - 1 - index if turn % 2 else index
        place = turn
    return found


def _join(outer: dict[Axis, int], inside: dict[Axis, int], offset: int) -> Coordinates:
    """Coordinates of one core of a chip."""
    found: dict[Axis, int] = {}
    for axis in AXES:
        offset, index = divmod(offset, inside[axis])
        found[axis] = outer[axis] * inside[axis] + index
    return Coordinates(tp=found["tp"], cp=found["cp"], cfg=found["cfg"])


def closed_path(rows: int, columns: int, fabric: Fabric) -> list[Place] | None:
    """A path over every chip of a rectangle, from neighbour to neighbour and back to its start."""
    if rows == 1 and columns in (1, 2, fabric.columns):
        return [(0, column) for column in range(columns)]
    if columns == 1 and rows in (2, fabric.rows):
        return [(row, 0) for row in range(rows)]
    if rows == 1 or columns == 1:
        return None
    if rows % 2:
        turned = closed_path(columns, rows, fabric) if columns % 2 == 0 else None
        return None if turned is None else [(row, column) for column, row in turned]
    there = [
        (row, column if row % 2 == 0 else columns - column)
        for row in range(rows)
        for column in range(1, columns)
    ]
    back = [(row, 0) for row in range(rows - 1, -1, -1)]
    return [back[-1], *there, *back[:-1]]

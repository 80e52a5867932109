"""Which groups of cores a fabric can join in a collective, and between which it can permute.

The rules are those that hold on trn2's torus: the chips of a group form a ring of links (one chip,
two neighbours, a whole row or column, or a rectangle), every chip of the group gives the same
cores, and a permute goes from a chip to itself or to a neighbour. A switch joins any.
"""

from collections.abc import Sequence

from wanc.plan.mesh import Mesh
from wanc.spec.target import Fabric
from wanc.spec.topology import AXES, Axis

Place = tuple[int, int]
"""Row and column of a chip."""


def chip_of(fabric: Fabric, core: int) -> Place:
    """Where a core's chip lies."""
    chip = core // fabric.cores_per_chip
    return chip // fabric.columns, chip % fabric.columns


def mesh_problems(fabric: Fabric, mesh: Mesh, *, ring: bool) -> list[str]:
    """Why the fabric cannot carry a mesh's collectives, one line for each axis that it refuses.

    ring: whether cp passes its chunks on in a ring, as ring attention does.
    """
    problems = []
    for axis in AXES:
        problem = _axis_problem(fabric, mesh, axis, ring=ring and axis == "cp")
        if problem:
            problems.append(f"{axis}{mesh.topology.degree(axis)}: {problem}")
    return problems


def _axis_problem(fabric: Fabric, mesh: Mesh, axis: Axis, *, ring: bool) -> str | None:
    for group in mesh.groups(axis) if mesh.topology.degree(axis) > 1 else ():
        cores = [mesh.cores[rank] for rank in group]
        problem = group_problem(fabric, cores)
        if problem:
            return problem
        for here, there in zip(cores, (*cores[1:], cores[0]), strict=True) if ring else ():
            problem = hop_problem(fabric, here, there)
            if problem:
                return problem
    return None


def group_problem(fabric: Fabric, cores: Sequence[int]) -> str | None:
    """Why a collective cannot join these cores, or None."""
    beyond = [core for core in cores if not 0 <= core < fabric.cores]
    if beyond:
        return f"core {beyond[0]} is beyond the {fabric.cores} of the machine"
    if fabric.kind == "switch":
        return None
    chips = {chip_of(fabric, core) for core in cores}
    offsets = {
        chip: {core % fabric.cores_per_chip for core in cores if chip_of(fabric, core) == chip}
        for chip in chips
    }
    shown = f"cores {_few(cores)}"
    if len({frozenset(entry) for entry in offsets.values()}) > 1:
        return f"{shown} are not the same cores of each chip"
    if not _is_ring(fabric, chips):
        return f"{shown} lie on chips {_few(sorted(chips))}, which no ring of links joins"
    return None


def hop_problem(fabric: Fabric, source: int, destination: int) -> str | None:
    """Why a permute cannot go from a core to another, or None."""
    here, there = chip_of(fabric, source), chip_of(fabric, destination)
    if fabric.kind == "switch" or here == there or _adjacent(fabric, here, there):
        return None
    return (
        f"a ring step from core {source} to core {destination} goes from chip {here} to chip "
        f"{there}, which are no neighbours"
    )


def _adjacent(fabric: Fabric, here: Place, there: Place) -> bool:
    (row, column), (other_row, other_column) = here, there
    down, along = (
        _steps(row, other_row, fabric.rows),
        _steps(column, other_column, fabric.columns),
    )
    return down + along == 1


def _steps(a: int, b: int, around: int) -> int:
    """Links between two places of a closed line."""
    return min((a - b) % around, (b - a) % around)


def _is_ring(fabric: Fabric, chips: set[Place]) -> bool:
    rows, columns = {row for row, _ in chips}, {column for _, column in chips}
    if len(chips) != len(rows) * len(columns):
        return False
    if not (_is_run(rows, fabric.rows) and _is_run(columns, fabric.columns)):
        return False
    if len(rows) == 1:
        return len(columns) in (1, 2, fabric.columns)
    if len(columns) == 1:
        return len(rows) in (2, fabric.rows)
    return True


def _is_run(places: set[int], around: int) -> bool:
    """Whether places of a closed line follow one another."""
    starts = [place for place in places if (place - 1) % around not in places]
    return len(starts) <= 1


def _few(values: Sequence[object]) -> str:
    shown = ", ".join(map(str, values[:8]))
    return f"{shown}, …" if len(values) > 8 else shown

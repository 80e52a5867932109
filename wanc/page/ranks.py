"""The rank map: chips where they lie on the fabric, with their cores and the coordinates of ranks.

Lengths are units of the drawing. A mesh that is none, as a damaged bundle may have, is not drawn.
"""

from dataclasses import dataclass

from wanc.bundle.config import VariantConfig
from wanc.page.chips import (
    CELL_HEIGHT,
    CELL_WIDTH,
    CELLS_ACROSS,
    CHIP_WIDTH,
    HEAD,
    PAD,
    Layout,
    Link,
    hops,
    links,
)
from wanc.page.colors import Paint, ordinal
from wanc.plan.fabric import Place, chip_of
from wanc.plan.mesh import Coordinates, Mesh
from wanc.spec.target import TARGETS, TORUS, TRN2_FABRIC, Fabric
from wanc.spec.topology import AXES, Axis
from wanc.verify.plans import MOST_RANKS

GRID_COLUMNS = 8
"""Ranks beside each other where there is no fabric."""
WIDE_GRID_COLUMNS, WIDE_GRID_RANKS = 16, 256
"""Where there are more ranks than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A core and the rank on it."""

    rank: int
    core: int
    place: Coordinates
    x: int
    y: int
    paint: Paint


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipBox:
    """A chip of the fabric; one without ranks is drawn too where it lies among the others."""

    number: int
    x: int
    y: int
    is_used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMap:
    """The drawing."""

    fabric: Fabric | None
    """None: a plain grid of ranks."""
    width: int
    """Of the drawing; then of a core, and of a chip."""
    height: int
    cell_width: int = CELL_WIDTH
    cell_height: int = CELL_HEIGHT
    chip_width: int = CHIP_WIDTH
    chip_height: int = 0
    chips: tuple[ChipBox, ...]
    links: tuple[Link, ...]
    cells: tuple[Cell, ...]
    axis: Axis
    """What the colours tell apart."""
    legend: tuple[Paint, ...]
    """By coordinate on the axis."""


def rank_map(config: VariantConfig) -> RankMap | None:
    """The map of a variant's mesh; None where it is too large, or no mesh."""
    mesh = config.mesh
    if not _is_mesh(mesh):
        return None
    fabric = _fabric_of(config)
    if fabric is None or max(mesh.cores) >= fabric.cores:
        return _grid(mesh)
    return _chips(mesh, fabric, is_ring=config.options.attention == "ring")


def _is_mesh(mesh: Mesh) -> bool:
    topology, places, cores = mesh.topology, mesh.coordinates, mesh.cores
    if not 1 <= topology.ranks == len(places) == len(cores) <= MOST_RANKS:
        return False
    in_degrees = all(
        0 <= place.on(axis) < topology.degree(axis) for place in places for axis in AXES
    )
    return in_degrees and len({*places}) == len({*cores}) == len(places) and min(cores) >= 0


def _fabric_of(config: VariantConfig) -> Fabric | None:
    facts = TARGETS.get(config.variant.target)
    if facts and facts.accelerator:
        return facts.accelerator.fabric
    return TRN2_FABRIC if config.variant.placement == TORUS else None


def _axis(mesh: Mesh) -> Axis:
    """cp where there is one: its chunks go from rank to rank."""
    wanted: tuple[Axis, ...] = ("cp", "tp", "cfg")
    return next((axis for axis in wanted if mesh.topology.degree(axis) > 1), "cp")


def _cell(mesh: Mesh, legend: tuple[Paint, ...], rank: int, x: int, y: int) -> Cell:
    place = mesh.coordinates[rank]
    return Cell(
        rank=rank,
        core=mesh.cores[rank],
        place=place,
        x=x,
        y=y,
        paint=legend[place.on(_axis(mesh))],
    )


def _legend(mesh: Mesh) -> tuple[Paint, ...]:
    degree = mesh.topology.degree(_axis(mesh))
    return tuple(ordinal(index, degree) for index in range(degree))


def _grid(mesh: Mesh) -> RankMap:
    """Ranks in their order, row by row."""
    wide = len(mesh.ranks) > WIDE_GRID_RANKS
    columns = min(WIDE_GRID_COLUMNS if wide else GRID_COLUMNS, len(mesh.ranks))
    legend = _legend(mesh)
    return RankMap(
        fabric=None,
        width=columns * CELL_WIDTH,
        height=-(-len(mesh.ranks) // columns) * CELL_HEIGHT,
        chips=(),
        links=(),
        cells=tuple(
            _cell(mesh, legend, rank, rank % columns * CELL_WIDTH, rank // columns * CELL_HEIGHT)
            for rank in mesh.ranks
        ),
        axis=_axis(mesh),
        legend=legend,
    )


def _chips(mesh: Mesh, fabric: Fabric, *, is_ring: bool) -> RankMap:
    """All chips of a torus; of a switch's, the rows that are used."""
    used = {chip_of(fabric, core) for core in mesh.cores}
    rows = fabric.rows if fabric.kind == "torus" else 1 + max(row for row, _ in used)
    layout = Layout(fabric=fabric, rows=rows)
    legend = _legend(mesh)

    def cell(rank: int) -> Cell:
        core = mesh.cores[rank]
        x, y = layout.corner(chip_of(fabric, core))
        row, column = divmod(core % fabric.cores_per_chip, CELLS_ACROSS)
        x, y = x + PAD + column * CELL_WIDTH, y + HEAD + row * CELL_HEIGHT
        return _cell(mesh, legend, rank, x, y)

    def box(number: int, place: Place) -> ChipBox:
        x, y = layout.corner(place)
        return ChipBox(number=number, x=x, y=y, is_used=place in used)

    return RankMap(
        fabric=fabric,
        width=layout.width,
        height=layout.height,
        chip_height=layout.chip_height,
        chips=tuple(box(number, place) for number, place in enumerate(layout.places)),
        links=links(layout, hops(mesh, fabric) if is_ring else set()),
        cells=tuple(cell(rank) for rank in mesh.ranks),
        axis=_axis(mesh),
        legend=legend,
    )

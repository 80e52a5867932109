"""Where chips and the links between them stand in a drawing. Lengths are units of the drawing."""

from collections.abc import Set
from dataclasses import dataclass
from itertools import product

from wanc.plan.fabric import Place, chip_of
from wanc.plan.mesh import Mesh
from wanc.spec.target import Fabric

CELL_WIDTH, CELL_HEIGHT = 66, 44
"""A core."""
CELLS_ACROSS = 2
"""Cores of a chip beside each other."""
HEAD, PAD = 22, 7
"""Of a chip: its number's line, and its rim."""
GAP, EDGE = 26, 20
"""Between chips, and around all of them."""
CHIP_WIDTH = CELLS_ACROSS * CELL_WIDTH + 2 * PAD

Hop = frozenset[Place]
"""Two chips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link between neighbours, or one end of a link around the torus."""

    x1: int
    y1: int
    x2: int
    y2: int
    in_ring: bool
    """Whether ring attention passes keys over it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The first rows of a fabric's chips."""

    fabric: Fabric
    rows: int

    @property
    def places(self) -> list[Place]:
        """Of the chips, by number."""
        return list(product(range(self.rows), range(self.fabric.columns)))

    @property
    def chip_height(self) -> int:
        """As many rows of cores as it has."""
        return -(-self.fabric.cores_per_chip // CELLS_ACROSS) * CELL_HEIGHT + HEAD + PAD

    @property
    def width(self) -> int:
        """Of the drawing."""
        return self.corner((0, self.fabric.columns))[0] - GAP + EDGE

    @property
    def height(self) -> int:
        """Of the drawing."""
        return self.corner((self.rows, 0))[1] - GAP + EDGE

    def corner(self, place: Place) -> tuple[int, int]:
        """The left and upper one of a chip."""
        row, column = place
        return EDGE + column * (CHIP_WIDTH + GAP), EDGE + row * (self.chip_height + GAP)


def hops(mesh: Mesh, fabric: Fabric) -> set[Hop]:
    """Chips between which the members of cp pass their chunks on, each to the next."""
    found = set()
    for group in mesh.groups("cp"):
        chips = [chip_of(fabric, mesh.cores[rank]) for rank in group]
        found |= {frozenset(pair) for pair in zip(chips, (*chips[1:], chips[0]), strict=True)}
    return found


def links(layout: Layout, used: Set[Hop]) -> tuple[Link, ...]:
    """Those of a torus to the right and down; a link around it is an end at either side."""
    if layout.fabric.kind != "torus":
        return ()
    found = []
    for row, column in layout.places:
        x, y = layout.corner((row, column))
        middle_x, middle_y = x + CHIP_WIDTH // 2, y + layout.chip_height // 2
        across, down = x + CHIP_WIDTH, y + layout.chip_height
        beside = (row, (column + 1) % layout.fabric.columns)
        below = ((row + 1) % layout.rows, column)
        if column + 1 < layout.fabric.columns:
            lines = [(across, middle_y, across + GAP, middle_y)]
        else:
            lines = [(across, middle_y, layout.width, middle_y), (0, middle_y, EDGE, middle_y)]
        found += [_link(line, frozenset({(row, column), beside}) in used) for line in lines]
        if row + 1 < layout.rows:
            lines = [(middle_x, down, middle_x, down + GAP)]
        else:
            lines = [(middle_x, down, middle_x, layout.height), (middle_x, 0, middle_x, EDGE)]
        found += [_link(line, frozenset({(row, column), below}) in used) for line in lines]
    return tuple(found)


def _link(line: tuple[int, int, int, int], in_ring: bool) -> Link:
    x1, y1, x2, y2 = line
    return Link(x1=x1, y1=y1, x2=x2, y2=y2, in_ring=in_ring)

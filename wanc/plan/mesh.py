"""Ranks, their coordinates and cores, and the groups of ranks that a collective joins.

Knows degrees; nothing of what is split, nor of how a fabric is laid out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Self

from wanc.spec.topology import AXES, Axis, Topology

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """A rank's place on each mesh axis."""

    cfg: int
    cp: int
    tp: int

    def on(self, axis: Axis) -> int:
        """Place on one axis."""
        return {"tp": self.tp, "cp": self.cp, "cfg": self.cfg}[axis]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """A topology laid out on ranks, and ranks on cores."""

    topology: Topology
    coordinates: tuple[Coordinates, ...]
    """Coordinates of each rank, by rank."""
    cores: tuple[int, ...]
    """The core that each rank runs on, by rank, counted over one machine."""

    @classmethod
    def ordered(cls, topology: Topology, order: Sequence[Axis] = AXES) -> Self:
        """Ranks by their coordinates, the first axis of the order varying fastest."""
        slowest_first = tuple(reversed(order))
        places = tuple(
            Coordinates(**dict(zip(slowest_first, place, strict=True)))
            for place in product(*(range(topology.degree(axis)) for axis in slowest_first))
        )
        return cls(topology=topology, coordinates=places, cores=tuple(range(topology.ranks)))

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks."""
        return tuple(range(len(self.coordinates)))

    def groups(self, axis: Axis) -> Groups:
        """Ranks that differ only on the axis, in its order; together they cover every rank."""
        members: dict[tuple[int, ...], dict[int, int]] = {}
        for rank, place in enumerate(self.coordinates):
            others = tuple(place.on(other) for other in AXES if other != axis)
            members.setdefault(others, {})[place.on(axis)] = rank
        return tuple(
            tuple(group[i] for i in range(self.topology.degree(axis))) for group in members.values()
        )

    def rank_at(self, place: Coordinates) -> int:
        """The rank at a place."""
        return self.coordinates.index(place)

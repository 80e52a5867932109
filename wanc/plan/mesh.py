"""Ranks and their coordinates, and the groups of ranks that a collective joins.

Knows degrees and placement; nothing of what is split.
"""

from dataclasses import dataclass
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
    """A topology laid out on ranks."""

    topology: Topology
    coordinates: tuple[Coordinates, ...]
    """Coordinates of each rank, by rank."""

    @classmethod
    def linear(cls, topology: Topology) -> Self:
        """tp varies fastest, then cp, then cfg: tp groups are consecutive ranks."""
        places = tuple(
            Coordinates(cfg=cfg, cp=cp, tp=tp)
            for cfg in range(topology.cfg)
            for cp in range(topology.cp)
            for tp in range(topology.tp)
        )
        return cls(topology=topology, coordinates=places)

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

"""Topologies as people write them: ``tp4-cp8-cfg2``; an axis that is left out has degree 1.

Knows the grammar and what no model can accept. Which degrees a model accepts is plan's business.
"""

import re
from dataclasses import dataclass
from typing import Literal, Self

from wanc.errors import RequestError

Axis = Literal["tp", "cp", "cfg"]
AXES: tuple[Axis, ...] = ("tp", "cp", "cfg")
"""tp splits weights, cp splits tokens, cfg splits guidance branches; tp varies fastest."""

GUIDANCE_BRANCHES = 2
"""Conditioned on the prompt, and on the negative prompt."""

_PART = re.compile(r"(tp|cp|cfg)([0-9]{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Topology:
    """Degrees of the mesh axes."""

    tp: int = 1
    cp: int = 1
    cfg: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``tpN-cpN-cfgN``, axes in any order; raises RequestError."""
        degrees: dict[str, int] = {}
        for part in text.split("-"):
            match = _PART.fullmatch(part)
            if match is None:
                raise RequestError(
                    f"topology {text!r}: {part!r} is not an axis and its degree; "
                    "write it as tp4-cp8-cfg2, leaving out axes of degree 1"
                )
            axis, degree = match[1], int(match[2])
            if axis in degrees:
                raise RequestError(f"topology {text!r}: {axis} stands twice")
            if degree < 1:
                raise RequestError(f"topology {text!r}: {axis} must be at least 1")
            degrees[axis] = degree
        if degrees.get("cfg", 1) > GUIDANCE_BRANCHES:
            nearest = cls(**{**degrees, "cfg": GUIDANCE_BRANCHES})
            raise RequestError(
                f"topology {text!r}: cfg is 1 or 2, for there are two guidance branches; "
                f"try {nearest}"
            )
        return cls(**degrees)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.cfg

    def degree(self, axis: Axis) -> int:
        """Degree of one axis."""
        return {"tp": self.tp, "cp": self.cp, "cfg": self.cfg}[axis]

    def __str__(self) -> str:
        parts = [f"{axis}{self.degree(axis)}" for axis in AXES if self.degree(axis) > 1]
        return "-".join(parts) or "tp1"

"""What a verification finds, for people and for programs. Knows no bundle."""

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "layout", "blob", "reference", "orphan", "config", "plan", "schedule", "executable", "report"
]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """One thing that is wrong, or that is worth knowing."""

    kind: Kind
    where: str
    """The file, blob, variant or program that it is of."""
    what: str
    """What was seen, and what was needed."""
    is_fault: bool = True
    """Whether the bundle is not to be used; loose blobs are none."""


@dataclass(slots=True)
class Findings:
    """All that is found, in the order in which it is."""

    all: list[Finding] = field(default_factory=list)

    def fault(self, kind: Kind, where: str, what: str) -> None:
        """Something is wrong."""
        self.all.append(Finding(kind=kind, where=where, what=what))

    def notice(self, kind: Kind, where: str, what: str) -> None:
        """Something is worth knowing."""
        self.all.append(Finding(kind=kind, where=where, what=what, is_fault=False))

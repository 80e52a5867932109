"""What a verification finds, for people and for programs. Knows no bundle."""

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "layout",
    "blob",
    "reference",
    "orphan",
    "config",
    "plan",
    "schedule",
    "executable",
    "report",
    "attachment",
    "signature",
]

MOST_SHOWN = 1_000
"""Of faults, and of notices; further ones are counted."""
MOST_LETTERS = 4_000
"""Of a text: names of a bundle may be of any length."""


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
    """All that is found, in the order in which it is, each once."""

    shown: list[Finding] = field(default_factory=list)
    faults: int = 0
    notices: int = 0
    _told: set[Finding] = field(default_factory=set)

    @property
    def total(self) -> int:
        """Those that are not shown too."""
        return self.faults + self.notices

    def fault(self, kind: Kind, where: str, what: str) -> None:
        """Something is wrong."""
        finding = Finding(kind=kind, where=_short(where), what=_short(what))
        if finding not in self._told:
            self.faults += 1
            self._show(finding, self.faults)

    def notice(self, kind: Kind, where: str, what: str) -> None:
        """Something is worth knowing."""
        finding = Finding(kind=kind, where=_short(where), what=_short(what), is_fault=False)
        if finding not in self._told:
            self.notices += 1
            self._show(finding, self.notices)

    def _show(self, finding: Finding, number: int) -> None:
        if number <= MOST_SHOWN:
            self._told.add(finding)
            self.shown.append(finding)


def _short(text: str) -> str:
    if len(text) <= MOST_LETTERS:
        return text
    return f"{text[:MOST_LETTERS]} … ({len(text):,} letters)"

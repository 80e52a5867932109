"""What a variant needs, beside what was found here. Knows no target, no variant and no machine."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from wanc.errors import BundleError

Verdict = Literal["ok", "degraded", "incompatible"]
"""From best to worst; what is degraded runs, with a price that the requirement names."""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One thing that a variant needs."""

    what: str
    needed: str
    found: str
    """A short first line; lines after it give particulars."""
    verdict: Verdict = "ok"
    remedy: str = ""
    """What would work; empty where all is well, or nothing would."""

    def __str__(self) -> str:
        told = f"need {self.what} {self.needed}, found {self.found}"
        return f"{told}: {self.remedy}" if self.remedy else told


def required(
    what: str,
    needed: str,
    found: str,
    *,
    met: bool,
    remedy: str,
    unmet: Verdict = "incompatible",
) -> Requirement:
    """A requirement that is ok where it is met; where not, unmet is the verdict."""
    verdict: Verdict = "ok" if met else unmet
    return Requirement(
        what=what, needed=needed, found=found, verdict=verdict, remedy="" if met else remedy
    )


def worst(requirements: Iterable[Requirement]) -> Verdict:
    """The verdict on all together."""
    return max((each.verdict for each in requirements), key=VERDICTS.index, default="ok")


def refuse(requirements: Iterable[Requirement]) -> None:
    """Raise BundleError with every requirement that is not met."""
    unmet = [str(each) for each in requirements if each.verdict == "incompatible"]
    if unmet:
        raise BundleError("\n  ".join(["the variant cannot run here:", *unmet]))

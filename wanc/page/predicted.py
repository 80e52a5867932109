"""A variant's plan, made anew for what a config does not hold: memory and times.

Input is untrusted: what verifying would find keeps a plan from being made, and is said instead.
"""

from dataclasses import dataclass

from wanc.bundle.config import VariantConfig
from wanc.plan.plan import Plan, work_out
from wanc.verify.findings import Findings
from wanc.verify.plans import check_plan, check_sizes

MOST_FAULTS = 5
MOST_CHARACTERS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What planning knows of a variant, or why it knows nothing."""

    plan: Plan | None
    """None where the config is not what this version of wanc plans."""
    faults: tuple[str, ...]
    """The first few, cut to a length."""
    more: int
    """Faults beyond those."""


def predicted(config: VariantConfig) -> Predicted:
    """Plan a variant whose config is what its model, variant and options come to."""
    found = Findings()
    if check_sizes("", config, found):
        check_plan("", config, found)
    faults = tuple(_cut(finding.what) for finding in found.shown[:MOST_FAULTS])
    return Predicted(
        plan=None if faults else work_out(config.model, config.variant, config.options),
        faults=faults,
        more=found.total - len(faults),
    )


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"

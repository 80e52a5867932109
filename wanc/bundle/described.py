"""What a config says, in the words of tables and pages. Knows nothing of how those look.

Input is untrusted: any stage name, and values of any depth, have words.
"""

from collections import Counter
from typing import Any

from wanc.bundle.config import VariantConfig
from wanc.plan.schedule import Result
from wanc.units import count

DONE = {"compile": "complete", "lower": "lowered", "plan": "planned"}
"""What a variant is that was compiled up to a stage."""

_PER = {
    "encode_text": "generation",
    "context": "expert",
    "step": "step",
    "vae_encode_first": "tile",
    "vae_encode_rest": "later latent frame",
    "vae_decode_first": "tile",
    "vae_decode_rest": "later latent frame",
}
"""What the calls of a stage, by the start of its name, are counted for."""


def calls_by_stage(config: VariantConfig) -> dict[str, dict[str, int]]:
    """How often each program is called in each stage."""
    counts: dict[str, Counter[str]] = {}
    for stage in config.schedule.stages:
        for call in stage.calls:
            counts.setdefault(call.program, Counter())[stage.name] += 1
    return {name: dict(counter) for name, counter in counts.items()}


def calls_of_programs(config: VariantConfig) -> dict[str, str]:
    """How often each program is called in the stage that calls it most, as ``10 calls a step``."""
    told = {}
    for name, stages in calls_by_stage(config).items():
        stage, most = max(stages.items(), key=lambda item: item[1])
        per = next((what for start, what in _PER.items() if stage.startswith(start)), "stage")
        told[name] = f"{count(most, 'call')} {'an' if per == 'expert' else 'a'} {per}"
    return told


def holders(result: Result) -> str:
    """The ranks that hold a result: one, the first of several, or whichever is chosen."""
    if not result.ranks:
        return "its rank"
    first = f"rank {result.ranks[0]}"
    return first if len(result.ranks) == 1 else f"{first} and {len(result.ranks) - 1} more"


def key_text(value: Any) -> str:
    """An entry of a compile key for people: flags as a command line has them, files counted."""
    try:
        if isinstance(value, list):
            return " ".join(map(str, value))
        if not isinstance(value, dict):
            return str(value)
        if all(str(digest).startswith("sha256:") for digest in value.values()):
            return count(len(value), "file")
        return " ".join(map(str, value.values()))
    except RecursionError:
        return "too deep to show"

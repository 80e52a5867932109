"""What planning must know of a target. How a target compiles is the business of targets/."""

from dataclasses import dataclass
from typing import Literal

from wanc.errors import RefusedError

Precision = Literal["fp32", "bf16"]
DType = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
PLACEMENTS: tuple[str, ...] = ("linear",)

DTYPES: dict[Precision, DType] = {"fp32": "float32", "bf16": "bfloat16"}
"""The dtype of matrices and activations. Norms, softmax and some parameters stay fp32 in both."""

DTYPE_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """A target as plan sees it."""

    name: str
    default_precision: Precision
    score_budget_bytes: int
    """Most bytes of fp32 attention scores that a program holds at once; sets the query tile."""
    blocks_per_program: int
    """Most transformer blocks in one program, where the user names no number."""


TARGETS: dict[str, TargetFacts] = {
    "cpu": TargetFacts(
        name="cpu",
        default_precision="fp32",
        score_budget_bytes=256 << 20,
        blocks_per_program=4,
    ),
}


def target_facts(name: str) -> TargetFacts:
    """Facts of a target by name; raises RefusedError."""
    try:
        return TARGETS[name]
    except KeyError:
        known = ", ".join(TARGETS)
        raise RefusedError(f"target {name!r} is not known; known are {known}") from None

"""What a user asks of a run, and the sampling values that follow.

A value that the user gave wins over the bundle's default, which is the model's official contract.
"""

import math
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wanc.bundle.config import VariantConfig
from wanc.errors import RequestError
from wanc.spec.model import TRAIN_TIMESTEPS, Expert, Model

T = TypeVar("T")

SEEDS = 1 << 64
"""Seeds that torch's generator tells apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """Guidance scales; one number means both experts."""

    high: float
    low: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.high) and math.isfinite(self.low)):
            raise RequestError(f"guidance {self.high}, {self.low}: needs finite numbers")

    @classmethod
    def parse(cls, text: str) -> "Guidance":
        """Read ``5`` or ``high=4,low=3``; raises RequestError."""
        try:
            both = text if "=" in text else f"high={text},low={text}"
            parts = [part.split("=", 1) for part in both.split(",")]
            if sorted(name for name, _ in parts) != ["high", "low"]:
                raise ValueError("both high and low are needed, each once")
            return cls(**{name: float(value) for name, value in parts})
        except (ValueError, RequestError) as error:
            raise RequestError(
                f"guidance {text!r}: write one number for both experts, as 4, "
                "or one for each, as high=4,low=3"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """What to load; of a bundle with several variants, which."""

    bundle: Path
    weights: Path
    shape: str | None = None
    topology: str | None = None
    precision: str | None = None
    vae_ranks: int | None = None
    """Ranks that decode tiles; None is as many as the plan deals tiles to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One generation. None leaves a value to the model, or to the file that is resumed."""

    prompt: str | None = None
    negative: str | None = None
    steps: int | None = None
    guidance: Guidance | None = None
    flow_shift: float | None = None
    seed: int | None = None
    profile: bool = False
    """Generate twice; times are of the second."""
    check_ranks: bool = False
    """Compare what every rank computed after each step."""
    resume: Path | None = None
    """A file of saved steps to go on from."""
    save_every: int | None = None
    """Save what resuming needs after each so many steps."""

    def negative_prompt(self, config: VariantConfig) -> str:
        """The user's, or the official one."""
        return config.model.sampling.negative_prompt if self.negative is None else self.negative


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingValues:
    """Every value that a run samples with."""

    steps: int
    flow_shift: float
    boundary: float | None
    guidance_high: float
    guidance_low: float
    seed: int
    fps: int
    sampler: str = "unipc"

    def guidance(self, expert: Expert) -> float:
        """The expert's guidance scale; 1 or less leaves its unconditioned pass out."""
        return self.guidance_high if expert == "high_noise" else self.guidance_low

    def expert_at(self, timestep: float, model: Model) -> Expert:
        """The expert of a timestep: high noise from the boundary up."""
        if self.boundary is None or len(model.experts) == 1:
            return "high_noise"
        return "high_noise" if timestep >= self.boundary * TRAIN_TIMESTEPS else "low_noise"


def as_plain(record: Any) -> Any:
    """A record as JSON has it, for another process; raises RequestError."""
    plain = msgspec.to_builtins(record, enc_hook=str)  # of paths
    try:
        msgspec.json.encode(plain)
    except UnicodeEncodeError as error:
        raise RequestError(f"{error.object!r} is not UTF-8, and goes to no other process") from None
    return plain


def from_plain(value: Any, kind: type[T]) -> T:
    """The record that as_plain took apart."""
    return msgspec.convert(value, kind, dec_hook=lambda path, text: path(text))


def draw_seed() -> int:
    """A seed for who names none."""
    return secrets.randbelow(2**31)


def check_request(request: RunRequest, config: VariantConfig) -> None:
    """Raise RequestError for values that no run can have; what is resumed brings its own."""
    if request.resume is None:
        sampling_values(replace(request, seed=request.seed or 0), config)


def sampling_values(request: RunRequest, config: VariantConfig) -> SamplingValues:
    """Every value of the run, whose seed is drawn already; raises RequestError."""
    if request.prompt is None or request.seed is None:
        raise RequestError("a prompt and a seed are needed")
    official = config.model.sampling
    steps = official.steps if request.steps is None else request.steps
    if not 1 <= steps <= TRAIN_TIMESTEPS:
        raise RequestError(f"steps {steps}: needs 1 to {TRAIN_TIMESTEPS}")
    shift = official.flow_shift if request.flow_shift is None else request.flow_shift
    if not 0 < shift < math.inf:
        raise RequestError(
            f"flow shift {shift}: needs a positive number; the model's is {official.flow_shift}"
        )
    if not 0 <= request.seed < SEEDS:
        raise RequestError(f"seed {request.seed}: needs 0 to {SEEDS - 1}")
    guidance = request.guidance or Guidance(high=official.guidance_high, low=official.guidance_low)
    return SamplingValues(
        steps=steps,
        flow_shift=shift,
        boundary=official.boundary,
        guidance_high=guidance.high,
        guidance_low=guidance.low,
        seed=request.seed,
        fps=official.fps,
    )

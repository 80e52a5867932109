"""What a user asks of a run, and the sampling values that follow.

A value that the user gave wins over the bundle's default, which is the model's official contract.
"""

import math
import secrets
from dataclasses import dataclass
from pathlib import Path

from wanc.bundle.config import VariantConfig
from wanc.errors import RequestError
from wanc.run.sampler import SamplingValues
from wanc.spec.model import TRAIN_TIMESTEPS

SEEDS = 1 << 64
"""Seeds that torch's generator tells apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """Guidance scales; one number means both experts."""

    high: float
    low: float

    @classmethod
    def parse(cls, text: str) -> "Guidance":
        """Read ``5`` or ``high=4,low=3``; raises RequestError."""
        try:
            both = text if "=" in text else f"high={text},low={text}"
            parts = [part.split("=", 1) for part in both.split(",")]
            if sorted(name for name, _ in parts) != ["high", "low"]:
                raise ValueError("both high and low are needed, each once")
            scales = {name: float(value) for name, value in parts}
            if not all(map(math.isfinite, scales.values())):
                raise ValueError("not finite")
            return cls(**scales)
        except ValueError as error:
            raise RequestError(
                f"guidance {text!r}: write one number for both experts, as 4, "
                "or one for each, as high=4,low=3"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run."""

    bundle: Path
    weights: Path
    prompt: str
    output: Path
    negative: str | None = None
    shape: str | None = None
    topology: str | None = None
    precision: str | None = None
    steps: int | None = None
    guidance: Guidance | None = None
    flow_shift: float | None = None
    seed: int | None = None
    save_latents: Path | None = None
    vae_ranks: int | None = None
    """Ranks that decode tiles; None is as many as the plan deals tiles to."""
    profile: bool = False

    def negative_prompt(self, config: VariantConfig) -> str:
        """The user's, or the official one."""
        return config.model.sampling.negative_prompt if self.negative is None else self.negative


def sampling_values(request: RunRequest, config: VariantConfig) -> SamplingValues:
    """Every value of the run; raises RequestError. A seed not given is drawn here, once."""
    official = config.model.sampling
    steps = official.steps if request.steps is None else request.steps
    if not 1 <= steps <= TRAIN_TIMESTEPS:
        raise RequestError(f"steps {steps}: needs 1 to {TRAIN_TIMESTEPS}")
    shift = official.flow_shift if request.flow_shift is None else request.flow_shift
    if not 0 < shift < math.inf:
        raise RequestError(
            f"flow shift {shift}: needs a positive number; the model's is {official.flow_shift}"
        )
    if request.seed is not None and not 0 <= request.seed < SEEDS:
        raise RequestError(f"seed {request.seed}: needs 0 to {SEEDS - 1}")
    guidance = request.guidance or Guidance(high=official.guidance_high, low=official.guidance_low)
    return SamplingValues(
        steps=steps,
        flow_shift=shift,
        boundary=official.boundary,
        guidance_high=guidance.high,
        guidance_low=guidance.low,
        seed=secrets.randbelow(2**31) if request.seed is None else request.seed,
        fps=official.fps,
    )

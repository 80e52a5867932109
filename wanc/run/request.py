"""What a user asks of a run, and the sampling values that follow.

A value that the user gave wins over the bundle's default, which is the model's official contract.
"""

import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import msgspec

from wanc.bundle.config import VariantConfig
from wanc.errors import RequestError
from wanc.run.image import FITS
from wanc.spec.model import TRAIN_TIMESTEPS, Expert, Model, Sampling
from wanc.spec.presets import OFFICIAL, RUN_PRESETS
from wanc.spec.topology import GUIDANCE_BRANCHES

T = TypeVar("T")

Sampler = Literal["unipc", "euler", "dpm++"]

SAMPLERS: tuple[Sampler, ...] = get_args(Sampler)
"""The first is the default."""

SEEDS = 1 << 64
"""Seeds that torch's generator tells apart."""

LEAST_FLOW_SHIFT, MOST_FLOW_SHIFT = 0.01, 100.0
"""Beyond, some number of steps has two sigmas that are one in fp32, and solvers divide by their
difference."""


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
    decode_only: bool = False
    """Load nothing but what decoding needs."""
    signers: tuple[Path, ...] = ()
    """Files of public keys: one of these keys must have signed the bundle. None: nobody need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One generation. None leaves a value to the model, or to the file that is resumed."""

    prompt: str | None = None
    negative: str | None = None
    steps: int | None = None
    guidance: Guidance | None = None
    flow_shift: float | None = None
    seed: int | None = None
    sampler: str | None = None
    """One of SAMPLERS."""
    expert: str | None = None
    """The one that takes every step, whatever the boundary; None for each in its turn."""
    preset: str | None = None
    """One of RUN_PRESETS: where values come from that are not given."""
    image: Path | None = None
    """What the video begins with."""
    last_image: Path | None = None
    """What it ends with."""
    fit: str | None = None
    """How images are brought to the video's size; None for the first of FITS."""
    profile: bool = False
    """Generate twice; times are of the second."""
    check_ranks: bool = False
    """Compare what every rank computed after each step."""
    resume: Path | None = None
    """A file of saved steps to go on from."""
    latents: Path | None = None
    """A file of final latents, to be decoded and no more."""
    save_every: int | None = None
    """Save what resuming needs after each so many steps."""

    @property
    def images(self) -> tuple[Path, ...]:
        """The first and the last image, as far as they are given."""
        return tuple(path for path in (self.image, self.last_image) if path is not None)

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
    sampler: Sampler = SAMPLERS[0]
    only: Expert | None = None
    """The expert that takes every step; None where the boundary decides."""
    preset: str = OFFICIAL
    """Where the values come from that the user did not give."""

    def guidance(self, expert: Expert) -> float:
        """The expert's guidance scale; 1 or less leaves its unconditioned pass out."""
        return self.guidance_high if expert == "high_noise" else self.guidance_low

    def experts(self, model: Model) -> tuple[Expert, ...]:
        """The experts that steps may take."""
        return model.experts if self.only is None else (self.only,)

    def expert_at(self, timestep: float, model: Model) -> Expert:
        """The expert of a timestep: high noise from the boundary up."""
        if self.only is not None:
            return self.only
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
    """Raise RequestError for what no run of the variant can have; a file brings its own values."""
    if request.latents is None:
        _check_images(request, config)
        if request.resume is None:
            sampling_values(replace(request, seed=request.seed or 0), config)


def _check_images(request: RunRequest, config: VariantConfig) -> None:
    """Raise RequestError for images that the variant's task has no use for, or that it lacks."""
    task, variant = config.model.task, f"variant {config.variant}"
    if task == "t2v" and request.images:
        raise RequestError(
            f"{variant} makes videos from a prompt alone: leave --image and --last-image out"
        )
    if task == "ti2v" and request.last_image is not None:
        raise RequestError(f"{variant} takes a first image and no last one: leave --last-image out")
    if task == "i2v" and request.image is None:
        raise RequestError(f"{variant} makes videos from an image: give --image")
    if config.variant.shape.frames == 1 and request.last_image is not None:
        raise RequestError(f"{variant} has one frame, which is --image: leave --last-image out")
    fit = _one_of("fit", request.fit, FITS)
    if request.fit is not None and not request.images:
        raise RequestError(f"fit {fit}: there is no image to fit: leave it out")


def sampling_values(request: RunRequest, config: VariantConfig) -> SamplingValues:
    """Every value of the run, whose seed is drawn already; raises RequestError."""
    if request.prompt is None or request.seed is None:
        raise RequestError("a prompt and a seed are needed")
    if not 0 <= request.seed < SEEDS:
        raise RequestError(f"seed {request.seed}: needs 0 to {SEEDS - 1}")
    model = config.model
    preset = _one_of("preset", request.preset, RUN_PRESETS)
    defaults = replace(model.sampling, **RUN_PRESETS[preset])
    guidance = request.guidance or Guidance(high=defaults.guidance_high, low=defaults.guidance_low)
    return SamplingValues(
        steps=_steps(request, defaults),
        flow_shift=_flow_shift(request, defaults, model),
        boundary=defaults.boundary,
        guidance_high=guidance.high,
        guidance_low=guidance.low,
        seed=request.seed,
        fps=defaults.fps,
        sampler=_one_of("sampler", request.sampler, SAMPLERS),
        only=_only(request, model),
        preset=preset,
    )


def warnings(values: SamplingValues, config: VariantConfig) -> list[str]:
    """What a user may not mean, of a run that is allowed."""
    topology = config.variant.topology
    scales = {values.guidance(expert) for expert in values.experts(config.model)}
    if topology.cfg < GUIDANCE_BRANCHES or max(scales) > 1:
        return []
    alone = replace(topology, cfg=1)
    return [
        f"without guidance half of the {topology.ranks} ranks of {topology} repeat the work of "
        f"the other half; {alone} makes the same video on {alone.ranks}"
    ]


def _steps(request: RunRequest, defaults: Sampling) -> int:
    steps = defaults.steps if request.steps is None else request.steps
    if not 1 <= steps <= TRAIN_TIMESTEPS:
        raise RequestError(f"steps {steps}: needs 1 to {TRAIN_TIMESTEPS}")
    return steps


def _flow_shift(request: RunRequest, defaults: Sampling, model: Model) -> float:
    shift = defaults.flow_shift if request.flow_shift is None else request.flow_shift
    if not LEAST_FLOW_SHIFT <= shift <= MOST_FLOW_SHIFT:
        raise RequestError(
            f"flow shift {shift}: needs a positive number; the model's is "
            f"{model.sampling.flow_shift}, the least {LEAST_FLOW_SHIFT:g}, "
            f"the most {MOST_FLOW_SHIFT:g}"
        )
    return shift


def _only(request: RunRequest, model: Model) -> Expert | None:
    if request.expert is None:
        return None
    for expert in model.experts:
        if expert == request.expert:
            return expert
    raise RequestError(
        f"expert {request.expert!r}: model {model.name} has {' and '.join(model.experts)}"
    )


def _one_of(what: str, name: str | None, known: Iterable[T]) -> T:
    """The known one of this name, the first for None; raises RequestError."""
    names = {str(each): each for each in known}
    if name is None:
        return next(iter(names.values()))
    if name not in names:
        raise RequestError(f"{what} {name!r}: needs one of {', '.join(names)}")
    return names[name]

"""Steps that a run has behind it, in a file, for another run to go on from to the same bits.

A safetensors file: the latents, what the scheduler has gathered, and in the metadata one line of
JSON about the request. The file is untrusted: nothing of it is executed, and sizes are checked.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from wanc.bundle.config import VariantConfig
from wanc.digest import canonical_json
from wanc.errors import RequestError, RunError
from wanc.files import give_name
from wanc.run.outputs import Files, as_run_error
from wanc.run.request import Guidance, RunRequest, SamplingValues
from wanc.run.sampler import State, make_scheduler_at

_METADATA = "wanc"
_FORMAT = 2
"""2026-11-30: 2 has sampler, expert, preset and images; 1 was the first."""
_LATENTS = "latents"
_MOST_BYTES = 8 << 30
_CARRIED = (
    *("prompt", "negative", "steps", "guidance", "flow_shift", "seed"),
    *("sampler", "expert", "preset"),
)
"""Of a request, what a resumed run takes from the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """What the metadata say."""

    format: int
    step: int
    """Steps that are done."""
    prompt: str
    negative: str
    sampling: dict[str, Any]
    noise: str
    images: str
    variant: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A run after some of its steps."""

    step: int
    latents: Tensor
    """[1, C, F, H, W] fp32."""
    scheduler: State
    sampler: str
    request: RunRequest
    """The prompts and values that the run was given or drew."""
    noise: str
    """Digest of the initial noise."""
    variant: dict[str, Any]
    images: str = ""
    """Digest of the fitted images' pixels; empty where there are none."""

    def write(self, files: Files, values: SamplingValues) -> None:
        """Write the file whole, over an earlier one; raises RunError."""
        assert files.saved is not None
        assert files.unfinished is not None
        with as_run_error(files.saved):
            tensors = {_LATENTS: self.latents, **self.scheduler}
            data = save({n: t.contiguous() for n, t in tensors.items()}, self.header(values))
            files.unfinished.write_bytes(data)
            give_name(files.unfinished, files.saved)

    def header(self, values: SamplingValues) -> dict[str, str]:
        """The metadata of its file."""
        header = _Header(
            format=_FORMAT,
            step=self.step,
            prompt=self.request.prompt or "",
            negative=self.request.negative or "",
            sampling=asdict(values),
            noise=self.noise,
            images=self.images,
            variant=self.variant,
        )
        return {_METADATA: canonical_json(msgspec.to_builtins(header)).decode()}

    def check_latents(self, config: VariantConfig) -> tuple[int, ...]:
        """The latents' shape; raises RequestError where it is not the variant's."""
        size = config.latents_shape
        if tuple(self.latents.shape) != size or self.latents.dtype != torch.float32:
            raise RequestError(
                f"the saved latents are {tuple(self.latents.shape)}, and variant {config.variant} "
                f"has {size}: they were saved by a run of {self.variant.get('shape')}"
            )
        return size

    def check_whole(self, config: VariantConfig, values: SamplingValues) -> None:
        """Raise RequestError for latents of another variant, or with steps still to come."""
        self.check_latents(config)
        if self.step < values.steps:
            raise RequestError(
                f"the latents are those after step {self.step} of {values.steps}, which are mostly "
                "noise: `wanc run --resume` goes on with the steps"
            )

    def check(self, config: VariantConfig, values: SamplingValues, images: str = "") -> Any:
        """The scheduler to go on with; raises RequestError where the variant is not its own.

        images is the digest of those that the resumed run is given.
        """
        size = self.check_latents(config)
        if not 1 <= self.step <= values.steps or self.sampler != values.sampler:
            raise RequestError(
                f"saved after step {self.step} of {self.sampler}; the run has {values.steps} of "
                f"{values.sampler}"
            )
        if self.images != images:
            raise RequestError(
                "a resumed run goes on with the images that it began with: give the same --image, "
                "--last-image and --fit, or none where it had none"
            )
        try:
            return make_scheduler_at(values, self.step, size, self.scheduler)
        except ValueError as error:
            raise RequestError(f"the saved {values.sampler} is damaged: {error}") from error


def read_saved(data: bytes, where: Path) -> Saved:
    """Read a file of saved steps; raises RunError."""
    try:
        metadata = msgspec.json.decode(_metadata(data))
        if not isinstance(metadata, dict) or metadata.get("format") != _FORMAT:
            raise ValueError(f"this wanc reads format {_FORMAT}")
        header = msgspec.convert(metadata, _Header)
        values = msgspec.convert(header.sampling, SamplingValues)
        scheduler = load(data)
        latents = scheduler.pop(_LATENTS)
    except (SafetensorError, msgspec.MsgspecError, KeyError, ValueError, RecursionError) as error:
        raise RunError(f"{where}: not a file of saved steps, or a damaged one: {error}") from error
    request = RunRequest(
        prompt=header.prompt,
        negative=header.negative,
        steps=values.steps,
        guidance=Guidance(high=values.guidance_high, low=values.guidance_low),
        flow_shift=values.flow_shift,
        seed=values.seed,
        sampler=values.sampler,
        expert=values.only,
        preset=values.preset,
    )
    return Saved(
        step=header.step,
        latents=latents,
        scheduler=scheduler,
        request=request,
        sampler=values.sampler,
        noise=header.noise,
        images=header.images,
        variant=header.variant,
    )


def read_bytes(path: Path) -> bytes:
    """The file's bytes; raises RunError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise RunError(f"{path}: larger than any file of saved steps")
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error


def resumed(request: RunRequest, saved: Saved) -> RunRequest:
    """The request with what the saved run was given; raises RequestError where it differs."""
    theirs = {name: getattr(saved.request, name) for name in _CARRIED}
    asked = {name: getattr(request, name) for name in _CARRIED}
    differing = [
        f"{name.replace('_', ' ')} {asked[name]!r}, saved was {theirs[name]!r}"
        for name in _CARRIED
        if asked[name] is not None and asked[name] != theirs[name]
    ]
    if differing:
        raise RequestError(
            "a resumed run goes on as it began; leave these out:\n  " + "\n  ".join(differing)
        )
    return replace(request, **theirs)


def _metadata(data: bytes) -> str:
    """The line of JSON; raises SafetensorError, KeyError or ValueError."""
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        raise ValueError(f"a header of {length} bytes in {len(data)} bytes")
    header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, Any])
    return msgspec.convert(header["__metadata__"], dict[str, str])[_METADATA]

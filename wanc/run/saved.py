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
_FORMAT = 1
_MOST_BYTES = 8 << 30
_LIST, _ITEM = "list", "."


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
    variant: dict[str, Any]
    plain: dict[str, Any]
    """The scheduler's numbers by attribute; a list's tensors are null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A run after some of its steps."""

    step: int
    latents: Tensor
    """[1, C, F, H, W] fp32."""
    scheduler: State
    request: RunRequest
    """The prompts and values that the run was given or drew."""
    noise: str
    """Digest of the initial noise."""
    variant: dict[str, Any]

    def write(self, files: Files, values: SamplingValues) -> None:
        """Write the file whole, over an earlier one; raises RunError."""
        assert files.saved is not None
        assert files.unfinished is not None
        tensors, plain = _flat(self.scheduler)
        header = _Header(
            format=_FORMAT,
            step=self.step,
            prompt=self.request.prompt or "",
            negative=self.request.negative or "",
            sampling=asdict(values),
            noise=self.noise,
            variant=self.variant,
            plain=plain,
        )
        text = canonical_json(msgspec.to_builtins(header)).decode()
        with as_run_error(files.saved):
            data = save({"latents": self.latents, **tensors}, {_METADATA: text})
            files.unfinished.write_bytes(data)
            give_name(files.unfinished, files.saved)

    def check(self, config: VariantConfig, values: SamplingValues) -> Any:
        """The scheduler to go on with; raises RequestError where the variant is not its own."""
        grid, model = config.geometry, config.model.transformer
        size = (1, model.out_channels, grid.latent_frames, grid.latent_rows, grid.latent_columns)
        if tuple(self.latents.shape) != size or self.latents.dtype != torch.float32:
            raise RequestError(
                f"the saved latents are {tuple(self.latents.shape)}, and variant {config.variant} "
                f"has {size}: they were saved by a run of {self.variant.get('shape')}"
            )
        if not 1 <= self.step <= values.steps:
            raise RequestError(f"saved after step {self.step}; the run has {values.steps}")
        try:
            return make_scheduler_at(values, self.scheduler)
        except ValueError as error:
            raise RequestError(f"the saved sampler is not {values.sampler}: {error}") from error


def read_saved(data: bytes, where: Path) -> Saved:
    """Read a file of saved steps; raises RunError."""
    try:
        metadata, tensors = _metadata(data), load(data)
        header = msgspec.convert(msgspec.json.decode(metadata), _Header)
        if header.format != _FORMAT:
            raise ValueError(f"format {header.format}; this wanc reads {_FORMAT}")
        values = msgspec.convert(header.sampling, SamplingValues)
        latents = tensors.pop("latents")
        scheduler = _deep(tensors, header.plain)
    except (SafetensorError, msgspec.MsgspecError, KeyError, ValueError, RecursionError) as error:
        raise RunError(f"{where}: not a file of saved steps, or a damaged one: {error}") from error
    request = RunRequest(
        prompt=header.prompt,
        negative=header.negative,
        steps=values.steps,
        guidance=Guidance(high=values.guidance_high, low=values.guidance_low),
        flow_shift=values.flow_shift,
        seed=values.seed,
    )
    return Saved(
        step=header.step,
        latents=latents,
        scheduler=scheduler,
        request=request,
        noise=header.noise,
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
    names = ("prompt", "negative", "steps", "guidance", "flow_shift", "seed")
    theirs = {name: getattr(saved.request, name) for name in names}
    asked = {name: getattr(request, name) for name in names}
    differing = [
        f"{name.replace('_', ' ')} {asked[name]!r}, saved was {theirs[name]!r}"
        for name in names
        if asked[name] is not None and asked[name] != theirs[name]
    ]
    if differing:
        raise RequestError(
            "a resumed run goes on as it began; leave these out:\n  " + "\n  ".join(differing)
        )
    return replace(request, **theirs)


def _flat(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, ``attribute.index`` in a list, and the rest as JSON has it."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, list):
            held = {f"{name}{_ITEM}{i}": v for i, v in enumerate(value) if isinstance(v, Tensor)}
            tensors |= held
            plain[name] = [None if isinstance(v, Tensor) else v for v in value]
        else:
            plain[name] = value
    return {name: tensor.clone() for name, tensor in tensors.items()}, plain


def _deep(tensors: dict[str, Tensor], plain: dict[str, Any]) -> State:
    """What _flat took apart; raises KeyError or ValueError where parts do not fit."""
    state = dict(plain)
    for name, tensor in tensors.items():
        attribute, _, index = name.partition(_ITEM)
        if not index:
            state[attribute] = tensor
        elif isinstance(state[attribute], list) and int(index) < len(state[attribute]):
            state[attribute][int(index)] = tensor
        else:
            raise ValueError(f"no place for {name}")
    return state


def _metadata(data: bytes) -> str:
    """The line of JSON; raises SafetensorError, KeyError or ValueError."""
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        raise ValueError(f"a header of {length} bytes in {len(data)} bytes")
    header = msgspec.json.decode(data[8 : 8 + length])
    text = header["__metadata__"][_METADATA]
    if not isinstance(text, str):
        raise ValueError("metadata are no text")
    return text

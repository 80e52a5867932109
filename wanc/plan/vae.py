"""The VAE's programs: ABI of one latent frame of one tile, with its causal caches.

Walks the layers as diffusers' WanEncoder3d and WanDecoder3d build them, in order of execution.
Always fp32, as the official code runs the VAE.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

from wanc.plan.abi import Program, Tensor, Weight
from wanc.spec.model import COLORS, Vae

CACHE_FRAMES = 2
"""Frames of history of a causal convolution with three taps."""

KERNEL = 3

OVER_TIME, OVER_GRID = "time_conv", "resample.1"
"""Modules of a resampler. One that goes up makes two frames of one, then convolves on the doubled
grid; one that goes down halves the grid, then the frames."""


@dataclass(slots=True)
class _Walk:
    """Weights and caches met so far, and the grid at this depth."""

    rows: int
    columns: int
    weights: list[Weight] = field(default_factory=list)
    caches: list[Tensor] = field(default_factory=list)

    def weight(self, name: str, *shape: int) -> None:
        self.weights.append(
            Weight(name=name, tensor=name, stored_shape=shape, shape=shape, dtype="float32")
        )

    def convolution(self, name: str, outputs: int, inputs: int, *kernel: int) -> None:
        self.weight(f"{name}.weight", outputs, inputs, *kernel)
        self.weight(f"{name}.bias", outputs)

    def causal(
        self, name: str, outputs: int, inputs: int, *kernel: int, kept: int = CACHE_FRAMES
    ) -> None:
        """A convolution over time, of whose input the last frames are kept."""
        self.convolution(name, outputs, inputs, *kernel)
        shape = (1, inputs, kept, self.rows, self.columns)
        self.caches.append(Tensor(name=f"cache_{len(self.caches)}", shape=shape, dtype="float32"))

    def residual(self, name: str, inputs: int, outputs: int) -> None:
        cube = (KERNEL, KERNEL, KERNEL)
        self.weight(f"{name}.norm1.gamma", inputs, 1, 1, 1)
        self.causal(f"{name}.conv1", outputs, inputs, *cube)
        self.weight(f"{name}.norm2.gamma", outputs, 1, 1, 1)
        self.causal(f"{name}.conv2", outputs, outputs, *cube)
        if inputs != outputs:
            self.convolution(f"{name}.conv_shortcut", outputs, inputs, 1, 1, 1)

    def middle(self, name: str, width: int) -> None:
        self.residual(f"{name}.resnets.0", width, width)
        self.weight(f"{name}.attentions.0.norm.gamma", width, 1, 1)
        self.convolution(f"{name}.attentions.0.to_qkv", 3 * width, width, 1, 1)
        self.convolution(f"{name}.attentions.0.proj", width, width, 1, 1)
        self.residual(f"{name}.resnets.1", width, width)


def encode_programs(vae: Vae, rows: int, columns: int, suffix: str) -> tuple[Program, Program]:
    """The programs of a tile's first frame, and of each later latent frame's frames.

    rows and columns are the tile's, in the latent picture.
    """
    walk = _walk_encoder(vae, rows, columns)
    shape = (1, 2 * vae.z_channels, 1, rows, columns)
    moments = Tensor(name="moments", shape=shape, dtype="float32")
    first, later = (_pixels(vae, rows, columns, n) for n in (1, vae.temporal_stride))
    definition = {"base_width": vae.base_width, **_built(vae)}
    return _pair("vae_encode", suffix, definition, walk, (first, later), (moments, moments))


def decode_programs(vae: Vae, rows: int, columns: int, suffix: str) -> tuple[Program, Program]:
    """The programs of a tile's first latent frame and of each later one."""
    walk = _walk_decoder(vae, rows, columns)
    latent = Tensor(name="latent", shape=(1, vae.z_channels, 1, rows, columns), dtype="float32")
    first, later = (_pixels(vae, rows, columns, n) for n in (1, vae.temporal_stride))
    definition = {"decoder_base_width": vae.decoder_base_width, **_built(vae)}
    return _pair("vae_decode", suffix, definition, walk, (latent, latent), (first, later))


def _pixels(vae: Vae, rows: int, columns: int, frames: int) -> Tensor:
    tile_px = (rows * vae.spatial_stride, columns * vae.spatial_stride)
    return Tensor(name="pixels", shape=(1, COLORS, frames, *tile_px), dtype="float32")


def _built(vae: Vae) -> dict[str, Any]:
    """How both halves are built."""
    residual = {"residual": True, "patch": vae.patch} if vae.residual else {}
    return {
        "z_channels": vae.z_channels,
        "width_multiples": list(vae.width_multiples),
        "residual_blocks": vae.residual_blocks,
        "temporal_downsample": list(vae.temporal_downsample),
        **residual,
    }


def _pair(
    kind: str,
    suffix: str,
    definition: dict[str, Any],
    walk: _Walk,
    inputs: tuple[Tensor, Tensor],
    outputs: tuple[Tensor, Tensor],
) -> tuple[Program, Program]:
    """The programs of a tile's first call, which has no history, and of all later ones."""
    caches = tuple(walk.caches)

    def program(part: str, taken: Tensor, given: Tensor, history: tuple[Tensor, ...]) -> Program:
        return Program(
            name=f"{kind}_{part}{suffix}",
            ranks="one",
            replica_count=1,
            kind=f"{kind}_{part}",
            definition=definition,
            groups={},
            weights=tuple(walk.weights),
            inputs=(taken, *history),
            outputs=(given, *caches),
            donated={cache.name: cache.name for cache in history},
        )

    first = program("first", inputs[0], outputs[0], ())
    return first, program("rest", inputs[1], outputs[1], caches)


def _walk_encoder(vae: Vae, rows: int, columns: int) -> _Walk:
    grain = vae.spatial_stride // vae.patch
    walk = _Walk(rows=rows * grain, columns=columns * grain)
    cube = (KERNEL, KERNEL, KERNEL)
    widths = [vae.base_width * multiple for multiple in (1, *vae.width_multiples)]
    walk.causal("encoder.conv_in", widths[0], COLORS * vae.patch**2, *cube)
    halves_frames = (*vae.temporal_downsample, None)
    place = 0  # in diffusers' flat list of an encoder without shortcuts
    for i, (inputs, outputs, halves) in enumerate(
        zip(widths, widths[1:], halves_frames, strict=False)
    ):
        width = inputs
        for j in range(vae.residual_blocks):
            name = f"{i}.resnets.{j}" if vae.residual else f"{place}"
            walk.residual(f"encoder.down_blocks.{name}", width, outputs)
            width, place = outputs, place + 1
        if halves is None:  # the last block keeps the grid
            break
        down = f"encoder.down_blocks.{f'{i}.downsampler' if vae.residual else place}"
        walk.convolution(f"{down}.{OVER_GRID}", width, width, KERNEL, KERNEL)
        walk.rows, walk.columns, place = walk.rows // 2, walk.columns // 2, place + 1
        if halves:
            walk.causal(f"{down}.{OVER_TIME}", width, width, KERNEL, 1, 1, kept=1)
    walk.middle("encoder.mid_block", width)
    walk.weight("encoder.norm_out.gamma", width, 1, 1, 1)
    walk.causal("encoder.conv_out", 2 * vae.z_channels, width, *cube)
    walk.convolution("quant_conv", 2 * vae.z_channels, 2 * vae.z_channels, 1, 1, 1)
    return walk


def _walk_decoder(vae: Vae, rows: int, columns: int) -> _Walk:
    walk = _Walk(rows=rows, columns=columns)
    cube = (KERNEL, KERNEL, KERNEL)
    multiples = (vae.width_multiples[-1], *reversed(vae.width_multiples))
    widths = [vae.decoder_base_width * multiple for multiple in multiples]
    deepest = widths[0]
    walk.convolution("post_quant_conv", vae.z_channels, vae.z_channels, 1, 1, 1)
    walk.causal("decoder.conv_in", deepest, vae.z_channels, *cube)
    walk.middle("decoder.mid_block", deepest)
    doubles_frames = (*reversed(vae.temporal_downsample), None)
    upsampler = "upsampler" if vae.residual else "upsamplers.0"
    width = deepest
    for i, (outputs, doubles) in enumerate(zip(widths[1:], doubles_frames, strict=True)):
        for j in range(vae.residual_blocks + 1):
            walk.residual(f"decoder.up_blocks.{i}.resnets.{j}", width, outputs)
            width = outputs
        if doubles is None:  # the last block keeps the grid
            break
        up = f"decoder.up_blocks.{i}.{upsampler}"
        if doubles:
            walk.causal(f"{up}.{OVER_TIME}", 2 * width, width, KERNEL, 1, 1)
        kept = width if vae.residual else width // 2  # a shortcut needs equal widths
        walk.convolution(f"{up}.{OVER_GRID}", kept, width, KERNEL, KERNEL)
        width = kept
        walk.rows, walk.columns = 2 * walk.rows, 2 * walk.columns
    walk.weight("decoder.norm_out.gamma", width, 1, 1, 1)
    walk.causal("decoder.conv_out", COLORS * vae.patch**2, width, *cube)
    return walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One convolution of a call of a VAE program."""

    name: str
    outputs: int
    """Channels."""
    inputs: int
    """Channels."""
    taps: int
    """Places of the kernel."""
    positions: int
    """Places of the output: frames, rows and columns."""
    frames: int
    """Frames among the positions."""


def convolutions(program: Program) -> Iterator[Convolution]:
    """The convolutions of one call of a VAE program, from its weights in order of execution.

    The first call has no history and leaves out the convolutions over time of resamplers.
    """
    frames, rows, columns = program.inputs[0].shape[2:]
    encodes, first = program.kind.startswith("vae_encode"), program.kind.endswith("first")
    if encodes:
        patch = program.definition.get("patch", 1)
        rows, columns = rows // patch, columns // patch
    for weight in program.weights:
        module, _, kind = weight.name.rpartition(".")
        over_time, over_grid = module.endswith(OVER_TIME), module.endswith(OVER_GRID)
        if kind != "weight" or (over_time and first):
            continue
        if over_grid:
            rows, columns = (rows // 2, columns // 2) if encodes else (2 * rows, 2 * columns)
        if over_time and encodes:
            frames //= 2
        outputs, inputs, *kernel = weight.shape
        yield Convolution(
            name=module,
            outputs=outputs,
            inputs=inputs,
            taps=prod(kernel),
            positions=frames * rows * columns,
            frames=frames,
        )
        if over_time and not encodes:
            frames *= 2

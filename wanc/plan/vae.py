"""The VAE decoder's programs: ABI of one latent frame of one tile, with its causal caches.

Walks the decoder's layers as diffusers' WanDecoder3d builds them, in order of execution. Always
fp32, as the official code runs the VAE.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from wanc.plan.abi import Program, Tensor, Weight
from wanc.spec.model import Vae

CACHE_FRAMES = 2
"""Frames of history of a causal convolution with three taps."""

KERNEL = 3

COLORS = 3

DOUBLES_FRAMES, DOUBLES_GRID = "time_conv", "resample.1"
"""Modules of an upsampler: two frames of one, and the convolution after the doubled grid."""


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

    def causal(self, name: str, outputs: int, inputs: int, *kernel: int) -> None:
        """A convolution over time, whose last input frames are kept."""
        self.convolution(name, outputs, inputs, *kernel)
        shape = (1, inputs, CACHE_FRAMES, self.rows, self.columns)
        self.caches.append(Tensor(name=f"cache_{len(self.caches)}", shape=shape, dtype="float32"))

    def residual(self, name: str, inputs: int, outputs: int) -> None:
        cube = (KERNEL, KERNEL, KERNEL)
        self.weight(f"{name}.norm1.gamma", inputs, 1, 1, 1)
        self.causal(f"{name}.conv1", outputs, inputs, *cube)
        self.weight(f"{name}.norm2.gamma", outputs, 1, 1, 1)
        self.causal(f"{name}.conv2", outputs, outputs, *cube)
        if inputs != outputs:
            self.convolution(f"{name}.conv_shortcut", outputs, inputs, 1, 1, 1)


def decode_programs(vae: Vae, rows: int, columns: int, suffix: str) -> tuple[Program, Program]:
    """The programs of a tile's first latent frame and of each later one."""
    walk = _walk_decoder(vae, rows, columns)
    built = {"residual": True, "patch": vae.patch} if vae.residual else {}
    latent = Tensor(name="latent", shape=(1, vae.z_channels, 1, rows, columns), dtype="float32")
    tile_px = (rows * vae.spatial_stride, columns * vae.spatial_stride)
    caches = tuple(walk.caches)

    def program(part: str, frames: int, *, first: bool) -> Program:
        pixels = Tensor(name="pixels", shape=(1, COLORS, frames, *tile_px), dtype="float32")
        return Program(
            name=f"vae_decode_{part}{suffix}",
            ranks="one",
            replica_count=1,
            kind=f"vae_decode_{part}",
            definition={
                "decoder_base_width": vae.decoder_base_width,
                "z_channels": vae.z_channels,
                "width_multiples": list(vae.width_multiples),
                "residual_blocks": vae.residual_blocks,
                "temporal_downsample": list(vae.temporal_downsample),
                **built,
            },
            groups={},
            weights=tuple(walk.weights),
            inputs=(latent,) if first else (latent, *caches),
            outputs=(pixels, *caches),
            donated={} if first else {cache.name: cache.name for cache in caches},
        )

    return program("first", 1, first=True), program("rest", vae.temporal_stride, first=False)


def _walk_decoder(vae: Vae, rows: int, columns: int) -> _Walk:
    walk = _Walk(rows=rows, columns=columns)
    cube = (KERNEL, KERNEL, KERNEL)
    multiples = (vae.width_multiples[-1], *reversed(vae.width_multiples))
    widths = [vae.decoder_base_width * multiple for multiple in multiples]
    deepest = widths[0]
    walk.convolution("post_quant_conv", vae.z_channels, vae.z_channels, 1, 1, 1)
    walk.causal("decoder.conv_in", deepest, vae.z_channels, *cube)
    walk.residual("decoder.mid_block.resnets.0", deepest, deepest)
    walk.weight("decoder.mid_block.attentions.0.norm.gamma", deepest, 1, 1)
    walk.convolution("decoder.mid_block.attentions.0.to_qkv", 3 * deepest, deepest, 1, 1)
    walk.convolution("decoder.mid_block.attentions.0.proj", deepest, deepest, 1, 1)
    walk.residual("decoder.mid_block.resnets.1", deepest, deepest)
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
            walk.causal(f"{up}.{DOUBLES_FRAMES}", 2 * width, width, KERNEL, 1, 1)
        kept = width if vae.residual else width // 2  # a shortcut needs equal widths
        walk.convolution(f"{up}.{DOUBLES_GRID}", kept, width, KERNEL, KERNEL)
        width = kept
        walk.rows, walk.columns = 2 * walk.rows, 2 * walk.columns
    walk.weight("decoder.norm_out.gamma", width, 1, 1, 1)
    walk.causal("decoder.conv_out", COLORS * vae.patch**2, width, *cube)
    return walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One convolution of a decoder call."""

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
    """The convolutions of one call of a decoder program, from its weights in order of execution.

    A 3-tap convolution over time doubles the frames after it; the first latent frame's program has
    no history and leaves it out. The 2-D convolution of an upsampler sees the doubled grid.
    """
    frames, rows, columns = program.inputs[0].shape[2:]
    for weight in program.weights:
        module, _, kind = weight.name.rpartition(".")
        if kind != "weight":
            continue
        doubles_frames = module.endswith(DOUBLES_FRAMES)
        if doubles_frames and program.kind == "vae_decode_first":
            continue
        if module.endswith(DOUBLES_GRID):
            rows, columns = 2 * rows, 2 * columns
        outputs, inputs, *kernel = weight.shape
        yield Convolution(
            name=module,
            outputs=outputs,
            inputs=inputs,
            taps=prod(kernel),
            positions=frames * rows * columns,
            frames=frames,
        )
        frames *= 2 if doubles_frames else 1

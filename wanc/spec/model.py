"""What a model is: the numbers of its three networks and of its sampling contract.

Records only. Published numbers are in presets.py, reading a checkpoint's configs in checkpoint.py.
"""

from dataclasses import dataclass
from typing import Literal

Task = Literal["t2v", "i2v", "ti2v"]
"""``t2v``: a prompt. ``i2v``: an image too, and maybe a last one, as condition channels beside the
noise. ``ti2v``: a prompt, and an image where there is one, as the first latent frame."""

Expert = Literal["high_noise", "low_noise"]

TEXT_TOKENS = 512
"""Text tokens of every Wan2.2 prompt, pads included."""

COLORS = 3
"""Channels of pixels."""

TRAIN_TIMESTEPS = 1000
"""Timesteps of the flow's training schedule; a boundary is a fraction of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """One expert of the diffusion transformer (DiT)."""

    heads: int
    head_width: int
    ffn_width: int
    layers: int
    in_channels: int
    out_channels: int
    text_width: int
    frequency_width: int
    """Width of the timestep's sinusoid."""
    patch_FHW: tuple[int, int, int]
    eps: float
    rope_max_positions: int

    @property
    def width(self) -> int:
        """Model width D."""
        return self.heads * self.head_width


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoder:
    """A UMT5 encoder."""

    vocabulary: int
    width: int
    heads: int
    head_width: int
    ffn_width: int
    layers: int
    position_buckets: int
    max_distance_tokens: int
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Vae:
    """The causal 3-D video autoencoder."""

    z_channels: int
    base_width: int
    decoder_base_width: int
    width_multiples: tuple[int, ...]
    residual_blocks: int
    temporal_downsample: tuple[bool, ...]
    latents_mean: tuple[float, ...]
    latents_std: tuple[float, ...]
    spatial_stride: int
    """Pixels to a latent row or column, patch included."""
    temporal_stride: int
    residual: bool = False
    """Whether a shortcut without weights goes around every down- and upsampling block."""
    patch: int = 1
    """Side of the square of pixels that the network takes and gives as channels of one place."""

    @property
    def condition_channels(self) -> int:
        """Of an image condition: the mask, a channel for each frame of a latent one; latents."""
        return self.temporal_stride + self.z_channels


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The official sampling contract: what is used where a user gives no value."""

    flow_shift: float
    steps: int
    boundary: float | None
    """Timesteps from this fraction of TRAIN_TIMESTEPS up use the high-noise expert."""
    guidance_high: float
    guidance_low: float
    fps: int
    trained_frames: int
    """Frames that the model was trained on; more leave its trained range."""
    negative_prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A complete model. Equal numbers compile to equal programs, whatever the weights."""

    name: str
    task: Task
    experts: tuple[Expert, ...]
    transformer: Transformer
    text_encoder: TextEncoder
    vae: Vae
    sampling: Sampling


EXPERT_COMPONENTS: dict[Expert, str] = {
    "high_noise": "transformer",
    "low_noise": "transformer_2",
}
"""The checkpoint folder that holds each expert. A model of one expert has only the first."""

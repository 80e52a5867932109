"""Trains the toy's VAE, and holds it to its gate. Knows nothing of experts.

From a random start such a small VAE spends its time on learning to pass colors through at all. It
starts here as a pass-through: every residual block and the attention add nothing, so that the
resamplers and the outer convolutions carry pixels from the first step.
"""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanAttentionBlock, WanResidualBlock
from torch import Tensor, nn

from tools.toy.clips import any_scenes, draw
from tools.toy.grammar import TRAINED
from tools.toy.training import Schedule, train

GATE_DB = 28.0
"""Of frame 0, and of the others: below, no expert is trained."""

IMAGES = Schedule(steps=600, learning_rate=3e-3, seed=1)
CLIPS = Schedule(steps=2400, learning_rate=2e-3, average=0.998, seed=2)

_CROP_PX = 64
_CROP_RADIUS_PX = (18.0, 26.0)
"""Smaller than those of whole clips: a crop shall have edges in it."""
_IMAGES_A_STEP, _CLIPS_A_STEP = 16, 4
_NOISE = 0.05
"""Added to latents, so that the decoder forgives the experts as much."""
_HELD_OUT_CLIPS = 16


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How well clips come back, in dB of peak signal to noise."""

    first_frame_db: float
    other_frames_db: float

    def __str__(self) -> str:
        return f"frame 0 {self.first_frame_db:.1f} dB, others {self.other_frames_db:.1f} dB"

    @property
    def passes(self) -> bool:
        return min(self.first_frame_db, self.other_frames_db) >= GATE_DB


def train_vae(vae: AutoencoderKLWan, folder: Path, *, frames: int, height: int, width: int) -> None:
    """Trains in place: on single frames, then on clips."""
    _pass_through(vae)
    held_out = _held_out(frames=frames, height=height, width=width)

    def evaluate() -> str:
        return str(fidelity(vae, held_out[:4]))

    for name, schedule, count, length in (
        ("vae-images", IMAGES, _IMAGES_A_STEP, 1),
        ("vae-clips", CLIPS, _CLIPS_A_STEP, frames),
    ):
        loss_of = partial(_loss, vae, count, length)
        train(vae, loss_of, schedule, folder=folder, name=name, evaluate=evaluate)


def gate(vae: AutoencoderKLWan, *, frames: int, height: int, width: int) -> Fidelity:
    """Of whole clips that were not trained on."""
    return fidelity(vae, _held_out(frames=frames, height=height, width=width))


@torch.no_grad()
def fidelity(vae: AutoencoderKLWan, clips_BCFHW: Tensor) -> Fidelity:
    """Of clips in [-1, 1], through the distribution's mode."""
    squares = [
        (vae.decode(vae.encode(clip).latent_dist.mode()).sample - clip).square()
        for clip in clips_BCFHW.split(1)
    ]
    squares_BCFHW = torch.cat(squares)
    return Fidelity(_db(squares_BCFHW[:, :, :1]), _db(squares_BCFHW[:, :, 1:]))


@torch.no_grad()
def latent_statistics(
    vae: AutoencoderKLWan, *, frames: int, height: int, width: int
) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each latent channel, which the config states."""
    generator = torch.Generator().manual_seed(0)
    clips = draw(TRAINED, frames=frames, height=height, width=width, generator=generator)
    latents = torch.cat([vae.encode(some).latent_dist.mode() for some in clips.split(4)])
    each = (0, 2, 3, 4)
    return (
        [round(value, 4) for value in latents.mean(each).tolist()],
        [round(value, 4) for value in latents.std(each).tolist()],
    )


def _pass_through(vae: AutoencoderKLWan) -> None:
    for module in vae.modules():
        last = {WanResidualBlock: "conv2", WanAttentionBlock: "proj"}.get(type(module))
        if last:
            nn.init.zeros_(getattr(module, last).weight)
            nn.init.zeros_(getattr(module, last).bias)


def _loss(vae: AutoencoderKLWan, count: int, frames: int, generator: torch.Generator) -> Tensor:
    clips = draw(
        any_scenes(count, generator),
        frames=frames,
        height=_CROP_PX,
        width=_CROP_PX,
        generator=generator,
        radius_px=_CROP_RADIUS_PX,
        margin_px=8.0,
    )
    latents = vae.encode(clips).latent_dist.mode()
    noise = torch.randn(latents.shape, generator=generator)
    seen = vae.decode(latents + _NOISE * noise).sample
    return (
        10 * (seen - clips).square().mean()
        + (seen - clips).abs().mean()
        + 1e-4 * latents.square().mean()
    )


def _held_out(*, frames: int, height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(0x5EED)
    scenes = any_scenes(_HELD_OUT_CLIPS, generator)
    return draw(scenes, frames=frames, height=height, width=width, generator=generator)


def _db(squares: Tensor) -> float:
    """Of squared differences of values in [-1, 1]."""
    return -10 * math.log10(squares.mean().item() / 4)

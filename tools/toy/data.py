"""The clips that experts are trained on, as normalised latents. Knows no prompts."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from rich.progress import track
from torch import Tensor

from tools.toy.clips import draw
from tools.toy.grammar import TRAINED, Scene
from wanc.files import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Latents of clips, and what the clips show."""

    latents_BCFHW: Tensor
    """Of every trained scene in turn, again and again; with mean 0 and std 1 in each channel."""
    conditions_BCFHW: Tensor | None = None
    """For image to video: the mask and the latents of the first frame before gray ones."""

    def scene(self, row: int) -> Scene:
        """What a clip shows."""
        return TRAINED[row % len(TRAINED)]

    def save(self, file: Path) -> None:
        """Writes a file, whole or not at all."""
        whole = io.BytesIO()
        torch.save({"latents": self.latents_BCFHW, "conditions": self.conditions_BCFHW}, whole)
        write_whole(file, whole.getvalue())

    @classmethod
    def read(cls, file: Path) -> "Data":
        """What ``save`` wrote."""
        stored = torch.load(file, weights_only=True)
        return cls(latents_BCFHW=stored["latents"], conditions_BCFHW=stored["conditions"])


@torch.no_grad()
def make_data(
    vae: AutoencoderKLWan,
    *,
    clips_a_scene: int,
    images: bool,
    shape: tuple[int, int, int],
) -> Data:
    """Clips (frames, height, width) of every scene but the held-out ones; fp32."""
    frames, height, width = shape
    mean = torch.tensor(vae.config.latents_mean).reshape(1, -1, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std).reshape(1, -1, 1, 1, 1)

    def latents(clips: Tensor) -> Tensor:
        return (vae.encode(clips).latent_dist.mode() - mean) / std

    seen, conditions = [], []
    for round_ in track(range(clips_a_scene), "encode clips of every scene"):
        generator = torch.Generator().manual_seed(round_)
        clips = draw(TRAINED, frames=frames, height=height, width=width, generator=generator)
        for some in clips.split(4):
            seen.append(latents(some))
            if images:
                conditions.append(_condition(some, latents, vae.config.scale_factor_temporal))
    return Data(
        latents_BCFHW=torch.cat(seen),
        conditions_BCFHW=torch.cat(conditions) if images else None,
    )


def _condition(clips: Tensor, latents: Callable[[Tensor], Tensor], stride: int) -> Tensor:
    """As diffusers' WanImageToVideoPipeline has it of a first image."""
    first = torch.zeros_like(clips)
    first[:, :, :1] = clips[:, :, :1]
    condition = latents(first)
    mask = torch.zeros_like(condition[:, :stride])
    mask[:, :, 0] = 1
    return torch.cat([mask, condition], dim=1)

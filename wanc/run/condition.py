"""What a video starts from besides its prompt: images, as condition channels or as latents.

Formulas are those of diffusers' WanImageToVideoPipeline. Knows latents and pixels; how pixels
become latents is the business of vae.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wanc.arrays import Array
from wanc.bundle.config import VariantConfig
from wanc.run.image import FittedImage
from wanc.spec.model import Vae


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How latents are conditioned; with neither, not at all."""

    mask: Tensor | None = None
    """[1, 4, F, H, W] fp32, beside the noise and before the latents."""
    latents: Tensor | None = None
    """[1, C, F, H, W] fp32, beside the noise."""
    first: Tensor | None = None
    """[1, C, 1, H, W] fp32: the first latent frame, which is given."""

    def seen(self, latents_BCFHW: Tensor) -> Tensor:
        """What an expert sees of the latents."""
        if self.mask is not None and self.latents is not None:
            return torch.cat([latents_BCFHW, self.mask, self.latents], dim=1)
        return self.finished(latents_BCFHW)

    def finished(self, latents_BCFHW: Tensor) -> Tensor:
        """The latents with what is given in its place."""
        if self.first is None:
            return latents_BCFHW
        return torch.cat([self.first, latents_BCFHW[:, :, 1:]], dim=2)


def condition_frames(images: Sequence[FittedImage], config: VariantConfig) -> list[Array]:
    """The pixels [1, 3, 1 or 4, h, w] of each latent frame that is encoded.

    Of a video that begins with the first image and, where there are two, ends with the last; all
    between is 0, which is grey. Where an image is the first latent frame, no more is encoded.
    """
    first, *last = [image.pixels_CHW[None, :, None] for image in images]
    if config.model.task == "ti2v":
        return [first]
    later = config.geometry.latent_frames - 1
    shape = (*first.shape[:2], config.model.vae.temporal_stride, *first.shape[3:])
    frames = [np.zeros(shape, np.float32) for _ in range(later)]
    if last:
        frames[-1][:, :, -1:] = last[0]
    return [first, *frames]


def condition_of(latents_BCFHW: Tensor, config: VariantConfig, *, with_last: bool) -> Condition:
    """The condition that encoded images make."""
    if config.model.task == "ti2v":
        return Condition(first=latents_BCFHW)
    mask = condition_mask(config.model.vae, latents_BCFHW, with_last=with_last)
    return Condition(mask=mask, latents=latents_BCFHW)


def condition_mask(vae: Vae, latents_BCFHW: Tensor, *, with_last: bool) -> Tensor:
    """[1, 4, F, H, W] fp32: 1 where a frame is given; channel i is the i-th frame of a latent one.

    The first latent frame holds one frame, which counts in every channel.
    """
    _, _, frames, rows, columns = latents_BCFHW.shape
    mask = torch.zeros(1, vae.temporal_stride, frames, rows, columns)
    mask[:, :, 0] = 1
    if with_last:
        mask[:, -1, -1] = 1
    return mask

"""What the host feeds: tokens, RoPE tables, sinusoids, masks. Formulas only, on numpy and torch.

Knows the model's contract on the host's side, and nothing of programs or ranks.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wanc.plan.geometry import Geometry, TokenSplit
from wanc.spec.model import Transformer, Vae

Array = np.ndarray[Any, Any]

ROPE_THETA = 10000.0
SINUSOID_PERIOD = 10000.0


def rope_tables(model: Transformer, grid: Geometry) -> tuple[Array, Array]:
    """cos and sin [1, L, 1, K/2] in fp32, computed in float64.

    K splits into h = w = 2·(K//6) and t = K - h - w; each part turns by its own position, as
    diffusers' WanRotaryPosEmbed has it.
    """
    space = 2 * (model.head_width // 6)
    widths = (model.head_width - 2 * space, space, space)
    sizes = (grid.latent_frames, grid.token_rows, grid.token_columns)
    angles = []
    for axis, (width, size) in enumerate(zip(widths, sizes, strict=True)):
        frequencies = 1.0 / ROPE_THETA ** (np.arange(0, width, 2, dtype=np.float64) / width)
        angle = np.outer(np.arange(size, dtype=np.float64), frequencies)
        shape = [1, 1, 1, width // 2]
        shape[axis] = size
        angles.append(np.broadcast_to(angle.reshape(shape), (*sizes, width // 2)))
    table = np.concatenate(angles, axis=-1).reshape(1, grid.tokens, 1, -1)
    return np.cos(table).astype(np.float32), np.sin(table).astype(np.float32)


def timestep_sinusoids(timesteps: Sequence[float], width: int) -> Array:
    """[timesteps, width] fp32: cosines, then sines: diffusers' Timesteps with flip_sin_to_cos."""
    half = width // 2
    exponent = -math.log(SINUSOID_PERIOD) * torch.arange(half, dtype=torch.float32) / half
    angle = torch.tensor(timesteps, dtype=torch.float32)[:, None] * torch.exp(exponent)[None]
    sinusoid: Array = torch.cat([torch.cos(angle), torch.sin(angle)], dim=-1).numpy()
    return sinusoid


def key_mask(split: TokenSplit, cp: int) -> Array:
    """[cp, cp, chunk] fp32: by rank and ring step, 1 at real tokens of the chunk that arrives.

    A rank sees its own chunk first, then that of the rank before it, and so on.
    """
    real = np.arange(cp * split.chunk_tokens).reshape(cp, -1) < split.tokens
    arrival = [[(rank - step) % cp for step in range(cp)] for rank in range(cp)]
    mask: Array = real.astype(np.float32)[np.array(arrival)]
    return mask


def given_tokens(grid: Geometry, frames: int) -> Array:
    """[1, L, 1] fp32: 1 at the tokens of so many first latent frames."""
    of_frame = grid.token_rows * grid.token_columns
    given = np.arange(grid.tokens) < frames * of_frame
    return given.astype(np.float32).reshape(1, -1, 1)


def tokens_of(latent_BCFHW: Tensor, model: Transformer) -> Array:
    """Patches as tokens [1, L, C·f·h·w], channels first inside a token."""
    f, h, w = model.patch_FHW
    batch, channels, frames, rows, columns = latent_BCFHW.shape
    patches = latent_BCFHW.view(batch, channels, frames // f, f, rows // h, h, columns // w, w)
    ordered = patches.permute(0, 2, 4, 6, 1, 3, 5, 7)
    return ordered.reshape(batch, -1, channels * f * h * w).contiguous().numpy()


def latent_of(tokens: Tensor, model: Transformer, grid: Geometry) -> Tensor:
    """Noise tokens [B, L, f·h·w·C] -> [B, C, F, H, W]; channels last inside a token."""
    f, h, w = model.patch_FHW
    batch = tokens.shape[0]
    shape = (batch, grid.latent_frames // f, grid.token_rows, grid.token_columns, f, h, w, -1)
    ordered = tokens.reshape(shape).permute(0, 7, 1, 4, 2, 5, 3, 6)
    return ordered.flatten(6, 7).flatten(4, 5).flatten(2, 3)


def vae_latents(latent_BCFHW: Tensor, vae: Vae) -> Tensor:
    """Latents as the VAE decodes them: un-normalised with its own mean and deviation."""
    mean, inverse_std = _normal(vae)
    return latent_BCFHW / inverse_std + mean


def sampler_latents(latent_BCFHW: Tensor, vae: Vae) -> Tensor:
    """Latents as the sampler has them: what the VAE encodes, normalised."""
    mean, inverse_std = _normal(vae)
    return (latent_BCFHW - mean) * inverse_std


def _normal(vae: Vae) -> tuple[Tensor, Tensor]:
    """The mean, and one over the deviation, of latents by channel."""
    shape = (1, vae.z_channels, 1, 1, 1)
    return torch.tensor(vae.latents_mean).view(shape), 1.0 / torch.tensor(vae.latents_std).view(
        shape
    )

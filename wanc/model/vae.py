"""The VAE decoder, one latent frame of one tile at a time: diffusers' modules, caches as tensors.

diffusers keeps a causal convolution's cache in three states: absent, one frame, two frames. Zeros
are what an absent frame means, so ``first`` pads every cache to two frames, which is exact, and
``rest`` is one program for all later latent frames.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wanc.model.weights import Weights


@dataclass(frozen=True, slots=True)
class DecodeGraph:
    """latent, (caches) -> pixels, caches."""

    decoder: nn.Module

    def __call__(self, w: Weights, latent: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        state = {f"vae.{name}": tensor for name, tensor in w.tensors.items()}
        inputs = (latent, *caches)
        outputs: tuple[Tensor, ...] = torch.func.functional_call(self.decoder, state, inputs)
        return outputs


def decode_graph(
    *,
    decoder_base_width: int,
    z_channels: int,
    width_multiples: list[int],
    residual_blocks: int,
    temporal_downsample: list[bool],
    cache_shapes: list[tuple[int, ...]],
    first: bool,
) -> DecodeGraph:
    """The decoder's graph, on diffusers' modules without memory."""
    from diffusers import AutoencoderKLWan

    with torch.device("meta"):
        vae: Any = AutoencoderKLWan(
            base_dim=decoder_base_width,
            z_dim=z_channels,
            dim_mult=width_multiples,
            num_res_blocks=residual_blocks,
            temperal_downsample=temporal_downsample,
            latents_mean=[0.0] * z_channels,
            latents_std=[1.0] * z_channels,
        )
    return DecodeGraph(_Decoder(vae.eval(), cache_shapes, first=first))


class _Decoder(nn.Module):
    def __init__(self, vae: Any, cache_shapes: list[tuple[int, ...]], *, first: bool) -> None:
        super().__init__()
        self.vae = vae
        self.cache_shapes = cache_shapes
        self.first = first

    def forward(self, latent: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        slots: list[Any] = [None] * self.vae._cached_conv_counts["decoder"]
        slots[: len(caches)] = caches
        pixels = self.vae.decoder(
            self.vae.post_quant_conv(latent),
            feat_cache=slots,
            feat_idx=[0],
            first_chunk=self.first,
        )
        kept = zip(slots, self.cache_shapes, strict=False)
        return (pixels, *(_two_frames(cache, shape, latent) for cache, shape in kept))


def _two_frames(cache: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """The cache with zeros before it; after the first call some are a mark instead of a tensor."""
    if not isinstance(cache, Tensor):
        return like.new_zeros(shape)
    missing = shape[2] - cache.shape[2]
    if not missing:
        return cache
    return torch.cat([cache.new_zeros((*shape[:2], missing, *shape[3:])), cache], 2)

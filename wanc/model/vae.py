"""The VAE, one latent frame of one tile at a time: diffusers' modules, caches as tensors.

diffusers keeps a causal convolution's cache in three states: absent, one frame, two frames. Zeros
are what an absent frame means, so ``first`` pads every cache to its full size, which is exact, and
``rest`` is one program for all later latent frames.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wanc.model.weights import Weights

Compute = Callable[[Any, Tensor, list[Any]], Tensor]
"""(AutoencoderKLWan, what is taken, its caches in diffusers' slots) -> what is given."""


@dataclass(frozen=True, slots=True)
class VaeGraph:
    """What a half takes, (caches) -> what it gives, caches."""

    half: nn.Module

    def __call__(self, w: Weights, taken: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        state = {f"vae.{name}": tensor for name, tensor in w.tensors.items()}
        outputs: tuple[Tensor, ...] = torch.func.functional_call(self.half, state, (taken, *caches))
        return outputs


def encode_graph(*, base_width: int, cache_shapes: list[tuple[int, ...]], **built: Any) -> VaeGraph:
    """pixels [1, 3, 1 or 4, h, w] -> moments [1, 2·C, 1, H, W]: mean, then logarithm of variance.

    Like decode_graph on diffusers' modules without memory.
    """
    vae = _meta_vae(base_dim=base_width, **built)
    return VaeGraph(_Half(vae, "encoder", _encode, cache_shapes))


def decode_graph(
    *, decoder_base_width: int, cache_shapes: list[tuple[int, ...]], first: bool, **built: Any
) -> VaeGraph:
    """latent [1, C, 1, H, W] -> pixels [1, 3, 1 or 4, h, w]."""
    vae = _meta_vae(base_dim=decoder_base_width, **built)
    return VaeGraph(_Half(vae, "decoder", partial(_decode, first=first), cache_shapes))


def _meta_vae(
    *,
    base_dim: int,
    z_channels: int,
    width_multiples: list[int],
    residual_blocks: int,
    temporal_downsample: list[bool],
    residual: bool = False,
    patch: int = 1,
) -> Any:
    from diffusers import AutoencoderKLWan

    with torch.device("meta"):
        vae: Any = AutoencoderKLWan(
            base_dim=base_dim,
            z_dim=z_channels,
            dim_mult=width_multiples,
            num_res_blocks=residual_blocks,
            temperal_downsample=temporal_downsample,
            latents_mean=[0.0] * z_channels,
            latents_std=[1.0] * z_channels,
            is_residual=residual,
            in_channels=3 * patch**2,
            out_channels=3 * patch**2,
            patch_size=patch if patch > 1 else None,
        )
    return vae.eval()


class _Half(nn.Module):
    """The encoder or the decoder, with what lies between it and latents or pixels."""

    def __init__(
        self, vae: Any, name: str, compute: Compute, cache_shapes: list[tuple[int, ...]]
    ) -> None:
        super().__init__()
        self.vae = vae
        self.name = name
        self.compute = compute
        self.cache_shapes = cache_shapes

    def forward(self, taken: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        slots: list[Any] = [None] * self.vae._cached_conv_counts[self.name]
        slots[: len(caches)] = caches
        given = self.compute(self.vae, taken, slots)
        kept = zip(slots, self.cache_shapes, strict=False)
        return (given, *(_whole(cache, shape, taken) for cache, shape in kept))


def _encode(vae: Any, pixels: Tensor, slots: list[Any]) -> Tensor:
    from diffusers.models.autoencoders.autoencoder_kl_wan import patchify

    places = patchify(pixels, vae.config.patch_size or 1)
    moments: Tensor = vae.quant_conv(vae.encoder(places, feat_cache=slots, feat_idx=[0]))
    return moments


def _decode(vae: Any, latent: Tensor, slots: list[Any], *, first: bool) -> Tensor:
    from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

    places = vae.decoder(
        vae.post_quant_conv(latent), feat_cache=slots, feat_idx=[0], first_chunk=first
    )
    pixels: Tensor = unpatchify(places, vae.config.patch_size or 1)
    return pixels


def _whole(cache: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """The cache with zeros before it; after the first call some are a mark instead of a tensor."""
    if not isinstance(cache, Tensor):
        return like.new_zeros(shape)
    missing = shape[2] - cache.shape[2]
    if not missing:
        return cache
    return torch.cat([cache.new_zeros((*shape[:2], missing, *shape[3:])), cache], 2)

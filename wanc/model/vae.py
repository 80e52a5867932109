"""The VAE, one latent frame of one tile at a time: diffusers' modules, caches as tensors.

diffusers keeps a causal convolution's cache in three states: absent, one frame, two frames. Zeros
are what an absent frame means, so ``first`` pads every cache to its full size, which is exact, and
``rest`` is one program for all later latent frames.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wanc.model.weights import Weights


@dataclass(frozen=True, slots=True)
class VaeGraph:
    """What a half takes, (caches) -> what it gives, caches."""

    half: nn.Module

    def __call__(self, w: Weights, taken: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        state = {f"vae.{name}": tensor for name, tensor in w.tensors.items()}
        outputs: tuple[Tensor, ...] = torch.func.functional_call(self.half, state, (taken, *caches))
        return outputs


def encode_graph(
    *, base_width: int, cache_shapes: list[tuple[int, ...]], first: bool, **built: Any
) -> VaeGraph:
    """pixels [1, 3, 1 or 4, h, w] -> moments [1, 2·C, 1, H, W]: mean, then logarithm of variance.

    Like decode_graph on diffusers' modules without memory.
    """
    vae = _meta_vae(base_dim=base_width, **built)
    return VaeGraph(_Encoder(vae, cache_shapes, first=first))


def decode_graph(
    *, decoder_base_width: int, cache_shapes: list[tuple[int, ...]], first: bool, **built: Any
) -> VaeGraph:
    """latent [1, C, 1, H, W] -> pixels [1, 3, 1 or 4, h, w]."""
    vae = _meta_vae(base_dim=decoder_base_width, **built)
    return VaeGraph(_Decoder(vae, cache_shapes, first=first))


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
    """One half of the VAE."""

    name: str

    def __init__(self, vae: Any, cache_shapes: list[tuple[int, ...]], *, first: bool) -> None:
        super().__init__()
        self.vae = vae
        self.cache_shapes = cache_shapes
        self.first = first

    def forward(self, taken: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        slots: list[Any] = [None] * self.vae._cached_conv_counts[self.name]
        slots[: len(caches)] = caches
        given = self.compute(taken, slots)
        kept = zip(slots, self.cache_shapes, strict=False)
        return (given, *(_whole(cache, shape, taken) for cache, shape in kept))

    def compute(self, taken: Tensor, slots: list[Any]) -> Tensor:
        raise NotImplementedError


class _Encoder(_Half):
    name = "encoder"

    def compute(self, taken: Tensor, slots: list[Any]) -> Tensor:
        from diffusers.models.autoencoders.autoencoder_kl_wan import patchify

        places = patchify(taken, self.vae.config.patch_size or 1)
        moments: Tensor = self.vae.quant_conv(
            self.vae.encoder(places, feat_cache=slots, feat_idx=[0])
        )
        return moments


class _Decoder(_Half):
    name = "decoder"

    def compute(self, taken: Tensor, slots: list[Any]) -> Tensor:
        from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

        places = self.vae.decoder(
            self.vae.post_quant_conv(taken),
            feat_cache=slots,
            feat_idx=[0],
            first_chunk=self.first,
        )
        pixels: Tensor = unpatchify(places, self.vae.config.patch_size or 1)
        return pixels


def _whole(cache: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """The cache with zeros before it; after the first call some are a mark instead of a tensor."""
    if not isinstance(cache, Tensor):
        return like.new_zeros(shape)
    missing = shape[2] - cache.shape[2]
    if not missing:
        return cache
    return torch.cat([cache.new_zeros((*shape[:2], missing, *shape[3:])), cache], 2)

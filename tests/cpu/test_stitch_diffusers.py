"""The grid and the blend of diffusers: its own tiling, fed with random tiles."""

import numpy as np
import pytest
import torch

from wanc.plan.geometry import Geometry
from wanc.plan.tiles import STRIDE_PX, TILE_PX, plan_tiles
from wanc.run.tiles import clamp, stitch

STRIDE = 8
SIDES = [(60, 104), (90, 160), (30, 54), (40, 40), (33, 26), (54, 50), (78, 31)]
"""Latent rows and columns; edge tiles of 2 to 30 latent rows."""


class RandomTiles(torch.nn.Module):
    """Stands for the decoder: every call gives a random tile, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(0)
        self.tiles: list[np.ndarray] = []

    def forward(self, tile, feat_cache, feat_idx, first_chunk):
        rows, columns = tile.shape[-2:]
        shape = (1, 3, 1, rows * STRIDE, columns * STRIDE)
        pixels = 2.2 * torch.rand(shape, generator=self.random) - 1.1  # some are clamped
        self.tiles.append(pixels.numpy().copy())  # diffusers blends in place
        return pixels


@pytest.fixture(scope="module")
def vae():
    from diffusers import AutoencoderKLWan

    vae = AutoencoderKLWan(base_dim=4, z_dim=16, num_res_blocks=1)
    vae.post_quant_conv = torch.nn.Identity()
    vae.enable_tiling()
    return vae


@pytest.mark.parametrize(("rows", "columns"), SIDES)
def test_random_tiles_give_the_bits_of_tiled_decode(vae, rows, columns):
    vae.decoder = decoder = RandomTiles()
    with torch.no_grad():
        reference = vae.tiled_decode(torch.zeros(1, 16, 1, rows, columns)).sample.numpy()
    grid = Geometry(
        latent_frames=1, latent_rows=rows, latent_columns=columns, token_rows=1, token_columns=1
    )
    plan = plan_tiles(grid, "diffusers", 1, px_per_latent=STRIDE)
    planned = [(tile.rows * STRIDE, tile.columns * STRIDE) for tile in plan.tiles]
    assert [tile.shape[3:] for tile in decoder.tiles] == planned
    ours = clamp(stitch(decoder.tiles, plan, grain=STRIDE, px_per_latent=STRIDE))
    np.testing.assert_array_equal(ours, reference)


class RandomLatents(torch.nn.Module):
    """Stands for the encoder: every call gives random moments, and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(0)
        self.tiles: list[np.ndarray] = []

    def forward(self, tile, feat_cache, feat_idx):
        rows, columns = (side // STRIDE for side in tile.shape[-2:])
        moments = torch.randn((1, 32, 1, rows, columns), generator=self.random)
        self.tiles.append(moments.numpy().copy())
        return moments


@pytest.mark.parametrize(("rows", "columns"), SIDES)
def test_random_tiles_give_the_bits_of_tiled_encode(vae, rows, columns):
    vae.encoder, vae.quant_conv = (encoder := RandomLatents()), torch.nn.Identity()
    pixels = torch.zeros(1, 3, 1, rows * STRIDE, columns * STRIDE)
    with torch.no_grad():
        reference = vae.tiled_encode(pixels).numpy()
    grid = Geometry(
        latent_frames=1, latent_rows=rows, latent_columns=columns, token_rows=1, token_columns=1
    )
    plan = plan_tiles(grid, "diffusers", 1, px_per_latent=STRIDE)
    ours = stitch(encoder.tiles, plan, grain=1, px_per_latent=STRIDE)
    np.testing.assert_array_equal(ours, reference)


def test_tile_sizes_are_the_defaults_of_diffusers(vae):
    assert vae.tile_sample_min_height == vae.tile_sample_min_width == TILE_PX
    assert vae.tile_sample_stride_height == vae.tile_sample_stride_width == STRIDE_PX

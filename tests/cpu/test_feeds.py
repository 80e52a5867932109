"""What the host feeds, against diffusers' own modules and by hand."""

import numpy as np
import pytest
import torch

from wanc.plan.geometry import Geometry, geometry, split_tokens
from wanc.run.feeds import (
    key_mask,
    latent_of,
    rope_tables,
    timestep_sinusoids,
    tokens_of,
    vae_latents,
)
from wanc.spec.presets import TINY, WAN22_T2V_A14B
from wanc.spec.shape import Shape
from wanc.spec.topology import Topology

ONE_ROUNDING = 6e-8
"""Half a unit in the last place of fp32 near 1: numpy's and torch's fp64 may differ in theirs."""
SUM_OF_64 = 1e-5
"""A convolution sums 64 products of unit size in another order than a matrix product."""


def grid_of(shape: str, model=TINY) -> Geometry:
    return geometry(Shape.parse(shape), model)


def latent_of_grid(grid: Geometry, *, batch=1, channels=16) -> torch.Tensor:
    shape = (batch, channels, grid.latent_frames, grid.latent_rows, grid.latent_columns)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("model", [TINY, WAN22_T2V_A14B], ids=lambda model: model.name)
@pytest.mark.parametrize("shape", ["208x128x5", "432x240x33", "16x16x1", "640x48x121"])
def test_rope_tables_are_those_of_diffusers(model, shape):
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

    grid, dit = grid_of(shape, model), model.transformer
    rotary = WanRotaryPosEmbed(dit.head_width, dit.patch_FHW, dit.rope_max_positions)
    reference = rotary(latent_of_grid(grid))
    for ours, theirs in zip(rope_tables(dit, grid), reference, strict=True):
        assert ours.dtype == np.float32
        assert ours.shape == (1, grid.tokens, 1, dit.head_width // 2)
        pairs = theirs.numpy().reshape(1, grid.tokens, 1, -1, 2)  # each value stands for a pair
        np.testing.assert_array_equal(pairs[..., 0], pairs[..., 1])
        np.testing.assert_allclose(ours, pairs[..., 0], rtol=0, atol=ONE_ROUNDING)


def test_rope_turns_the_first_values_by_frame_then_row_then_column():
    """K 24 splits into t 8, h 8, w 8: four angles for each, of which the first is the position."""
    grid = grid_of("48x32x5")  # 2 x 2 x 3 tokens
    cos, _ = rope_tables(TINY.transformer, grid)
    positions = np.indices((2, 2, 3)).reshape(3, -1)
    for part, position in enumerate(positions):
        np.testing.assert_array_equal(
            cos[0, :, 0, 4 * part], np.cos(position.astype(np.float64)).astype(np.float32)
        )


def test_rope_is_computed_in_double_precision():
    """At position 800 an fp32 angle would already be off in the fifth digit."""
    grid = Geometry(
        latent_frames=801, latent_rows=2, latent_columns=2, token_rows=1, token_columns=1
    )
    cos, sin = rope_tables(WAN22_T2V_A14B.transformer, grid)
    frequencies = 10000.0 ** -(np.arange(22) / 22)  # K 128: t 44, h and w 42
    np.testing.assert_allclose(cos[0, 800, 0, :22], np.cos(800 * frequencies), atol=ONE_ROUNDING)
    np.testing.assert_allclose(sin[0, 800, 0, :22], np.sin(800 * frequencies), atol=ONE_ROUNDING)


@pytest.mark.parametrize("timestep", [0, 1, 24, 499, 875, 999, 1000, 0.5])
@pytest.mark.parametrize("width", [256, 64])
def test_sinusoid_has_the_bits_of_diffusers(timestep, width):
    from diffusers.models.embeddings import Timesteps

    reference = Timesteps(num_channels=width, flip_sin_to_cos=True, downscale_freq_shift=0)
    ours = timestep_sinusoids([timestep], width)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, reference(torch.tensor([timestep])).numpy())


def test_sinusoid_is_cosines_first():
    assert timestep_sinusoids([0], 4).tolist() == [[1, 1, 0, 0]]


@pytest.mark.parametrize("shape", ["208x128x5", "48x32x1", "16x64x9"])
def test_tokens_and_a_matrix_are_the_patch_convolution(shape):
    model = TINY.transformer
    latent = latent_of_grid(grid_of(shape))
    convolution = torch.nn.Conv3d(16, 8, kernel_size=model.patch_FHW, stride=model.patch_FHW)
    with torch.no_grad():
        reference = convolution(latent).flatten(2).transpose(1, 2)
        tokens = torch.from_numpy(tokens_of(latent, model))
        ours = tokens @ convolution.weight.reshape(8, -1).T + convolution.bias
    assert tokens.shape == (1, grid_of(shape).tokens, 16 * 4)
    np.testing.assert_allclose(ours.numpy(), reference.numpy(), atol=SUM_OF_64)


def test_token_by_hand():
    latent = torch.arange(2 * 4 * 4, dtype=torch.float32).reshape(1, 2, 1, 4, 4)
    tokens = tokens_of(latent, TINY.transformer)
    assert tokens[0, 0].tolist() == [0, 1, 4, 5, 16, 17, 20, 21]
    assert tokens[0, 1].tolist() == [2, 3, 6, 7, 18, 19, 22, 23]
    assert tokens[0, 2].tolist() == [8, 9, 12, 13, 24, 25, 28, 29]


@pytest.mark.parametrize("shape", ["208x128x5", "48x32x1", "16x64x9"])
@pytest.mark.parametrize("batch", [1, 2])
def test_latents_are_unpatchified_as_diffusers_does(shape, batch):
    model, grid = TINY.transformer, grid_of(shape)
    tokens = torch.randn(batch, grid.tokens, 64, generator=torch.Generator().manual_seed(0))
    f, h, w = model.patch_FHW
    grid_FHW = (grid.latent_frames, grid.token_rows, grid.token_columns)
    reference = tokens.reshape(batch, *grid_FHW, f, h, w, -1)  # WanTransformer3DModel.forward
    reference = torch.einsum("bxyzfhwc->bcxfyhzw", reference)
    latent = latent_of(tokens, model, grid)
    assert latent.shape == latent_of_grid(grid, batch=batch).shape
    np.testing.assert_array_equal(latent.numpy(), reference.reshape(latent.shape).numpy())


@pytest.mark.parametrize("shape", ["208x128x5", "48x32x1"])
def test_tokens_and_latents_are_each_other_s_inverse_but_for_the_channels_place(shape):
    """Channels come first in an input token and last in an output token."""
    model, grid = TINY.transformer, grid_of(shape)
    latent = latent_of_grid(grid)
    tokens = torch.from_numpy(tokens_of(latent, model))
    turned = tokens.unflatten(2, (16, 4)).transpose(2, 3).flatten(2)
    assert torch.equal(latent_of(turned, model, grid), latent)
    assert not torch.equal(latent_of(tokens, model, grid), latent)


def test_key_mask_by_hand():
    """Seven tokens on cp3 are 3, 3 and 1; a rank sees its own chunk first, then the one before."""
    split = split_tokens(7, Topology(cp=3))
    chunks = [[1, 1, 1], [1, 1, 1], [1, 0, 0]]
    mask = key_mask(split, 3)
    assert mask.dtype == np.float32
    assert mask.tolist() == [
        [chunks[0], chunks[2], chunks[1]],
        [chunks[1], chunks[0], chunks[2]],
        [chunks[2], chunks[1], chunks[0]],
    ]


def test_every_rank_sees_every_real_key_once():
    for tokens in range(1, 30):
        for cp in range(1, min(tokens, 8) + 1):
            split = split_tokens(tokens, Topology(cp=cp))
            mask = key_mask(split, cp)
            assert mask.shape == (cp, cp, split.chunk_tokens)
            assert set(np.unique(mask)) <= {0, 1}
            assert (mask.sum(axis=(1, 2)) == tokens).all()
            own = np.arange(cp * split.chunk_tokens).reshape(cp, -1) < tokens
            np.testing.assert_array_equal(mask[:, 0], own)


def test_vae_latents_have_the_bits_of_diffusers_pipeline():
    vae = TINY.vae
    latent = latent_of_grid(grid_of("48x32x5"))
    mean = torch.tensor(vae.latents_mean).view(1, 16, 1, 1, 1)  # WanPipeline.__call__
    std = 1.0 / torch.tensor(vae.latents_std).view(1, 16, 1, 1, 1)
    assert torch.equal(vae_latents(latent, vae), latent / std + mean)
    ones = vae_latents(torch.ones(1, 16, 1, 1, 1), vae).flatten().tolist()
    expected = np.add(vae.latents_mean, vae.latents_std).tolist()
    assert ones == pytest.approx(expected, abs=1e-6)  # one rounding of values below 4

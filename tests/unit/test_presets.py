"""Presets of the other published models: their numbers, and what of them is planned.

tests/cpu/test_abi_presets.py compares their weights and caches with diffusers.
"""

from itertools import pairwise

import pytest

from tests.planned import A14B, I2V, TI2V, planned
from wanc.errors import RefusedError
from wanc.plan.sharding import legal_tp_degrees
from wanc.plan.tiles import STRIDE_PX, TILE_PX
from wanc.spec.presets import PRESETS, TOY_MODELS, WAN22_I2V_A14B, WAN22_T2V_A14B, WAN22_TI2V_5B


def test_presets_by_name():
    assert set(PRESETS) == {A14B, I2V, TI2V, "tiny", "tiny-i2v", "tiny-ti2v"} | set(TOY_MODELS)
    assert all(model.name == name for name, model in PRESETS.items())


@pytest.mark.parametrize(
    ("model", "sampling"),
    [
        (WAN22_T2V_A14B, (12.0, 40, 0.875, 4.0, 3.0, 16, 81)),
        (WAN22_I2V_A14B, (5.0, 40, 0.900, 3.5, 3.5, 16, 81)),
        (WAN22_TI2V_5B, (5.0, 50, None, 5.0, 5.0, 24, 121)),
    ],
)
def test_sampling_is_the_official_one(model, sampling):
    s = model.sampling
    assert sampling == (
        *(s.flow_shift, s.steps, s.boundary, s.guidance_high, s.guidance_low),
        *(s.fps, s.trained_frames),
    )
    assert s.negative_prompt == WAN22_T2V_A14B.sampling.negative_prompt


def test_image_to_video_differs_from_text_to_video_in_its_input_alone():
    image, text = WAN22_I2V_A14B.transformer, WAN22_T2V_A14B.transformer
    assert (image.in_channels, image.out_channels) == (36, 16)
    assert image.width == text.width == 5_120
    assert WAN22_I2V_A14B.vae == WAN22_T2V_A14B.vae
    assert WAN22_I2V_A14B.experts == WAN22_T2V_A14B.experts


def test_5b_numbers():
    dit, vae = WAN22_TI2V_5B.transformer, WAN22_TI2V_5B.vae
    assert (dit.width, dit.ffn_width, dit.layers) == (3_072, 14_336, 30)
    assert dit.in_channels == dit.out_channels == vae.z_channels == 48
    assert len(vae.latents_mean) == len(vae.latents_std) == 48
    assert all(std > 0 for std in vae.latents_std)
    assert legal_tp_degrees(WAN22_TI2V_5B) == (1, 2, 4, 8)
    assert WAN22_TI2V_5B.experts == ("high_noise",)


# --- planned -------------------------------------------------------------------------------------


def test_5b_geometry():
    plan = planned("1280x704x121", "tp4-cp8-cfg2", model=TI2V)
    grid = plan.geometry
    assert (grid.latent_frames, grid.latent_rows, grid.latent_columns) == (31, 44, 80)
    assert plan.tokens.tokens == 27_280
    ends = {p.name: (p.inputs[0].shape, p.outputs[0].shape) for p in plan.programs[5:]}
    assert ends == {
        "vae_encode_first": ((1, 3, 1, 256, 256), (1, 96, 1, 16, 16)),
        "vae_encode_rest": ((1, 3, 4, 256, 256), (1, 96, 1, 16, 16)),
        "vae_decode_first": ((1, 48, 1, 16, 16), (1, 3, 1, 256, 256)),
        "vae_decode_rest": ((1, 48, 1, 16, 16), (1, 3, 4, 256, 256)),
    }


@pytest.mark.parametrize("target", ["cpu", "trn2"])
def test_5b_at_720_is_refused_naming_704(target):
    with pytest.raises(RefusedError, match="1280x704x121"):
        planned("1280x720x121", "tp4-cp8-cfg2", model=TI2V, target=target)


@pytest.mark.parametrize("grid", ["even", "diffusers"])
@pytest.mark.parametrize("shape", ["1280x704x121", "704x1280x121", "832x480x81", "256x256x5"])
def test_tiles_of_the_coarse_vae_are_256_px_and_cover_the_picture(shape, grid):
    plan = planned(shape, "tp4", model=TI2V, target="cpu", options={"vae_tiles": grid})
    tiles, stride = plan.tiles.tiles, 16
    side, step = TILE_PX // stride, STRIDE_PX // stride
    assert max(t.rows for t in tiles) * stride <= 256
    rows = sorted({(t.row, t.rows) for t in tiles})
    columns = sorted({(t.column, t.columns) for t in tiles})
    for spans, whole in (
        (rows, plan.geometry.latent_rows),
        (columns, plan.geometry.latent_columns),
    ):
        assert spans[0][0] == 0
        assert spans[-1][0] + spans[-1][1] == whole
        assert all(there[0] - here[0] <= step for here, there in pairwise(spans))
        assert all(size <= side for _, size in spans)
    assert len(tiles) == len(rows) * len(columns)


def test_coarse_grid_of_diffusers_is_its_own():
    """AutoencoderKLWan at spatial stride 16: tiles of 16 latents every 12, cut short at edges."""
    plan = planned("1280x704x121", "tp4", model=TI2V, options={"vae_tiles": "diffusers"})
    columns = sorted({(t.column, t.columns) for t in plan.tiles.tiles})
    assert columns == [(c, min(16, 80 - c)) for c in range(0, 80, 12)]


@pytest.mark.parametrize(("model", "shape"), [(I2V, "832x480x81"), (TI2V, "1280x704x121")])
def test_every_task_can_be_compiled(model, shape):
    plan = planned(shape, model=model)
    assert plan.not_compilable is None
    assert plan.warnings == ()


def test_image_to_video_shares_all_programs_of_text_to_video_but_the_embedding():
    image, text = (planned("832x480x81", model=model) for model in (I2V, A14B))
    theirs = {program.name: program for program in text.programs}
    changed = [p.name for p in image.programs if p != theirs.get(p.name)]
    assert changed == ["dit_embed", "vae_encode_first", "vae_encode_rest"]
    (embed,) = (program for program in image.programs if program.name == "dit_embed")
    assert embed.inputs[0].shape[-1] == 36 * 4
    assert image.variant.task == "i2v"


def test_tokens_of_a_given_image_have_a_timestep_of_their_own():
    """The 5B model's image is its first latent frame, at timestep 0."""
    plan = planned("1280x704x121", "tp4-cp4", model=TI2V)
    programs = {program.name: program for program in plan.programs}
    assert programs["dit_embed"].inputs[1].shape == (2, 256)
    assert programs["dit_embed"].outputs[2].shape == (2, 6, 3072)
    for name in ("dit_blocks", "dit_head"):
        (given,) = (t for t in programs[name].inputs if t.name == "given_tokens")
        assert given.shape == (1, plan.tokens.shard_tokens, 1)


def test_programs_of_the_plain_vae_do_not_say_how_the_residual_one_is_built():
    """Their digests are in bundles: a key more would change every one."""
    for model, told in ((A14B, False), (TI2V, True)):
        shape = "1280x704x121"
        for program in planned(shape, model=model).programs:
            if program.ranks == "one":
                assert ("residual" in program.definition) is told
                assert ("patch" in program.definition) is told

"""Reading a model's numbers from config files in diffusers layout. No weights are there."""

import json
import re
from dataclasses import replace

import pytest

from wanc.errors import RefusedError
from wanc.spec.checkpoint import read_checkpoint, resolve_model
from wanc.spec.model import Model
from wanc.spec.presets import (
    A14B_T2V_SAMPLING,
    PRESETS,
    TINY,
    TINY_I2V,
    TINY_TI2V,
    WAN22_I2V_A14B,
    WAN22_T2V_A14B,
    WAN22_TI2V_5B,
)


def configs_of(model: Model) -> dict[str, dict]:
    """The config files, by component, that a checkpoint of the model has."""
    dit, text, vae = model.transformer, model.text_encoder, model.vae
    transformer = {
        "_class_name": "WanTransformer3DModel",
        "_diffusers_version": "0.35.0.dev0",
        "added_kv_proj_dim": None,
        "attention_head_dim": dit.head_width,
        "cross_attn_norm": True,
        "eps": dit.eps,
        "ffn_dim": dit.ffn_width,
        "freq_dim": dit.frequency_width,
        "image_dim": None,
        "in_channels": dit.in_channels,
        "num_attention_heads": dit.heads,
        "num_layers": dit.layers,
        "out_channels": dit.out_channels,
        "patch_size": list(dit.patch_FHW),
        "pos_embed_seq_len": None,
        "qk_norm": "rms_norm_across_heads",
        "rope_max_seq_len": dit.rope_max_positions,
        "text_dim": dit.text_width,
    }
    residual = {
        "decoder_base_dim": vae.decoder_base_width,
        "is_residual": True,
        "patch_size": vae.patch,
        "in_channels": 3 * vae.patch**2,
        "out_channels": 3 * vae.patch**2,
        "scale_factor_spatial": vae.spatial_stride,
    }
    return {
        "transformer": transformer,
        "transformer_2": dict(transformer),
        "text_encoder": {
            "model_type": "umt5",
            "feed_forward_proj": "gated-gelu",
            "vocab_size": text.vocabulary,
            "d_model": text.width,
            "num_heads": text.heads,
            "d_kv": text.head_width,
            "d_ff": text.ffn_width,
            "num_layers": text.layers,
            "relative_attention_num_buckets": text.position_buckets,
            "relative_attention_max_distance": text.max_distance_tokens,
            "layer_norm_epsilon": text.eps,
        },
        "vae": {
            "_class_name": "AutoencoderKLWan",
            "attn_scales": [],
            "base_dim": vae.base_width,
            "dim_mult": list(vae.width_multiples),
            "dropout": 0.0,
            "latents_mean": list(vae.latents_mean),
            "latents_std": list(vae.latents_std),
            "num_res_blocks": vae.residual_blocks,
            "temperal_downsample": list(vae.temporal_downsample),
            "z_dim": vae.z_channels,
            **(residual if vae.residual else {}),
        },
    }


INDEX = {
    "_class_name": "WanPipeline",
    "boundary_ratio": 0.875,
    "transformer": ["diffusers", "WanTransformer3DModel"],
    "transformer_2": ["diffusers", "WanTransformer3DModel"],
}


@pytest.fixture
def write(tmp_path):
    """Writes a checkpoint's configs, of TINY unless said, with some keys replaced."""

    def write(model=TINY, *, index=(), leave_out=(), **changed):
        directory = tmp_path / "checkpoint"
        for component, config in configs_of(model).items():
            if component in leave_out:
                continue
            config |= changed.get(component, {})
            (directory / component).mkdir(parents=True, exist_ok=True)
            (directory / component / "config.json").write_text(json.dumps(config))
        (directory / "model_index.json").write_text(json.dumps(INDEX | dict(index)))
        return directory

    return write


def problems(directory) -> list[str]:
    with pytest.raises(RefusedError) as caught:
        read_checkpoint(directory)
    assert caught.value.exit_code == 3
    first, *lines = str(caught.value).split("\n  ")
    assert first == f"{directory} is not a checkpoint that wanc can compile:"
    return lines


@pytest.mark.parametrize("name", [WAN22_T2V_A14B.name, TINY.name])
def test_preset_and_its_configs_are_one_model(write, name):
    assert read_checkpoint(write(PRESETS[name])) == PRESETS[name]
    assert resolve_model(name) is PRESETS[name]


def test_directory_is_a_model_too(write):
    assert resolve_model(str(write())) == TINY


def test_other_numbers_are_a_custom_model_without_the_directory_s_name(write):
    model = read_checkpoint(write(transformer={"num_layers": 3}, transformer_2={"num_layers": 3}))
    assert model == replace(TINY, name=model.name, transformer=replace(TINY.transformer, layers=3))
    assert re.fullmatch("custom-[0-9a-f]{8}", model.name)


def test_keys_left_out_have_the_defaults_of_diffusers(tmp_path):
    """Published VAE and transformer configs leave out what later versions of diffusers added."""
    configs = configs_of(WAN22_T2V_A14B)
    for component in ("transformer", "transformer_2", "vae"):
        configs[component] = {"_class_name": configs[component]["_class_name"]}
    for component, config in configs.items():
        (tmp_path / component).mkdir()
        (tmp_path / component / "config.json").write_text(json.dumps(config))
    (tmp_path / "model_index.json").write_text(json.dumps(INDEX))
    assert read_checkpoint(tmp_path) == WAN22_T2V_A14B


@pytest.mark.parametrize("absent", [None, [None, None], [], "left out"])
def test_one_expert_is_legal(write, absent):
    directory = write(index={"transformer_2": absent}, leave_out=("transformer_2",))
    if absent == "left out":
        index = {key: value for key, value in INDEX.items() if key != "transformer_2"}
        (directory / "model_index.json").write_text(json.dumps(index))
    model = read_checkpoint(directory)
    assert model.experts == ("high_noise",)
    assert model.sampling == replace(A14B_T2V_SAMPLING, boundary=None)


def test_second_expert_that_the_index_names_must_be_there(write):
    (problem,) = problems(write(leave_out=("transformer_2",)))
    assert problem == "transformer_2/config.json: No such file or directory"


def test_experts_must_be_alike(write):
    assert problems(write(transformer_2={"num_layers": 4})) == [
        "transformer_2/config.json: differs from transformer/config.json"
    ]


def test_boundary_is_the_checkpoint_s(write):
    assert read_checkpoint(write(index={"boundary_ratio": 0.9})).sampling.boundary == 0.9
    assert read_checkpoint(write(index={"boundary_ratio": None})).sampling.boundary == 0.875


@pytest.mark.parametrize("value", ["0.9", 900, -0.1, True, [0.9]])
def test_boundary_must_be_a_fraction(write, value):
    assert problems(write(index={"boundary_ratio": value})) == [
        f"model_index.json: boundary_ratio is {value!r}; needs 0 to 1"
    ]


def test_input_channels_of_no_task_are_refused(write):
    image = {"in_channels": 33}
    found = problems(write(transformer=image, transformer_2=image))
    assert found == [
        "transformer in_channels 33: text to video takes 16, and image to video 36 "
        "(noise 16, mask 4, condition 16)"
    ]


def test_vae_of_another_model_is_refused(write):
    """calesthio/OpenMontage #284: a 48-channel VAE beside the 14B transformer."""
    channels = {"z_dim": 48, "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48}
    assert problems(write(vae=channels)) == [
        "transformer out_channels 16 does not fit vae z_dim 48: this VAE belongs to another model"
    ]


def test_patch_of_the_vae_without_its_channels_and_stride_is_refused(write):
    found = problems(write(vae={"is_residual": True, "patch_size": 2, "out_channels": 12}))
    assert [line.split(": ")[1].split()[0] for line in found] == [
        *("in_channels", "scale_factor_spatial"),
    ]


@pytest.mark.parametrize("model", [TINY_I2V, TINY_TI2V, WAN22_I2V_A14B, WAN22_TI2V_5B])
def test_models_that_take_images_are_read(write, model):
    configs = configs_of(model)
    index = {"boundary_ratio": model.sampling.boundary}
    if model.task == "ti2v":
        index |= {"expand_timesteps": True, "transformer_2": [None, None]}
    assert read_checkpoint(write(index=index, **configs)) == model


def test_text_encoder_must_fit_the_transformer(write):
    assert problems(write(text_encoder={"d_model": 128})) == [
        "transformer text_dim 64 does not fit text_encoder d_model 128"
    ]


def test_every_problem_of_every_file_is_named_at_once(write):
    directory = write(
        transformer={"qk_norm": None, "num_layers": 0, "eps": "small", "patch_size": [1, 1, 1]},
        text_encoder={"model_type": "t5", "d_ff": 1.5},
        vae={"base_dim": True, "latents_mean": [0.0], "dim_mult": [1, 2]},
    )
    (directory / "transformer_2" / "config.json").write_text("{")
    (directory / "model_index.json").unlink()
    found = problems(directory)
    assert [line.split(": ")[0] for line in found] == [
        "checkpoint/model_index.json",
        *["transformer/config.json"] * 4,
        *["text_encoder/config.json"] * 2,
        *["vae/config.json"] * 3,
    ]
    (directory / "model_index.json").write_text(json.dumps(INDEX))
    assert any(
        line.startswith("transformer_2/config.json: not JSON") for line in problems(directory)
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("num_layers", value) for value in (0, -2, 2.0, "2", True, None, [2], 1_000_000)),
        *(("eps", value) for value in ("1e-6", None, True, float("nan"), float("inf"), 10**400)),
        *(("attention_head_dim", value) for value in (23, 0)),
        ("cross_attn_norm", False),
        ("added_kv_proj_dim", 5120),
        ("_class_name", "CogVideoXTransformer3DModel"),
    ],
)
def test_number_that_is_none_is_refused_not_taken(write, key, value):
    assert key in "\n".join(problems(write(transformer={key: value})))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("latents_mean", [0.0] * 15),
        ("latents_std", "16"),
        ("latents_std", [1.0] * 15 + [float("nan")]),
        ("temperal_downsample", [True, True, True]),
        ("temperal_downsample", [0, 1, 1]),
        ("dim_mult", [1, 2, 4]),
        ("dim_mult", [1, 2, 4, 4, 4]),
        ("attn_scales", [1.0]),
        ("scale_factor_spatial", 16),
        ("decoder_base_dim", 0),
    ],
)
def test_vae_that_is_not_built_as_planned_is_refused(write, key, value):
    assert key in "\n".join(problems(write(vae={key: value})))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b'{"num_layers": 2', "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b" " * ((1 << 20) + 1), "larger than 1048576 bytes"),
        (None, "No such file or directory"),
    ],
    ids=lambda value: repr(value)[:20],
)
@pytest.mark.parametrize("component", ["text_encoder", "vae", "transformer", "."])
def test_damaged_file_is_named(write, component, data, why):
    directory = write()
    file = directory / component / ("model_index.json" if component == "." else "config.json")
    file.unlink() if data is None else file.write_bytes(data)
    (problem,) = problems(directory)
    assert problem.startswith(f"{file.parent.name}/{file.name}: {why}")


def test_index_of_an_odd_form_does_not_crash(write):
    for odd in ("WanTransformer3DModel", 3, {"a": 1}, True):
        assert read_checkpoint(write(index={"transformer_2": odd})) == TINY

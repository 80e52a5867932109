"""Published models, each number once. Knows nothing of files.

Sources: the config.json files of Wan-AI/Wan2.2-T2V-A14B-Diffusers, Wan2.2-I2V-A14B-Diffusers and
Wan2.2-TI2V-5B-Diffusers; for sampling, wan/configs of the official Wan2.2 repository (commit
42bf4cf); for the run preset vllm-omni, see there.
"""

from dataclasses import replace
from typing import Any

from wanc.spec.model import Model, Sampling, Task, TextEncoder, Transformer, Vae

NEGATIVE_PROMPT = (
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，"
    "低质量，JPEG压缩残留，丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，"
    "毁容的，形态畸形的肢体，手指融合，静止不动的画面，杂乱的背景，三条腿，背景人很多，倒着走"
)

A14B_T2V_SAMPLING = Sampling(
    flow_shift=12.0,
    steps=40,
    boundary=0.875,
    guidance_high=4.0,
    guidance_low=3.0,
    fps=16,
    trained_frames=81,
    negative_prompt=NEGATIVE_PROMPT,
)

A14B_I2V_SAMPLING = replace(
    A14B_T2V_SAMPLING, flow_shift=5.0, boundary=0.900, guidance_high=3.5, guidance_low=3.5
)

TI2V_5B_SAMPLING = Sampling(
    flow_shift=5.0,
    steps=50,
    boundary=None,
    guidance_high=5.0,
    guidance_low=5.0,
    fps=24,
    trained_frames=121,
    negative_prompt=NEGATIVE_PROMPT,
)

_A14B = Transformer(
    heads=40,
    head_width=128,
    ffn_width=13824,
    layers=40,
    in_channels=16,
    out_channels=16,
    text_width=4096,
    frequency_width=256,
    patch_FHW=(1, 2, 2),
    eps=1e-6,
    rope_max_positions=1024,
)

_UMT5_XXL = TextEncoder(
    vocabulary=256384,
    width=4096,
    heads=64,
    head_width=64,
    ffn_width=10240,
    layers=24,
    position_buckets=32,
    max_distance_tokens=128,
    eps=1e-6,
)

_VAE_Z16 = Vae(
    z_channels=16,
    base_width=96,
    decoder_base_width=96,
    width_multiples=(1, 2, 4, 4),
    residual_blocks=2,
    temporal_downsample=(False, True, True),
    latents_mean=(
        *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
        *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
    ),
    latents_std=(
        *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
        *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
    ),
    spatial_stride=8,
    temporal_stride=4,
)

_VAE_Z48 = Vae(
    z_channels=48,
    base_width=160,
    decoder_base_width=256,
    width_multiples=(1, 2, 4, 4),
    residual_blocks=2,
    temporal_downsample=(False, True, True),
    latents_mean=(
        *(-0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557),
        *(-0.1382, 0.0542, 0.2813, 0.0891, 0.1570, -0.0098, 0.0375, -0.1825),
        *(-0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502),
        *(-0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230),
        *(-0.0313, -0.1649, 0.0117, 0.0723, -0.2839, -0.2083, -0.0520, 0.3748),
        *(0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667),
    ),
    latents_std=(
        *(0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013),
        *(0.8158, 1.0344, 0.5894, 1.0901, 0.6885, 0.6165, 0.8454, 0.4978),
        *(0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659),
        *(0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093),
        *(0.5709, 0.6065, 0.6415, 0.4944, 0.5726, 1.2042, 0.5458, 1.6887),
        *(0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744),
    ),
    spatial_stride=16,
    temporal_stride=4,
    residual=True,
    patch=2,
)

WAN22_T2V_A14B = Model(
    name="wan2.2-t2v-a14b",
    task="t2v",
    experts=("high_noise", "low_noise"),
    transformer=_A14B,
    text_encoder=_UMT5_XXL,
    vae=_VAE_Z16,
    sampling=A14B_T2V_SAMPLING,
)

WAN22_I2V_A14B = replace(
    WAN22_T2V_A14B,
    name="wan2.2-i2v-a14b",
    task="i2v",
    transformer=replace(_A14B, in_channels=36),  # noise 16, mask 4, condition 16
    sampling=A14B_I2V_SAMPLING,
)

WAN22_TI2V_5B = Model(
    name="wan2.2-ti2v-5b",
    task="ti2v",
    experts=("high_noise",),
    transformer=replace(
        _A14B, heads=24, ffn_width=14336, layers=30, in_channels=48, out_channels=48
    ),
    text_encoder=_UMT5_XXL,
    vae=_VAE_Z48,
    sampling=TI2V_5B_SAMPLING,
)

TINY = Model(
    name="tiny",
    task="t2v",
    experts=("high_noise", "low_noise"),
    transformer=replace(_A14B, heads=8, head_width=24, ffn_width=384, layers=2, text_width=64),
    text_encoder=replace(
        _UMT5_XXL, vocabulary=1024, width=64, heads=8, head_width=16, ffn_width=128, layers=2
    ),
    vae=replace(_VAE_Z16, base_width=16, decoder_base_width=16, residual_blocks=1),
    sampling=A14B_T2V_SAMPLING,
)
"""The random checkpoint that ``wanc tiny`` writes."""

TINY_I2V = replace(
    TINY,
    name="tiny-i2v",
    task="i2v",
    transformer=replace(TINY.transformer, in_channels=36),
    sampling=A14B_I2V_SAMPLING,
)

TINY_TI2V = replace(
    TINY,
    name="tiny-ti2v",
    task="ti2v",
    experts=("high_noise",),
    transformer=replace(TINY.transformer, in_channels=48, out_channels=48),
    vae=replace(_VAE_Z48, base_width=16, decoder_base_width=16, residual_blocks=1),
    sampling=TI2V_5B_SAMPLING,
)

SAMPLING: dict[Task, Sampling] = {
    "t2v": A14B_T2V_SAMPLING,
    "i2v": A14B_I2V_SAMPLING,
    "ti2v": TI2V_5B_SAMPLING,
}
"""The official contract of each task."""

OFFICIAL = "official"

RUN_PRESETS: dict[str, dict[str, Any]] = {
    OFFICIAL: {},
    "vllm-omni": {"flow_shift": 5.0, "guidance_high": 5.0, "guidance_low": 5.0},
}
"""By name, what takes the place of a model's official values where a user gives none.

``vllm-omni``: the guide of vLLM Omni Neuron (aws-neuron/vllm-omni-neuron, examples/wan22): its one
guidance scale is both experts', and the flow shift is vLLM Omni's own default.
"""

_TOY_SAMPLING = Sampling(
    flow_shift=5.0,
    steps=20,
    boundary=0.875,
    guidance_high=4.0,
    guidance_low=3.0,
    fps=8,
    trained_frames=5,
    negative_prompt="",
)

TOY_T2V = Model(
    name="toy-t2v",
    task="t2v",
    experts=("high_noise", "low_noise"),
    transformer=replace(TINY.transformer, ffn_width=512, layers=4),
    text_encoder=replace(TINY.text_encoder, vocabulary=512),
    vae=replace(
        _VAE_Z16,
        base_width=8,
        decoder_base_width=8,
        residual_blocks=1,
        latents_mean=(
            *(-0.706, 0.1994, -0.4424, -0.1811, -0.1721, -0.3493, -0.4514, -0.4128),
            *(0.2109, 0.315, -0.7437, 0.4366, 0.4296, -0.8768, 0.4037, -0.2931),
        ),
        latents_std=(
            *(2.0866, 0.2581, 2.4737, 1.5201, 1.1731, 1.2216, 1.8019, 0.9494),
            *(1.2301, 0.7118, 3.0448, 1.5205, 0.8089, 3.392, 0.9418, 1.0312),
        ),
    ),
    sampling=_TOY_SAMPLING,
)
"""The trained checkpoint that comes with wanc; tools/toy makes it."""

TOY_I2V = replace(
    TOY_T2V,
    name="toy-i2v",
    task="i2v",
    transformer=replace(TOY_T2V.transformer, in_channels=36),
)

TOY_MODELS: dict[str, Model] = {model.name: model for model in (TOY_T2V, TOY_I2V)}
"""By name: trained, and part of the package."""

TINY_MODELS: dict[Task, Model] = {model.task: model for model in (TINY, TINY_I2V, TINY_TI2V)}

PRESETS: dict[str, Model] = {
    model.name: model
    for model in (
        *(WAN22_T2V_A14B, WAN22_I2V_A14B, WAN22_TI2V_5B),
        *TINY_MODELS.values(),
        *TOY_MODELS.values(),
    )
}

"""The weights that plans name are diffusers' and transformers' own: every name, every shape.

The reference networks are built on the meta device: no weight is drawn or read.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from wanc.plan.plan import Plan, make_plan
from wanc.plan.text_encoder import EMBEDDING_NAMES
from wanc.spec.model import Model
from wanc.spec.presets import PRESETS, TINY, WAN22_T2V_A14B
from wanc.spec.shape import Shape
from wanc.spec.topology import Topology
from wanc.spec.variant import Options, Variant
from wanc.weights.needs import schedule_needs

Shapes = dict[str, tuple[int, ...]]

MODELS = {
    **{name: PRESETS[name] for name in ("wan2.2-t2v-a14b", "tiny")},  # others: test_abi_presets.py
    "one block, other widths": replace(
        TINY,
        name="odd",
        transformer=replace(TINY.transformer, layers=1, heads=4, head_width=12, ffn_width=40),
        text_encoder=replace(TINY.text_encoder, layers=3, heads=2, head_width=48),
        vae=replace(
            TINY.vae,
            decoder_base_width=8,
            width_multiples=(1, 1, 2, 3),
            residual_blocks=3,
            temporal_downsample=(True, False, True),
        ),
    ),
}


def plan_of(model: Model, topology: str = "tp1", **options: Any) -> Plan:
    variant = Variant(
        task="t2v",
        shape=Shape.parse("208x128x5"),
        topology=Topology.parse(topology),
        placement="linear",
        precision="fp32",
        target="cpu",
    )
    return make_plan(model, variant, Options(**options))


def named_by(plan: Plan) -> dict[str, Shapes]:
    """Tensors that the plan's calls take, by component, with their layers filled in."""
    programs = {program.name: program for program in plan.programs}
    found: dict[str, Shapes] = {}
    for need in schedule_needs(plan.schedule, programs):
        (name,) = need.names
        found.setdefault(need.component, {})[name] = need.shape
    return found


def transformer(model: Model) -> torch.nn.Module:
    from diffusers import WanTransformer3DModel

    dit = model.transformer
    with torch.device("meta"):
        return WanTransformer3DModel(
            patch_size=dit.patch_FHW,
            num_attention_heads=dit.heads,
            attention_head_dim=dit.head_width,
            in_channels=dit.in_channels,
            out_channels=dit.out_channels,
            text_dim=dit.text_width,
            freq_dim=dit.frequency_width,
            ffn_dim=dit.ffn_width,
            num_layers=dit.layers,
        )


def vae(model: Model) -> torch.nn.Module:
    from diffusers import AutoencoderKLWan

    numbers = model.vae
    with torch.device("meta"):
        return AutoencoderKLWan(
            base_dim=numbers.base_width,
            decoder_base_dim=numbers.decoder_base_width,
            z_dim=numbers.z_channels,
            dim_mult=list(numbers.width_multiples),
            num_res_blocks=numbers.residual_blocks,
            temperal_downsample=list(numbers.temporal_downsample),
        )


def text_encoder(model: Model) -> torch.nn.Module:
    from transformers import UMT5Config, UMT5EncoderModel

    text = model.text_encoder
    config = UMT5Config(
        vocab_size=text.vocabulary,
        d_model=text.width,
        d_kv=text.head_width,
        d_ff=text.ffn_width,
        num_layers=text.layers,
        num_heads=text.heads,
        relative_attention_num_buckets=text.position_buckets,
    )
    with torch.device("meta"):
        return UMT5EncoderModel(config)


def shapes(module: torch.nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]


def test_transformer(model):
    named, reference = named_by(plan_of(model)), shapes(transformer(model))
    assert named["transformer"] == reference
    assert named["transformer_2"] == reference


def test_vae_decoder(model):
    reference = {
        name: shape
        for name, shape in shapes(vae(model)).items()
        if not name.startswith(("encoder.", "quant_conv."))
    }
    assert named_by(plan_of(model))["vae"] == reference


def test_text_encoder_but_for_its_table(model):
    reference = shapes(text_encoder(model))
    tables = {name: reference.pop(name) for name in EMBEDDING_NAMES if name in reference}
    assert named_by(plan_of(model))["text_encoder"] == reference
    table = (model.text_encoder.vocabulary, model.text_encoder.width)
    assert tables
    assert set(tables.values()) == {table}


def test_no_component_beside_these(model):
    assert named_by(plan_of(model)).keys() == {
        *("text_encoder", "transformer", "transformer_2", "vae"),
    }


@pytest.mark.parametrize("topology", ["tp4-cp8-cfg2", "cp3", "tp2-cfg2"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_cuts_do_not_change_what_is_taken_from_a_checkpoint(topology, blocks):
    cut = plan_of(TINY, topology, blocks_per_program=blocks, vae_tiles="diffusers")
    assert named_by(cut) == named_by(plan_of(TINY))


def test_a14b_has_the_defaults_of_diffusers():
    """diffusers' default arguments are the 14B model's; its VAE's are Wan's 16-channel VAE."""
    from diffusers import AutoencoderKLWan, WanTransformer3DModel

    with torch.device("meta"):
        dit, decoder = WanTransformer3DModel().config, AutoencoderKLWan().config
    ours, numbers = WAN22_T2V_A14B.transformer, WAN22_T2V_A14B.vae
    assert (ours.heads, ours.head_width) == (dit.num_attention_heads, dit.attention_head_dim)
    assert (ours.ffn_width, ours.layers) == (dit.ffn_dim, dit.num_layers)
    assert (ours.text_width, ours.frequency_width) == (dit.text_dim, dit.freq_dim)
    assert (ours.eps, ours.rope_max_positions) == (dit.eps, dit.rope_max_seq_len)
    assert (numbers.base_width, numbers.z_channels) == (decoder.base_dim, decoder.z_dim)
    assert list(numbers.width_multiples) == list(decoder.dim_mult)
    assert list(numbers.temporal_downsample) == list(decoder.temperal_downsample)
    assert numbers.latents_mean == tuple(decoder.latents_mean)
    assert numbers.latents_std == tuple(decoder.latents_std)
    assert numbers.spatial_stride == decoder.scale_factor_spatial
    assert numbers.temporal_stride == decoder.scale_factor_temporal

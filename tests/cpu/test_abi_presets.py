"""Weights, caches and convolutions of the published presets' VAEs are diffusers' own; and the work
that plans count is that of the graphs.

Networks and graphs are built on tensors without memory: no weight is drawn or read.
"""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from wanc.model.programs import call_graph, graph_of
from wanc.plan.abi import Program
from wanc.plan.plan import Plan, make_plan
from wanc.plan.vae import convolutions
from wanc.plan.work import Work, call_work
from wanc.spec.model import Model
from wanc.spec.presets import TINY, WAN22_I2V_A14B, WAN22_T2V_A14B, WAN22_TI2V_5B
from wanc.spec.shape import Shape
from wanc.spec.topology import AXES, Topology
from wanc.spec.variant import Options, Variant
from wanc.weights.needs import schedule_needs

Shapes = dict[str, tuple[int, ...]]
MODELS = [WAN22_T2V_A14B, WAN22_I2V_A14B, WAN22_TI2V_5B]


@pytest.fixture(params=MODELS, ids=lambda model: model.name)
def model(request: pytest.FixtureRequest) -> Model:
    return request.param


def plan_of(model: Model) -> Plan:
    variant = Variant(
        task=model.task,
        shape=Shape.parse("96x64x5"),
        topology=Topology(),
        placement="linear",
        precision="fp32",
        target="cpu",
    )
    return make_plan(model, variant, Options())


def named_by(plan: Plan, component: str) -> Shapes:
    """Tensors that the plan's calls take from a component, with their layers filled in."""
    programs = {program.name: program for program in plan.programs}
    needs = schedule_needs(plan.schedule, programs)
    return {need.names[0]: need.shape for need in needs if need.component == component}


def of_half(plan: Plan, half: str) -> list[Program]:
    """The first and the rest program of the encoder or the decoder."""
    kind = {"encoder": "vae_encode", "decoder": "vae_decode"}[half]
    return [program for program in plan.programs if program.kind.startswith(kind)]


HALVES = [
    (model, half)
    for model in MODELS
    for half in ("encoder", "decoder")
    if half == "decoder" or model.task != "t2v"
]
halves = pytest.mark.parametrize(
    ("model", "half"), HALVES, ids=[f"{model.name}-{half}" for model, half in HALVES]
)
PARTS = {"encoder": ("encoder.", "quant_conv."), "decoder": ("decoder.", "post_quant_conv.")}


def autoencoder(model: Model) -> Any:
    """AutoencoderKLWan as the published config.json of the model's VAE builds it."""
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
            latents_mean=list(numbers.latents_mean),
            latents_std=list(numbers.latents_std),
            is_residual=numbers.residual,
            in_channels=3 * numbers.patch**2,
            out_channels=3 * numbers.patch**2,
            patch_size=numbers.patch if numbers.patch > 1 else None,
            scale_factor_spatial=numbers.spatial_stride,
            scale_factor_temporal=numbers.temporal_stride,
        ).eval()


def shapes(module: torch.nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def calls_of(vae: Any, half: str, latent: tuple[int, ...]) -> Iterator[Any]:
    """What diffusers gives, its caches and counted FLOPs, of three latent frames in turn."""
    caches: list[Any] = [None] * vae._cached_conv_counts[half]
    grain = 2 ** (len(vae.config.dim_mult) - 1)
    channels, rows, columns = vae.config.in_channels, latent[3] * grain, latent[4] * grain
    for first in (True, False, False):
        with FlopCounterMode(display=False) as counted:
            if half == "decoder":
                taken = vae.post_quant_conv(torch.empty(latent, device="meta"))
                given = vae.decoder(taken, feat_cache=caches, feat_idx=[0], first_chunk=first)
            else:
                frames = 1 if first else 4
                taken = torch.empty((1, channels, frames, rows, columns), device="meta")
                given = vae.quant_conv(vae.encoder(taken, feat_cache=caches, feat_idx=[0]))
        yield given, caches, counted


@halves
def test_weights_of_the_vae(model: Model, half: str):
    reference = {
        name: shape
        for name, shape in shapes(autoencoder(model)).items()
        if name.startswith(PARTS[half])
    }
    found = named_by(plan_of(model), "vae")
    assert {name: shape for name, shape in found.items() if name.startswith(PARTS[half])} == (
        reference
    )


def test_weights_of_the_transformer(model: Model):
    from diffusers import WanTransformer3DModel

    dit = model.transformer
    with torch.device("meta"):
        reference = WanTransformer3DModel(
            num_attention_heads=dit.heads,
            attention_head_dim=dit.head_width,
            in_channels=dit.in_channels,
            out_channels=dit.out_channels,
            ffn_dim=dit.ffn_width,
            num_layers=dit.layers,
        )
    assert named_by(plan_of(model), "transformer") == shapes(reference)


@halves
def test_caches_results_and_work_of_the_vae(model: Model, half: str):
    first, rest = of_half(plan_of(model), half)
    latent = first.inputs[0].shape if half == "decoder" else first.outputs[0].shape
    reference = list(calls_of(autoencoder(model), half, latent))
    for program, (given, _, counted) in zip((first, rest), reference, strict=False):
        patch = model.vae.patch if half == "decoder" else 1
        _, channels, frames, rows, columns = given.shape
        unpatched = (1, channels // patch**2, frames, rows * patch, columns * patch)
        assert program.outputs[0].shape == unpatched
        assert sum(work.fp32_flops for work in call_work(program).values()) == (
            counted.get_total_flops()
        )
    caches = reference[-1][1][: len(rest.inputs) - 1]  # the third call has all at full size
    assert [tensor.shape for tensor in rest.inputs[1:]] == [tuple(c.shape) for c in caches]
    assert rest.inputs[1:] == rest.outputs[1:] == first.outputs[1:]
    left = reference[-1][1][len(caches) :]
    assert all(cache is None for cache in left), "convolutions without history have none"


@halves
def test_every_convolution_of_the_vae_is_met_once(model: Model, half: str):
    _, rest = of_half(plan_of(model), half)
    kinds = (torch.nn.Conv2d, torch.nn.Conv3d)
    there = {
        name: (module.out_channels, module.in_channels)
        for name, module in autoencoder(model).named_modules()
        if isinstance(module, kinds) and f"{name}.".startswith(PARTS[half])
    }
    met = [(c.name, (c.outputs, c.inputs)) for c in convolutions(rest)]
    assert dict(met) == there
    assert len(met) == len(there)


# --- work, counted in the graphs -----------------------------------------------------------------


class Sent(TorchDispatchMode):
    """Counts the bytes that one rank sends in the collectives of a graph."""

    def __init__(self, degrees: dict[str, int]) -> None:
        super().__init__()
        self.degrees = degrees
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = func.name().partition("::")
        if namespace == "wanc" and name.split(".")[0] != "matmul_fp32":
            size, n = args[0].numel() * args[0].element_size(), self.degrees[args[1]]
            self.bytes[name] += {
                "all_gather": (n - 1) * size,
                "reduce_scatter": (n - 1) * size // n,
                "all_reduce": 2 * (n - 1) * size // n,
                "ring_shift": size,
            }[name]
        return func(*args, **kwargs or {})


def matmul_flops(a: Any, b: Any, *_: Any, **__: Any) -> int:
    return 2 * math.prod(a) * b[-1]


@pytest.mark.parametrize("attention", ["ring", "allgather"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("topology", ["tp1", "tp4-cp8-cfg2", "tp2-cp7"])
def test_work_is_that_of_the_graphs(attention: str, precision: str, topology: str):
    """tp2-cp7 masks keys; tp4-cp8 pads the tails of chunks."""
    variant = Variant(
        task="t2v",
        shape=Shape.parse("208x128x5"),
        topology=Topology.parse(topology),
        placement="linear",
        precision=precision,  # type: ignore[arg-type]
        target="cpu",
    )
    plan = make_plan(TINY, variant, Options(attention=attention))  # type: ignore[arg-type]
    degrees = {axis: variant.topology.degree(axis) for axis in AXES}
    for program in (program for program in plan.programs if program.ranks == "all"):
        work = sum(call_work(program).values(), Work())
        with FakeTensorMode(allow_non_fake_inputs=True):
            tensors = tuple(
                torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
                for tensor in program.arguments
            )
            mapping = {torch.ops.wanc.matmul_fp32: matmul_flops}
            counted = FlopCounterMode(display=False, custom_mapping=mapping)
            with counted, Sent(degrees) as sent:
                call_graph(graph_of(program), program, tensors)
        assert work.flops == counted.get_total_flops(), program.name
        found = (work.gathered_bytes, work.scattered_bytes, work.reduced_bytes, work.permuted_bytes)
        names = ("all_gather", "reduce_scatter", "all_reduce", "ring_shift")
        assert found == tuple(sent.bytes[name] for name in names), program.name

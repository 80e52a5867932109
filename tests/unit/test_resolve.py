"""From a request to a spec: defaults, refusals, and which target auto chooses."""

import pytest

from wanc.errors import RefusedError, RequestError
from wanc.spec import resolve as resolve_module
from wanc.spec.presets import TINY, WAN22_T2V_A14B
from wanc.spec.resolve import choose_target, resolve
from wanc.spec.sets import Request
from wanc.spec.variant import Options, Variant

ONE = Request(model="tiny", shapes=("208x128x5",))


def test_plain_request_is_complete():
    spec = resolve(Request(shapes=("832x480x81",)), "cpu")
    (variant,) = spec.variants
    assert spec.model == WAN22_T2V_A14B
    assert str(variant) == "t2v 832x480x81 tp1 fp32 cpu"
    assert variant.placement == "linear"
    assert spec.options == Options(attention="ring", vae_tiles="even")


def test_every_value_given_is_kept():
    request = Request(
        model="tiny",
        shapes=("208x128x5",),
        topologies=("tp2",),
        precision="bf16",
        blocks_per_program=1,
        attention="allgather",
        vae_tiles="diffusers",
    )
    spec = resolve(request, "cpu")
    assert spec.model == TINY
    assert str(spec.variants[0]) == "t2v 208x128x5 tp2 bf16 cpu"
    assert spec.options == Options(
        blocks_per_program=1, attention="allgather", vae_tiles="diffusers"
    )


def test_variants_are_every_shape_at_every_topology_once():
    request = Request(
        model="tiny",
        shapes=("208x128x5", "320x320x9", "208x128x5"),
        topologies=("tp1", "tp2-cp2", "cp2-tp2", "tp1-cp1"),
    )
    variants = resolve(request, "cpu").variants
    assert [f"{v.shape} {v.topology}" for v in variants] == [
        *("208x128x5 tp1", "208x128x5 tp2-cp2", "320x320x9 tp1", "320x320x9 tp2-cp2"),
    ]
    assert all(isinstance(variant, Variant) for variant in variants)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(model="tiny"), "no shape: give --shape 832x480x81"),
        (Request(model="tiny", shapes=("208x128x6",)), "nearest are 5 and 9"),
        (Request(model="tiny", shapes=("208x128x5",), topologies=("cfg3",)), "cfg is 1 or 2"),
        (Request(shapes=("208x128x5",), precision="fp8"), "'fp8' is not known; known are fp32"),
        (Request(shapes=("208x128x5",), placement="torus"), "known are linear"),
        (Request(shapes=("208x128x5",), attention="flash"), "known are ring, allgather"),
        (Request(shapes=("208x128x5",), vae_tiles="odd"), "known are even, diffusers"),
    ],
)
def test_request_that_fits_no_model(request_, message):
    with pytest.raises(RequestError, match=message) as caught:
        resolve(request_, "cpu")
    assert caught.value.exit_code == 2


def test_unknown_model_names_the_presets():
    with pytest.raises(RefusedError, match=r"'wan9' is neither a preset \(wan2.2-t2v-a14b, "):
        resolve(Request(model="wan9", shapes=("208x128x5",)), "cpu")


def test_unknown_target_names_the_known_ones():
    with pytest.raises(RefusedError, match="target 'tpu' is not known; known are cpu") as caught:
        resolve(ONE, "tpu")
    assert caught.value.exit_code == 3


def test_target_as_asked():
    assert choose_target("trn9") == ("trn9", "as asked")
    assert choose_target("cpu") == ("cpu", "as asked")


@pytest.mark.parametrize("wanted", [None, "auto"])
def test_auto_is_cpu_without_the_neuron_compiler(monkeypatch, wanted):
    monkeypatch.setenv("PATH", "")
    assert choose_target(wanted) == ("cpu", "auto: neuronx-cc not found")


def test_compiler_that_is_there_and_fails_is_not_found(monkeypatch, tmp_path):
    """PyPI's package of that name is an empty placeholder."""
    compiler = tmp_path / "neuronx-cc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert not resolve_module.neuron_compiler_found()
    compiler.write_text("#!/bin/sh\nexit 0\n")
    assert not resolve_module.neuron_compiler_found()
    compiler.write_text("#!/bin/sh\necho NeuronX Compiler version 2.28.1+abc\n")
    assert resolve_module.neuron_compiler_found()
    assert choose_target("auto") == ("trn2", "auto: neuronx-cc found")


@pytest.mark.parametrize(
    ("target", "precision", "placement"),
    [("cpu", "fp32", "linear"), ("trn2", "bf16", "trn2-torus"), ("trn3", "bf16", "linear")],
)
def test_defaults_are_the_target_s(target, precision, placement):
    (variant,) = resolve(ONE, target).variants
    assert (variant.precision, variant.placement) == (precision, placement)

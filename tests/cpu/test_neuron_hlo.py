"""The HLO that neuronx-cc gets says what XLA's says, in ids and fields that every reader has."""

import re
from typing import Any

import numpy as np
import pytest
from jaxlib import _hlo, _jax, xla_client

from tests.artifacts import artifact, interface_of
from tests.doubles import neuronx_cc
from wanc.errors import ToolchainError
from wanc.runtime.cpu import CpuEngine
from wanc.targets.neuron_hlo import for_neuronx_cc, hlo_module

COLLECTIVES = """
module @collectives {
  func.func public @main(
      %x: tensor<4x6xf32>, %cache: tensor<2x3xf32> {tf.aliasing_output = 2 : i32})
      -> (tensor<4x6xf32>, tensor<4xf32>, tensor<2x3xf32>) {
    %s = "stablehlo.all_reduce"(%x) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }) {replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>}
      : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %g = "stablehlo.all_gather"(%s) {all_gather_dim = 0 : i64,
      replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}
      : (tensor<4x6xf32>) -> tensor<8x6xf32>
    %r = "stablehlo.reduce_scatter"(%g) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }) {scatter_dimension = 0 : i64, replica_groups = dense<[[0, 3], [1, 2]]> : tensor<2x2xi64>}
      : (tensor<8x6xf32>) -> tensor<4x6xf32>
    %p = "stablehlo.collective_permute"(%r) {source_target_pairs =
      dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>}
      : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %0 = stablehlo.constant dense<0.0> : tensor<f32>
    %m = stablehlo.reduce(%p init: %0) applies stablehlo.maximum across dimensions = [1]
      : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %n = stablehlo.add %cache, %cache : tensor<2x3xf32>
    return %p, %m, %n : tensor<4x6xf32>, tensor<4xf32>, tensor<2x3xf32>
  }
}
"""
ONE = """
module @one {
  func.func public @main(%x: tensor<4xbf16>) -> tensor<4xbf16> {
    %y = stablehlo.tanh %x : tensor<4xbf16>
    return %y : tensor<4xbf16>
  }
}
"""
SCHEDULED = """
HloModule scheduled, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (x: f32[4], y: f32[4]) -> f32[] {
  %y = f32[4] parameter(1)
  %x = f32[4] parameter(0)
  %z = f32[] constant(0)
  %m = f32[4] multiply(%x, %y)
  %n = f32[4] negate(%x), control-predecessors={%m}
  %t = f32[4] add(%m, %n)
  ROOT %r = f32[] reduce(%t, %z), dimensions={0}, to_apply=%sum
}
"""


def computation(hlo: bytes) -> Any:
    return xla_client.XlaComputation(hlo)


def raw(stablehlo: bytes) -> bytes:
    """As XLA has it."""
    made = _jax.mlir.mlir_module_to_xla_computation(
        stablehlo, use_tuple_args=False, return_tuple=False
    )
    return made.as_serialized_hlo_module_proto()


def run(hlo: bytes, inputs: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Compile and run an HLO proto with XLA:CPU; inputs and results have the ranks first."""
    ranks = tuple(range(len(inputs[0])))
    client = xla_client.make_cpu_client(num_devices=len(ranks))
    devices = tuple(client.local_devices())
    options = xla_client.CompileOptions()
    for part in (options, options.executable_build_options):
        part.num_replicas, part.num_partitions = len(ranks), 1
    ids = np.array([[device.id] for device in devices])
    options.executable_build_options.device_assignment = xla_client.DeviceAssignment.create(ids)
    module = _jax.mlir.xla_computation_to_mlir_module(computation(hlo))
    compiled = client.compile_and_load(module, xla_client.DeviceList(devices), options)
    engine = CpuEngine(len(ranks))
    loaded = engine.load(compiled.serialize(), interface_of(compiled), ranks=ranks)
    results = engine.call(loaded, [engine.put(list(array), ranks=ranks) for array in inputs])
    fetched = [np.stack([engine.fetch(each, rank=rank) for rank in ranks]) for each in results]
    engine.close()
    return fetched


def test_collectives_donation_and_reductions_still_run():
    chance = np.random.default_rng(0)
    x = chance.standard_normal((4, 4, 6), np.float32)
    cache = chance.standard_normal((4, 2, 3), np.float32)
    permuted, largest, grown = run(hlo_module(artifact(COLLECTIVES)), [x, cache])

    gathered = np.concatenate([x[0] + x[2], x[1] + x[3]])
    first, second = 2 * gathered[:4], 2 * gathered[4:]
    np.testing.assert_allclose(permuted, np.stack([second, first, first, second]), rtol=1e-6)
    np.testing.assert_array_equal(largest, np.maximum(permuted.max(2), 0))
    np.testing.assert_array_equal(grown, 2 * cache)


def test_only_what_is_meant_to_changes():
    """The text of XLA's module and of ours, but for names and the kind of alias."""
    stablehlo = artifact(COLLECTIVES)
    before = computation(raw(stablehlo)).as_hlo_text()
    after = computation(hlo_module(stablehlo)).as_hlo_text()
    assert "{2}: (1, {}, must-alias)" in after
    named = re.findall(r'neff_(\w+)_names="([^"]*)"', after)
    assert named == [
        ("input", "input0"),
        ("input", "input1"),
        ("output", "output0,output1,output2"),
    ]
    plain = re.sub(r", frontend_attributes=\{[^}]*\}", "", after)
    assert plain.replace("must-alias", "may-alias") == before


def test_a_single_output_is_named_too():
    text = computation(hlo_module(artifact(ONE))).as_hlo_text()
    assert (
        'ROOT tanh.1 = bf16[4]{0} tanh(Arg_0.1), frontend_attributes={neff_output_names="output0"}'
        in text
    )


def test_ids_are_dense_and_small():
    hlo = hlo_module(artifact(COLLECTIVES))
    module = neuronx_cc.fields(hlo)
    computations = [neuronx_cc.fields(each) for each in module[3]]
    instructions = [neuronx_cc.fields(i) for each in computations for i in each[2]]
    assert [each[35][0] for each in instructions] == list(range(1, len(instructions) + 1))
    assert [each[5][0] for each in computations] == list(range(1, len(computations) + 1))
    assert module[6][0] == len(computations)
    assert 5 not in module, "XLA's count of modules is no part of a program"


@pytest.mark.parametrize(
    ("text", "cause"), [(ONE, "does not fit 32 bits"), (COLLECTIVES, "has no replica groups")]
)
def test_the_double_refuses_what_xla_writes(
    text: str, cause: str, capsys: pytest.CaptureFixture[str]
):
    """Older readers of the format take neither XLA's ids nor its replica groups."""
    assert neuronx_cc.interface_of(hlo_module(artifact(text)))
    with pytest.raises(SystemExit, match="70"):
        neuronx_cc.interface_of(raw(artifact(text)))
    assert cause in capsys.readouterr().err


def test_groups_of_many_ranks_are_listed():
    many = str([[r, r + 1] for r in range(0, 64, 2)])
    text = COLLECTIVES.replace("[[0, 2], [1, 3]]> : tensor<2x2", f"{many}> : tensor<32x2")
    after = computation(hlo_module(artifact(text))).as_hlo_text()
    assert after.count("{0,1},{2,3},{4,5}") == 1
    assert after.count("{62,63}") == 1


def test_schedules_and_control_predecessors_follow():
    module: Any = _hlo.hlo_module_from_text(SCHEDULED)
    before = module.as_serialized_hlo_module_proto()
    after = for_neuronx_cc(before)
    assert 7 in neuronx_cc.fields(after), "the schedule"
    texts = [computation(hlo).get_hlo_module().to_string() for hlo in (before, after)]
    assert "control-predecessors={m}" in texts[1].replace("%", "")
    assert re.sub(r", frontend_attributes=\{[^}]*\}", "", texts[1]) == texts[0]
    assert for_neuronx_cc(before) == after


def test_bytes_are_the_same_every_time():
    stablehlo = artifact(COLLECTIVES)
    assert len({hlo_module(stablehlo) for _ in range(3)}) == 1


@pytest.mark.parametrize("data", [b"", b"garbage", b"ML\xefR garbage"])
def test_garbage_is_a_toolchain_error(data: bytes):
    with pytest.raises(ToolchainError, match="jaxlib makes no HLO"):
        hlo_module(data)

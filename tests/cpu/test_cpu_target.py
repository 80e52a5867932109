"""The cpu target: what its executables are and depend on, and that rewrites change no result."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from jaxlib import xla_client
from jaxlib.mlir import ir

from tests.artifacts import artifact, interface_of, parsed
from tests.programs import replicas
from wanc.bundle.x86 import ISAS, machine_flags, missing_features
from wanc.bundle.xla_cpu import canonical, check_features, object_files, target_of
from wanc.digest import of_bytes, of_json
from wanc.errors import RefusedError, ToolchainError
from wanc.runtime.engine import Interface, TensorType
from wanc.targets import cpu
from wanc.targets.cpu import CpuTarget
from wanc.targets.cpu_layout import reshaped_order
from wanc.targets.cpu_rewrites import rewrite

FP32_TOLERANCE = 1e-5
"""Of the largest output: sums of up to 27 x 48 products in another order."""
BF16_TOLERANCE = 1e-2
"""One rounding of the result to 8 bits may fall to either side."""

BLOCK = """
module @block {
  func.func public @main(%x: tensor<4x96xf32>, %w: tensor<96x80xf32>) -> tensor<4x80xf32> {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<4x96xf32>, tensor<96x80xf32>) -> tensor<4x80xf32>
    %t = stablehlo.tanh %y : tensor<4x80xf32>
    %e = stablehlo.exponential %y : tensor<4x80xf32>
    %z = stablehlo.multiply %t, %e : tensor<4x80xf32>
    %s = "stablehlo.all_reduce"(%z) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}
      : (tensor<4x80xf32>) -> tensor<4x80xf32>
    return %s : tensor<4x80xf32>
  }
}
"""


@pytest.fixture(scope="module")
def block() -> bytes:
    return CpuTarget().compile(replicas(2), artifact(BLOCK))


X, W, Y = (
    TensorType(shape=shape, dtype=np.dtype(np.float32)) for shape in ((4, 96), (96, 80), (4, 80))
)
OF_BLOCK = Interface(name="block", parameters=(X, W), results=(Y,))


# --- what an executable is ------------------------------------------------------------------------


def test_executable_needs_its_isa_and_no_more(block: bytes):
    assert target_of(block).features == ISAS["x86-64-v3"]
    assert len(object_files(block)) > 0
    assert canonical(block) == block
    check_features(block, "block")


def test_executable_loads_and_runs(block: bytes):
    from wanc.runtime.cpu import CpuEngine

    chance = np.random.default_rng(0)
    xs = chance.standard_normal((2, 4, 96), np.float32)
    ws = chance.standard_normal((2, 96, 80), np.float32) / 10
    engine = CpuEngine(2)
    loaded = engine.load(block, OF_BLOCK, ranks=(0, 1))
    inputs = [engine.put(list(shards), ranks=(0, 1)) for shards in (xs, ws)]
    (result,) = engine.call(loaded, inputs)
    y = np.einsum("rik,rkj->rij", xs, ws)
    expected = (np.tanh(y) * np.exp(y)).sum(0)
    for rank in (0, 1):
        np.testing.assert_allclose(engine.fetch(result, rank=rank), expected, rtol=1e-4, atol=1e-4)
    engine.close()


def test_wider_isa_by_choice(block: bytes):
    """XLA:CPU compiles for x86-64-v4 only where the machine has it, and says so elsewhere."""
    lacking = missing_features(ISAS["x86-64-v4"], machine_flags())
    if lacking:
        with pytest.raises(ToolchainError, match=lacking[0]):
            CpuTarget(isa="x86-64-v4").compile(replicas(2), artifact(BLOCK))
        return
    wide = CpuTarget(isa="x86-64-v4").compile(replicas(2), artifact(BLOCK))
    assert target_of(wide).features == ISAS["x86-64-v4"]
    assert wide != block


@pytest.mark.parametrize("isa", ["x86-64-v2", "armv9", ""])
def test_isa_that_xla_cannot_keep_to_is_refused(isa: str):
    with pytest.raises(RefusedError, match="x86-64-v3 or x86-64-v4"):
        CpuTarget(isa=isa)


# --- on what it depends ---------------------------------------------------------------------------

ELSEWHERE = """
import os, sys
from tests.programs import replicas
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from wanc.digest import of_bytes
from wanc.targets.cpu import CpuTarget
data = open(sys.argv[1], "rb").read()
print(of_bytes(CpuTarget().compile(replicas(2), data)))
assert not {"jax", "jaxlib", "torch"} & set(sys.modules)
"""


def test_same_bytes_from_elsewhere(block: bytes, tmp_path: Path):
    source = tmp_path / "block"
    source.write_bytes(artifact(BLOCK))
    environment = os.environ | {
        "HOME": str(tmp_path),
        "NPROC": "3",
        "PYTHONHASHSEED": "77",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TZ": "Asia/Tokyo",
        "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2 --xla_cpu_enable_fast_math=true",
    }
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, source],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == of_bytes(block)


def test_same_bytes_from_threads(block: bytes):
    small = BLOCK.replace("80x", "64x").replace("x80", "x64")
    with ThreadPoolExecutor(3) as pool:
        texts = [BLOCK, small, BLOCK]
        results = list(
            pool.map(lambda text: CpuTarget().compile(replicas(2), artifact(text)), texts)
        )
    assert results[0] == results[2] == block
    assert results[1] != block


def test_key_has_all_that_matters_and_nothing_of_the_host():
    key = CpuTarget().compile_key(replicas(2), "sha256:00")
    assert set(key) == {
        *("key_version", "target", "stablehlo", "replica_count", "isa", "jaxlib", "flags"),
        *("threads", "sources"),
    }
    others = [
        CpuTarget(isa="x86-64-v4").compile_key(replicas(2), "sha256:00"),
        CpuTarget().compile_key(replicas(2), "sha256:01"),
        CpuTarget().compile_key(replicas(1), "sha256:00"),
    ]
    assert len({of_json(entries) for entries in [key, *others]}) == 4
    assert str(Path.home()) not in str(key)
    assert os.getcwd() not in str(key)


def test_requires_names_the_isa():
    assert CpuTarget().requires()["isa"] == "x86-64-v3"


# --- failures -------------------------------------------------------------------------------------


def test_failure_quotes_its_cause():
    unknown = BLOCK.replace("stablehlo.tanh %y :", "stablehlo.custom_call @nobody(%y) :").replace(
        "custom_call @nobody(%y) : tensor<4x80xf32>",
        "custom_call @nobody(%y) : (tensor<4x80xf32>) -> tensor<4x80xf32>",
    )
    with pytest.raises(ToolchainError, match=r"program sha256:.*(?s:.*)nobody"):
        CpuTarget().compile(replicas(2), artifact(unknown))


def test_garbage_is_a_toolchain_error():
    with pytest.raises(ToolchainError, match="failed with status 1"):
        CpuTarget().compile(replicas(1), b"garbage")


def fake_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{line}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_killed_worker_is_a_toolchain_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_worker(tmp_path, monkeypatch, "echo last words >&2; kill -9 $$")
    with pytest.raises(ToolchainError, match=r"killed by SIGKILL .*: last words"):
        CpuTarget().compile(replicas(1), b"")


def test_stop_kills_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_worker(tmp_path, monkeypatch, "exec sleep 60")
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def spy(*line: Any, **how: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*line, **how))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", spy)
    stop = Event()
    stop.set()
    with pytest.raises(ToolchainError, match="stopped"):
        CpuTarget().compile(replicas(1), b"", stop=stop)
    assert [worker.returncode for worker in started] == [-9]


def test_worker_ends_with_its_parent(tmp_path: Path):
    os.mkfifo(tmp_path / "never")
    worker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "wanc.targets.cpu_worker",
            tmp_path / "never",
            tmp_path / "out",
            "1",
        ],
        env=cpu._environment(()),
        stdin=subprocess.PIPE,
    )
    time.sleep(0.2)
    assert worker.poll() is None
    worker.communicate(timeout=20)  # closes its standard input, as a parent's death does
    assert worker.returncode == 1


def test_instruction_beyond_the_isa_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu, "used_features", lambda elf, suspects: {"gfni"})
    with pytest.raises(ToolchainError, match=r"used gfni .* which x86-64-v3 does not have"):
        CpuTarget().compile(replicas(2), artifact(BLOCK))


def test_machine_below_the_isa_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu, "machine_flags", lambda: machine_flags() - {"avx2"})
    with pytest.raises(ToolchainError, match="lacks avx2 of x86-64-v3"):
        CpuTarget().compile(replicas(2), artifact(BLOCK))


# --- rewrites -------------------------------------------------------------------------------------


def run(module: Any, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Compile and run a module in this process, as it is."""
    from wanc.runtime.cpu import CpuEngine

    client = xla_client.make_cpu_client(num_devices=1)
    devices = xla_client.DeviceList(tuple(client.local_devices()))
    executable = client.compile_and_load(module, devices, xla_client.CompileOptions())
    engine = CpuEngine(1)
    loaded = engine.load(executable.serialize(), interface_of(executable), ranks=(0,))
    results = engine.call(loaded, [engine.put([array], ranks=(0,)) for array in inputs])
    return [engine.fetch(result, rank=0) for result in results]


def difference(text: str, seed: int = 0) -> float:
    """How far a rewrite moves the outputs, relative to the largest."""
    module = parsed(text)
    main = module.body.operations[0]
    chance = np.random.default_rng(seed)
    inputs = []
    for kind in main.type.inputs:
        tensor = ir.RankedTensorType(kind)
        dtype = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}[str(tensor.element_type)]
        inputs.append(chance.standard_normal(tensor.shape, np.float32).astype(dtype))
    expected = run(module, inputs)
    module = parsed(text)
    assert rewrite(module)
    found = run(module, inputs)
    return max(
        float(np.abs(a.astype(np.float32) - b.astype(np.float32)).max() / np.abs(b).max())
        for a, b in zip(found, expected, strict=True)
    )


def convolution(
    x: Sequence[int],
    kernel: Sequence[int],
    *,
    pads: Sequence[Sequence[int]],
    strides: Sequence[int] | None = None,
    before: Sequence[Sequence[int]] | None = None,
    dtype: str = "f32",
    more: str = "",
) -> str:
    """Text of a convolution; ``before`` pads its input with zeros by an operation of its own."""
    space = len(x) - 2
    strides = strides or [1] * space
    before = before or [[0, 0]] * space

    def tensor(shape: Sequence[int]) -> str:
        return f"tensor<{'x'.join(map(str, shape))}x{dtype}>"

    padded = [*x[:2], *(n + sum(pad) for n, pad in zip(x[2:], before, strict=True))]
    reach = [2 * (k - 1) + 1 if "rhs_dilate" in more else k for k in kernel[2:]]
    sizes = [
        (n + sum(pad) - k) // stride + 1
        for n, k, pad, stride in zip(padded[2:], reach, pads, strides, strict=True)
    ]
    result = tensor([x[0], kernel[0], *sizes])
    low, high = ([0, 0, *(pad[side] for pad in before)] for side in (0, 1))
    dims = ", ".join(map(str, range(space)))
    return f"""
    module {{
      func.func public @main(%x: {tensor(x)}, %w: {tensor(kernel)}) -> {result} {{
        %0 = stablehlo.constant dense<0.0> : tensor<{dtype}>
        %p = stablehlo.pad %x, %0, low = {low}, high = {high}, interior = {[0] * len(x)}
          : ({tensor(x)}, tensor<{dtype}>) -> {tensor(padded)}
        %y = stablehlo.convolution(%p, %w)
          dim_numbers = [b, f, {dims}]x[o, i, {dims}]->[b, f, {dims}],
          window = {{stride = {list(strides)}, pad = {[list(pad) for pad in pads]}{more}}}
          {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
          : ({tensor(padded)}, {tensor(kernel)}) -> {result}
        return %y : {result}
      }}
    }}
    """


ONE, NO = (1, 1), (0, 0)
VIDEO, KERNEL = [1, 48, 5, 10, 6], [40, 48, 3, 3, 3]
CONVOLUTIONS = {
    "3x3x3 on a cached input": convolution(VIDEO, KERNEL, pads=[NO, ONE, ONE]),
    "3x3x3 padded before": convolution(VIDEO, KERNEL, pads=[NO, NO, NO], before=[NO, ONE, ONE]),
    "3x3x3 padded in time": convolution(
        VIDEO, KERNEL, pads=[NO, ONE, ONE], before=[(2, 0), NO, NO]
    ),
    "3x3x3 on one frame": convolution(
        [1, 48, 1, 10, 6], KERNEL, pads=[NO, NO, NO], before=[(2, 0), ONE, ONE]
    ),
    "3x3x3 without padding": convolution(VIDEO, KERNEL, pads=[NO, NO, NO]),
    "3x1x1": convolution(VIDEO, [40, 48, 3, 1, 1], pads=[NO, NO, NO], before=[(2, 0), NO, NO]),
    "3x1x1 with stride": convolution(VIDEO, [40, 48, 3, 1, 1], pads=[NO] * 3, strides=[2, 1, 1]),
    "1x1x1": convolution(VIDEO, [40, 48, 1, 1, 1], pads=[NO, NO, NO]),
    "images": convolution([3, 48, 10, 6], [40, 48, 3, 3], pads=[ONE, ONE]),
    "images with stride": convolution(
        [3, 48, 10, 6], [40, 48, 3, 3], pads=[NO, NO], before=[(0, 1), (0, 1)], strides=[2, 2]
    ),
    "images with stride, no padding": convolution(
        [3, 48, 11, 7], [40, 48, 3, 3], pads=[NO, NO], strides=[2, 2]
    ),
    "images, 1x1": convolution([3, 48, 10, 6], [40, 48, 1, 1], pads=[NO, NO]),
    "two videos": convolution([2, 16, 4, 10, 6], [8, 16, 3, 3, 3], pads=[NO, ONE, ONE]),
    "dilated": convolution(
        [1, 16, 12, 9], [8, 16, 3, 3], pads=[ONE, ONE], more=", rhs_dilate = [2, 2]"
    ),
}


@pytest.mark.parametrize("text", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_rewritten_convolution_gives_the_same(text: str):
    assert difference(text) < FP32_TOLERANCE


def test_large_video_goes_through_frame_by_frame(monkeypatch: pytest.MonkeyPatch):
    from wanc.targets import cpu_convolutions

    monkeypatch.setattr(cpu_convolutions, "_LARGE_BYTES", 1)
    for name in ("3x3x3 padded in time", "3x3x3 on a cached input", "images"):
        assert difference(CONVOLUTIONS[name]) < FP32_TOLERANCE


def test_bf16_sums_in_fp32():
    text = convolution(VIDEO, KERNEL, pads=[NO, ONE, ONE], dtype="bf16")
    assert difference(text) < BF16_TOLERANCE
    module = parsed(text)
    rewrite(module)
    assert str(module).count("-> tensor<3x10x6x40xf32>") == 3


CHAIN = """
module @chain {
  func.func public @main(
      %x: tensor<1x16x1x6x8xf32>, %c: tensor<1x16x2x6x8xf32> {tf.aliasing_output = 1 : i32},
      %g: tensor<16x1x1x1xf32>, %a: tensor<16x16x3x3x3xf32>, %b: tensor<24x16x3x3xf32>)
      -> (tensor<1x24x12x16xf32> {wanc.name = "pixels"}, tensor<1x16x2x6x8xf32>) {
    %y = call @causal(%c, %x, %a)
      : (tensor<1x16x2x6x8xf32>, tensor<1x16x1x6x8xf32>, tensor<16x16x3x3x3xf32>)
      -> tensor<1x16x1x6x8xf32>
    %q = stablehlo.multiply %y, %y : tensor<1x16x1x6x8xf32>
    %0 = stablehlo.constant dense<0.0> : tensor<f32>
    %s = stablehlo.reduce(%q init: %0) applies stablehlo.add across dimensions = [1]
      : (tensor<1x16x1x6x8xf32>, tensor<f32>) -> tensor<1x1x6x8xf32>
    %r = stablehlo.rsqrt %s : tensor<1x1x6x8xf32>
    %n = stablehlo.broadcast_in_dim %r, dims = [0, 2, 3, 4]
      : (tensor<1x1x6x8xf32>) -> tensor<1x16x1x6x8xf32>
    %h = stablehlo.broadcast_in_dim %g, dims = [1, 2, 3, 4]
      : (tensor<16x1x1x1xf32>) -> tensor<1x16x1x6x8xf32>
    %m = stablehlo.multiply %y, %n : tensor<1x16x1x6x8xf32>
    %v = stablehlo.multiply %m, %h : tensor<1x16x1x6x8xf32>
    %l = stablehlo.logistic %v : tensor<1x16x1x6x8xf32>
    %z = stablehlo.multiply %v, %l : tensor<1x16x1x6x8xf32>
    %o = stablehlo.slice %c [0:1, 0:16, 1:2, 0:6, 0:8]
      : (tensor<1x16x2x6x8xf32>) -> tensor<1x16x1x6x8xf32>
    %k = stablehlo.concatenate %o, %z, dim = 2
      : (tensor<1x16x1x6x8xf32>, tensor<1x16x1x6x8xf32>) -> tensor<1x16x2x6x8xf32>
    %i = stablehlo.transpose %z, dims = [0, 2, 1, 3, 4]
      : (tensor<1x16x1x6x8xf32>) -> tensor<1x1x16x6x8xf32>
    %j = stablehlo.reshape %i : (tensor<1x1x16x6x8xf32>) -> tensor<1x16x6x8xf32>
    %u = stablehlo.broadcast_in_dim %j, dims = [0, 1, 2, 4]
      : (tensor<1x16x6x8xf32>) -> tensor<1x16x6x2x8xf32>
    %w = stablehlo.reshape %u : (tensor<1x16x6x2x8xf32>) -> tensor<1x16x12x8xf32>
    %d = stablehlo.broadcast_in_dim %w, dims = [0, 1, 2, 3]
      : (tensor<1x16x12x8xf32>) -> tensor<1x16x12x8x2xf32>
    %e = stablehlo.reshape %d : (tensor<1x16x12x8x2xf32>) -> tensor<1x16x12x16xf32>
    %f = stablehlo.convolution(%e, %b)
      dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {pad = [[1, 1], [1, 1]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x16x12x16xf32>, tensor<24x16x3x3xf32>) -> tensor<1x24x12x16xf32>
    return %f, %k : tensor<1x24x12x16xf32>, tensor<1x16x2x6x8xf32>
  }
  func.func private @causal(
      %c: tensor<1x16x2x6x8xf32>, %x: tensor<1x16x1x6x8xf32>, %a: tensor<16x16x3x3x3xf32>)
      -> tensor<1x16x1x6x8xf32> {
    %0 = stablehlo.constant dense<0.0> : tensor<f32>
    %k = stablehlo.concatenate %c, %x, dim = 2
      : (tensor<1x16x2x6x8xf32>, tensor<1x16x1x6x8xf32>) -> tensor<1x16x3x6x8xf32>
    %p = stablehlo.pad %k, %0, low = [0, 0, 0, 1, 1], high = [0, 0, 0, 1, 1],
      interior = [0, 0, 0, 0, 0]
      : (tensor<1x16x3x6x8xf32>, tensor<f32>) -> tensor<1x16x3x8x10xf32>
    %y = stablehlo.convolution(%p, %a)
      dim_numbers = [b, f, 0, 1, 2]x[o, i, 0, 1, 2]->[b, f, 0, 1, 2], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x16x3x8x10xf32>, tensor<16x16x3x3x3xf32>) -> tensor<1x16x1x6x8xf32>
    return %y : tensor<1x16x1x6x8xf32>
  }
}
"""


def test_chain_is_transposed_at_its_ends_only():
    assert difference(CHAIN) < FP32_TOLERANCE
    module = parsed(CHAIN)
    rewrite(module)
    text = str(module)
    assert text.count("stablehlo.transpose") == 4  # input, cached frame, both results
    assert text.count("func.func") == 1
    assert "tf.aliasing_output = 1" in text
    assert 'wanc.name = "pixels"' in text
    assert "@chain" in text


def test_program_without_convolution_stays_as_it_is():
    module = parsed(BLOCK)
    before = str(module)
    assert not rewrite(module)
    assert str(module) == before


@pytest.mark.parametrize(
    ("order", "before", "after", "expected"),
    [
        ((0, 2, 3, 1), (1, 6, 4, 5), (1, 2, 3, 4, 5), (0, 3, 4, 1, 2)),  # splits channels
        ((0, 2, 3, 1), (1, 6, 4, 5), (1, 6, 20), (0, 2, 1)),  # merges rows and columns
        ((0, 2, 3, 1), (2, 6, 4, 5), (12, 4, 5), None),  # would merge batch and channels
        ((0, 2, 3, 4, 1), (1, 6, 3, 4, 5), (6, 3, 1, 4, 5), (2, 1, 3, 4, 0)),  # moves a dim of one
        ((1, 0), (1, 1), (1,), (0,)),
        ((1, 0), (0, 3), (3, 0), None),
    ],
)
def test_reshape_keeps_an_order_where_it_can(order, before, after, expected):
    assert reshaped_order(order, before, after) == expected

"""XLA:CPU executables on ranks: made here with jaxlib, run by wanc.runtime.cpu."""

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from jaxlib import _profiler, xla_client

from wanc.errors import BundleError, RunError
from wanc.runtime.cpu import CpuEngine
from wanc.runtime.engine import Interface, TensorType

RANKS = (0, 1, 2, 3)
F32 = np.dtype(np.float32)
ALIGN_BYTES = 64

SUM = """
module @sum {
  func.func public @main(%x: tensor<4xf32>, %s: tensor<f32>)
      -> (tensor<4xf32>, tensor<4xf32>, tensor<f32>) {
    %all = "stablehlo.all_reduce"(%x) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }) {replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}
      : (tensor<4xf32>) -> tensor<4xf32>
    %next = "stablehlo.collective_permute"(%x) {
      source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>
    } : (tensor<4xf32>) -> tensor<4xf32>
    %t = stablehlo.add %s, %s : tensor<f32>
    return %all, %next, %t : tensor<4xf32>, tensor<4xf32>, tensor<f32>
  }
}
"""
TYPES = """
module @types {
  func.func public @main(%h: tensor<2x3xbf16>, %b: tensor<5xi1>, %i: tensor<2xi32>)
      -> (tensor<2x3xbf16>, tensor<5xi1>, tensor<2xi32>) {
    %0 = stablehlo.add %h, %h : tensor<2x3xbf16>
    %1 = stablehlo.not %b : tensor<5xi1>
    %2 = stablehlo.add %i, %i : tensor<2xi32>
    return %0, %1, %2 : tensor<2x3xbf16>, tensor<5xi1>, tensor<2xi32>
  }
}
"""
CACHE = """
module @cache {
  func.func public @main(%x: tensor<1024xf32>,
                         %c: tensor<1024xf32> {tf.aliasing_output = 1 : i32})
      -> (tensor<1024xf32>, tensor<1024xf32>) {
    %0 = stablehlo.multiply %x, %c : tensor<1024xf32>
    %1 = stablehlo.add %x, %c : tensor<1024xf32>
    return %0, %1 : tensor<1024xf32>, tensor<1024xf32>
  }
}
"""
TOO_LARGE = """
module @large {
  func.func public @main(%x: tensor<4xf32>) -> tensor<1000000000000x4xf32> {
    %0 = stablehlo.broadcast_in_dim %x, dims = [1]
      : (tensor<4xf32>) -> tensor<1000000000000x4xf32>
    return %0 : tensor<1000000000000x4xf32>
  }
}
"""


def interface(name: str, parameters: str, results: str, *aliases: tuple[int, int]) -> Interface:
    """Of tensors written as ``float32[4] int32[2]``."""

    def types(text: str) -> tuple[TensorType, ...]:
        parts = [each.rstrip("]").split("[") for each in text.split()]
        return tuple(
            TensorType(shape=tuple(int(n) for n in shape.split(",") if n), dtype=np.dtype(dtype))
            for dtype, shape in parts
        )

    return Interface(
        name=name, parameters=types(parameters), results=types(results), aliases=aliases
    )


OF_SUM = interface("sum", "float32[4] float32[]", "float32[4] float32[4] float32[]")
_ALL = "bfloat16[2,3] bool[5] int32[2]"
OF_TYPES = interface("types", _ALL, _ALL)
OF_CACHE = interface("cache", "float32[1024] float32[1024]", "float32[1024] float32[1024]", (1, 1))
OF_LARGE = interface("large", "float32[4]", "float32[1000000000000,4]")


class Compiler:
    """What the compile side does, in short: a client of its own, StableHLO text to bytes."""

    def __init__(self) -> None:
        self.client: Any = xla_client.make_cpu_client(num_devices=len(RANKS))

    def __call__(self, text: str, replicas: int) -> bytes:
        devices = tuple(self.client.local_devices()[:replicas])
        options = xla_client.CompileOptions()
        for part in (options, options.executable_build_options):
            part.num_replicas, part.num_partitions = replicas, 1
        ids = np.array([[device.id] for device in devices])
        options.executable_build_options.device_assignment = xla_client.DeviceAssignment.create(ids)
        devices = xla_client.DeviceList(devices)
        return self.client.compile_and_load(text, devices, options).serialize()


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler()


@pytest.fixture(scope="module")
def sum_bytes(compiler: Compiler) -> bytes:
    return compiler(SUM, 4)


@pytest.fixture(scope="module")
def cache_bytes(compiler: Compiler) -> bytes:
    return compiler(CACHE, 1)


@pytest.fixture
def engine() -> Iterator[CpuEngine]:
    engine = CpuEngine(len(RANKS))
    yield engine
    engine.close()


def rows(start: float = 0) -> list[np.ndarray]:
    """Other data for each rank."""
    return [np.arange(4, dtype=F32) + 10 * rank + start for rank in RANKS]


def scalars() -> list[np.ndarray]:
    return [np.array(rank, F32) for rank in RANKS]


def aligned_ones(count: int) -> np.ndarray:
    room = np.empty(count * F32.itemsize + ALIGN_BYTES, np.uint8)
    start = -room.ctypes.data % ALIGN_BYTES
    array = room[start : start + count * F32.itemsize].view(F32)
    array[:] = 1
    return array


def pointers(buffer: Any) -> list[int]:
    return [shard.unsafe_buffer_pointer() for shard in buffer.array._arrays]


def test_every_rank_has_its_own_data(engine):
    buffers = [engine.put(rows(), ranks=RANKS), engine.put(scalars(), ranks=RANKS)]
    for buffer, shards in zip(buffers, [rows(), scalars()], strict=True):
        for rank in RANKS:
            np.testing.assert_array_equal(engine.fetch(buffer, rank=rank), shards[rank])


def test_collectives_over_four_ranks(engine, sum_bytes):
    loaded = engine.load(sum_bytes, OF_SUM, ranks=RANKS)
    inputs = [engine.put(rows(), ranks=RANKS), engine.put(scalars(), ranks=RANKS)]
    pair, following, double = engine.call(loaded, inputs)
    for rank in RANKS:
        group = [0, 1] if rank < 2 else [2, 3]
        np.testing.assert_array_equal(
            engine.fetch(pair, rank=rank), sum(rows()[member] for member in group)
        )
        np.testing.assert_array_equal(engine.fetch(following, rank=rank), rows()[rank - 1])
        assert engine.fetch(double, rank=rank) == 2 * rank


def test_results_are_inputs_of_the_next_call(engine, sum_bytes):
    loaded = engine.load(sum_bytes, OF_SUM, ranks=RANKS)
    row, scalar = engine.put(rows(), ranks=RANKS), engine.put(scalars(), ranks=RANKS)
    for _ in range(20):
        _, row, scalar = engine.call(loaded, [row, scalar])
    engine.wait([row, scalar])
    for rank in RANKS:  # 20 steps around a ring of four
        np.testing.assert_array_equal(engine.fetch(row, rank=rank), rows()[rank])
        assert engine.fetch(scalar, rank=rank) == rank * 2**20


def test_every_dtype_that_programs_use(engine, compiler):
    loaded = engine.load(compiler(TYPES, 4), OF_TYPES, ranks=RANKS)
    halves = [np.full((2, 3), rank, ml_dtypes.bfloat16) for rank in RANKS]
    flags = [np.arange(5) > rank for rank in RANKS]
    counts = [np.array([rank, -rank], np.int32) for rank in RANKS]
    results = engine.call(loaded, [engine.put(x, ranks=RANKS) for x in (halves, flags, counts)])
    for rank in RANKS:
        half, flag, count = (engine.fetch(result, rank=rank) for result in results)
        assert (half.dtype, flag.dtype, count.dtype) == (ml_dtypes.bfloat16, bool, np.int32)
        np.testing.assert_array_equal(half, halves[rank] + halves[rank])
        np.testing.assert_array_equal(flag, ~flags[rank])
        np.testing.assert_array_equal(count, 2 * counts[rank])


def test_donated_input_is_consumed_and_its_memory_reused(engine, cache_bytes):
    loaded = engine.load(cache_bytes, OF_CACHE, ranks=(0,))
    assert OF_CACHE.donated == (1,)
    x = engine.put([aligned_ones(1024)], ranks=(0,))
    _, cache = engine.call(loaded, [x, engine.put([aligned_ones(1024)], ranks=(0,))])
    engine.wait([cache])
    before = pointers(cache)
    _, after = engine.call(loaded, [x, cache])
    assert pointers(after) == before
    assert cache.consumed
    assert not x.consumed
    assert (engine.fetch(after, rank=0) == 3).all()
    for use in (lambda: engine.fetch(cache, rank=0), lambda: engine.wait([cache])):
        with pytest.raises(RunError, match="consumed"):
            use()
    with pytest.raises(RunError, match="input 1 was consumed by an earlier call"):
        engine.call(loaded, [x, cache])
    with pytest.raises(RunError, match="input 1 is donated, but given 2 times"):
        engine.call(loaded, [x, x])


def test_donation_leaves_the_shared_host_array_alone(engine, compiler):
    loaded = engine.load(compiler(CACHE, 4), OF_CACHE, ranks=RANKS)
    host = aligned_ones(1024)
    cache, x = engine.put([host] * 4, ranks=RANKS), engine.put([host] * 4, ranks=RANKS)
    _, after = engine.call(loaded, [x, cache])
    assert all((engine.fetch(after, rank=rank) == 2).all() for rank in RANKS)
    assert (host == 1).all()


def test_one_replica_program_on_rank_2(engine, cache_bytes):
    loaded = engine.load(cache_bytes, OF_CACHE, ranks=(2,))
    ones = aligned_ones(1024)
    buffers = [engine.put([ones * factor], ranks=[2]) for factor in (2, 3)]
    product, total = engine.call(loaded, buffers)
    assert product.ranks == (2,)
    assert (engine.fetch(product, rank=2) == 6).all()
    assert (engine.fetch(total, rank=2) == 5).all()
    with pytest.raises(RunError, match="rank 0 holds no shard"):
        engine.fetch(product, rank=0)


def test_one_array_for_several_ranks_is_held_once(engine):
    host = aligned_ones(1024)
    assert pointers(engine.put([host] * 4, ranks=RANKS)) == [host.ctypes.data] * 4
    odd = aligned_ones(1025)[1:]  # off the alignment by four bytes
    held = pointers(engine.put([odd] * 4, ranks=RANKS))
    assert len(set(held)) == 1
    assert held[0] % ALIGN_BYTES == 0
    assert held[0] != odd.ctypes.data
    turned = aligned_ones(6).reshape(2, 3).T
    assert engine.fetch(engine.put([turned] * 4, ranks=RANKS), rank=3).shape == (3, 2)


def test_host_memory_lives_as_long_as_its_buffer(engine):
    host = aligned_ones(1024)
    alive = weakref.ref(host)
    buffer = engine.put([host] * 4, ranks=RANKS)
    del host
    gc.collect()
    assert alive() is not None
    assert (engine.fetch(buffer, rank=3) == 1).all()
    del buffer
    engine.put(scalars(), ranks=RANKS)
    assert alive() is None


def test_fetched_array_is_the_callers_own(engine):
    buffer = engine.put(rows(), ranks=RANKS)
    engine.fetch(buffer, rank=1)[:] = -1
    np.testing.assert_array_equal(engine.fetch(buffer, rank=1), rows()[1])


@pytest.mark.parametrize(
    ("shards", "ranks", "message"),
    [
        (rows()[:3], RANKS, r"need one shard each.*got float32\[4\], float32\[4\], float32\[4\]$"),
        ([*rows()[:3], np.zeros(5, F32)], RANKS, r"all of one type.*float32\[5\]"),
        ([], (), "need distinct ranks"),
        (rows(), (0, 1, 2, 2), "need distinct ranks among the 4"),
        (rows(), (1, 2, 3, 4), "need distinct ranks among the 4"),
    ],
)
def test_put_names_what_does_not_fit(engine, shards, ranks, message):
    with pytest.raises(RunError, match=message):
        engine.put(shards, ranks=ranks)


def test_call_names_every_input_that_does_not_fit(engine, sum_bytes):
    """XLA would run the first and crash the process on the others."""
    loaded = engine.load(sum_bytes, OF_SUM, ranks=RANKS)
    row, scalar = engine.put(rows(), ranks=RANKS), engine.put(scalars(), ranks=RANKS)
    integers = engine.put([row.astype(np.int32) for row in rows()], ranks=RANKS)
    with pytest.raises(RunError, match=r"call of sum.*input 0 is int32\[4\], needs float32\[4\]$"):
        engine.call(loaded, [integers, scalar])
    with pytest.raises(RunError, match=r"input 0 is float32\[\], needs.*; input 1 is float32\[4\]"):
        engine.call(loaded, [scalar, row])
    with pytest.raises(RunError, match="needs 2 inputs, got 1"):
        engine.call(loaded, [row])
    alone = engine.put(scalars()[:1], ranks=(0,))
    with pytest.raises(RunError, match=r"input 1 is on ranks \(0,\)"):
        engine.call(loaded, [row, alone])
    turned = engine.put(scalars(), ranks=RANKS[::-1])
    with pytest.raises(RunError, match=r"input 1 is on ranks \(3, 2, 1, 0\)"):
        engine.call(loaded, [row, turned])
    other = CpuEngine(len(RANKS))
    with pytest.raises(RunError, match="another engine"):
        engine.call(loaded, [row, other.put(scalars(), ranks=RANKS)])
    assert engine.fetch(engine.call(loaded, [row, scalar])[2], rank=1) == 2


def test_wide_shards_are_refused_not_narrowed(engine, sum_bytes):
    loaded = engine.load(sum_bytes, OF_SUM, ranks=RANKS)
    wide = engine.put([row.astype(np.float64) for row in rows()], ranks=RANKS)
    with pytest.raises(RunError, match=r"input 0 is float64\[4\], needs float32\[4\]"):
        engine.call(loaded, [wide, engine.put(scalars(), ranks=RANKS)])


@pytest.mark.parametrize("replicas", [1, 2])
def test_failed_execution_is_a_run_error(engine, compiler, replicas):
    ranks = RANKS[:replicas]
    loaded = engine.load(compiler(TOO_LARGE, replicas), OF_LARGE, ranks=ranks)
    row = engine.put(rows()[:replicas], ranks=ranks)
    with pytest.raises(RunError, match="Out of memory"):
        engine.wait(engine.call(loaded, [row]))


def test_failed_call_stops_the_next(engine, compiler, sum_bytes):
    """Without a wait between them XLA would hang."""
    failing = engine.load(compiler(TOO_LARGE, 4), OF_LARGE, ranks=RANKS)
    sound = engine.load(sum_bytes, OF_SUM, ranks=RANKS)
    row, scalar = engine.put(rows(), ranks=RANKS), engine.put(scalars(), ranks=RANKS)
    engine.call(failing, [row])
    with pytest.raises(RunError, match=r"an earlier call failed: .*Out of memory"):
        engine.call(sound, [row, scalar])
    engine.wait(engine.call(sound, [row, scalar]))


@pytest.mark.parametrize("damage", [b"", b"hello world" * 50, bytes(1000), "half"])
def test_damaged_executable_is_a_bundle_error(engine, sum_bytes, damage):
    data = sum_bytes[: len(sum_bytes) // 2] if damage == "half" else damage
    with pytest.raises(BundleError, match=f"{len(data)} bytes are not an executable of XLA:CPU"):
        engine.load(data, OF_SUM, ranks=RANKS)


def test_replicas_must_be_the_ranks(engine, sum_bytes, cache_bytes):
    for ranks in [(0,), (0, 1)]:
        with pytest.raises(BundleError, match=f"sum is compiled for 4 replicas.*{len(ranks)} ran"):
            engine.load(sum_bytes, OF_SUM, ranks=ranks)
    with pytest.raises(BundleError, match=r"cache is compiled for 1 replicas.*4 ranks"):
        engine.load(cache_bytes, OF_CACHE, ranks=RANKS)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            interface("sum", "float32[4] float32[4]", "float32[4] float32[4] float32[]"),
            "parameters",
        ),
        (interface("sum", "float32[4] float32[]", "float32[4] float32[4] int32[]"), "results"),
        (interface("sum", "float32[4] float32[]", "float32[4]"), "results"),
        (
            interface("sum", "float32[4] float32[]", "float32[4] float32[4] float32[]", (1, 2)),
            "memo",
        ),
    ],
)
def test_an_executable_of_another_interface_is_a_bundle_error(engine, sum_bytes, other, said):
    with pytest.raises(BundleError, match=f"executable sum .*{said}.*the bundle says"):
        engine.load(sum_bytes, other, ranks=RANKS)


def test_one_rank_gets_the_threads_that_programs_are_split_for(monkeypatch):
    """Else the machine's core count would show in the bits."""
    make, seen = xla_client.make_cpu_client, []

    def spy(**how):
        seen.append(os.environ["NPROC"])
        return make(**how)

    monkeypatch.setattr(xla_client, "make_cpu_client", spy)
    before = os.environ.get("NPROC")
    engine = CpuEngine(1)
    assert seen == ["8"]
    assert os.environ.get("NPROC") == before
    with pytest.raises(RunError, match="among the 1 of this engine"):
        engine.put(rows()[:1], ranks=(1,))


def test_closed_engine_refuses(sum_bytes):
    engine = CpuEngine(len(RANKS))
    loaded = engine.load(sum_bytes, OF_SUM, ranks=RANKS)
    inputs = [engine.put(rows(), ranks=RANKS), engine.put(scalars(), ranks=RANKS)]
    engine.close()
    for use in (
        lambda: engine.load(sum_bytes, OF_SUM, ranks=RANKS),
        lambda: engine.put(rows(), ranks=RANKS),
        lambda: engine.call(loaded, inputs),
    ):
        with pytest.raises(RunError, match="closed"):
            use()


def test_compile_count_counts_any_compile_and_no_load(engine, compiler, sum_bytes):
    assert engine.compile_count == 0
    compiler(CACHE, 1)
    assert engine.compile_count == 1
    assert CpuEngine(1).compile_count == 0
    with pytest.raises(RuntimeError):
        compiler("not a program", 1)
    assert engine.compile_count == 2  # an attempt is a call of the compiler
    engine.load(sum_bytes, OF_SUM, ranks=RANKS)
    assert engine.compile_count == 2


def test_xla_itself_traces_no_compile_while_loading_and_calling(engine, compiler, sum_bytes):
    def events(action: Any) -> list[str]:
        session = _profiler.ProfilerSession()
        action()
        planes = session.stop_and_get_profile_data().planes
        names = [event.name for plane in planes for line in plane.lines for event in line.events]
        return [name for name in names if not name.startswith("$")]  # those are Python's

    def load_and_call() -> None:
        loaded = engine.load(sum_bytes, OF_SUM, ranks=RANKS)
        inputs = [engine.put(rows(), ranks=RANKS), engine.put(scalars(), ranks=RANKS)]
        engine.wait(engine.call(loaded, inputs))

    assert "PjRtCpuClient::Compile" in events(lambda: compiler(CACHE, 1))
    seen = events(load_and_call)
    assert seen
    assert not [name for name in seen if "ompile" in name]


ALONE = """
import sys
sys.modules.update(jax=None, torch=None)
from pathlib import Path
import numpy as np
from wanc.runtime.cpu import CpuEngine
from wanc.runtime.engine import Interface, TensorType
engine = CpuEngine(4)
vector, scalar = (TensorType(shape=shape, dtype=np.dtype(np.float32)) for shape in ((4,), ()))
of_sum = Interface(name="sum", parameters=(vector, scalar), results=(vector, vector, scalar))
loaded = engine.load(Path(sys.argv[1]).read_bytes(), of_sum, ranks=(0, 1, 2, 3))
rows = [np.arange(4, dtype=np.float32) + 10 * rank for rank in range(4)]
scalars = [np.array(rank, np.float32) for rank in range(4)]
inputs = [engine.put(shards, ranks=range(4)) for shards in (rows, scalars)]
print([engine.fetch(result, rank=3).tolist() for result in engine.call(loaded, inputs)])
assert engine.compile_count == 0
"""
MANY_CALLS = (
    ALONE.partition("print")[0]
    + """
row, scalar = inputs
for _ in range(2000):
    _, row, _ = engine.call(loaded, [row, scalar])
print(engine.fetch(row, rank=3).tolist())
"""
)
BESIDE_JAX = """
import jax
jax.jit(lambda x: x + 1)(1)
""" + ALONE.replace("sys.modules.update(jax=None, torch=None)", "").replace(
    "assert engine.compile_count == 0",
    "jax.jit(lambda x: x * 7)(1)\nassert engine.compile_count == 1",
)
PATIENCE = """
import os
from jaxlib import xla_client
from wanc.runtime.cpu import CpuEngine
before = os.environ.get("XLA_FLAGS")
CpuEngine(1)
assert os.environ.get("XLA_FLAGS") == before
options = xla_client.CompileOptions()
options.executable_build_options.debug_options
data = options.SerializeAsString()
print(*[int(bytes(number) in data) for number in ((0x80, 0xA3, 0x05), (0xC7, 0xA6, 0x03))])
"""  # protobuf's spellings of 86400 and 54087


def script(code: str, *arguments: str, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment = inherited | {"JAX_PLATFORMS": "cpu"} | environment
    command = [sys.executable, "-c", code, *arguments]
    run = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=30
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize("code", [ALONE, BESIDE_JAX], ids=["alone", "beside jax"])
def test_needs_jaxlib_only_and_bears_jax(tmp_path: Path, sum_bytes, code):
    path = tmp_path / "sum.xla-cpu"
    path.write_bytes(sum_bytes)
    expected = [rows()[2] + rows()[3], rows()[2], np.array(6.0)]
    assert script(code, str(path)) == str([value.tolist() for value in expected])


def test_many_calls_without_a_wait_do_not_deadlock(tmp_path: Path, sum_bytes):
    path = tmp_path / "sum.xla-cpu"
    path.write_bytes(sum_bytes)
    assert script(MANY_CALLS, str(path)) == str(rows()[3].tolist())


def test_ranks_may_wait_long_for_one_another_unless_the_user_says_otherwise():
    assert script(PATIENCE) == "1 0"
    own = "--xla_cpu_collective_call_terminate_timeout_seconds=54087"
    assert script(PATIENCE, XLA_FLAGS=own) == "0 1"

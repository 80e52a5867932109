"""The engine of NEFFs, with a double of nrtpy whose cores are XLA:CPU's."""

import fcntl
import gc
import hashlib
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.compiled import Wanc, named_images
from tests.cpu.test_engine import CACHE, OF_CACHE, OF_SUM, OF_TYPES, SUM, TYPES, Compiler, interface
from tests.doubles import neuronx_cc
from tests.doubles.neuron import Nrtpy, install_nrtpy
from tests.neuron_bundles import Twins, make_twins
from wanc.bundle.neff_names import input_name, output_name
from wanc.bundle.store import open_bundle
from wanc.errors import BundleError, LostError, RunError
from wanc.processes.world import Alone
from wanc.run.check import check_bundle
from wanc.run.load import load, usable
from wanc.runtime import neuron_cores
from wanc.runtime.engine import Interface
from wanc.runtime.neuron import NeuronEngine
from wanc.runtime.neuron_environment import free_endpoint
from wanc.runtime.neuron_runtime import NeuronRuntime
from wanc.runtime.runtime import runtime_of

RANKS = (0, 1, 2, 3)
F32 = np.dtype(np.float32)
VARIABLES = {"NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_SCRATCHPAD_PAGE_SIZE": "2048"}
NEXT = """
module @next {
  func.func public @main(%h: tensor<8xf32>, %w: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.add %h, %w : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
"""
OF_NEXT = interface("next", "float32[8] float32[8]", "float32[8]")

Start = Callable[..., NeuronEngine]


@dataclass(frozen=True)
class Toy:
    """A small program: its NEFF, what it takes and gives, and the CPU's executable."""

    neff: bytes
    interface: Interface
    executable: Path

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(self.neff).hexdigest()


def toy(folder: Path, compiler: Compiler, text: str, kind: Interface, replicas: int) -> Toy:
    sizes = [
        [each.dtype.itemsize * int(np.prod(each.shape)) for each in tensors]
        for tensors in (kind.parameters, kind.results)
    ]
    named = {
        side: [(name(k), size) for k, size in enumerate(each)]
        for side, name, each in zip(
            ("input", "output"), (input_name, output_name), sizes, strict=True
        )
    }
    path = folder / kind.name
    path.write_bytes(compiler(text, replicas))
    return Toy(neuronx_cc.neff(named, {"text": text.encode()}), kind, path)


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Toy]:
    folder, compiler = tmp_path_factory.mktemp("toys"), Compiler()
    programs = [(SUM, OF_SUM, 4), (CACHE, OF_CACHE, 1), (TYPES, OF_TYPES, 4), (NEXT, OF_NEXT, 1)]
    return {kind.name: toy(folder, compiler, text, kind, n) for text, kind, n in programs}


@pytest.fixture
def nrtpy(tmp_path: Path, toys: dict[str, Toy]) -> Iterator[Nrtpy]:
    made = install_nrtpy(tmp_path / "nrtpy", {t.digest: t.executable for t in toys.values()})
    with made.imported():
        yield made


@pytest.fixture
def start(nrtpy: Nrtpy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """start({rank: core}, rank_count=..., environment=...); every rank on its own by default."""
    monkeypatch.setattr(neuron_cores, "_LEAVE_SECONDS", 0.2)
    started = []

    def make(cores: dict[int, int] | None = None, **changed: Any) -> NeuronEngine:
        cores = {rank: rank for rank in RANKS} if cores is None else cores
        visible = ",".join(map(str, sorted(cores.values())))
        how: dict[str, Any] = {"rank_count": len(RANKS), "environment": VARIABLES}
        how |= changed
        environment = how.pop("environment") | {"NEURON_RT_VISIBLE_CORES": visible}
        started.append(NeuronEngine(cores=cores, environment=environment, **how))
        return started[-1]

    yield make
    for engine in started:
        engine.close()


def on_cores(engine: NeuronEngine, toy: Toy, ranks: tuple[int, ...] = RANKS) -> Any:
    return engine.load(toy.neff, toy.interface, ranks=ranks)


def rows(start: float = 0) -> list[np.ndarray]:
    return [np.arange(4, dtype=F32) + 10 * rank + start for rank in RANKS]


def scalars() -> list[np.ndarray]:
    return [np.array(rank, F32) for rank in RANKS]


def ones(count: int, factor: float = 1) -> list[np.ndarray]:
    return [np.full(count, factor, F32)]


# --- what an engine does --------------------------------------------------------------------------


def test_collectives_over_four_ranks(start: Start, nrtpy: Nrtpy, toys: dict[str, Toy]):
    engine = start()
    assert (engine.rank_count, engine.local_ranks, engine.compile_count) == (4, RANKS, 0)
    loaded = on_cores(engine, toys["sum"])
    inputs = [engine.put(rows(), ranks=RANKS), engine.put(scalars(), ranks=RANKS)]
    pair, following, double = engine.call(loaded, inputs)
    engine.wait([pair, double])
    for rank in RANKS:
        group = [0, 1] if rank < 2 else [2, 3]
        expected = sum(rows()[member] for member in group)
        np.testing.assert_array_equal(engine.fetch(pair, rank=rank), expected)
        np.testing.assert_array_equal(engine.fetch(following, rank=rank), rows()[rank - 1])
        assert engine.fetch(double, rank=rank) == 2 * rank
    loads = sorted(nrtpy.calls("load"), key=lambda call: call["core"])
    told = [(c["core_id"], c["cc_enabled"], c["rank_id"], c["world_size"]) for c in loads]
    assert told == [(rank, True, rank, 4) for rank in RANKS]
    assert {call["name"] for call in loads} == {"sum"}
    assert not Path(loads[0]["path"]).exists()


def test_one_rank_program_needs_no_collectives(start: Start, nrtpy: Nrtpy, toys: dict[str, Toy]):
    engine = start({2: 6, 3: 7})
    loaded = on_cores(engine, toys["next"], ranks=(3,))
    given = [engine.put(ones(8, factor), ranks=(3,)) for factor in (2, 3)]
    (total,) = engine.call(loaded, given)
    assert (engine.fetch(total, rank=3) == 5).all()
    (call,) = nrtpy.calls("load")
    assert (call["core"], call["core_id"], call["cc_enabled"]) == (7, 1, False)
    (configured,) = nrtpy.calls("configure")
    assert configured["cores"] == [6, 7]
    with pytest.raises(RunError, match="rank 2 holds no shard"):
        engine.fetch(total, rank=2)


def test_every_dtype_that_programs_use(start: Start, toys: dict[str, Toy]):
    engine = start()
    loaded = on_cores(engine, toys["types"])
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


def test_donated_input_is_consumed_and_its_memory_reused(
    start: Start, nrtpy: Nrtpy, toys: dict[str, Toy]
):
    """The double refuses a donated input that is not the output too."""
    engine = start()
    loaded = on_cores(engine, toys["cache"], ranks=(1,))
    x, cache = (engine.put(ones(1024), ranks=(1,)) for _ in range(2))
    for step in range(1, 4):
        after = engine.call(loaded, [x, cache])[1]
        assert cache.consumed
        assert not x.consumed
        cache = after
        assert (engine.fetch(cache, rank=1) == 1 + step).all()
    assert len(nrtpy.calls("allocate")) == 3  # x, the cache, and the other result
    consumed = engine.put(ones(1024), ranks=(1,))
    engine.call(loaded, [x, consumed])
    for use in (lambda: engine.fetch(consumed, rank=1), lambda: engine.wait([consumed])):
        with pytest.raises(RunError, match="was consumed by a call"):
            use()
    with pytest.raises(RunError, match="input 1 was consumed by an earlier call"):
        engine.call(loaded, [x, consumed])
    with pytest.raises(RunError, match="input 1 is donated, but given 2 times"):
        engine.call(loaded, [x, x])


def test_aliased_inputs_may_be_named_as_nkipy_has_them(
    start: Start, nrtpy: Nrtpy, toys: dict[str, Toy]
):
    nrtpy.act_next("load:aliased")
    engine = start()
    loaded = on_cores(engine, toys["cache"], ranks=(0,))
    assert loaded.inputs == ("input0", "input1.must_alias_input")
    given = [engine.put(ones(1024, factor), ranks=(0,)) for factor in (2, 3)]
    product, total = engine.call(loaded, given)
    assert (engine.fetch(product, rank=0) == 6).all()
    assert (engine.fetch(total, rank=0) == 5).all()


def test_chain_of_calls_allocates_at_its_start_alone(
    start: Start, nrtpy: Nrtpy, toys: dict[str, Toy]
):
    """As groups of layers do: what a call gives is what the next takes."""
    engine = start()
    loaded = on_cores(engine, toys["next"], ranks=(0,))
    weight, hidden = engine.put(ones(8), ranks=(0,)), engine.put(ones(8, 0), ranks=(0,))
    for step in range(1, 30):
        (hidden,) = engine.call(loaded, [hidden, weight])
        if step % 7 == 0:
            assert (engine.fetch(hidden, rank=0) == step).all()
    assert (engine.fetch(hidden, rank=0) == 29).all()
    assert len(nrtpy.calls("allocate")) == 3


def test_live_buffer_is_never_written_to(start: Start, nrtpy: Nrtpy, toys: dict[str, Toy]):
    engine = start()
    loaded = on_cores(engine, toys["next"], ranks=(0,))
    weight = engine.put(ones(8), ranks=(0,))
    held = [engine.put(ones(8, 0), ranks=(0,))]
    for _ in range(9):
        held += engine.call(loaded, [held[-1], weight])
    for step, buffer in enumerate(held):
        assert (engine.fetch(buffer, rank=0) == step).all()
    assert len(nrtpy.calls("allocate")) == 11


def test_memory_of_dropped_buffers_is_written_anew(
    start: Start, nrtpy: Nrtpy, toys: dict[str, Toy]
):
    engine = start()
    fed = engine.put(rows(), ranks=RANKS)
    other = engine.put(rows(100), ranks=RANKS)
    engine.wait([fed, other])
    assert len(nrtpy.calls("allocate")) == 8
    for step in range(5):
        fed = None
        fed = engine.put(rows(step), ranks=RANKS)
        np.testing.assert_array_equal(engine.fetch(fed, rank=2), rows(step)[2])
    np.testing.assert_array_equal(engine.fetch(other, rank=2), rows(100)[2])
    engine.wait([fed])
    assert len(nrtpy.calls("allocate")) == 8
    assert len(nrtpy.calls("write")) == 5 * 4


def test_memory_that_a_waiting_call_reads_is_written_after_it(
    start: Start, nrtpy: Nrtpy, toys: dict[str, Toy]
):
    nrtpy.act_next("execute:slow 0.4")
    engine = start()
    loaded = on_cores(engine, toys["next"], ranks=(0,))
    weight, old = engine.put(ones(8), ranks=(0,)), engine.put(ones(8, 10), ranks=(0,))
    begun = time.monotonic()
    (result,) = engine.call(loaded, [old, weight])
    assert time.monotonic() - begun < 0.3, "a call returns before it has run"
    del old
    gc.collect()
    new = engine.put(ones(8, 20), ranks=(0,))
    assert (engine.fetch(result, rank=0) == 11).all()
    assert (engine.fetch(new, rank=0) == 20).all()
    assert len(nrtpy.calls("allocate")) == 3


def test_single_programs_of_several_cores_run_at_once(
    start: Start, nrtpy: Nrtpy, toys: dict[str, Toy]
):
    nrtpy.act_next(*["execute:slow 2"] * 4)
    engine = start()
    loaded = [on_cores(engine, toys["next"], ranks=(rank,)) for rank in RANKS]
    given = [engine.put(ones(8, rank), ranks=(rank,)) for rank in RANKS]
    engine.wait(given)
    begun = time.monotonic()
    results = [engine.call(loaded[rank], [given[rank]] * 2)[0] for rank in RANKS]
    for rank in RANKS:
        assert (engine.fetch(results[rank], rank=rank) == 2 * rank).all()
    assert time.monotonic() - begun < 7, "one after the other takes eight seconds"


def test_call_names_every_input_that_does_not_fit(start: Start, toys: dict[str, Toy]):
    engine = start()
    loaded = on_cores(engine, toys["sum"])
    row, scalar = engine.put(rows(), ranks=RANKS), engine.put(scalars(), ranks=RANKS)
    with pytest.raises(RunError, match=r"call of sum.*input 0 is float32\[\], needs.*; input 1 is"):
        engine.call(loaded, [scalar, row])
    with pytest.raises(RunError, match="needs 2 inputs, got 1"):
        engine.call(loaded, [row])
    alone = engine.put(scalars()[:1], ranks=(0,))
    with pytest.raises(RunError, match=r"input 1 is on ranks \(0,\)"):
        engine.call(loaded, [row, alone])
    assert engine.fetch(engine.call(loaded, [row, scalar])[2], rank=1) == 2


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
def test_put_names_what_does_not_fit(start: Start, shards: Any, ranks: Any, message: str):
    with pytest.raises(RunError, match=message):
        start().put(shards, ranks=ranks)


def test_closed_engine_refuses_and_leaves_nothing_set(
    start: Start, nrtpy: Nrtpy, toys: dict[str, Toy]
):
    engine = start()
    assert os.environ["NEURON_SCRATCHPAD_PAGE_SIZE"] == "2048"
    loaded = on_cores(engine, toys["next"], ranks=(0,))
    given = engine.put(ones(8), ranks=(0,))
    engine.close()
    engine.close()
    assert not [name for name in os.environ if name.startswith("NEURON_")]
    assert len(nrtpy.calls("reset")) == 1
    for use in (
        lambda: on_cores(engine, toys["next"], ranks=(0,)),
        lambda: engine.put(ones(8), ranks=(0,)),
        lambda: engine.call(loaded, [given, given]),
    ):
        with pytest.raises(RunError, match="closed"):
            use()
    other = start({0: 3})
    loaded = on_cores(other, toys["next"], ranks=(0,))
    fresh = other.put(ones(8), ranks=(0,))
    assert (other.fetch(other.call(loaded, [fresh, fresh])[0], rank=0) == 2).all()


def test_runtime_finds_its_variables_as_it_starts(start: Start, nrtpy: Nrtpy):
    start()
    (begun,) = nrtpy.calls("start")
    assert begun["environment"] == VARIABLES | {"NEURON_RT_VISIBLE_CORES": "0,1,2,3"}


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "status", "advice"),
    [
        ("features", "NRT_UNSUPPORTED_NEFF_VERSION(10)", "runtime is older than the NEFF"),
        ("target", "NRT_FAILURE(6)", "compile for this machine's chips"),
        ("memory", "NRT_RESOURCE(4)", "the core has no room for it: more ranks"),
        ("world", "NRT_FAILURE(1)", "a NEFF of another number of ranks fails so"),
    ],
)
def test_failed_load_is_a_bundle_error(
    start: Start, nrtpy: Nrtpy, toys: dict[str, Toy], act: str, status: str, advice: str
):
    nrtpy.act_next(f"load:{act}@2")
    with pytest.raises(BundleError) as caught:
        on_cores(start({rank: rank + 8 for rank in RANKS}), toys["sum"])
    text = str(caught.value)
    assert text.startswith(f"load of sum, rank 2, core 10: NRT Error {status}: Failed to load")
    assert advice in text


def test_another_world_size_is_refused_by_the_runtime(start: Start, toys: dict[str, Toy]):
    with pytest.raises(BundleError, match=r"NRT_FAILURE\(1\).*another number of ranks"):
        on_cores(start(), toys["sum"], ranks=(0, 1))


def test_neff_with_other_tensors_than_the_bundle_s(
    start: Start, nrtpy: Nrtpy, toys: dict[str, Toy]
):
    nrtpy.act_next(*["load:wrong-size"] * 4)
    with pytest.raises(BundleError) as caught:
        on_cores(start(), toys["sum"])
    assert "program sum: its outputs, in bytes, are not the bundle's" in str(caught.value)
    assert "output0: 18; needed 16" in str(caught.value)


def test_neff_without_a_tensor_of_the_bundle(start: Start, toys: dict[str, Toy]):
    engine, toy = start(), toys["next"]
    wrong = interface("next", "float32[8]", "float32[8] float32[2]")
    with pytest.raises(BundleError, match="input1: 32; needed none"):
        engine.load(toy.neff, wrong, ranks=(0,))


@pytest.mark.parametrize(
    ("act", "kind", "advice"),
    [
        ("error", RunError, r"NRT_EXEC_COMPLETED_WITH_ERR\(1004\): Failed to execute model$"),
        ("bounds", RunError, r"NRT_EXEC_OOB\(1006\).*compile it again"),
        ("collective", LostError, r"NRT_EXEC_HW_ERR_COLLECTIVES\(1200\).*look at the other ranks"),
    ],
)
def test_failed_execution_ends_the_wait_for_all(
    start: Start, nrtpy: Nrtpy, toys: dict[str, Toy], act: str, kind: type[RunError], advice: str
):
    """The other ranks hang in the collective, and the failure is the one that is told."""
    nrtpy.act_next(f"execute:{act}@2")
    engine = start()
    loaded = on_cores(engine, toys["sum"])
    given = [engine.put(rows(), ranks=RANKS), engine.put(scalars(), ranks=RANKS)]
    begun = time.monotonic()
    pair, *_ = engine.call(loaded, given)
    for use in (
        lambda: engine.fetch(pair, rank=0),
        lambda: engine.wait([pair]),
        lambda: engine.call(loaded, given),
        lambda: engine.put(rows(), ranks=RANKS),
    ):
        with pytest.raises(kind, match=rf"^call of sum, rank 2, core 2: NRT Error {advice}"):
            use()
    engine.close()
    assert time.monotonic() - begun < 10


def test_rank_that_hangs_runs_into_the_runtime_s_own_limit(
    start: Start, nrtpy: Nrtpy, toys: dict[str, Toy], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "1")
    nrtpy.act_next("execute:hang@1")
    engine = start()
    loaded = on_cores(engine, toys["sum"])
    given = [engine.put(rows(), ranks=RANKS), engine.put(scalars(), ranks=RANKS)]
    pair, *_ = engine.call(loaded, given)
    with pytest.raises(RunError, match=r"rank [023], .*NRT_TIMEOUT\(5\).*NEURON_RT_EXEC_TIMEOUT"):
        engine.fetch(pair, rank=1)
    engine.close()
    assert not nrtpy.calls("reset"), "a core that hangs is left to the end of the process"


def test_memory_that_is_exhausted_by_tensors(start: Start, nrtpy: Nrtpy):
    nrtpy.act_next("allocate:memory@3")
    engine = start()
    with pytest.raises(
        RunError, match=r"^copy of float32\[4\], rank 3, core 3: .*NRT_RESOURCE\(4\).*room"
    ):
        engine.wait([engine.put(rows(), ranks=RANKS)])


def test_cores_of_another_process(start: Start, nrtpy: Nrtpy):
    with (nrtpy.folder / "core-2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(
            RunError, match=r"does not start on cores 0, 1, 2, 3, .*: NRT Error NRT_FAILURE\(1\)"
        ):
            start()
    assert not [name for name in os.environ if name.startswith("NEURON_")]


def test_one_runtime_a_process(start: Start):
    start()
    with pytest.raises(RunError, match=r"does not start on cores 0, 1, 2, 3.*already active"):
        start()


def test_nrtpy_without_its_library(start: Start, nrtpy: Nrtpy):
    text = 'raise ImportError("libnrt.so.1: cannot open shared object file")\n'
    (nrtpy.folder / "nrtpy" / "__init__.py").write_text(text)
    with pytest.raises(BundleError, match=r"libnrt\.so\.1: .*/opt/aws/neuron/lib be on LD_LIBRARY"):
        start()


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("NEURON_LOGICAL_NC_CONFIG", "1", "2"),
        ("NEURON_RT_VIRTUAL_CORE_SIZE", "1", "2"),
        ("NEURON_SCRATCHPAD_PAGE_SIZE", "512", "2048"),
        ("NEURON_RT_VISIBLE_CORES", "0-7", "0,1,2,3"),
    ],
)
def test_variable_that_the_user_has_set_otherwise(
    start: Start, nrtpy: Nrtpy, monkeypatch: pytest.MonkeyPatch, name: str, value: str, needed: str
):
    monkeypatch.setenv(name, value)
    with pytest.raises(BundleError, match=f"need {name} {needed}, found {value}: unset {name}"):
        start()
    assert os.environ[name] == value
    assert not nrtpy.calls()


def test_variable_that_the_user_has_set_as_needed_stays(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    start().close()
    assert os.environ["NEURON_LOGICAL_NC_CONFIG"] == "2"


# --- the double is strict -------------------------------------------------------------------------


@dataclass(frozen=True)
class Bare:
    """nrtpy without wanc, with the toy that has an alias on the second of two cores."""

    nrtpy: Any
    model: Any

    def tensor(self, array: np.ndarray, core_id: int = 1) -> Any:
        return self.nrtpy.NrtpyTensor.from_numpy(array, core_id=core_id)

    def ones(self) -> Any:
        return self.tensor(np.ones(1024, F32))


@pytest.fixture
def bare(nrtpy: Nrtpy, toys: dict[str, Toy], tmp_path: Path) -> Bare:
    module = importlib.import_module("nrtpy")
    module.configure(visible_cores=[2, 3])
    (tmp_path / "cache.neff").write_bytes(toys["cache"].neff)
    return Bare(module, module.NrtpyModel.load_from_neff(tmp_path / "cache.neff", core_id=1))


def test_double_runs_what_its_pages_allow(bare: Bare):
    x, cache = bare.ones(), bare.ones()
    out = bare.ones()
    assert bare.model({"input0": x, "input1": cache}, {"output0": out, "output1": cache}) is None
    assert (cache.numpy() == 2).all()
    assert {name: info.size for name, info in bare.model.input_tensors_info.items()} == {
        "input0": 4096,
        "input1": 4096,
    }


@pytest.mark.parametrize(
    ("inputs", "outputs", "kind", "says"),
    [
        ("x c", "o c z", ValueError, "Unknown output"),
        ("x", "o c", RuntimeError, r"NRT_INVALID\(2\)"),
        ("x c", "o z", RuntimeError, "output 1 is not in the memory of 1"),
        ("x c", "o o", RuntimeError, "output 0 is in memory that is used otherwise"),
        ("x c", "x c", RuntimeError, "output 0 is in memory that is used otherwise"),
        ("c c", "o c", RuntimeError, "output 1 is in memory that is used otherwise"),
        ("other c", "o c", AssertionError, "is on core 0, not 1"),
        ("short c", "o c", AssertionError, "input0 is"),
        ("half c", "o c", AssertionError, "input0 is"),
    ],
)
def test_double_refuses_what_a_device_would_do_in_silence(
    bare: Bare, inputs: str, outputs: str, kind: type[Exception], says: str
):
    known = {name: bare.ones() for name in "xcoz"}
    known["other"] = bare.tensor(np.ones(1024, F32), core_id=0)
    known["short"] = bare.tensor(np.ones(1023, F32))
    known["half"] = bare.tensor(np.ones(1024, np.int32))
    given, made = (
        {f"{side}put{k}": known[name] for k, name in enumerate(names.split())}
        for side, names in (("in", inputs), ("out", outputs))
    )
    with pytest.raises(kind, match=says):
        bare.model(given, made)


def test_double_ends_with_its_runtime(bare: Bare):
    tensor = bare.ones()
    with pytest.raises(bare.nrtpy.NrtpyError, match="already active"):
        bare.nrtpy.configure(visible_cores=[0])
    with pytest.raises(ValueError, match="1024 bytes for a tensor of 4096"):
        tensor.write_from_numpy(np.ones(256, F32))
    bare.nrtpy.reset()
    for use in (tensor.numpy, lambda: bare.model({})):
        with pytest.raises(bare.nrtpy.NrtpyError):
            use()


# --- over processes -------------------------------------------------------------------------------

PROCESS = """
import sys
from pathlib import Path
import numpy as np
from tests.cpu.test_engine import OF_SUM
from wanc.runtime.neuron import NeuronEngine

process, per, meeting, neff = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
mine = range(process * per, (process + 1) * per)
engine = NeuronEngine(
    rank_count=4,
    cores={rank: rank for rank in mine},
    environment={
        "NEURON_RT_VISIBLE_CORES": ",".join(map(str, mine)), "NEURON_RT_ROOT_COMM_ID": meeting
    },
)
ranks = (0, 1, 2, 3)
loaded = engine.load(Path(neff).read_bytes(), OF_SUM, ranks=ranks)
row = engine.put([np.arange(4, dtype=np.float32) + 10 * rank for rank in mine], ranks=ranks)
scalar = engine.put([np.array(rank, np.float32) for rank in mine], ranks=ranks)
for _ in range(5):
    pair, row, scalar = engine.call(loaded, [row, scalar])
for rank in mine:
    values = [engine.fetch(each, rank=rank).tolist() for each in (pair, row, scalar)]
    print("RANK", rank, *values, sep="|")
engine.close()
"""


@pytest.mark.parametrize("processes", [2, 4])
def test_collectives_of_several_processes(
    tmp_path: Path, toys: dict[str, Toy], processes: int
) -> None:
    """Those of one process, bit by bit; each process sees its own cores alone."""
    summed = toys["sum"]
    nrtpy = install_nrtpy(tmp_path / "nrtpy", {summed.digest: summed.executable})
    (tmp_path / "sum.neff").write_bytes(summed.neff)
    meeting, per = free_endpoint("127.0.0.1"), len(RANKS) // processes
    line = [sys.executable, "-c", PROCESS]
    running = [
        subprocess.Popen(
            [*line, str(k), str(per), meeting, str(tmp_path / "sum.neff")],
            env=nrtpy.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(processes)
    ]
    try:
        ended = [process.communicate(timeout=120) for process in running]
    finally:
        for process in running:
            process.kill()
    assert all(not process.returncode for process in running), ended
    told = sorted(line for out, _ in ended for line in out.splitlines() if line.startswith("RANK|"))
    expected = []
    for rank in RANKS:
        ring = [rows()[(member - 4) % 4] for member in RANKS]
        pair = sum(ring[member] for member in ((0, 1) if rank < 2 else (2, 3)))
        row = rows()[(rank - 5) % 4]
        expected.append(f"RANK|{rank}|{pair.tolist()}|{row.tolist()}|{float(rank * 32)}")
    assert told == expected
    assert {(c["rank_id"], c["core"], c["core_id"]) for c in nrtpy.calls("load")} == {
        (rank, rank, rank % per) for rank in RANKS
    }


# --- a bundle -------------------------------------------------------------------------------------

of_twins = pytest.mark.xdist_group("twins-runtime")
"""Of tests with the same twins, which are made once."""


@pytest.fixture(scope="module")
def twins(wanc: Wanc, shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    folder, cache = tmp_path_factory.mktemp("twins"), shared_folder / "twins"
    return make_twins(folder, wanc.checkpoint, "208x128x5", "tp2-cp2-cfg2", cache=cache)


@of_twins
def test_trn2_gives_the_bits_of_the_cpu(wanc: Wanc, twins: Twins, tmp_path: Path):
    session = wanc.session(twins.cpu)
    expected = wanc.sample(session)
    session.close()
    nrtpy = twins.nrtpy(tmp_path / "nrtpy")
    with nrtpy.imported():
        session = wanc.session(twins.trn2)
        assert session.engine.compile_count == 0
        made = wanc.sample(session)
        again = wanc.sample(session)
        session.close()
    for each in (made, again):
        np.testing.assert_array_equal(each.prompt_embeddings, expected.prompt_embeddings)
        np.testing.assert_array_equal(each.latents.numpy(), expected.latents.numpy())
        np.testing.assert_array_equal(each.pixels, expected.pixels)
    calls = nrtpy.calls()
    for core in range(8):
        mine = [call for call in calls if call.get("core") == core]
        heads = [k for k, call in enumerate(mine) if call.get("name") == "dit_head"]
        heads = [k for k in heads if mine[k]["what"] == "execute"]
        assert len(heads) == 8, "four steps, twice"
        steady = mine[heads[1] : heads[3]]
        assert not [call for call in steady if call["what"] == "allocate"]
        second = mine[heads[4] :]
        assert not [call for call in second if call["what"] == "allocate"]
    started = [call for call in calls if call["what"] == "start"]
    assert [set(call["environment"]) for call in started] == [
        {
            "NEURON_LOGICAL_NC_CONFIG",
            "NEURON_SCRATCHPAD_PAGE_SIZE",
            "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS",
            "NEURON_RT_VISIBLE_CORES",
            "NEURON_RT_ROOT_COMM_ID",
        }
    ]


@pytest.mark.parametrize(
    ("task", "shape", "count"), [("i2v", "208x128x5", 2), ("ti2v", "224x128x5", 1)]
)
def test_trn2_gives_the_bits_of_the_cpu_from_images(
    of_task: Any,
    pictures: Any,
    shared_folder: Path,
    tmp_path: Path,
    task: str,
    shape: str,
    count: int,
):
    wanc, _ = of_task(task)
    images = named_images(pictures(shape)[:count])
    cache = shared_folder / "twins"
    twins = make_twins(tmp_path, wanc.checkpoint, shape, "tp2-cp2-cfg2", cache=cache)
    session = wanc.session(twins.cpu)
    expected = wanc.sample(session, **images)
    session.close()
    with twins.nrtpy(tmp_path / "nrtpy").imported():
        session = wanc.session(twins.trn2)
        made = wanc.sample(session, **images)
        session.close()
    np.testing.assert_array_equal(made.condition, expected.condition)
    np.testing.assert_array_equal(made.latents.numpy(), expected.latents.numpy())
    np.testing.assert_array_equal(made.pixels, expected.pixels)


@of_twins
def test_bundle_without_nrtpy_or_chips_says_what_would_work(wanc: Wanc, twins: Twins):
    opened = open_bundle(twins.trn2)
    with pytest.raises(BundleError) as caught:
        load(opened, opened.variants[0].config, wanc.checkpoint)
    assert caught.value.exit_code == 5
    text = str(caught.value)
    for wanted in ("need nrtpy 2.x, as neuronx-cc, found not installed", "need Neuron cores 8"):
        assert wanted in text
    assert "wanc compile --from BUNDLE --target cpu" in text


@of_twins
def test_check_on_a_machine_with_chips(twins: Twins, tmp_path: Path):
    nrtpy = twins.nrtpy(tmp_path / "nrtpy")
    (check,) = check_bundle(open_bundle(twins.trn2), machine=nrtpy.machine)
    assert check.verdict == "ok", check.requirements
    found = {each.what: each.found for each in check.requirements}
    assert found["executables"] == "7 sound"
    assert found["Neuron cores"] == "64"
    assert (found["nrtpy"], found["libnrt"], found["chips"]) == (
        "2.35.3.0",
        "2.35.3.0",
        "Trainium2",
    )


@of_twins
def test_damaged_neff_is_refused_before_it_is_loaded(twins: Twins, tmp_path: Path):
    opened = open_bundle(twins.trn2)
    config = opened.variants[0].config
    runtime = NeuronRuntime(machine=twins.nrtpy(tmp_path / "nrtpy").machine)
    first, second, *_ = config.programs
    assert first.executable
    neff = opened.read(first.executable)
    runtime.check_executable(neff, first.program, config)
    with pytest.raises(BundleError, match="program dit_context: its interface is not"):
        runtime.check_executable(neff, second.program, config)
    with pytest.raises(BundleError, match="not a NEFF"):
        runtime.check_executable(neff[:2000], first.program, config)


def test_of_two_targets_the_one_that_runs_here_is_chosen(twins: Twins, tmp_path: Path):
    both = [open_bundle(path).variants[0].config for path in (twins.trn2, twins.cpu)]
    assert [config.variant.target for config in usable(both)] == ["cpu"]
    with twins.nrtpy(tmp_path / "nrtpy").imported():
        assert [config.variant.target for config in usable(both)] == ["trn2"]


def test_engine_needs_cores_that_the_machine_has(twins: Twins, tmp_path: Path):
    config = open_bundle(twins.trn2).variants[0].config
    nrtpy = install_nrtpy(tmp_path / "nrtpy", {}, chips=1)
    with (
        nrtpy.imported(),
        pytest.raises(BundleError, match="cores up to 7, and this machine has 4"),
    ):
        runtime_of("trn2").engine(config, Alone())

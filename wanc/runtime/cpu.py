"""Runs executables of XLA:CPU, one virtual device a rank, through jaxlib alone.

Knows nothing of models, bundles or compilers, and imports neither jax nor torch. With
cpu_coordination the only file of the run side that makes non-public calls of jaxlib.
"""

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib import _jax, xla_client
from jaxlib.version import __version__ as jaxlib_version

from wanc.arrays import aligned, give_freed_memory_back, keep_heaps_few
from wanc.bundle.xla_cpu import THREADS
from wanc.errors import BundleError, LostError, RunError
from wanc.processes.world import Alone, World
from wanc.runtime.cpu_coordination import coordinate
from wanc.runtime.engine import Buffer, Engine, Interface, Loaded, TensorType, misfits

_xla: Any = xla_client
_native: Any = _jax

_PATIENCE_FLAGS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=600",
    "--xla_cpu_collective_call_terminate_timeout_seconds=86400",
)
"""By default XLA aborts the process where ranks reach a collective a minute apart, as 64 ranks of
a large model on few cores may; that a run makes progress is for the process above to watch."""
_COMPILE_ENTRIES = (
    "compile",
    "compile_and_load",
    "compile_ifrt_program",
    "compile_and_load_ifrt_program",
)
"""Every method of XLA's client that compiles."""
_compile_calls: list[str] = []
"""Each call of one of them since the process made its first engine; it only grows."""


@dataclass(frozen=True, slots=True)
class _Aval:
    """The attributes that jaxlib reads of a jax abstract value."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    ndim: int
    weak_type: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Place:
    """Some ranks of one engine and their devices, made once: buffers and executables that belong
    together share the very object, and XLA crashes on any that do not.
    """

    ranks: tuple[int, ...]
    devices: tuple[Any, ...]
    here: tuple[int, ...]
    """Those of the ranks that this process hosts."""
    devices_here: tuple[Any, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class CpuBuffer:
    """One tensor on the devices of a place."""

    tensor: TensorType
    place: _Place
    array: Any
    """jaxlib's array of one shard a device here; None once a call has consumed it."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.place.ranks

    @property
    def consumed(self) -> bool:
        return self.array is None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CpuLoaded:
    """An XLA:CPU executable on the devices of a place."""

    interface: Interface
    place: _Place
    executable: Any
    handlers: tuple[Any, ...]
    """Per result, what turns its shards into one array: 64 ranks cost no more than one."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.place.ranks


class CpuEngine(Engine):
    """An XLA:CPU client of its own, beside any that jax may have in the process.

    Over several processes, XLA's collectives go through gloo, from the world's address.
    """

    def __init__(self, rank_count: int, world: World | None = None) -> None:
        _watch_compiles()
        keep_heaps_few()
        world = world or Alone()
        self._rank_count = rank_count
        self._local_ranks = world.hosted(rank_count)
        self._compiles_before = len(_compile_calls)
        self._coordination = coordinate(world) if world.processes > 1 else None
        with _client_environment():
            joined = self._coordination.options() if self._coordination else {}
            self._client = _xla.make_cpu_client(num_devices=len(self.local_ranks), **joined)
        self._devices = sorted(self._client.devices(), key=lambda d: (d.process_index, d.id))
        self._places: dict[tuple[int, ...], _Place] = {}
        self._in_flight: Any = None

    @property
    def rank_count(self) -> int:
        return self._rank_count

    @property
    def local_ranks(self) -> tuple[int, ...]:
        return self._local_ranks

    @property
    def compile_count(self) -> int:
        return len(_compile_calls) - self._compiles_before

    def load(self, executable: bytes, interface: Interface, *, ranks: tuple[int, ...]) -> CpuLoaded:
        place = self._place(ranks)
        try:
            loaded = self._client.deserialize_executable(
                executable, _xla.DeviceList(place.devices), _options(place)
            )
        except RuntimeError as error:
            raise BundleError(
                f"{len(executable)} bytes are not an executable of XLA:CPU that jaxlib "
                f"{jaxlib_version} can load: {error}"
            ) from error
        (module,) = loaded.hlo_modules()
        header = module.to_string().partition("\n")[0]
        if (replicas := _replica_count(header)) != len(ranks):
            raise BundleError(
                f"executable {interface.name} is compiled for {replicas} replicas, but "
                f"{len(ranks)} ranks are to run it; it needs as many ranks as replicas"
            )
        _check_interface(module, header, interface)
        return CpuLoaded(
            interface=interface,
            place=place,
            executable=loaded,
            handlers=tuple(
                _xla.array_result_handler(
                    *_label(tensor, place.devices), committed=True, _skip_checks=True
                )
                for tensor in interface.results
            ),
        )

    def put(self, shards: Sequence[np.ndarray[Any, Any]], *, ranks: Sequence[int]) -> CpuBuffer:
        place = self._place(tuple(ranks))
        shards = list(shards)
        types = [TensorType(shape=shard.shape, dtype=shard.dtype) for shard in shards]
        if len(types) != len(place.here) or len(set(types)) != 1:
            raise RunError(
                f"put: ranks {place.here} need one shard each, all of one type; "
                f"got {', '.join(map(str, types)) or 'none'}"
            )
        _native.collect_garbage()  # jaxlib frees host memory of dropped buffers only when told
        held: dict[int, np.ndarray[Any, Any]] = {}
        singles = []
        for shard, device in zip(shards, place.devices_here, strict=True):
            if id(shard) not in held:
                held[id(shard)] = aligned(shard, shard.dtype)
            label, host = _label(types[0], (device,)), held[id(shard)]
            # With x64 enabled jaxlib narrows no 64-bit shard in silence.
            singles.append(_xla.batched_device_put(*label, [host], [device], enable_x64=True))
        label = _label(types[0], place.devices)
        array = _xla.ArrayImpl(*label, singles, committed=True, _skip_checks=True)
        return CpuBuffer(tensor=types[0], place=place, array=array)

    def call(self, loaded: Loaded, inputs: Sequence[Buffer]) -> list[Buffer]:
        assert isinstance(loaded, CpuLoaded)
        if self._client is None:
            raise RunError("the engine is closed")
        name = loaded.interface.name
        taken = [_own(buffer) for buffer in inputs]
        faults = misfits(loaded, inputs)
        if not faults and any(buffer.place is not loaded.place for buffer in taken):
            faults = ["an input belongs to another engine"]
        if faults:  # XLA would not refuse: a wrong dtype runs, and most else ends the process
            raise RunError(f"call of {name} on ranks {loaded.ranks}: {'; '.join(faults)}")
        if len(loaded.ranks) > 1:
            self._land()
        try:
            results = loaded.executable.execute_sharded([buffer.array for buffer in taken])
            arrays = results.consume_with_handlers(loaded.handlers)
        except RuntimeError as error:
            raise _failed(f"call of {name} on ranks {loaded.ranks}", error) from error
        for index in loaded.interface.donated:
            taken[index].array = None
        if len(loaded.ranks) > 1 and arrays:
            self._in_flight = arrays[0]
        return [
            CpuBuffer(tensor=tensor, place=loaded.place, array=array)
            for tensor, array in zip(loaded.interface.results, arrays, strict=True)
        ]

    def wait(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            try:
                _array(buffer).block_until_ready()
            except RuntimeError as error:
                raise _failed(f"{buffer.tensor} on ranks {buffer.ranks}", error) from error

    def fetch(self, buffer: Buffer, *, rank: int) -> np.ndarray[Any, Any]:
        here = _own(buffer).place.here
        if rank not in here:
            raise RunError(f"rank {rank} holds no shard of this buffer here; ranks {here} do")
        shard = _array(buffer)._arrays[here.index(rank)]
        try:
            host, _ = shard._single_device_array_to_np_array_did_copy()
        except RuntimeError as error:
            raise _failed(f"{buffer.tensor} on rank {rank}", error) from error
        return np.array(host)  # jaxlib gives a view, under which the device memory could be reused

    def give_back(self) -> None:
        _native.collect_garbage()
        give_freed_memory_back()

    def close(self) -> None:
        self._client = self._in_flight = None
        self._devices.clear()
        self._places.clear()
        _native.collect_garbage()
        if self._coordination:
            self._coordination.close()
            self._coordination = None

    def _land(self) -> None:
        """Wait for the last call on several ranks, so that one of them at most is in flight.

        With two, ranks that wait in collectives of the second can hold every thread of XLA's pool
        while the first still needs one; and to use results of a failed call is to hang.
        """
        last, self._in_flight = self._in_flight, None
        if last is not None:
            try:
                last.block_until_ready()
            except RuntimeError as error:
                raise _failed("an earlier call failed", error) from error

    def _place(self, ranks: tuple[int, ...]) -> _Place:
        if self._client is None:
            raise RunError("the engine is closed")
        if ranks not in self._places:
            known = set(ranks) & set(range(self.rank_count))
            if not ranks or len(known) < len(ranks):
                raise RunError(
                    f"ranks {ranks}: need distinct ranks among the {self.rank_count} of this engine"
                )
            here = tuple(rank for rank in ranks if rank in self.local_ranks)
            self._places[ranks] = _Place(
                ranks=ranks,
                devices=tuple(self._devices[rank] for rank in ranks),
                here=here,
                devices_here=tuple(self._devices[rank] for rank in here),
            )
        return self._places[ranks]


@contextlib.contextmanager
def _client_environment() -> Iterator[None]:
    """What XLA reads as it makes its client: the patience flags, before the user's own, and the
    size of its thread pool, a thread per device at least.

    It reads the flags once a process, and no option of a load can set either.
    """
    given = {name: os.environ.get(name) for name in ("XLA_FLAGS", "NPROC")}
    os.environ["XLA_FLAGS"] = " ".join([*_PATIENCE_FLAGS, given["XLA_FLAGS"] or ""])
    os.environ["NPROC"] = str(THREADS)
    try:
        yield
    finally:
        for name, value in given.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _label(tensor: TensorType, devices: tuple[Any, ...]) -> tuple[_Aval, Any]:
    """Type and sharding under which jaxlib files one shard a device: stacked on dim 0.

    Shards differ between ranks. Under a replicated sharding, which alone keeps the shape as it is,
    jaxlib may take the first rank's shard for every rank's.
    """
    if len(devices) == 1:
        shape, tiles = tensor.shape, _xla.HloSharding.replicate()
    else:
        first, *rest = tensor.shape or (1,)
        shape = (first * len(devices), *rest)
        tiles = _xla.HloSharding.iota_tile((len(devices), *(1 for _ in rest)))
    return _Aval(shape, tensor.dtype, len(shape)), _xla.GSPMDSharding(devices, tiles)


def _options(place: _Place) -> Any:
    """Options that put replica ``i`` on the place's device ``i``."""
    options = _xla.CompileOptions()
    for part in (options, options.executable_build_options):
        part.num_replicas = len(place.devices)
        part.num_partitions = 1
    ids = np.array([[device.id] for device in place.devices])
    options.executable_build_options.device_assignment = _xla.DeviceAssignment.create(ids)
    return options


def _replica_count(header: str) -> int:
    """From the first line of an HLO module's text. XLA loads any count on any devices, unasked."""
    found = re.search(r"\breplica_count=(\d+)", header)
    return int(found[1]) if found else 1


def _check_interface(module: Any, header: str, interface: Interface) -> None:
    """Raise BundleError where an HLO module takes or gives other tensors than the bundle says."""
    shape = _xla.XlaComputation(module.as_serialized_hlo_module_proto()).program_shape()
    result = shape.result_shape()
    results = result.tuple_shapes() if result.is_tuple() else [result]
    found = [
        [TensorType(shape=tuple(s.dimensions()), dtype=s.numpy_dtype()) for s in shapes]
        for shapes in (shape.parameter_shapes(), results)
    ]
    needed = [list(interface.parameters), list(interface.results)]
    for kind, have, want in zip(("parameters", "results"), found, needed, strict=True):
        if have != want:
            raise BundleError(
                f"executable {interface.name} has {kind} {', '.join(map(str, have))}; the bundle "
                f"says {', '.join(map(str, want))}"
            )
    if (aliases := _aliases(header)) != interface.aliases:
        raise BundleError(
            f"executable {interface.name} reuses the memory of parameters {aliases}; the bundle "
            f"says {interface.aliases}"
        )


def _aliases(header: str) -> tuple[tuple[int, int], ...]:
    """Parameters and results in ``input_output_alias={ {0}: (2, {}, may-alias) }``."""
    found = re.findall(r"\{(\d*)\}: \((\d+), \{\}, (?:may|must)-alias", header)
    return tuple(sorted((int(parameter), int(result or 0)) for result, parameter in found))


def _failed(what: str, error: RuntimeError) -> RunError:
    """What XLA reports; gloo fails where the other end of a connection is gone."""
    kind = LostError if "gloo" in str(error).lower() else RunError
    return kind(f"{what}: {error}")


def _own(buffer: Buffer) -> CpuBuffer:
    assert isinstance(buffer, CpuBuffer)
    return buffer


def _array(buffer: Buffer) -> Any:
    """jaxlib's array behind a buffer that no call has consumed."""
    if buffer.consumed:
        raise RunError(f"{buffer.tensor} on ranks {buffer.ranks} was consumed by a call")
    return _own(buffer).array


def _watch_compiles() -> None:
    """Note each compilation of this process from now on, by whichever client.

    jaxlib keeps no count, so the methods of its client class that compile are wrapped, once a
    process. jax compiles through the same methods. Loading an executable compiles nothing: XLA's
    own trace of a load has no compile event (a test looks).
    """
    for name in _COMPILE_ENTRIES:
        method = getattr(_xla.Client, name)
        if not hasattr(method, "__wrapped__"):
            setattr(_xla.Client, name, _noting(method))


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def noted(*args: Any, **kwargs: Any) -> Any:
        _compile_calls.append(method.__name__)
        return method(*args, **kwargs)

    return noted

"""A double of nrtpy, AWS's Python layer over the Neuron runtime: its cores are those of XLA:CPU.

Installed as the package ``nrtpy`` by tests.doubles.neuron, beside ``executables.json``, which has
an executable of XLA:CPU for the digest of each NEFF. Follows AWS's pages of nrtpy, and where they
are silent the public program that nrtpy grew from (spike, in nkipy); shares no code with wanc.
Strict where a device would be wrong in silence: names, shapes, dtypes and cores of tensors, memory
that is shared without the NEFF's leave or used by two threads at once.

In the package's parent folder: ``behaviour.json``, a list of what happens next, and
``calls.jsonl``, a line for everything that was done. An entry ``load:memory@3`` is for rank 3.

- load: features, target, memory, world, aliased (names inputs as nkipy's NEFFs do), wrong-size
- allocate: memory
- execute: error, bounds, collective, hang, ``slow SECONDS``
- ``ok``, for any of them, is what happens without an entry
"""

import fcntl
import hashlib
import io
import json
import os
import re
import struct
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes  # noqa: F401  names bfloat16 to numpy
import numpy as np

T = TypeVar("T")

FOLDER = Path(__file__).parent.parent
THREADS = "8"
"""Of XLA's pool: with another number its bits are others."""
XLA_FLAGS = "--xla_cpu_collective_call_terminate_timeout_seconds=86400"
STATUSES = {
    1: "NRT_FAILURE",
    2: "NRT_INVALID",
    4: "NRT_RESOURCE",
    5: "NRT_TIMEOUT",
    10: "NRT_UNSUPPORTED_NEFF_VERSION",
    1004: "NRT_EXEC_COMPLETED_WITH_ERR",
    1006: "NRT_EXEC_OOB",
    1200: "NRT_EXEC_HW_ERR_COLLECTIVES",
}
LOAD_FAILURES = {"features": 10, "memory": 4, "world": 1}
EXECUTE_FAILURES = {"error": 1004, "bounds": 1006, "collective": 1200}


class NrtpyError(RuntimeError):
    """What nrtpy itself refuses."""


class NrtError(RuntimeError):
    """What libnrt refuses; the text has the status."""


def nrt_error(status: int, doing: str, name: str = "") -> NrtError:
    return NrtError(f"NRT Error {name or STATUSES[status]}({status}): {doing}")


def note(what: str, **particulars: Any) -> None:
    """Add a line to the list of calls."""
    line = json.dumps({"what": what, "pid": os.getpid(), **particulars})
    with (FOLDER / "calls.jsonl").open("a") as calls:
        fcntl.flock(calls, fcntl.LOCK_EX)
        calls.write(line + "\n")


def next_act(kind: str, rank: int) -> str:
    """Take what is next for a kind of call on a rank off the list."""
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = FOLDER / "behaviour.json"
        acts = json.loads(path.read_text())
        for place, entry in enumerate(acts):
            asked, _, act = entry.partition(":")
            act, _, whose = act.partition("@")
            if asked == kind and whose in ("", str(rank)):
                path.write_text(json.dumps(acts[:place] + acts[place + 1 :]))
                return act
    return "ok"


# --- the runtime ----------------------------------------------------------------------------------


class Runtime:
    """libnrt of one process: the cores that it took, and XLA's clients that stand for them."""

    def __init__(self) -> None:
        self.closed = False
        self.cores = visible_cores()
        self.lnc = int(os.environ.get("NEURON_LOGICAL_NC_CONFIG", "2"))
        self.locks = [take_core(core) for core in self.cores]
        self.meeting = threading.Condition()
        self.waiting: dict[int, Part] = {}
        self._local: Any = None
        self._joined: Joined | None = None
        self._making = threading.Lock()
        set_now = {k: v for k, v in os.environ.items() if k.startswith("NEURON_")}
        note("start", cores=self.cores, environment=set_now)

    def check_core(self, core_id: int) -> None:
        if not 0 <= core_id < len(self.cores):
            raise nrt_error(2, f"no core {core_id} among {len(self.cores)} that are visible")

    def local(self) -> Any:
        """A client with a device for each core of this process."""
        with self._making:
            if self._local is None:
                self._local = make_client(len(self.cores))
            return self._local

    def joined(self, rank: int, world: int) -> Any:
        """A client with a device for each rank, of all processes."""
        with self._making:
            if self._joined is None:
                self._joined = Joined(rank // len(self.cores), world // len(self.cores))
                self._joined.client = make_client(len(self.cores), self._joined.options())
            return self._joined.client

    def close(self) -> int:
        self.closed = True
        if self._joined:
            self._joined.leave()
        for lock in self.locks:
            lock.close()
        note("reset")
        return 0

    def free_tensor(self, tensor: "NrtpyTensor") -> None:
        tensor.tensor_ref.freed = True


class Joined:
    """XLA's coordination of several processes, at the address that the ranks are told."""

    def __init__(self, node: int, nodes: int) -> None:
        from jaxlib import _jax

        self.node, self.nodes, self.client = node, nodes, None
        endpoint = os.environ.get("NEURON_RT_ROOT_COMM_ID", "")
        if ":" not in endpoint:
            raise nrt_error(1, "Failed to load model: no root communicator")
        self.host = endpoint.rpartition(":")[0]
        self.service = None
        if node == 0:
            self.service = _jax.get_distributed_runtime_service(
                endpoint, nodes, heartbeat_timeout=1 << 30, shutdown_timeout=10
            )
        self.agent = _jax.get_distributed_runtime_client(
            endpoint,
            node,
            init_timeout=60,
            shutdown_timeout=10,
            heartbeat_timeout=1 << 30,
            missed_heartbeat_callback=lambda status: None,
            shutdown_on_destruction=False,
            use_compression=False,
        )
        self.agent.connect()

    def options(self) -> dict[str, Any]:
        from jaxlib import _jax

        return {
            "distributed_client": self.agent,
            "node_id": self.node,
            "num_nodes": self.nodes,
            "collectives": _jax.make_gloo_tcp_collectives(
                distributed_client=self.agent, hostname=self.host
            ),
        }

    def leave(self) -> None:
        with suppress(RuntimeError):  # of a process that is gone
            self.agent.shutdown()
        if self.service:
            self.service.shutdown()


_runtime: Runtime | None = None
_lock = threading.Lock()


def get_nrtpy_singleton() -> Runtime:
    """The process's runtime, started if it is not yet."""
    global _runtime
    with _lock:
        if _runtime is None:
            _runtime = Runtime()
        return _runtime


def configure(visible_cores: Iterable[int] | None = None) -> None:
    """Which cores of the machine the runtime sees, counted from 0 in ``core_id``."""
    with _lock:
        if _runtime is not None:
            raise NrtpyError("Cannot configure: the runtime is already active; reset() it first")
    if visible_cores is None:
        return
    if isinstance(visible_cores, int):
        raise TypeError("visible_cores must be an iterable, not int")
    cores = list(visible_cores)
    for core in cores:
        if type(core) is not int:
            raise TypeError(f"visible_cores must contain integers, got {core!r}")
        if core < 0:
            raise ValueError(f"core {core} is negative")
    os.environ["NEURON_RT_VISIBLE_CORES"] = ",".join(map(str, cores))
    note("configure", cores=cores)


def reset() -> None:
    """Close the runtime; its tensors and models are of no use afterwards."""
    global _runtime
    with _lock:
        if _runtime is not None:
            _runtime.close()
            _runtime = None


def visible_cores() -> list[int]:
    text = os.environ.get("NEURON_RT_VISIBLE_CORES", "0")
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    if len(set(found)) != len(found):
        raise nrt_error(2, f"Failed to initialize NRT runtime: cores {text}")
    return found


def take_core(core: int) -> Any:
    """A core belongs to one process at a time."""
    lock = (FOLDER / f"core-{core}.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print(f"NRT:nrt_allocate_neuron_cores core {core} is not available", file=sys.stderr)
        raise nrt_error(1, "Failed to initialize NRT runtime") from None
    return lock


# --- tensors --------------------------------------------------------------------------------------


class TensorRef:
    """Memory on a core."""

    def __init__(self, runtime: Runtime, core_id: int, size: int) -> None:
        self.runtime, self.core_id, self.size = runtime, core_id, size
        self.data = np.full(size, 0xA5, np.uint8)
        self.freed = False
        self.readers, self.writers = 0, 0

    def check(self) -> None:
        if self.freed or self.runtime.closed:
            raise NrtpyError("the tensor is freed, or its runtime closed")


_using = threading.Lock()


@contextmanager
def used(reads: Iterable[TensorRef], writes: Iterable[TensorRef]) -> Any:
    """While it lasts, nobody else writes to either, or reads what is written."""
    reads, writes = set(reads) - set(writes), set(writes)
    with _using:
        if any(ref.writers for ref in reads | writes) or any(ref.readers for ref in writes):
            raise NrtpyError("double: memory is used by two threads at once, and one writes")
        for ref in reads:
            ref.readers += 1
        for ref in writes:
            ref.writers += 1
    try:
        yield
    finally:
        with _using:
            for ref in reads:
                ref.readers -= 1
            for ref in writes:
                ref.writers -= 1


class NrtpyTensor:
    """A tensor in a core's memory."""

    def __init__(
        self, tensor_ref: TensorRef, shape: Any, dtype: Any, name: str | None = None
    ) -> None:
        self.tensor_ref = tensor_ref
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype, self.name = np.dtype(dtype), name

    @classmethod
    def from_numpy(
        cls, array: np.ndarray, name: str | None = None, core_id: int = 0
    ) -> "NrtpyTensor":
        runtime = get_nrtpy_singleton()
        runtime.check_core(core_id)
        if next_act("allocate", runtime.cores[core_id]) == "memory":
            raise nrt_error(4, "Failed to allocate tensor")
        made = cls(TensorRef(runtime, core_id, array.nbytes), array.shape, array.dtype, name)
        note(
            "allocate",
            core=runtime.cores[core_id],
            shape=array.shape,
            dtype=str(array.dtype),
            bytes=array.nbytes,
        )
        made._copy(array)
        return made

    def write_from_numpy(self, array: np.ndarray) -> None:
        if array.nbytes != self.tensor_ref.size:
            raise ValueError(f"{array.nbytes} bytes for a tensor of {self.tensor_ref.size}")
        note("write", core=self._core(), bytes=array.nbytes)
        self._copy(array)

    def numpy(self) -> np.ndarray:
        self.tensor_ref.check()
        note("read", core=self._core(), bytes=self.tensor_ref.size)
        with used([self.tensor_ref], []):
            return self.tensor_ref.data.copy().view(self.dtype).reshape(self.shape)

    def _copy(self, array: np.ndarray) -> None:
        self.tensor_ref.check()
        with used([], [self.tensor_ref]):
            self.tensor_ref.data[:] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)

    def _core(self) -> int:
        return self.tensor_ref.runtime.cores[self.tensor_ref.core_id]


# --- models ---------------------------------------------------------------------------------------


@dataclass
class TensorMetadata:
    """What is known of a tensor of a NEFF."""

    shape: list[int]
    size: int
    dtype: str


@dataclass(eq=False)
class Executable:
    """The program of XLA:CPU that stands for a NEFF."""

    data: bytes
    replicas: int
    parameters: list[tuple[tuple[int, ...], np.dtype]]
    results: list[tuple[tuple[int, ...], np.dtype]]
    aliases: dict[int, int]
    """Result -> parameter."""
    loaded: dict[Any, Any] = field(default_factory=dict)
    loading: threading.Lock = field(default_factory=threading.Lock)

    def on(self, client: Any, devices: list) -> Any:
        """Loaded on devices, once."""
        key = (id(client), *(device.id for device in devices))
        with self.loading:
            if key not in self.loaded:
                self.loaded[key] = deserialize(client, self.data, devices)
            return self.loaded[key]


@dataclass(eq=False)
class Part:
    """One core's part in a call of several."""

    model: "NrtpyModel"
    arrays: list[np.ndarray]
    results: list[np.ndarray] | None = None
    error: Exception | None = None


class NrtpyModel:
    """A NEFF on a core."""

    def __init__(self, runtime: Runtime, name: str, digest: str, how: dict[str, Any]) -> None:
        self.runtime, self.name, self.digest = runtime, name, digest
        self.core_id, self.collective = how["core_id"], how["cc_enabled"]
        self.rank_id, self.world_size = how["rank_id"], how["world_size"]
        self.executable: Executable
        self.input_tensors_info: dict[str, TensorMetadata] = {}
        self.output_tensors_info: dict[str, TensorMetadata] = {}

    @classmethod
    def load_from_neff(
        cls,
        neff_path: Path | str,
        name: str | None = None,
        core_id: int = 0,
        cc_enabled: bool = False,
        rank_id: int = 0,
        world_size: int = 1,
    ) -> "NrtpyModel":
        runtime, path = get_nrtpy_singleton(), Path(neff_path)
        runtime.check_core(core_id)
        if not path.is_file():
            raise nrt_error(1, "Failed to load model")
        data = path.read_bytes()
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        how = {
            "core_id": core_id,
            "cc_enabled": cc_enabled,
            "rank_id": rank_id,
            "world_size": world_size,
        }
        model = cls(runtime, name or path.stem, digest, how)
        act = next_act("load", model.rank)
        note("load", act=act, path=str(path), name=model.name, neff=digest, core=model.core, **how)
        if act == "target":
            raise nrt_error(6, "Failed to load model", name="NRT_FAILURE")
        if act == "features":
            print("NEFF:neff_parse features: 0x100 are not supported", file=sys.stderr, flush=True)
        if act in LOAD_FAILURES:
            raise nrt_error(LOAD_FAILURES[act], "Failed to load model")
        model._take(data, aliased=act == "aliased", wrong=act == "wrong-size")
        return model

    @property
    def core(self) -> int:
        """Its core's number on the machine."""
        return self.runtime.cores[self.core_id]

    @property
    def rank(self) -> int:
        """Of a program of one rank, that which shares its number with the core."""
        return self.rank_id if self.collective else self.core

    def _take(self, data: bytes, *, aliased: bool, wrong: bool) -> None:
        names, lnc = interface_of(data)
        if lnc != self.runtime.lnc:
            raise nrt_error(2, f"Failed to load model: LNC {lnc} on cores of {self.runtime.lnc}")
        self.executable = made = executable_of(self.digest)
        replicas = self.world_size if self.collective else 1
        if made.replicas != replicas or not 0 <= self.rank_id < replicas:
            raise nrt_error(1, "Failed to load model")
        if replicas > len(self.runtime.cores):  # ranks of several processes meet as they load
            self.runtime.joined(self.rank_id, replicas)
        kept = set(made.aliases.values())
        for position, (name, size) in enumerate(names["input"]):
            shown = f"{name}.must_alias_input" if aliased and position in kept else name
            self.input_tensors_info[shown] = metadata(made.parameters[position], size)
        for position, (name, size) in enumerate(names["output"]):
            self.output_tensors_info[name] = metadata(made.results[position], size + 2 * wrong)

    def __call__(
        self,
        inputs: Mapping[str, NrtpyTensor],
        outputs: Mapping[str, NrtpyTensor] | None = None,
        save_trace: bool = False,
        ntff_name: str | None = None,
    ) -> dict[str, NrtpyTensor] | None:
        if self.runtime.closed:
            raise NrtpyError("the model's runtime is closed")
        made = self._allocated() if outputs is None else outputs
        given_refs = self._checked("input", inputs, self.input_tensors_info)
        made_refs = self._checked("output", made, self.output_tensors_info)
        self._check_memory(given_refs, made_refs)
        act = next_act("execute", self.rank)
        note("execute", act=act, name=self.name, neff=self.digest, core=self.core, rank=self.rank)
        with used(given_refs, made_refs):
            self._act_out(act)
            shapes = self.executable.parameters
            arrays = [
                ref.data.view(kind).reshape(shape)
                for ref, (shape, kind) in zip(given_refs, shapes, strict=True)
            ]
            for ref, result in zip(made_refs, self._run(arrays), strict=True):
                ref.data[:] = np.frombuffer(result.tobytes(), np.uint8)
        return dict(made) if outputs is None else None

    def _act_out(self, act: str) -> None:
        if act == "hang":
            threading.Event().wait(600)
        if act.startswith("slow"):
            time.sleep(float(act.split()[1]))
        if act in EXECUTE_FAILURES:
            raise nrt_error(EXECUTE_FAILURES[act], "Failed to execute model")

    def _allocated(self) -> dict[str, NrtpyTensor]:
        """libnrt does not report dtypes."""
        return {
            name: NrtpyTensor.from_numpy(
                np.zeros(info.shape, f"V{np.dtype(info.dtype).itemsize}"), name, self.core_id
            )
            for name, info in self.output_tensors_info.items()
        }

    def _checked(
        self, kind: str, given: Mapping[str, NrtpyTensor], known: dict[str, TensorMetadata]
    ) -> list[TensorRef]:
        """The memory of all tensors, in the NEFF's order."""
        unknown = set(given) - set(known)
        if unknown:
            raise ValueError(f"Unknown {kind}(s) {unknown} for model {self.name!r}: {[*known]}")
        if missing := set(known) - set(given):
            raise nrt_error(2, f"Failed to execute model: no {kind} {missing}")
        for name, info in known.items():
            tensor = given[name]
            assert type(tensor) is NrtpyTensor, f"{kind} {name} is a {type(tensor)}"
            tensor.tensor_ref.check()
            place, needed = tensor.tensor_ref.core_id, (tuple(info.shape), np.dtype(info.dtype))
            assert place == self.core_id, f"{kind} {name} is on core {place}, not {self.core_id}"
            void = tensor.dtype.kind == "V" and tensor.dtype.itemsize == needed[1].itemsize
            have = (tensor.shape, needed[1] if void and kind == "output" else tensor.dtype)
            assert have == needed, f"{kind} {name} is {have}, not {needed}"
        return [given[name].tensor_ref for name in known]

    def _check_memory(self, given: list[TensorRef], made: list[TensorRef]) -> None:
        """An output has the memory of the input that the NEFF names, and no other's."""
        for result, ref in enumerate(made):
            parameter = self.executable.aliases.get(result)
            if parameter is not None and given[parameter] is not ref:
                raise NrtpyError(f"double: output {result} is not in the memory of {parameter}")
            if given.count(ref) != (parameter is not None) or made.count(ref) > 1:
                raise NrtpyError(f"double: output {result} is in memory that is used otherwise")

    def _run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        if self.world_size == 1:
            client = self.runtime.local()
            devices = [devices_of(client)[self.core_id]]
            return execute(self.executable.on(client, devices), [arrays], devices, devices)[0]
        return self._meet(Part(self, arrays))

    def _meet(self, part: Part) -> list[np.ndarray]:
        """Once every core of this process has come, one thread runs the call for all."""
        runtime, deadline = self.runtime, time.monotonic() + exec_timeout()
        with runtime.meeting:
            runtime.waiting[self.rank_id] = part
            here = ranks_here(self)
            parts = [runtime.waiting.get(rank) for rank in here]
            if all(each and each.model.digest == self.digest for each in parts):
                self._run_all([each for each in parts if each], deadline)
                for rank in here:
                    del runtime.waiting[rank]
                runtime.meeting.notify_all()
            while part.results is None and part.error is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    runtime.waiting.pop(self.rank_id, None)
                    raise nrt_error(5, "Failed to execute model")
                runtime.meeting.wait(left)
        if part.error:
            raise part.error
        assert part.results is not None
        return part.results

    def _run_all(self, parts: list[Part], deadline: float) -> None:
        runtime, world = self.runtime, self.world_size
        several = world > len(runtime.cores)
        client = runtime.joined(self.rank_id, world) if several else runtime.local()
        devices = devices_of(client)[:world]
        mine = [devices[each.model.rank_id] for each in parts]
        try:
            loaded = self.executable.on(client, devices)
            run = partial(execute, loaded, [each.arrays for each in parts], devices, mine)
            for each, result in zip(parts, until(deadline, run), strict=True):
                each.results = result
        except Exception as error:
            for each in parts:
                each.error = error


def ranks_here(model: NrtpyModel) -> list[int]:
    """The ranks of a model's call that this process hosts: as many as it sees cores, in order."""
    cores = len(model.runtime.cores)
    first = model.rank_id // cores * cores
    return list(range(first, min(first + cores, model.world_size)))


def exec_timeout() -> float:
    return float(os.environ.get("NEURON_RT_EXEC_TIMEOUT", "30"))


def metadata(tensor: tuple[tuple[int, ...], np.dtype], size: int) -> TensorMetadata:
    shape, dtype = tensor
    return TensorMetadata(shape=list(shape), size=size, dtype=dtype.name)


def interface_of(neff: bytes) -> tuple[dict[str, list[tuple[str, int]]], int]:
    """Names and sizes of inputs and outputs by their numbers, and the LNC."""
    (lnc,) = struct.unpack_from("<I", neff, 552)
    found: dict[str, list[tuple[str, int]]] = {"input": [], "output": []}
    with tarfile.open(fileobj=io.BytesIO(neff[1024:]), mode="r:gz") as tar:
        definition = tar.extractfile("sg00/def.json")
        assert definition is not None
        variables = json.load(definition)["var"]
    for name, variable in variables.items():
        if variable["type"] in found:
            found[variable["type"]].append((name, variable["size"]))
    for tensors in found.values():
        tensors.sort(key=lambda each: int(re.sub(r"\D", "", each[0])))
    return found, lnc


# --- XLA:CPU --------------------------------------------------------------------------------------


_executables: dict[str, Executable] = {}


def executable_of(digest: str) -> Executable:
    with _lock:
        if digest not in _executables:
            known = json.loads((FOLDER / "executables.json").read_text())
            if digest not in known:
                raise nrt_error(2, "Failed to load model: the double has no program for this NEFF")
            _executables[digest] = read_executable(Path(known[digest]).read_bytes())
        return _executables[digest]


def read_executable(data: bytes) -> Executable:
    """What a serialized executable takes and gives, from one load on devices of its own."""
    from jaxlib import xla_client

    client = make_client(1)
    (module,) = deserialize(client, data, devices_of(client)).hlo_modules()
    header = module.to_string().partition("\n")[0]
    computation = xla_client.XlaComputation(module.as_serialized_hlo_module_proto())
    shape = computation.program_shape()
    result = shape.result_shape()
    results = result.tuple_shapes() if result.is_tuple() else [result]
    pairs = re.findall(r"\{(\d*)\}: \((\d+), \{\}, (?:may|must)-alias", header)
    replicas = re.search(r"replica_count=(\d+)", header)
    return Executable(
        data=data,
        replicas=int(replicas[1]) if replicas else 1,
        parameters=[(tuple(s.dimensions()), s.numpy_dtype()) for s in shape.parameter_shapes()],
        results=[(tuple(s.dimensions()), s.numpy_dtype()) for s in results],
        aliases={int(result or 0): int(parameter) for result, parameter in pairs},
    )


def make_client(devices: int, joined: dict[str, Any] | None = None) -> Any:
    from jaxlib import xla_client

    before = {name: os.environ.get(name) for name in ("NPROC", "XLA_FLAGS")}
    os.environ |= {"NPROC": THREADS, "XLA_FLAGS": f"{XLA_FLAGS} {before['XLA_FLAGS'] or ''}"}
    try:
        return xla_client.make_cpu_client(num_devices=devices, **(joined or {}))
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def devices_of(client: Any) -> list:
    return sorted(client.devices(), key=lambda device: (device.process_index, device.id))


def deserialize(client: Any, data: bytes, devices: list) -> Any:
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    for part in (options, options.executable_build_options):
        part.num_replicas, part.num_partitions = len(devices), 1
    ids = np.array([[device.id] for device in devices])
    options.executable_build_options.device_assignment = xla_client.DeviceAssignment.create(ids)
    return client.deserialize_executable(data, xla_client.DeviceList(tuple(devices)), options)


@dataclass
class Aval:
    """What jaxlib reads of an array's type."""

    shape: tuple[int, ...]
    dtype: np.dtype
    ndim: int
    weak_type: bool = False


def stacked(shape: tuple[int, ...], dtype: np.dtype, devices: list) -> tuple[Aval, Any]:
    """The type and sharding of one shard a device, along the first dimension."""
    from jaxlib import xla_client

    first, *rest = shape or (1,)
    whole = (first * len(devices), *rest) if len(devices) > 1 else shape
    tiles = xla_client.HloSharding.replicate()
    if len(devices) > 1:
        tiles = xla_client.HloSharding.iota_tile((len(devices), *(1 for _ in rest)))
    return Aval(whole, dtype, len(whole)), xla_client.GSPMDSharding(tuple(devices), tiles)


def execute(
    loaded: Any, given: list[list[np.ndarray]], devices: list, mine: list
) -> list[list[np.ndarray]]:
    """One call: what each of this process's devices is given, and what each gives."""
    from jaxlib import _jax, xla_client

    _jax.collect_garbage()  # of earlier calls' arguments
    arguments = []
    for shards in zip(*given, strict=True):
        singles = []
        for shard, device in zip(shards, mine, strict=True):
            own = stacked(shard.shape, shard.dtype, [device])
            put = xla_client.batched_device_put(*own, [shard.copy()], [device], enable_x64=True)
            singles.append(put)
        whole = stacked(shards[0].shape, shards[0].dtype, devices)
        arguments.append(xla_client.ArrayImpl(*whole, singles, committed=True, _skip_checks=True))
    parts = loaded.execute_sharded(arguments).disassemble_into_single_device_arrays()
    return [[np.array(arrays[k]) for arrays in parts] for k in range(len(mine))]


def until(deadline: float, run: Callable[[], T]) -> T:
    """What a call gives; NRT_TIMEOUT where another process keeps it waiting for too long."""
    found: list[T] = []
    errors: list[Exception] = []

    def keep() -> None:
        try:
            found.append(run())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    if not found:
        raise nrt_error(5, "Failed to execute model")
    return found[0]

"""Runs NEFFs on NeuronCores, through nrtpy, AWS's Python layer over its runtime.

Knows nothing of models, bundles or compilers. Follows AWS's pages of nrtpy and, where they are
silent, the public program that nrtpy grew from (spike, in nkipy). It was tried with a double of
nrtpy, and has met no device.
"""

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from wanc.arrays import give_freed_memory_back
from wanc.bundle.neff_names import ALIASED, input_name, output_name
from wanc.errors import BundleError, RunError
from wanc.runtime.engine import Buffer, Interface, Loaded, TensorType, misfits
from wanc.runtime.neuron_cores import Core, Failure, Memory, leave
from wanc.runtime.neuron_environment import set_variables, unset_variables
from wanc.runtime.neuron_status import blame


@dataclass(slots=True, kw_only=True, eq=False)
class NeuronBuffer:
    """One tensor on cores of this process. Whoever lets go of it lets go of the memory."""

    tensor: TensorType
    ranks: tuple[int, ...]
    memory: dict[int, Memory]
    """By hosted rank; none once a call has consumed it."""
    ready: tuple["Future[Any]", ...] = ()
    """The tasks that write it."""
    consumed: bool = False

    def hand_over(self) -> None:
        """Mark it as consumed: its memory is another buffer's now."""
        self.memory, self.consumed = {}, True

    def __del__(self) -> None:
        for memory in self.memory.values():
            memory.free()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NeuronLoaded:
    """A NEFF on its cores."""

    interface: Interface
    ranks: tuple[int, ...]
    models: dict[int, Any]
    """nrtpy's models, by hosted rank."""
    inputs: tuple[str, ...]
    """What the NEFF calls the parameters."""
    outputs: tuple[str, ...]


class NeuronEngine:
    """nrtpy's one runtime of this process, on a core for each rank that the process hosts."""

    def __init__(
        self, *, rank_count: int, cores: Mapping[int, int], environment: Mapping[str, str]
    ) -> None:
        """Take the cores; environment is what the runtime must find set.

        cores are the machine's numbers of them, by hosted rank. Raises BundleError where the user
        has set other variables or nrtpy cannot be imported, RunError where the runtime does not
        start.
        """
        self.rank_count, self.local_ranks = rank_count, tuple(cores)
        visible = sorted(cores.values())
        with ExitStack() as undo:
            undo.callback(unset_variables, set_variables(environment))
            self._nrtpy = _started(visible)
            self._undo = undo.pop_all()
        self._failure = Failure()
        self._closed = False
        self._cores = {
            rank: Core(
                rank=rank,
                number=number,
                index=visible.index(number),
                tensors=self._nrtpy.NrtpyTensor,
                failure=self._failure,
            )
            for rank, number in cores.items()
        }

    @property
    def compile_count(self) -> int:
        """None: nrtpy loads what was compiled, and has no compiler that it could call."""
        return 0

    def load(
        self, executable: bytes, interface: Interface, *, ranks: tuple[int, ...]
    ) -> NeuronLoaded:
        title = f"program {interface.name}"
        cores = self._hosted(ranks)
        try:
            with tempfile.TemporaryDirectory(prefix="wanc-") as folder:  # for this user's eyes
                neff = Path(folder) / "program.neff"
                neff.write_bytes(executable)
                models = self._loads(neff, interface, ranks, cores)
        except OSError as error:
            raise RunError(f"{title}: its NEFF cannot be handed over: {error}") from error
        return NeuronLoaded(
            interface=interface,
            ranks=ranks,
            models=models,
            inputs=_names(title, "input", models, input_name, interface.parameters),
            outputs=_names(title, "output", models, output_name, interface.results),
        )

    def _loads(
        self, neff: Path, interface: Interface, ranks: tuple[int, ...], cores: list[Core]
    ) -> dict[int, Any]:
        """On all cores at once, for ranks of collectives may wait for each other as they load."""

        def load(core: Core) -> Any:
            group = {
                "cc_enabled": True,
                "rank_id": ranks.index(core.rank),
                "world_size": len(ranks),
            }
            return self._nrtpy.NrtpyModel.load_from_neff(
                neff, name=interface.name, core_id=core.index, **(group if len(ranks) > 1 else {})
            )

        what = f"load of {interface.name}"
        begun = {core.rank: core.run(partial(load, core), what, BundleError) for core in cores}
        return {rank: self._failure.settle(model) for rank, model in begun.items()}

    def put(self, shards: Sequence[np.ndarray[Any, Any]], *, ranks: Sequence[int]) -> NeuronBuffer:
        cores = self._hosted(tuple(ranks))
        kinds = [TensorType(shape=shard.shape, dtype=shard.dtype) for shard in shards]
        if len(kinds) != len(cores) or len(set(kinds)) != 1:
            raise RunError(
                f"put: ranks {tuple(core.rank for core in cores)} need one shard each, all of one "
                f"type; got {', '.join(map(str, kinds)) or 'none'}"
            )
        memory = {core.rank: core.take(kinds[0]) for core in cores}
        begun = [
            core.run(partial(memory[core.rank].write, shard), f"copy of {kinds[0]}")
            for core, shard in zip(cores, shards, strict=True)
        ]
        for written in begun:  # else weights would pile up on the host
            self._failure.settle(written)
        return NeuronBuffer(tensor=kinds[0], ranks=tuple(ranks), memory=memory)

    def call(self, loaded: Loaded, inputs: Sequence[Buffer]) -> list[Buffer]:
        assert isinstance(loaded, NeuronLoaded)
        interface, cores = loaded.interface, self._hosted(loaded.ranks)
        taken = [_own(buffer) for buffer in inputs]
        faults = misfits(loaded, inputs)
        if faults:
            raise RunError(f"call of {interface.name} on ranks {loaded.ranks}: {'; '.join(faults)}")
        self._failure.check()
        kept = {result: parameter for parameter, result in interface.aliases}
        given = {core.rank: [buffer.memory[core.rank] for buffer in taken] for core in cores}
        made = {
            core.rank: [
                given[core.rank][kept[k]] if k in kept else core.take(kind)
                for k, kind in enumerate(interface.results)
            ]
            for core in cores
        }
        for parameter in interface.donated:
            taken[parameter].hand_over()
        ready = tuple(
            core.run(
                partial(_execute, loaded, core, given[core.rank], made[core.rank]),
                f"call of {interface.name}",
            )
            for core in cores
        )
        return [
            NeuronBuffer(
                tensor=kind,
                ranks=loaded.ranks,
                memory={rank: memory[k] for rank, memory in made.items()},
                ready=ready,
            )
            for k, kind in enumerate(interface.results)
        ]

    def wait(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            for task in _live(buffer).ready:
                self._failure.settle(task)

    def fetch(self, buffer: Buffer, *, rank: int) -> np.ndarray[Any, Any]:
        own = _live(buffer)
        if rank not in own.memory:
            raise RunError(
                f"rank {rank} holds no shard of this buffer here; ranks {tuple(own.memory)} do"
            )
        read = self._cores[rank].run(own.memory[rank].read, f"fetch of {own.tensor}")
        return self._failure.settle(read)

    def give_back(self) -> None:
        give_freed_memory_back()

    def close(self) -> None:
        """Let go of the cores. One that hangs is left to the end of the process."""
        if self._closed:
            return
        self._closed = True
        if leave(self._cores.values()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that what is dropped here must not be used
                self._nrtpy.reset()
        self._undo.close()

    def _hosted(self, ranks: tuple[int, ...]) -> list[Core]:
        """The cores of those of the ranks that this process hosts, in the order of ranks."""
        if self._closed:
            raise RunError("the engine is closed")
        known = set(ranks) & set(range(self.rank_count))
        if not ranks or len(known) < len(ranks):
            raise RunError(
                f"ranks {ranks}: need distinct ranks among the {self.rank_count} of this engine"
            )
        return [self._cores[rank] for rank in ranks if rank in self._cores]


def _started(visible: Sequence[int]) -> Any:
    """nrtpy, with its runtime on these cores of the machine; raises BundleError, RunError."""
    try:
        nrtpy = import_module("nrtpy")
    except (ImportError, OSError) as error:
        raise BundleError(
            f"nrtpy cannot be imported: {error}: libnrt must be installed "
            "(aws-neuronx-runtime-lib), and its folder /opt/aws/neuron/lib be on LD_LIBRARY_PATH"
        ) from error
    try:
        nrtpy.configure(visible_cores=list(visible))
        nrtpy.get_nrtpy_singleton()
    except RuntimeError as error:
        cores = ", ".join(map(str, visible))
        what = f"the Neuron runtime does not start on cores {cores}, which neuron-ls may show taken"
        raise blame(RunError, what, error) from error
    return nrtpy


def _names(
    title: str,
    kind: str,
    models: Mapping[int, Any],
    name_at: Callable[[int], str],
    tensors: Sequence[TensorType],
) -> tuple[str, ...]:
    """What a loaded NEFF calls the tensors; raises BundleError where it has others."""
    model = next(iter(models.values()))
    shown = getattr(model, f"{kind}_tensors_info")
    names = {name.removesuffix(ALIASED): name for name in shown}
    found = {name: shown[names[name]].size for name in names}
    needed = {
        name_at(k): tensor.dtype.itemsize * int(np.prod(tensor.shape))
        for k, tensor in enumerate(tensors)
    }
    if found != needed:
        odd = sorted(
            f"{name}: {found.get(name, 'absent')}; needed {needed.get(name, 'none')}"
            for name in found.keys() | needed.keys()
            if found.get(name) != needed.get(name)
        )
        raise BundleError(f"{title}: its {kind}s, in bytes, are not the bundle's: {', '.join(odd)}")
    return tuple(names[name] for name in needed)


def _execute(
    loaded: NeuronLoaded, core: Core, given: Sequence[Memory], made: Sequence[Memory]
) -> None:
    """One core's part of a call; it returns once the core is through."""
    loaded.models[core.rank](
        inputs={name: each.device() for name, each in zip(loaded.inputs, given, strict=True)},
        outputs={name: each.device() for name, each in zip(loaded.outputs, made, strict=True)},
    )


def _own(buffer: Buffer) -> NeuronBuffer:
    assert isinstance(buffer, NeuronBuffer)
    return buffer


def _live(buffer: Buffer) -> NeuronBuffer:
    """A buffer that no call has consumed."""
    if buffer.consumed:
        raise RunError(f"{buffer.tensor} on ranks {buffer.ranks} was consumed by a call")
    return _own(buffer)

"""The seam between the runner and a device runtime: what both sides may say to each other.

Knows nothing of XLA, NEFFs, models or bundles.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import ml_dtypes  # noqa: F401  names bfloat16 to numpy
import numpy as np

from wanc.plan.abi import Program, Tensor, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """Shape and dtype of one tensor as one rank holds it."""

    shape: tuple[int, ...]
    """Extent of each dim."""
    dtype: np.dtype[Any]
    """Element type; bfloat16 is ``ml_dtypes.bfloat16``."""

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """What a program takes and gives on each of its ranks, as the bundle states it."""

    name: str
    """The program's name, for messages."""
    parameters: tuple[TensorType, ...]
    """Weights, then inputs."""
    results: tuple[TensorType, ...]
    aliases: tuple[tuple[int, int], ...] = ()
    """Parameters that a call consumes, each with the result that takes its memory."""

    @classmethod
    def of(cls, program: Program) -> Self:
        """The interface of a bundle's program."""
        arguments = [argument.name for argument in program.arguments]
        outputs = [output.name for output in program.outputs]
        pairs = ((arguments.index(a), outputs.index(b)) for a, b in program.donated.items())
        return cls(
            name=program.name,
            parameters=_types(program.arguments),
            results=_types(program.outputs),
            aliases=tuple(sorted(pairs)),
        )

    @property
    def donated(self) -> tuple[int, ...]:
        """Indices of the parameters that a call consumes."""
        return tuple(parameter for parameter, _ in self.aliases)


def _types(tensors: Iterable[Tensor | Weight]) -> tuple[TensorType, ...]:
    return tuple(TensorType(shape=each.shape, dtype=np.dtype(each.dtype)) for each in tensors)


class Buffer(Protocol):
    """One tensor on one or several ranks, same type and own data on each; never on the host.

    Every process of a run names the same ranks; each holds the shards of those that it hosts.
    """

    @property
    def tensor(self) -> TensorType:
        """Type of each rank's shard."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that hold a shard, in the order of the shards."""

    @property
    def consumed(self) -> bool:
        """Whether a call took it as a donated input, after which nothing may use it."""


class Loaded(Protocol):
    """An executable, ready to be called on fixed ranks."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks it runs on, in replica order."""

    @property
    def interface(self) -> Interface:
        """What a call takes and gives."""


class Engine(Protocol):
    """Loads executables and calls them on ranks 0 to ``rank_count - 1``. It never compiles.

    Ranks may be spread over processes, each with an engine. Then every process makes the same
    loads, puts and calls in the same order, but for those on ranks of which it hosts none.
    """

    @property
    def rank_count(self) -> int:
        """Ranks of all processes."""

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """Ranks that this process hosts."""

    @property
    def compile_count(self) -> int:
        """Compilations started in this process since the engine was made; a run leaves it at 0."""

    def load(self, executable: bytes, interface: Interface, *, ranks: tuple[int, ...]) -> Loaded:
        """Put an executable on its ranks; one compiled with one replica goes on one rank at a time.

        The bytes must have been verified: a runtime may abort the process on damaged code.

        Raises:
            BundleError: not an executable of this runtime and interface, or its replicas are not
                the ranks.
        """

    def put(self, shards: Sequence[np.ndarray[Any, Any]], *, ranks: Sequence[int]) -> Buffer:
        """Give each of the ranks that this process hosts its shard, in the order of ranks.

        An array given for several ranks is held once, and is the caller's own memory where the
        runtime can share it (64-byte aligned, C order): it must not be written to afterwards.

        Raises:
            RunError: the shards differ in type, or do not match the ranks.
        """

    def call(self, loaded: Loaded, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Start one call on all its ranks and return its results, usually before they are ready.

        Donated inputs are consumed: using them again is an error, and their memory is reused.

        Raises:
            RunError: an input does not fit (every misfit is named), or this call failed to start,
                or an earlier one turns out to have failed.
        """

    def wait(self, buffers: Sequence[Buffer]) -> None:
        """Block until the buffers are ready. Raises RunError where the call behind one failed."""

    def fetch(self, buffer: Buffer, *, rank: int) -> np.ndarray[Any, Any]:
        """A copy of a hosted rank's shard, once it is ready. Raises RunError as ``wait`` does."""

    def give_back(self) -> None:
        """Return to the system what host memory no buffer needs any more."""

    def close(self) -> None:
        """Let go of the devices. Buffers and executables may not be used afterwards."""


def misfits(loaded: Loaded, inputs: Sequence[Buffer]) -> list[str]:
    """What keeps a call from being made with these inputs, in words; nothing where they fit."""
    parameters = loaded.interface.parameters
    if len(inputs) != len(parameters):
        return [f"needs {len(parameters)} inputs, got {len(inputs)}"]
    found = []
    for index, (buffer, needed) in enumerate(zip(inputs, parameters, strict=True)):
        if buffer.ranks != loaded.ranks:
            found.append(f"input {index} is on ranks {buffer.ranks}")
        if buffer.consumed:
            found.append(f"input {index} was consumed by an earlier call")
        if buffer.tensor != needed:
            found.append(f"input {index} is {buffer.tensor}, needs {needed}")
    uses = Counter(map(id, inputs))
    found += [
        f"input {index} is donated, but given {uses[id(inputs[index])]} times"
        for index in loaded.interface.donated
        if uses[id(inputs[index])] > 1
    ]
    return found

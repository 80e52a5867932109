"""The seam between the runner and a device runtime: what both sides may say to each other.

Knows nothing of XLA, NEFFs, models or bundles.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """Shape and dtype of one tensor as one rank holds it."""

    shape: tuple[int, ...]
    """Extent of each dim."""
    dtype: np.dtype[Any]
    """Element type; bfloat16 is ``ml_dtypes.bfloat16``."""

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Buffer(Protocol):
    """One tensor on one or several ranks, same type and own data on each; never on the host."""

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
    def parameters(self) -> tuple[TensorType, ...]:
        """What a call takes on each rank."""

    @property
    def results(self) -> tuple[TensorType, ...]:
        """What a call returns on each rank."""

    @property
    def donated(self) -> tuple[int, ...]:
        """Indices of the parameters that a call consumes to make room for its results."""


class Engine(Protocol):
    """Loads executables and calls them on ranks 0 to ``rank_count - 1``. It never compiles."""

    @property
    def rank_count(self) -> int:
        """Ranks that this engine hosts."""

    @property
    def compile_count(self) -> int:
        """Compilations started in this process since the engine was made; a run leaves it at 0."""

    def load(self, executable: bytes, *, ranks: tuple[int, ...]) -> Loaded:
        """Put an executable on its ranks; one compiled with one replica goes on one rank at a time.

        The bytes must have been verified: a runtime may abort the process on damaged code.

        Raises:
            BundleError: not an executable of this runtime, or its replicas are not the ranks.
        """

    def put(self, shards: Sequence[np.ndarray[Any, Any]], *, ranks: Sequence[int]) -> Buffer:
        """Give ``shards[i]`` to ``ranks[i]``.

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
        """A copy of one rank's shard, once it is ready. Raises RunError as ``wait`` does."""

    def close(self) -> None:
        """Let go of the devices. Buffers and executables may not be used afterwards."""


def misfits(loaded: Loaded, inputs: Sequence[Buffer]) -> list[str]:
    """What keeps a call from being made with these inputs, in words; nothing where they fit."""
    if len(inputs) != len(loaded.parameters):
        return [f"needs {len(loaded.parameters)} inputs, got {len(inputs)}"]
    found = []
    for index, (buffer, needed) in enumerate(zip(inputs, loaded.parameters, strict=True)):
        if buffer.ranks != loaded.ranks:
            found.append(f"input {index} is on ranks {buffer.ranks}")
        if buffer.consumed:
            found.append(f"input {index} was consumed by an earlier call")
        if buffer.tensor != needed:
            found.append(f"input {index} is {buffer.tensor}, needs {needed}")
    uses = Counter(map(id, inputs))
    found += [
        f"input {index} is donated, but given {uses[id(inputs[index])]} times"
        for index in loaded.donated
        if uses[id(inputs[index])] > 1
    ]
    return found

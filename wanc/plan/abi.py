"""A program's interface: the tensors it takes and gives, on one rank. Knows no model.

These records are written into a bundle as they are, and read back by the run side.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from wanc.plan.mesh import Groups
from wanc.spec.target import DTYPE_BYTES, DType
from wanc.spec.topology import Axis

Ranks = Literal["all", "one"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One input or output on one rank."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def bytes(self) -> int:
        """Size on one rank."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A weight input, and the checkpoint tensor that it is a shard of."""

    name: str
    tensor: str
    """Name in the checkpoint component; ``{k}`` stands for the call's k-th layer number."""
    stored_shape: tuple[int, ...]
    """Shape of the whole tensor in the checkpoint."""
    shape: tuple[int, ...]
    """Shape on one rank: the shard of stored_shape, reshaped."""
    dtype: DType
    axis: Axis | None = None
    """Mesh axis that splits the tensor; None replicates it."""
    dim: int = 0
    """Dimension of stored_shape that the axis splits."""

    def tensor_in(self, layers: tuple[int, ...]) -> str:
        """The checkpoint's name of the tensor in a call's layers."""
        name = self.tensor
        for k, layer in enumerate(layers):
            name = name.replace(f"{{{k}}}", str(layer))
        return name

    @property
    def bytes(self) -> int:
        """Size on one rank."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One compiled graph. Equal programs have equal text, whichever variant they serve."""

    name: str
    """How a variant's schedule calls it; no part of its text."""
    ranks: Ranks
    """``all``: one replica per rank, joined by collectives. ``one``: a single replica."""
    replica_count: int
    kind: str
    """Which graph this is; with definition, all that determines its text besides the ABI."""
    definition: dict[str, Any]
    groups: dict[str, Groups]
    """Rank groups of each mesh axis that a collective of this program joins."""
    weights: tuple[Weight, ...]
    inputs: tuple[Tensor, ...]
    """Inputs after the weights, in order."""
    outputs: tuple[Tensor, ...]
    donated: dict[str, str]
    """Input name -> output name whose buffer it becomes."""

    @property
    def arguments(self) -> tuple[Weight | Tensor, ...]:
        """Everything the program takes, in order: weights, then inputs."""
        return (*self.weights, *self.inputs)

"""What a user asks for: variants of one model, and how to cut them. Knows no arithmetic."""

from dataclasses import dataclass
from typing import Literal

from wanc.spec.model import Model, Task
from wanc.spec.shape import Shape
from wanc.spec.target import Precision
from wanc.spec.topology import Topology

Attention = Literal["ring", "allgather"]
TileGrid = Literal["even", "diffusers"]
Until = Literal["plan", "lower", "compile"]
"""The last stage of a compile; one that stops early leaves programs without what comes later."""

ATTENTIONS: tuple[Attention, ...] = ("ring", "allgather")
TILE_GRIDS: tuple[TileGrid, ...] = ("even", "diffusers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One (task, shape, topology, placement, precision, target)."""

    task: Task
    shape: Shape
    topology: Topology
    placement: str
    precision: Precision
    target: str

    def texts(self) -> dict[str, str]:
        """Every field as text, as bundles, records and tables show it."""
        return {name: str(getattr(self, name)) for name in Variant.__dataclass_fields__}

    def __str__(self) -> str:
        return f"{self.task} {self.shape} {self.topology} {self.precision} {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the programs of a variant are cut."""

    blocks_per_program: int | None = None
    """Transformer blocks in one program; None leaves the choice to the target."""
    attention: Attention = "ring"
    vae_tiles: TileGrid = "even"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A compile request."""

    model: Model
    variants: tuple[Variant, ...]
    options: Options = Options()

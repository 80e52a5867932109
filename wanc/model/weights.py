"""A program's weights by name. Knows no model."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from wanc.model.ops import linear


@dataclass(frozen=True, slots=True)
class Weights:
    """A view of named tensors below a prefix."""

    tensors: Mapping[str, Tensor]
    prefix: str = ""

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.prefix + name]

    def at(self, part: str) -> "Weights":
        """The view one part further down."""
        return Weights(self.tensors, f"{self.prefix}{part}.")

    def linear(self, part: str, x: Tensor) -> Tensor:
        """The part's projection of x, with its bias."""
        return linear(x, self[f"{part}.weight"], self[f"{part}.bias"])

"""A tensor as it lies in safetensors files: its header, how it is cut, what reading it costs.

Knows neither folders nor models. A file is untrusted: nothing is unpickled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError, safe_open

from wanc.plan.abi import Weight

Array = np.ndarray[Any, Any]

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Dtypes of safetensors that weights may have."""

REMEDY = "`wanc weights shard` prepares the original checkpoint for a bundle"

_PAGE_BYTES = 4096
_MAX_INDEX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How programs take a tensor."""

    dim: int | None
    """Dimension of the whole tensor that is split; None leaves it whole."""
    degree: int
    """Number of its parts, all equal."""
    dtype: str

    @classmethod
    def of(cls, weight: Weight) -> Self:
        """The cut that a weight of the ABI asks for."""
        degree = prod(weight.stored_shape) // prod(weight.shape)
        return cls(dim=weight.dim if degree > 1 else None, degree=degree, dtype=weight.dtype)

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a part."""
        return tuple(n // self.degree if i == self.dim else n for i, n in enumerate(whole))

    def at(self, whole: tuple[int, ...], part: int) -> tuple[slice, ...]:
        """Where a part lies in the whole; empty where it is the whole."""
        if self.dim is None:
            return ()
        rows = whole[self.dim] // self.degree
        return (*[slice(None)] * self.dim, slice(part * rows, (part + 1) * rows))

    def __str__(self) -> str:
        cut = "whole" if self.dim is None else f"{self.degree} parts of dim {self.dim}"
        return f"{cut} in {self.dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies."""

    file: Path
    shape: tuple[int, ...]
    """Shape of the whole."""
    dtype: str
    """As safetensors names it."""
    dim: int | None = None
    """Dimension that a prepared tensor is split on; None where it is whole."""
    parts: tuple[Path, ...] = ()
    """Files of a prepared tensor's parts, in order; a whole one has one part."""

    @property
    def cut(self) -> Cut | None:
        """The one cut that a prepared tensor has; None where any can be made of it."""
        if not self.parts:
            return None
        return Cut(dim=self.dim, degree=len(self.parts), dtype=DTYPES[self.dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCount:
    """What reading took."""

    copied_bytes: int = 0
    """Copied into host arrays, in the stored dtype."""
    touched_bytes: int = 0
    """Of the files: the pieces read, and the gaps between them that are shorter than a page."""

    def __add__(self, other: "ReadCount") -> "ReadCount":
        return ReadCount(
            copied_bytes=self.copied_bytes + other.copied_bytes,
            touched_bytes=self.touched_bytes + other.touched_bytes,
        )


def touched_bytes(shape: Sequence[int], at: Sequence[slice], item_bytes: int) -> int:
    """Bytes of the file that a slice of a tensor touches; it holds one item at least."""
    at = [*at, *[slice(None)] * (len(shape) - len(at))]
    touched = row = item_bytes
    first, last = 0, item_bytes  # of the bytes touched in a row
    for size, cut in zip(reversed(shape), reversed(at), strict=True):
        start, stop, _ = cut.indices(size)
        gap = row - (last - first)
        touched = (stop - start) * touched
        if gap < _PAGE_BYTES:
            touched += (stop - start - 1) * gap
        first, last = start * row + first, (stop - 1) * row + last
        row *= size
    return touched


def read_header(file: Path, problems: list[str]) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file, checked against its length; adds to problems."""
    try:
        with safe_open(file, framework="numpy") as opened:
            found = {}
            for tensor in opened.keys():  # noqa: SIM118  not a mapping
                lazy = opened.get_slice(tensor)
                found[tensor] = StoredTensor(
                    file=file, shape=tuple(lazy.get_shape()), dtype=lazy.get_dtype()
                )
            return found
    except (SafetensorError, OSError) as error:
        problems.append(f"{file}: {error}")
        return {}


def read_index(index: Path) -> bytes:
    """The text of an index of files; raises OSError, and ValueError where it is too large."""
    if index.stat().st_size > _MAX_INDEX_BYTES:
        raise ValueError(f"larger than {_MAX_INDEX_BYTES} bytes")
    return index.read_bytes()


def file_beside(index: Path, name: str, problems: list[str]) -> Path | None:
    """The file that an index names, where it is one beside it; adds to problems."""
    file = index.parent / name
    if Path(name).name != name:
        problems.append(f"{index}: names {name!r}, which is not a file beside it")
    elif not file.is_file():
        problems.append(f"{index}: shard {name} is missing")
    else:
        return file
    return None

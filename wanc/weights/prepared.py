"""A component's folder that `wanc weights shard` wrote: its index, and its files mapped.

Every part of a split tensor lies in a file of its own, in the dtype that programs take. The folder
is untrusted: an index that names a file elsewhere, or other tensors than its files, is refused.
"""

import json
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401  names bfloat16 to numpy
import msgspec
import numpy as np

from wanc.weights.stored import (
    DTYPES,
    REMEDY,
    Array,
    Cut,
    StoredTensor,
    file_beside,
    read_header,
    read_index,
)

INDEX = "wanc.shards.json"
FORMAT_VERSION = 1
"""Version of the index and of how files are named in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedTensor:
    """What the index says of a tensor."""

    shape: tuple[int, ...]
    """Shape of the whole."""
    dtype: str
    """As safetensors names it."""
    dim: int | None
    """Dimension that is split over the parts; None where it lies whole in the other file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIndex:
    """The index of a prepared component."""

    format_version: int
    whole: str
    """File of the tensors that are not split."""
    parts: tuple[str, ...]
    """Files of the parts of those that are, by coordinate; as many as the degree of tp."""
    tensors: dict[str, IndexedTensor]


class MappedFile:
    """A safetensors file, mapped read-only."""

    def __init__(self, file: Path) -> None:
        """Raises OSError and ValueError."""
        with file.open("rb") as opened:
            self._bytes = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self._data_start = 8 + int.from_bytes(self._bytes[:8], "little")
        self._header = json.loads(self._bytes[8 : self._data_start])

    def array(self, tensor: str) -> Array:
        """A tensor, which no one may write to; raises ValueError, KeyError and TypeError."""
        entry = self._header[tensor]
        kind = np.dtype(DTYPES[entry["dtype"]])
        begin, end = entry["data_offsets"]
        start, count = self._data_start + begin, (end - begin) // kind.itemsize
        flat = np.frombuffer(self._bytes, kind, count=count, offset=start)
        return flat.reshape(entry["shape"])


def open_prepared(folder: Path, problems: list[str]) -> dict[str, StoredTensor]:
    """The tensors of a prepared folder; adds what is wrong with it to problems."""
    found: list[str] = []
    tensors = _tensors(folder, found)
    if found:
        problems += [*found, f"{folder}: {REMEDY}"]
    return tensors


def _tensors(folder: Path, problems: list[str]) -> dict[str, StoredTensor]:
    try:
        index = _read(folder / INDEX)
    except (msgspec.MsgspecError, ValueError, RecursionError, OSError) as error:
        problems.append(f"{folder / INDEX}: {error}")
        return {}
    headers: dict[str, dict[str, StoredTensor]] = {}
    for name in dict.fromkeys((index.whole, *index.parts)):
        file = file_beside(folder / INDEX, name, problems)
        headers[name] = read_header(file, problems) if file else {}
    if problems:
        return {}
    tensors = {}
    for name, told in index.tensors.items():
        files = (index.whole,) if told.dim is None else index.parts
        problem = _misfit(told, [(file, headers[file].get(name)) for file in files])
        if problem:
            problems.append(f"{folder / INDEX}: {name} {problem}")
            continue
        parts = tuple(folder / file for file in files)
        tensors[name] = StoredTensor(
            file=parts[0], shape=told.shape, dtype=told.dtype, dim=told.dim, parts=parts
        )
    return tensors


def _read(path: Path) -> ShardIndex:
    """Decode an index, its format version before anything else."""
    raw = msgspec.json.decode(read_index(path))
    seen = raw.get("format_version") if isinstance(raw, dict) else None
    if seen != FORMAT_VERSION:
        raise ValueError(f"format {seen}; this wanc reads format {FORMAT_VERSION}")
    return msgspec.convert(raw, ShardIndex)


def _misfit(told: IndexedTensor, seen: Sequence[tuple[str, StoredTensor | None]]) -> str | None:
    """What speaks against a tensor of the index, given each part's file and what that has."""
    if told.dtype not in DTYPES:
        return f"is {told.dtype}; needs {', '.join(DTYPES)}"
    degree = len(seen)
    if told.dim is not None and not (
        0 <= told.dim < len(told.shape) and degree and told.shape[told.dim] % degree == 0
    ):
        return f"of shape {told.shape} cannot be {degree} parts of dim {told.dim}"
    shape = Cut(dim=told.dim, degree=degree, dtype=told.dtype).shape(told.shape)
    for file, stored in seen:
        if stored is None:
            return f"is not in {file}"
        if (stored.shape, stored.dtype) != (shape, told.dtype):
            return f"is {stored.dtype} {stored.shape} in {file}; needs {told.dtype} {shape}"
    return None

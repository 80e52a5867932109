"""Writes a prepared component: each part of its split tensors in a file of its own.

Holds one tensor at a time. Knows no model; prepared.py reads what it writes.
"""

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from wanc.arrays import ALIGN_BYTES
from wanc.errors import WeightsError
from wanc.progress import Task
from wanc.weights.checkpoint import Component
from wanc.weights.needs import Need
from wanc.weights.prepared import FORMAT_VERSION, INDEX, IndexedTensor, ShardIndex
from wanc.weights.stored import DTYPES, Cut

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """A tensor to write."""

    name: str
    whole: tuple[int, ...]
    cut: Cut

    @property
    def part(self) -> tuple[int, ...]:
        return self.cut.shape(self.whole)

    @property
    def part_bytes(self) -> int:
        return prod(self.part) * np.dtype(self.cut.dtype).itemsize


def prepare_shards(component: Component, needs: Iterable[Need], folder: Path, task: Task) -> int:
    """Write a component's tensors that are needed, and their index; returns the bytes written.

    Raises WeightsError, and OSError where a file cannot be written.
    """
    tensors = _tensors(component, needs)
    degrees = {tensor.cut.degree for tensor in tensors} - {1}
    assert len(degrees) <= 1, "only tp splits weights"
    index = ShardIndex(
        format_version=FORMAT_VERSION,
        whole="whole.safetensors",
        parts=tuple(f"part-{k + 1}-of-{n}.safetensors" for n in degrees for k in range(n)),
        tensors={
            t.name: IndexedTensor(shape=t.whole, dtype=_NAMES[t.cut.dtype], dim=t.cut.dim)
            for t in tensors
        },
    )
    text = msgspec.json.encode(index)
    (folder / INDEX).write_bytes(text)
    return len(text) + _write_files(component, tensors, folder, index, task)


def _tensors(component: Component, needs: Iterable[Need]) -> list[_Tensor]:
    """Aligned ones first: no gap may follow one whose size is no multiple of the alignment."""
    found = []
    for need in needs:
        name = next(name for name in need.names if name in component.tensors)
        if len(need.cuts) > 1:
            ways = " and as ".join(map(str, need.cuts))
            raise WeightsError(
                f"{component.name}/{name}: programs take it as {ways}; needs one way"
            )
        dtype = DTYPES[component.tensors[name].dtype]
        (cut,) = need.cuts or (Cut(dim=None, degree=1, dtype=dtype),)
        found.append(_Tensor(name=name, whole=need.shape, cut=cut))
    return sorted(found, key=lambda tensor: tensor.part_bytes % ALIGN_BYTES > 0)


def _write_files(
    component: Component, tensors: Sequence[_Tensor], folder: Path, index: ShardIndex, task: Task
) -> int:
    with ExitStack() as opened:
        whole, *parts = files = [
            opened.enter_context((folder / name).open("xb")) for name in (index.whole, *index.parts)
        ]
        whole.write(_header([tensor for tensor in tensors if tensor.cut.dim is None]))
        for file in parts:
            file.write(_header([tensor for tensor in tensors if tensor.cut.dim is not None]))
        for tensor in tensors:
            _write_parts(component, tensor, [whole] if tensor.cut.dim is None else parts)
            task.advance(f"{component.name}/{tensor.name}")
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        return sum(file.tell() for file in files)


def _write_parts(component: Component, tensor: _Tensor, files: Sequence[BinaryIO]) -> None:
    array = component.read(tensor.name, []).astype(tensor.cut.dtype, copy=False)
    for part, file in enumerate(files):
        piece = np.ascontiguousarray(array[tensor.cut.at(tensor.whole, part)])
        file.write(piece.reshape(-1).view(np.uint8).data)


def _header(tensors: Sequence[_Tensor]) -> bytes:
    """The start of a safetensors file whose data begins aligned."""
    entries, begin = {}, 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": _NAMES[tensor.cut.dtype],
            "shape": tensor.part,
            "data_offsets": (begin, begin + tensor.part_bytes),
        }
        begin += tensor.part_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN_BYTES)
    return len(text).to_bytes(8, "little") + text

"""Tensors of a checkpoint in diffusers layout: names, shapes and slices, one file or many.

Knows safetensors and its index, and nothing of models. A checkpoint is untrusted: nothing is
unpickled, and an index that names a file elsewhere is refused.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from wanc.arrays import aligned
from wanc.errors import WeightsError
from wanc.spec.checkpoint import no_checkpoint
from wanc.weights.prepared import INDEX, MappedFile, open_prepared
from wanc.weights.stored import (
    REMEDY,
    Array,
    ReadCount,
    StoredTensor,
    file_beside,
    read_header,
    read_index,
    touched_bytes,
)

STEMS = ("diffusion_pytorch_model", "model")
"""Names of a component's weight file before its ending, in diffusers and in transformers."""


@dataclass(slots=True)
class Component:
    """One folder of a checkpoint. Files are mapped once and stay mapped."""

    name: str
    tensors: dict[str, StoredTensor]
    read_count: ReadCount = field(default_factory=ReadCount)
    """What all reading so far took."""
    _open: dict[Path, Any] = field(default_factory=dict)
    _mapped: dict[Path, MappedFile] = field(default_factory=dict)

    def read(self, tensor: str, at: Sequence[slice]) -> Array:
        """A slice of a tensor, copied from the mapped file; raises WeightsError."""
        stored = self.tensors[tensor]
        if stored.dim is not None:
            raise WeightsError(f"{stored.file}: {tensor} is {stored.cut}; needed whole: {REMEDY}")
        try:
            if stored.file not in self._open:
                self._open[stored.file] = safe_open(stored.file, framework="numpy")
            lazy = self._open[stored.file].get_slice(tensor)
            array: Array = lazy[tuple(at)] if at else self._open[stored.file].get_tensor(tensor)
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{stored.file}: cannot read {tensor}: {error}") from error
        self.read_count += ReadCount(
            copied_bytes=array.nbytes,
            touched_bytes=touched_bytes(stored.shape, at, array.itemsize),
        )
        return array

    def part(self, tensor: str, part: int) -> Array:
        """A part of a prepared tensor: of the mapped file where it lies aligned, else a copy.

        It may not be written to. Raises WeightsError.
        """
        file = self.tensors[tensor].parts[part]
        try:
            if file not in self._mapped:
                self._mapped[file] = MappedFile(file)
            mapped = self._mapped[file].array(tensor)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WeightsError(f"{file}: cannot read {tensor}: {error}") from error
        array = aligned(mapped, mapped.dtype)
        self.read_count += ReadCount(
            copied_bytes=0 if array is mapped else array.nbytes, touched_bytes=array.nbytes
        )
        return array


def open_components(directory: Path, names: Sequence[str]) -> dict[str, Component]:
    """Open the named folders; raises WeightsError with every problem of every file."""
    if not directory.is_dir():
        raise WeightsError(no_checkpoint(directory))
    problems: list[str] = []
    components = {name: _open_component(directory, name, problems) for name in names}
    if problems:
        raise WeightsError(f"checkpoint {directory} is damaged:\n  " + "\n  ".join(problems))
    return components


def _open_component(directory: Path, name: str, problems: list[str]) -> Component:
    folder = directory / name
    if (folder / INDEX).is_file():
        return Component(name=name, tensors=open_prepared(folder, problems))
    tensors: dict[str, StoredTensor] = {}
    for file in _files(folder, problems):
        for tensor, stored in read_header(file, problems).items():
            if tensor in tensors:
                problems.append(f"{file}: {tensor} stands also in {tensors[tensor].file.name}")
            tensors[tensor] = stored
    return Component(name=name, tensors=tensors)


def _files(folder: Path, problems: list[str]) -> list[Path]:
    """The weight files of a folder, through its index where there is one."""
    for stem in STEMS:
        index, single = folder / f"{stem}.safetensors.index.json", folder / f"{stem}.safetensors"
        if index.is_file():
            return _indexed(index, problems)
        if single.is_file():
            return [single]
    names = " or ".join(f"{stem}.safetensors" for stem in STEMS)
    problems.append(f"{folder}: neither {names} nor an index of shards is there")
    return []


def _indexed(index: Path, problems: list[str]) -> list[Path]:
    try:
        weight_map = json.loads(read_index(index))["weight_map"]
        names = sorted(set(weight_map.values()))
        if not all(isinstance(name, str) for name in names):
            raise TypeError("weight_map names something that is not a file")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        problems.append(f"{index}: not an index of shards: {error}")
        return []
    found = [file for name in names if (file := file_beside(index, name, problems))]
    present = {tensor for file in found for tensor in read_header(file, [])}
    absent = [t for t, name in weight_map.items() if index.parent / name in found]
    absent = sorted(set(absent) - present)
    if absent:
        problems.append(f"{index}: no shard holds {', '.join(absent[:5])}")
    return found

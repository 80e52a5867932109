"""Tensors of a checkpoint in diffusers layout: names, shapes and slices, one file or many.

Knows safetensors and its index, and nothing of models. A checkpoint is untrusted: nothing is
unpickled, and an index that names a file elsewhere is refused.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  names bfloat16 to numpy
import numpy as np
from safetensors import SafetensorError, safe_open

from wanc.errors import WeightsError

Array = np.ndarray[Any, Any]

STEMS = ("diffusion_pytorch_model", "model")
"""Names of a component's weight file before its ending, in diffusers and in transformers."""

_MAX_INDEX_BYTES = 64 << 20

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Dtypes of safetensors that weights may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies, whole."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


@dataclass(slots=True)
class Component:
    """One folder of a checkpoint. Files are mapped once and stay mapped."""

    name: str
    tensors: dict[str, StoredTensor]
    _open: dict[Path, Any] = field(default_factory=dict)

    def read(self, tensor: str, at: Sequence[slice]) -> Array:
        """A slice of a tensor, copied from the mapped file; raises WeightsError."""
        stored = self.tensors[tensor]
        try:
            if stored.file not in self._open:
                self._open[stored.file] = safe_open(stored.file, framework="numpy")
            lazy = self._open[stored.file].get_slice(tensor)
            array: Array = lazy[tuple(at)] if at else self._open[stored.file].get_tensor(tensor)
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{stored.file}: cannot read {tensor}: {error}") from error
        return array


def open_components(directory: Path, names: Sequence[str]) -> dict[str, Component]:
    """Open the named folders; raises WeightsError with every problem of every file."""
    if not directory.is_dir():
        raise WeightsError(f"{directory}: no such checkpoint directory")
    problems: list[str] = []
    components = {name: _open_component(directory, name, problems) for name in names}
    if problems:
        raise WeightsError(f"checkpoint {directory} is damaged:\n  " + "\n  ".join(problems))
    return components


def _open_component(directory: Path, name: str, problems: list[str]) -> Component:
    folder = directory / name
    tensors: dict[str, StoredTensor] = {}
    for file in _files(folder, problems):
        for tensor, stored in _header(file, problems).items():
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
        if index.stat().st_size > _MAX_INDEX_BYTES:
            raise ValueError(f"larger than {_MAX_INDEX_BYTES} bytes")
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = sorted(set(weight_map.values()))
        if not all(isinstance(name, str) for name in names):
            raise TypeError("weight_map names something that is not a file")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        problems.append(f"{index}: not an index of shards: {error}")
        return []
    found = []
    for name in names:
        file = index.parent / name
        if Path(name).name != name:
            problems.append(f"{index}: names {name!r}, which is not a file beside it")
        elif not file.is_file():
            problems.append(f"{index}: shard {name} is missing")
        else:
            found.append(file)
    present = {tensor for file in found for tensor in _header(file, [])}
    absent = [t for t, name in weight_map.items() if index.parent / name in found]
    absent = sorted(set(absent) - present)
    if absent:
        problems.append(f"{index}: no shard holds {', '.join(absent[:5])}")
    return found


def _header(file: Path, problems: list[str]) -> dict[str, StoredTensor]:
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

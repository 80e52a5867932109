"""A feed's slices on ranks, as a schedule's binding cuts them. Knows mesh axes only."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wanc.plan.mesh import Coordinates, Mesh
from wanc.plan.schedule import Slice

Array = np.ndarray[Any, Any]


def cut(
    whole: Array,
    slices: Sequence[Slice],
    mesh: Mesh,
    ranks: Sequence[int],
    shape: tuple[int, ...],
) -> list[Array]:
    """The part of each rank, reshaped to the ABI's shape; equal parts are one array."""
    axes = [one.axis for one in slices if one.axis is not None]
    parts: dict[tuple[int, ...], Array] = {}
    found = []
    for rank in ranks:
        place = mesh.coordinates[rank]
        key = tuple(place.on(axis) for axis in axes)
        if key not in parts:
            parts[key] = _part(whole, slices, mesh, place).reshape(shape)
        found.append(parts[key])
    return found


def _part(array: Array, slices: Sequence[Slice], mesh: Mesh, place: Coordinates) -> Array:
    for one in slices:
        if one.kind == "take":
            assert one.index is not None
            start, size = one.index, 1
        else:
            assert one.axis is not None
            array = _padded(array, one)
            size = array.shape[one.dim] // mesh.topology.degree(one.axis)
            start = place.on(one.axis) * size
        array = array[(slice(None),) * one.dim + (slice(start, start + size),)]
    return np.ascontiguousarray(array)


def _padded(array: Array, one: Slice) -> Array:
    missing = 0 if one.pad_to is None else one.pad_to - array.shape[one.dim]
    if not missing:
        return array
    pads = [(0, missing if dim == one.dim else 0) for dim in range(array.ndim)]
    return np.pad(array, pads)

"""Per-rank shards of a checkpoint's tensors. Knows mesh axes, and no model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wanc.arrays import aligned
from wanc.plan.abi import Weight
from wanc.plan.mesh import Mesh
from wanc.weights.checkpoint import Component

Array = np.ndarray[Any, Any]


def read_shards(
    component: Component, tensor: str, weight: Weight, mesh: Mesh, ranks: Sequence[int]
) -> list[Array]:
    """The tensor's shard on each of the ranks, cast to the ABI's dtype.

    Ranks with the same shard get the same array, read once.
    """
    distinct: dict[int, Array] = {}
    shards = []
    for rank in ranks:
        part = 0 if weight.axis is None else mesh.coordinates[rank].on(weight.axis)
        if part not in distinct:
            distinct[part] = _read(component, tensor, weight, part)
        shards.append(distinct[part])
    return shards


def _read(component: Component, tensor: str, weight: Weight, part: int) -> Array:
    at: list[slice] = []
    if weight.axis is not None:
        at = [slice(None)] * len(weight.stored_shape)
        degree = int(np.prod(weight.stored_shape)) // int(np.prod(weight.shape))
        size = weight.stored_shape[weight.dim] // degree
        at[weight.dim] = slice(part * size, (part + 1) * size)
    array = component.read(tensor, at)
    return aligned(array.reshape(weight.shape), weight.dtype)

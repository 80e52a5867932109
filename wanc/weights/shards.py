"""Per-rank shards of a checkpoint's tensors. Knows mesh axes, and no model."""

from collections.abc import Sequence

from wanc.arrays import aligned
from wanc.errors import WeightsError
from wanc.plan.abi import Weight
from wanc.plan.mesh import Mesh
from wanc.weights.checkpoint import Component
from wanc.weights.stored import REMEDY, Array, Cut


def read_shards(
    component: Component, tensor: str, weight: Weight, mesh: Mesh, ranks: Sequence[int]
) -> list[Array]:
    """The tensor's shard on each of the ranks, cast to the ABI's dtype; raises WeightsError.

    Ranks with the same shard get the same array, read once; it may not be written to.
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
    cut, stored = Cut.of(weight), component.tensors[tensor]
    if stored.cut is None:
        array = component.read(tensor, cut.at(weight.stored_shape, part))
    elif stored.cut == cut:
        array = component.part(tensor, part)
    else:
        raise WeightsError(
            f"{component.name}/{tensor} is prepared as {stored.cut}; needs {cut}: {REMEDY}"
        )
    return aligned(array.reshape(weight.shape), weight.dtype)

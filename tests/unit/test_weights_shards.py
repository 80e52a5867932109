"""Per-rank shards: slices of the file that together are the tensor, cast to the ABI's dtype."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from wanc.plan.abi import Weight
from wanc.plan.mesh import Mesh
from wanc.spec.topology import Topology
from wanc.weights.checkpoint import open_components
from wanc.weights.shards import read_shards
from wanc.weights.stored import ReadCount

WHOLE = np.arange(8 * 12, dtype=np.float32).reshape(8, 12) / 7


@pytest.fixture
def component(tmp_path):
    """A component that holds the tensors given."""

    def component(**tensors):
        (tmp_path / "vae").mkdir(exist_ok=True)
        (tmp_path / "vae" / "model.safetensors").write_bytes(save(tensors))
        return open_components(tmp_path, ["vae"])["vae"]

    return component


def weight(shape, *, stored=WHOLE.shape, dtype="float32", axis=None, dim=0) -> Weight:
    return Weight(
        name="w", tensor="w", stored_shape=stored, shape=shape, dtype=dtype, axis=axis, dim=dim
    )


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("dim", [0, 1])
def test_shards_of_the_tp_ranks_joined_are_the_whole(component, tp, dim):
    shape = tuple(size // tp if i == dim else size for i, size in enumerate(WHOLE.shape))
    mesh = Mesh.ordered(Topology(tp=tp))
    split = weight(shape, axis="tp" if tp > 1 else None, dim=dim)
    shards = read_shards(component(w=WHOLE), "w", split, mesh, mesh.ranks)
    assert {shard.shape for shard in shards} == {shape}
    np.testing.assert_array_equal(np.concatenate(shards, axis=dim), WHOLE)


def test_ranks_of_one_coordinate_hold_one_array_read_once(component, monkeypatch):
    opened = component(w=WHOLE)
    reads = []
    read = type(opened).read
    monkeypatch.setattr(
        type(opened), "read", lambda self, *given: reads.append(given) or read(self, *given)
    )
    mesh = Mesh.ordered(Topology(tp=2, cp=2, cfg=2))
    shards = read_shards(opened, "w", weight((4, 12), axis="tp"), mesh, mesh.ranks)
    assert len(reads) == 2
    assert opened.read_count == ReadCount(copied_bytes=WHOLE.nbytes, touched_bytes=WHOLE.nbytes)
    for rank, shard in enumerate(shards):
        assert shard is shards[mesh.coordinates[rank].tp]
    np.testing.assert_array_equal(shards[7], WHOLE[4:])


def test_replicated_weight_is_one_array_on_every_rank(component):
    mesh = Mesh.ordered(Topology(tp=4, cp=2))
    shards = read_shards(component(w=WHOLE), "w", weight(WHOLE.shape), mesh, mesh.ranks)
    assert len(shards) == 8
    assert {id(shard) for shard in shards} == {id(shards[0])}


def test_shards_come_in_the_order_of_the_ranks_asked_for(component):
    mesh = Mesh.ordered(Topology(tp=4))
    split = weight((2, 12), axis="tp")
    shards = read_shards(component(w=WHOLE), "w", split, mesh, (3, 1))
    np.testing.assert_array_equal(shards[0], WHOLE[6:])
    np.testing.assert_array_equal(shards[1], WHOLE[2:4])


def test_shard_is_reshaped_to_the_abi(component):
    """A patch embedding's kernel is a matrix to the program."""
    kernel = np.arange(4 * 2 * 1 * 2 * 2, dtype=np.float32).reshape(4, 2, 1, 2, 2)
    mesh = Mesh.ordered(Topology())
    flat = weight((4, 8), stored=kernel.shape)
    (shard,) = read_shards(component(w=kernel), "w", flat, mesh, (0,))
    np.testing.assert_array_equal(shard, kernel.reshape(4, 8))


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axis", [None, "tp"])
def test_cast_to_the_abi_s_dtype(component, stored, dtype, axis):
    array = WHOLE.astype(stored)
    mesh = Mesh.ordered(Topology(tp=2))
    shape = (4, 12) if axis else WHOLE.shape
    cast = weight(shape, dtype=dtype, axis=axis)
    shards = read_shards(component(w=array), "w", cast, mesh, (0, 1))
    for rank, shard in enumerate(shards):
        part = array[4 * rank : 4 * rank + 4] if axis else array
        assert shard.dtype == np.dtype(dtype)
        assert shard.flags.c_contiguous
        np.testing.assert_array_equal(shard, part.astype(dtype))


def test_bf16_rounds_to_nearest_even(component):
    halfway = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-16], np.float32)
    mesh = Mesh.ordered(Topology())
    narrow = weight((3,), stored=(3,), dtype="bfloat16")
    (shard,) = read_shards(component(w=halfway), "w", narrow, mesh, (0,))
    np.testing.assert_array_equal(
        shard.astype(np.float32), np.array([1, 1 + 2**-6, 1 + 2**-7], np.float32)
    )


@pytest.mark.parametrize("topology", ["tp4-cp2", "tp8"])
def test_every_weight_of_a_plan_is_covered_by_its_shards(plan, component, topology):
    planned = plan(topology=topology)
    ranks = planned.mesh.groups("tp")[0]
    seen = set()
    for program in planned.programs:
        for split in program.weights:
            if split.axis is None or (split.stored_shape, split.dim) in seen:
                continue
            seen.add((split.stored_shape, split.dim))
            count = int(np.prod(split.stored_shape))
            whole = np.arange(count, dtype=np.float32).reshape(split.stored_shape)
            shards = read_shards(component(w=whole), "w", split, planned.mesh, ranks)
            np.testing.assert_array_equal(np.concatenate(shards, axis=split.dim), whole)
    assert seen


def test_cast_weights_are_counted_as_they_are_stored(component):
    opened = component(w=WHOLE)
    narrow = weight(WHOLE.shape, dtype="bfloat16")
    read_shards(opened, "w", narrow, Mesh.ordered(Topology()), (0,))
    assert opened.read_count.copied_bytes == WHOLE.nbytes

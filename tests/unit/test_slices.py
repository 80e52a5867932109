"""Feeds cut for ranks, by hand and by property."""

import numpy as np
import pytest

from wanc.plan.mesh import Mesh
from wanc.plan.schedule import Slice
from wanc.run.slices import cut
from wanc.spec.topology import Topology


def split(axis, dim=0, pad_to=None) -> Slice:
    return Slice(kind="split", dim=dim, axis=axis, pad_to=pad_to)


def take(index, dim=0) -> Slice:
    return Slice(kind="take", dim=dim, index=index)


def cuts(whole, slices, topology, shape):
    mesh = Mesh.ordered(Topology.parse(topology))
    return cut(np.asarray(whole), slices, mesh, mesh.ranks, shape)


def test_no_cut_gives_the_whole_to_every_rank_as_one_array():
    parts = cuts([[1, 2, 3]], (), "tp2-cp2", (3,))
    assert [part.tolist() for part in parts] == [[1, 2, 3]] * 4
    assert {id(part) for part in parts} == {id(parts[0])}


def test_take_keeps_one_index():
    (part,) = cuts([[1, 2], [3, 4]], (take(1),), "tp1", (1, 2))
    assert part.tolist() == [[3, 4]]
    (part,) = cuts([[1, 2], [3, 4]], (take(0, dim=1),), "tp1", (2,))
    assert part.tolist() == [1, 3]


def test_split_goes_by_the_rank_s_coordinate():
    parts = cuts(range(4), (split("cp"),), "tp2-cp2-cfg2", (2,))
    assert [part.tolist() for part in parts] == [[0, 1], [0, 1], [2, 3], [2, 3]] * 2
    parts = cuts(range(4), (split("cfg"),), "tp2-cp2-cfg2", (2,))
    assert [part.tolist() for part in parts] == [[0, 1]] * 4 + [[2, 3]] * 4


def test_pads_are_zeros_at_the_end():
    parts = cuts([1, 2, 3], (split("cp", pad_to=4),), "cp2", (2,))
    assert [part.tolist() for part in parts] == [[1, 2], [3, 0]]
    parts = cuts([1, 2, 3], (split("cp", pad_to=8),), "cp4", (2,))
    assert [part.tolist() for part in parts] == [[1, 2], [3, 0], [0, 0], [0, 0]]


def test_padding_touches_its_own_dim_only():
    parts = cuts(np.ones((2, 3)), (split("tp", dim=1, pad_to=4),), "tp2", (2, 2))
    assert parts[1].tolist() == [[1, 0], [1, 0]]


def test_split_twice_as_tokens_are():
    """Ten tokens, cp2 chunks of five, each padded to six and cut for tp2: pads stay in the tail."""
    tokens = np.arange(1, 11).reshape(1, 10, 1)
    slices = (split("cp", dim=1, pad_to=10), split("tp", dim=1, pad_to=6))
    parts = cuts(tokens, slices, "tp2-cp2", (1, 3, 1))
    assert [part.ravel().tolist() for part in parts] == [
        *([1, 2, 3], [4, 5, 0], [6, 7, 8], [9, 10, 0]),
    ]


def test_cuts_are_made_in_their_order():
    whole = np.arange(8).reshape(2, 4)
    parts = cuts(whole, (take(1), split("tp", dim=1)), "tp2", (2,))
    assert [part.tolist() for part in parts] == [[4, 5], [6, 7]]


def test_ranks_of_equal_parts_share_one_array():
    parts = cuts(range(8), (split("cp"),), "tp2-cp4-cfg2", (2,))
    mesh = Mesh.ordered(Topology.parse("tp2-cp4-cfg2"))
    assert len({id(part) for part in parts}) == 4
    for rank, part in enumerate(parts):
        assert part is parts[2 * mesh.coordinates[rank].cp]


def test_some_ranks_in_their_order():
    mesh = Mesh.ordered(Topology.parse("cp4"))
    parts = cut(np.arange(4), (split("cp"),), mesh, (3, 0), (1,))
    assert [part.tolist() for part in parts] == [[3], [0]]


def test_parts_are_contiguous_and_keep_their_dtype():
    whole = np.arange(24, dtype=np.float32).reshape(2, 12)
    for part in cuts(whole, (split("tp", dim=1),), "tp3", (2, 4)):
        assert part.flags.c_contiguous
        assert part.dtype == np.float32


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_parts_joined_are_the_whole_and_its_pads(dim):
    for size in range(1, 9):
        for degree in (1, 2, 3, 4):
            shape = [2, 3, 2]
            shape[dim] = size
            whole = np.random.default_rng(0).random(shape)
            padded = -(-size // degree) * degree
            shape[dim] = padded // degree
            parts = cuts(whole, (split("cp", dim, padded),), f"cp{degree}", tuple(shape))
            joined = np.concatenate(parts, axis=dim)
            real, pads = np.split(joined, [size], axis=dim)
            np.testing.assert_array_equal(real, whole)
            assert not pads.any()

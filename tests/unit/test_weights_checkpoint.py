"""Opening a checkpoint's folders: one file or shards with an index, all of it untrusted."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from wanc.errors import WeightsError
from wanc.weights.checkpoint import STEMS, open_components
from wanc.weights.stored import ReadCount, touched_bytes

DIFFUSERS, TRANSFORMERS = STEMS
FIRST = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(2, np.float32)}
SECOND = {"c": np.full((2, 2), 7, np.float32)}
SHARDS = (f"{DIFFUSERS}-00001-of-00002.safetensors", f"{DIFFUSERS}-00002-of-00002.safetensors")
INDEX = f"{DIFFUSERS}.safetensors.index.json"
WEIGHT_MAP = {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "vae").mkdir()
    return tmp_path / "vae"


@pytest.fixture
def sharded(folder):
    """Two shards and their index."""
    for name, tensors in zip(SHARDS, (FIRST, SECOND), strict=True):
        (folder / name).write_bytes(save(tensors))
    write_index(folder, WEIGHT_MAP)
    return folder


def write_index(folder, weight_map):
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def opened(folder):
    return open_components(folder.parent, [folder.name])[folder.name]


def problems(*folders) -> list[str]:
    with pytest.raises(WeightsError) as caught:
        open_components(folders[0].parent, [folder.name for folder in folders])
    assert caught.value.exit_code == 6
    first, *lines = str(caught.value).split("\n  ")
    assert first == f"checkpoint {folders[0].parent} is damaged:"
    return lines


@pytest.mark.parametrize("stem", STEMS)
def test_one_file_of_either_library_s_name(folder, stem):
    (folder / f"{stem}.safetensors").write_bytes(save(FIRST))
    component = opened(folder)
    assert {name: stored.shape for name, stored in component.tensors.items()} == {
        "a": (3, 4),
        "b": (2,),
    }


def test_shards_are_one_component(sharded):
    component = opened(sharded)
    assert component.tensors.keys() == {"a", "b", "c"}
    assert component.tensors["c"].file.name == SHARDS[1]
    for name, array in (FIRST | SECOND).items():
        np.testing.assert_array_equal(component.read(name, []), array)


def test_slices_are_read_as_numpy_cuts_them(sharded):
    component = opened(sharded)
    for at in [(slice(1, 3), slice(None)), (slice(None), slice(2, 4)), (slice(0, 1), slice(1, 2))]:
        np.testing.assert_array_equal(component.read("a", at), FIRST["a"][at])


@pytest.mark.parametrize(
    ("dtype", "stored"), [(np.float32, "F32"), (np.float16, "F16"), (ml_dtypes.bfloat16, "BF16")]
)
def test_every_float_that_weights_have_is_read(folder, dtype, stored):
    array = np.array([[0.1, -2.5], [3e-3, 7]], dtype)
    (folder / f"{DIFFUSERS}.safetensors").write_bytes(save({"w": array}))
    component = opened(folder)
    assert component.tensors["w"].dtype == stored
    for read in (component.read("w", []), component.read("w", [slice(None), slice(None)])):
        assert read.dtype == dtype
        np.testing.assert_array_equal(read, array)


def test_missing_directory_is_named(tmp_path):
    with pytest.raises(WeightsError, match=r"no such checkpoint directory.*toy-t2v"):
        open_components(tmp_path / "none", ["vae"])


def test_folder_without_weights_names_what_was_looked_for(folder):
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")  # a pickle is never opened
    (problem,) = problems(folder)
    assert f"neither {DIFFUSERS}.safetensors or {TRANSFORMERS}.safetensors" in problem


@pytest.mark.parametrize("cut", [0, 4, 8, 20, -1, -8])
def test_truncated_file_is_damaged(folder, cut):
    data = save(FIRST)
    (folder / f"{DIFFUSERS}.safetensors").write_bytes(data[:cut])
    (problem,) = problems(folder)
    assert problem.startswith(f"{folder}/{DIFFUSERS}.safetensors: ")


def header(length: int, text: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", length) + text + data


@pytest.mark.parametrize(
    "data",
    [
        header(1 << 62, b"{}"),
        header(2, b"[]"),
        header(9, b'{"a": 1}}'),
        header(4, b"\xff\xfe\xff\xfe"),
        header(60, b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}     '),
        header(60, b'{"a":{"dtype":"F99","shape":[0],"data_offsets":[0,0]}}      '),
        header(60, b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}     ', bytes(4)),
        header(60, b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,4]}}      ', bytes(4)),
        b"version https://git-lfs.github.com/spec/v1\n",
    ],
    ids=lambda data: repr(data[:16]),
)
def test_corrupted_header_is_damaged(folder, data):
    (folder / f"{DIFFUSERS}.safetensors").write_bytes(data)
    assert len(problems(folder)) == 1


def test_shard_that_the_index_names_is_missing(sharded):
    (sharded / SHARDS[1]).unlink()
    assert problems(sharded) == [f"{sharded}/{INDEX}: shard {SHARDS[1]} is missing"]


@pytest.mark.parametrize("path", ["../x.safetensors", "/etc/passwd", "sub/x.safetensors"])
def test_index_that_names_a_path_is_refused_though_the_file_is_there(sharded, path):
    (sharded.parent / "x.safetensors").write_bytes(save(SECOND))
    (sharded / "sub").mkdir()
    (sharded / "sub" / "x.safetensors").write_bytes(save(SECOND))
    write_index(sharded, WEIGHT_MAP | {"c": path})
    assert problems(sharded) == [
        f"{sharded}/{INDEX}: names {path!r}, which is not a file beside it"
    ]


@pytest.mark.parametrize("name", ["..", ".", "", "\x00"])
def test_index_that_names_no_file_is_refused(sharded, name):
    write_index(sharded, WEIGHT_MAP | {"c": name})
    assert len(problems(sharded)) == 1


def test_tensor_that_stands_in_two_shards_is_refused(sharded):
    (sharded / SHARDS[1]).write_bytes(save(SECOND | {"b": FIRST["b"]}))
    assert problems(sharded) == [f"{sharded}/{SHARDS[1]}: b stands also in {SHARDS[0]}"]


def test_tensor_of_the_index_that_no_shard_holds_is_named(sharded):
    write_index(sharded, WEIGHT_MAP | {"d": SHARDS[1]})
    assert problems(sharded) == [f"{sharded}/{INDEX}: no shard holds d"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"weight_map": null}',
        b'{"weight_map": ["a"]}',
        b'{"weight_map": {"a": 3}}',
        b'{"weight_map": {"a": ["x"]}}',
        b'{"weight_map": {"a": 3, "b": "x"}}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
    ids=lambda data: repr(data[:30]),
)
def test_damaged_index_is_named(folder, data):
    (folder / INDEX).write_bytes(data)
    (problem,) = problems(folder)
    assert problem.startswith(f"{folder}/{INDEX}: not an index of shards: ")


def test_every_problem_of_every_folder_is_named_at_once(sharded):
    text = sharded.parent / "text_encoder"
    text.mkdir()
    (text / f"{TRANSFORMERS}.safetensors").write_bytes(b"damaged")
    (sharded / SHARDS[0]).write_bytes(save(FIRST)[:-3])
    (sharded / SHARDS[1]).unlink()
    found = "\n".join(problems(sharded, text))
    for part in (SHARDS[0], f"shard {SHARDS[1]} is missing", f"{TRANSFORMERS}.safetensors"):
        assert part in found


def test_file_that_goes_away_while_it_is_used_is_an_error(sharded):
    component = opened(sharded)
    (sharded / SHARDS[0]).unlink()
    with pytest.raises(WeightsError, match="cannot read a"):
        component.read("a", [])


def count(copied: int, touched: int) -> ReadCount:
    return ReadCount(copied_bytes=copied, touched_bytes=touched)


def test_reading_is_counted(sharded):
    component = opened(sharded)
    assert component.read_count == ReadCount()
    component.read("a", [slice(1, 3), slice(None)])  # rows of 16 bytes, without a gap
    assert component.read_count == count(32, 32)
    component.read("a", [slice(None), slice(2, 4)])  # 3 pieces of 8 bytes with 2 gaps of 8
    assert component.read_count == count(32 + 24, 32 + 40)
    component.read("c", [])
    assert component.read_count == count(32 + 24 + 16, 32 + 40 + 16)


def test_counts_add_up():
    assert sum([count(1, 2), count(3, 5)], ReadCount()) == count(4, 7)


ALL = slice(None)


@pytest.mark.parametrize(
    ("shape", "at", "expected"),
    [
        ((), (), 4),
        ((8,), (slice(2, 4),), 8),
        ((8, 1000), (slice(2, 4), ALL), 8_000),  # rows follow each other
        ((8, 1000), (slice(2, 4),), 8_000),
        ((8, 1000), (ALL, slice(250, 500)), 7 * 4_000 + 1_000),  # gaps of 3000 bytes
        ((8, 1000), (ALL, ALL), 32_000),
        ((8, 1364), (ALL, slice(0, 341)), 7 * 5_456 + 1_364),  # gaps of 4092 bytes
        ((8, 1365), (ALL, slice(0, 341)), 8 * 1_364),  # of 4096
        ((8, 4000), (ALL, slice(1000, 2000)), 8 * 4_000),
        ((2, 3, 4), (ALL, slice(1, 2), ALL), 48 + 16),
        ((2, 3, 4), (slice(1, 2), slice(1, 3), slice(1, 3)), 16 + 8),
        ((2, 2000, 4), (ALL, slice(0, 2), slice(0, 1)), 2 * (16 + 4)),
    ],
)
def test_bytes_touched_are_the_pieces_and_their_short_gaps(shape, at, expected):
    assert touched_bytes(shape, at, 4) == expected


def test_bytes_touched_are_those_between_pieces_closer_than_a_page():
    """Against the offset of every byte, marked one by one."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        shape = tuple(rng.integers(1, 40, size=3)) if rng.random() < 0.5 else (9, 3, 2500)
        starts = [int(rng.integers(0, size)) for size in shape]
        at = [
            slice(i, int(rng.integers(i, size)) + 1) for i, size in zip(starts, shape, strict=True)
        ]
        touched = np.zeros((*shape, 2), bool)
        touched[tuple(at)] = True
        offsets = np.flatnonzero(touched)
        gaps = np.diff(offsets) - 1
        assert touched_bytes(shape, at, 2) == offsets.size + gaps[gaps < 4096].sum()

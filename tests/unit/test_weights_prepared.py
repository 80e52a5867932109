"""Prepared components: what is written, how it is read back, and what is refused of it."""

import json
import os
import struct
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from wanc.errors import RequestError, RunError, WeightsError
from wanc.plan.abi import Weight
from wanc.plan.mesh import Mesh
from wanc.progress import Silent
from wanc.run import prepare as story
from wanc.run.prepare import prepare_weights
from wanc.spec.checkpoint import read_checkpoint
from wanc.spec.presets import TINY
from wanc.spec.topology import Topology
from wanc.tiny import write_tiny_checkpoint
from wanc.weights import prepare, prepared
from wanc.weights.checkpoint import open_components
from wanc.weights.needs import Need
from wanc.weights.prepare import prepare_shards
from wanc.weights.prepared import INDEX
from wanc.weights.shards import read_shards
from wanc.weights.stored import Cut, ReadCount

RNG = np.random.default_rng(0)
TENSORS = {
    "rows": RNG.standard_normal((8, 48), np.float32),
    "columns": RNG.standard_normal((4, 64), np.float32),
    "odd": RNG.standard_normal((4, 3), np.float32),  # parts of 24 bytes
    "norm": RNG.standard_normal(48, np.float32),
    "scalar": np.array(7, np.float32),
    "kernel": RNG.standard_normal((4, 2, 1, 2, 2), np.float32),
    "table": RNG.standard_normal((16, 4)).astype(np.float16),
}
CUTS = {
    "rows": Cut(dim=0, degree=2, dtype="bfloat16"),
    "columns": Cut(dim=1, degree=2, dtype="bfloat16"),
    "odd": Cut(dim=0, degree=2, dtype="float32"),
    "norm": Cut(dim=None, degree=1, dtype="float32"),
    "scalar": Cut(dim=None, degree=1, dtype="float32"),
    "kernel": Cut(dim=0, degree=2, dtype="bfloat16"),
}
NEEDS = [
    Need(
        component="vae",
        names=(name,),
        shape=array.shape,
        cuts=(CUTS[name],) if name in CUTS else (),
    )
    for name, array in TENSORS.items()
]
PARTS = ("part-1-of-2.safetensors", "part-2-of-2.safetensors")
WHOLE = "whole.safetensors"


@pytest.fixture
def original(tmp_path):
    """A component as a checkpoint has it, in fp32 but for the table."""
    folder = tmp_path / "original" / "vae"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(save(TENSORS))
    return opened(folder)


@pytest.fixture
def folder(original, tmp_path):
    """It prepared for tp2."""
    return written(original, tmp_path / "vae")


def written(component, folder, needs=NEEDS):
    folder.mkdir()
    with Silent().task("shard", len(needs)) as task:
        total_bytes = prepare_shards(component, needs, folder, task)
    assert total_bytes == sum(file.stat().st_size for file in folder.iterdir())
    return folder


def opened(folder):
    return open_components(folder.parent, [folder.name])[folder.name]


def weight(name, **changed) -> Weight:
    """The weight that asks for a tensor's cut."""
    array, cut = TENSORS[name], CUTS[name]
    made = Weight(
        name=name,
        tensor=name,
        stored_shape=array.shape,
        shape=cut.shape(array.shape),
        dtype=cut.dtype,
        axis=None if cut.dim is None else "tp",
        dim=cut.dim or 0,
    )
    return replace(made, **changed)


def shards(component, asked):
    mesh = Mesh.ordered(Topology(tp=2, cp=2))
    return read_shards(component, asked.tensor, asked, mesh, mesh.ranks)


def problems(folder) -> list[str]:
    """What is wrong with a prepared folder; the last line says what would help."""
    with pytest.raises(WeightsError) as caught:
        opened(folder)
    first, *lines, last = str(caught.value).split("\n  ")
    assert first == f"checkpoint {folder.parent} is damaged:"
    assert last == f"{folder}: `wanc weights shard` prepares the original checkpoint for a bundle"
    return [line.removeprefix(f"{folder}/") for line in lines]


def edit(folder, change):
    """Change the index in place."""
    index = json.loads((folder / INDEX).read_bytes())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


def headers(folder):
    """By file: where its data begins, and its header."""
    for file in folder.glob("*.safetensors"):
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        yield file.name, 8 + length, json.loads(data[8 : 8 + length])


@pytest.mark.parametrize("name", CUTS)
def test_every_rank_gets_the_shard_that_it_gets_of_the_original(original, folder, name):
    for ours, theirs in zip(
        shards(opened(folder), weight(name)), shards(original, weight(name)), strict=True
    ):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
        assert ours.ctypes.data % 64 == 0


def test_shard_takes_the_shape_of_the_abi(original, folder):
    flat = weight("kernel", shape=(2, 8))
    for ours, theirs in zip(shards(opened(folder), flat), shards(original, flat), strict=True):
        assert ours.shape == (2, 8)
        assert ours.tobytes() == theirs.tobytes()


def test_component_answers_for_whole_tensors(original, folder):
    component = opened(folder)
    assert {n: t.shape for n, t in component.tensors.items()} == {
        n: t.shape for n, t in original.tensors.items()
    }
    assert component.tensors["table"].dtype == "F16"  # as it was: it stays on the host
    for at in ([], [slice(3, 4), slice(None)]):
        np.testing.assert_array_equal(component.read("table", at), TENSORS["table"][*at])


def test_aligned_shards_are_the_mapped_file_itself(folder):
    component = opened(folder)
    first, _, same, _ = shards(component, weight("rows"))
    assert first is same
    assert not first.flags.writeable
    assert not first.flags.owndata
    half = TENSORS["rows"].size  # bytes of a part in bf16
    assert component.read_count == ReadCount(copied_bytes=0, touched_bytes=2 * half)
    again = shards(component, weight("rows"))[0]
    assert again.ctypes.data == first.ctypes.data


@pytest.mark.parametrize(("name", "copied_bytes"), [("odd", 0), ("kernel", 64)])
def test_shard_after_an_odd_size_is_copied_and_counted(folder, name, copied_bytes):
    """odd has 24 bytes in each part and is the first that is no multiple of 64; then kernel."""
    component = opened(folder)
    assert all(shard.ctypes.data % 64 == 0 for shard in shards(component, weight(name)))
    touched_bytes = 2 * {"odd": 24, "kernel": 32}[name]
    assert component.read_count == ReadCount(copied_bytes=copied_bytes, touched_bytes=touched_bytes)


def test_files_are_one_for_each_part_and_one_for_the_rest(folder):
    assert {file.name for file in folder.iterdir()} == {*PARTS, WHOLE, INDEX}
    names = {file: set(header) for file, _, header in headers(folder)}
    assert names == {
        PARTS[0]: {"rows", "columns", "odd", "kernel"},
        PARTS[1]: {"rows", "columns", "odd", "kernel"},
        WHOLE: {"norm", "scalar", "table"},
    }


def test_index_says_how_each_tensor_is_stored(folder):
    index = json.loads((folder / INDEX).read_bytes())
    tensors = index.pop("tensors")
    assert index == {"format_version": 1, "whole": WHOLE, "parts": list(PARTS)}
    assert tensors["columns"] == {"shape": [4, 64], "dtype": "BF16", "dim": 1}
    assert tensors["norm"] == {"shape": [48], "dtype": "F32", "dim": None}
    assert tensors.keys() == TENSORS.keys()


def test_tensors_of_aligned_size_come_first_and_lie_aligned(folder):
    for _, data_start, header in headers(folder):
        assert data_start % 64 == 0
        begins = {name: entry["data_offsets"] for name, entry in header.items()}
        odd_sizes = [(end - begin) % 64 > 0 for begin, end in sorted(begins.values())]
        assert odd_sizes == sorted(odd_sizes)
        assert all(begin % 64 == 0 for begin, end in begins.values() if (end - begin) % 64 == 0)


def test_safetensors_itself_opens_the_files(folder):
    for part, file in enumerate(PARTS):
        with safe_open(folder / file, framework="numpy") as stored:
            columns = stored.get_tensor("columns")
            expected = TENSORS["columns"][:, 32 * part : 32 * part + 32]
            np.testing.assert_array_equal(columns, expected.astype(ml_dtypes.bfloat16))
    with safe_open(folder / WHOLE, framework="numpy") as stored:
        np.testing.assert_array_equal(stored.get_tensor("table"), TENSORS["table"])
        assert stored.get_tensor("scalar") == 7


def test_component_whose_tensors_are_all_whole_or_all_split(original, tmp_path):
    by_name = {need.names[0]: need for need in NEEDS}
    whole = written(original, tmp_path / "whole", [by_name["norm"]])
    assert {file.name for file in whole.iterdir()} == {WHOLE, INDEX}
    split = written(original, tmp_path / "split", [by_name["rows"]])
    assert {file.name for file in split.iterdir()} == {*PARTS, WHOLE, INDEX}
    for folder, name in ((whole, "norm"), (split, "rows")):
        ours, theirs = shards(opened(folder), weight(name)), shards(original, weight(name))
        np.testing.assert_array_equal(ours, theirs)


def test_one_tensor_is_read_at_a_time_and_once(original, tmp_path, monkeypatch):
    events = []
    read, write = type(original).read, prepare._write_parts
    monkeypatch.setattr(
        type(original), "read", lambda self, *at: events.append(at[0]) or read(self, *at)
    )
    monkeypatch.setattr(
        prepare, "_write_parts", lambda *given: write(*given) or events.append("written")
    )
    written(original, tmp_path / "vae")
    assert events[1::2] == ["written"] * len(TENSORS)
    assert sorted(events[::2]) == sorted(TENSORS)
    size = sum(array.nbytes for array in TENSORS.values())
    assert original.read_count == ReadCount(copied_bytes=size, touched_bytes=size)


@pytest.mark.parametrize(
    "other",
    [Cut(dim=0, degree=2, dtype="float32"), Cut(dim=1, degree=2, dtype="bfloat16")],
    ids=["dtype", "dim"],
)
def test_tensor_that_programs_take_in_two_ways_is_refused(original, tmp_path, other):
    needs = [replace(NEEDS[0], cuts=(CUTS["rows"], other))]
    with pytest.raises(WeightsError, match=f"vae/rows: .* and as {other}; needs one way"):
        written(original, tmp_path / "vae", needs)


@pytest.mark.parametrize(
    "changed",
    [
        {"shape": (2, 48)},  # tp4
        {"shape": (8, 24), "dim": 1},
        {"shape": (8, 48), "axis": None},
        {"dtype": "float32"},
    ],
    ids=["degree", "dim", "whole", "dtype"],
)
def test_shard_of_another_cut_is_refused(folder, changed):
    asked = weight("rows", **changed)
    with pytest.raises(WeightsError) as caught:
        shards(opened(folder), asked)
    assert str(caught.value) == (
        f"vae/rows is prepared as 2 parts of dim 0 in bfloat16; needs {Cut.of(asked)}: "
        "`wanc weights shard` prepares the original checkpoint for a bundle"
    )


def test_split_tensor_cannot_be_read_whole(folder):
    with pytest.raises(WeightsError, match="rows is 2 parts of dim 0 in bfloat16; needed whole"):
        opened(folder).read("rows", [])


@pytest.mark.parametrize("version", [0, 2, None, "1", True])
def test_index_of_another_version_is_refused(folder, version):
    edit(folder, lambda index: index.update(format_version=version))
    (problem,) = problems(folder)
    assert problem.startswith(f"{INDEX}: ")
    if version is not True:
        assert f"format {version}; this wanc reads format 1" in problem


@pytest.mark.parametrize("path", ["../x.safetensors", "/etc/passwd", "sub/x.safetensors"])
@pytest.mark.parametrize("key", ["whole", "parts"])
def test_index_that_names_a_path_is_refused_though_the_file_is_there(folder, path, key):
    (folder / "sub").mkdir()
    for place in (folder, folder.parent):
        (place / "sub").mkdir(exist_ok=True)
        (place / "x.safetensors").write_bytes((folder / WHOLE).read_bytes())
    (folder / "sub" / "x.safetensors").write_bytes((folder / WHOLE).read_bytes())
    edit(folder, lambda index: index.update({key: path if key == "whole" else [path, path]}))
    assert problems(folder) == [f"{INDEX}: names {path!r}, which is not a file beside it"]


@pytest.mark.parametrize("name", [*PARTS, WHOLE])
def test_missing_file_is_named(folder, name):
    (folder / name).unlink()
    assert problems(folder) == [f"{INDEX}: shard {name} is missing"]


@pytest.mark.parametrize("cut", [0, 4, 100, -1])
@pytest.mark.parametrize("name", [PARTS[1], WHOLE])
def test_truncated_file_is_damaged(folder, name, cut):
    (folder / name).write_bytes((folder / name).read_bytes()[:cut])
    (problem,) = problems(folder)
    assert problem.startswith(f"{name}: ")


def test_file_that_is_cut_short_while_it_is_used_is_an_error(folder):
    component = opened(folder)
    os.truncate(folder / PARTS[0], os.stat(folder / PARTS[0]).st_size - 64)
    with pytest.raises(WeightsError, match="cannot read odd"):
        shards(component, weight("odd"))
    (folder / PARTS[1]).write_bytes(b"")
    with pytest.raises(WeightsError, match="cannot read rows"):
        component.part("rows", 1)


@pytest.mark.parametrize(
    ("tensor", "told", "expected"),
    [
        ("rows", {"shape": [8, 24]}, "rows is BF16 (4, 48) in {part}; needs BF16 (4, 24)"),
        ("rows", {"dtype": "F16"}, "rows is BF16 (4, 48) in {part}; needs F16 (4, 48)"),
        ("rows", {"dtype": "I64"}, "rows is I64; needs F32, BF16, F16"),
        ("rows", {"dim": 1}, "rows is BF16 (4, 48) in {part}; needs BF16 (8, 24)"),
        ("rows", {"dim": 2}, "rows of shape (8, 48) cannot be 2 parts of dim 2"),
        ("rows", {"dim": -1}, "rows of shape (8, 48) cannot be 2 parts of dim -1"),
        ("rows", {"shape": [9, 48]}, "rows of shape (9, 48) cannot be 2 parts of dim 0"),
        ("rows", {"dim": None}, "rows is not in {whole}"),
        ("norm", {"dim": 0}, "norm is not in {part}"),
        ("norm", {"shape": [-48]}, "norm is F32 (48,) in {whole}; needs F32 (-48,)"),
    ],
)
def test_tensor_that_its_file_has_otherwise_is_refused(folder, tensor, told, expected):
    edit(folder, lambda index: index["tensors"][tensor].update(told))
    assert problems(folder) == [f"{INDEX}: {expected.format(part=PARTS[0], whole=WHOLE)}"]


def test_index_without_files_for_its_parts_is_refused(folder):
    edit(folder, lambda index: index.update(parts=[]))
    assert "rows of shape (8, 48) cannot be 0 parts of dim 0" in problems(folder)[0]


def test_index_of_other_parts_is_refused(folder):
    """Halves named as quarters, and the same half twice under two names."""
    edit(folder, lambda index: index.update(parts=[*PARTS, *PARTS]))
    assert problems(folder)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"format_version": 1}',
        b'{"format_version": 1, "whole": 3, "parts": [], "tensors": {}}',
        b'{"format_version": 1, "whole": "whole.safetensors", "parts": "x", "tensors": {}}',
        b'{"format_version": 1, "whole": "whole.safetensors", "parts": [], "tensors": {"a": 1}}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
    ids=lambda data: repr(data[:60]),
)
def test_damaged_index_is_named(folder, data):
    (folder / INDEX).write_bytes(data)
    (problem,) = problems(folder)
    assert problem.startswith(f"{INDEX}: ")


def test_index_that_is_too_large_is_not_read(folder, monkeypatch):
    os.truncate(folder / INDEX, (64 << 20) + 1)
    monkeypatch.setattr(prepared.msgspec.json, "decode", lambda _: pytest.fail("it was read"))
    assert problems(folder) == [f"{INDEX}: larger than {64 << 20} bytes"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The tiny checkpoint, each model in three files with an index."""
    directory = tmp_path_factory.mktemp("checkpoint") / "tiny"
    write_tiny_checkpoint(directory, shards=3)
    return directory


@pytest.fixture
def prepare_tiny(checkpoint, made, tmp_path, monkeypatch):
    """Prepare the tiny checkpoint for a variant that no bundle had to be compiled for."""

    def prepare_tiny(output=tmp_path / "prepared", *, source=checkpoint, **variant):
        config = made(**{"topology": "tp2-cp2", "precision": "bf16", **variant}).config
        monkeypatch.setattr(story, "open_bundle", lambda path: path)
        monkeypatch.setattr(story, "select_variant", lambda *_, **__: config)
        record = prepare_weights(
            tmp_path,
            source,
            output,
            shape=None,
            topology=None,
            precision=None,
            progress=Silent(),
        )
        return config, record

    return prepare_tiny


def test_sharded_fp32_checkpoint_for_a_bf16_variant(checkpoint, prepare_tiny, tmp_path):
    config, record = prepare_tiny()
    weights = [*(tmp_path / "prepared").glob("*/*.safetensors"), *tmp_path.glob(f"*/*/{INDEX}")]
    assert record.written_bytes == sum(file.stat().st_size for file in weights)
    assert record.read.copied_bytes == record.read.touched_bytes > record.written_bytes
    programs = {each.program.name: each.program for each in config.programs}
    names = ["text_encoder", "transformer", "transformer_2", "vae"]
    ours, theirs = (open_components(root, names) for root in (tmp_path / "prepared", checkpoint))
    seen = 0
    for stage in config.schedule.stages:
        for call in stage.calls:
            for asked in programs[call.program].weights:
                tensor = asked.tensor_in(call.layers)
                left, right = (
                    read_shards(side[call.component], tensor, asked, config.mesh, (0, 1, 3))
                    for side in (ours, theirs)
                )
                assert [each.tobytes() for each in left] == [each.tobytes() for each in right]
                seen += 1
    assert seen > 100


def test_all_else_that_a_run_reads_is_copied(checkpoint, prepare_tiny, tmp_path):
    prepare_tiny()
    assert read_checkpoint(tmp_path / "prepared") == TINY
    for folder in ("tokenizer", "scheduler"):
        files = sorted((checkpoint / folder).iterdir())
        copies = sorted((tmp_path / "prepared" / folder).iterdir())
        assert [file.name for file in copies] == [file.name for file in files]
        assert [file.read_bytes() for file in copies] == [file.read_bytes() for file in files]
    (vae,) = open_components(tmp_path / "prepared", ["vae"]).values()
    assert not [name for name in vae.tensors if name.startswith(("encoder.", "quant_conv."))]


def test_path_that_exists_is_refused(prepare_tiny, tmp_path):
    (tmp_path / "prepared").mkdir()
    with pytest.raises(RequestError, match="prepared is there already; give the name of a new"):
        prepare_tiny()


def test_prepared_checkpoint_is_not_prepared_again(prepare_tiny, tmp_path):
    prepare_tiny()
    with pytest.raises(WeightsError, match="is prepared itself; give the checkpoint"):
        prepare_tiny(tmp_path / "again", source=tmp_path / "prepared")
    with pytest.raises(WeightsError, match="prepared for other programs"):
        prepare_tiny(tmp_path / "again", source=tmp_path / "prepared", topology="tp4")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), OSError(28, "disk full")])
def test_nothing_is_left_of_what_was_begun(prepare_tiny, tmp_path, monkeypatch, error):
    def fail(component, *given):
        if component.name == "transformer_2":
            raise error
        return prepare_shards(component, *given)

    monkeypatch.setattr(story, "prepare_shards", fail)
    expected = RunError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        prepare_tiny()
    assert not list(tmp_path.iterdir())


def test_failing_disk_is_named(prepare_tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=f"cannot write {tmp_path}/file/prepared: "):
        prepare_tiny(tmp_path / "file" / "prepared")

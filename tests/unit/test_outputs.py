"""The files of a run: reserved, named at the end, and what is left behind when it fails before."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from wanc.errors import RequestError, RunError
from wanc.files import UNFINISHED, ReservedFolder, discard_unfinished
from wanc.run.outputs import Files, Outputs, latents_beside, record_beside, saved_beside
from wanc.run.request import as_plain, from_plain
from wanc.run.video import FORMATS, About

ABOUT = About(prompt="a ship", seed=1, bundle="sha256:0", wanc="0.1.0")
METADATA = {"wanc": '{"format":1}'}
RECORD = {"prompt": "a ship", "sampling": {"seed": 1}}
FPS = 16


def latents() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, 16, 2, 4, 4), np.float32)


def pixels(frames=5) -> np.ndarray:
    shape = (1, 3, frames, 32, 32)
    return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


def name_of(form: str) -> str:
    return "frames" if form == "png" else f"v.{form}"


def made(outputs: Outputs, frames=5) -> dict:
    """What a run does from its latents on."""
    outputs.files.save_latents(latents(), METADATA)
    outputs.files.write(pixels(frames), FPS, ABOUT, latents())
    return outputs.commit(RECORD)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read_latents(path: Path) -> tuple[np.ndarray, dict[str, str]]:
    with safe_open(path, "numpy") as file:
        assert set(file.keys()) == {"latents"}
        return file.get_tensor("latents"), file.metadata()


@pytest.fixture
def umask():
    """What new files may have; restored."""
    before = os.umask(0o027)
    yield
    os.umask(before)


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("video", "stem"),
    [("a/v.mp4", "v"), ("a/v.1.MKV", "v.1"), ("a/frames", "frames"), ("a/f.v2", "f.v2")],
)
def test_files_beside_a_video(video, stem):
    """A folder's name may have a dot, and is not cut there."""
    assert record_beside(Path(video)) == Path(f"a/{stem}.json")
    assert saved_beside(Path(video)) == Path(f"a/{stem}.steps.safetensors")
    assert latents_beside(Path(video)) == Path(f"a/{stem}.latents.safetensors")


@pytest.mark.parametrize("form", FORMATS)
def test_a_video_and_its_record_are_all_that_is_left(tmp_path, form, umask):
    video = tmp_path / name_of(form)
    with Outputs(video, form=form, saves=True) as outputs:
        assert not any(path for path in tmp_path.iterdir() if path.name[0] != ".")
        outputs.files.saved.write_bytes(b"steps")
        record = made(outputs)
    stem = "frames" if form == "png" else "v"
    assert names(tmp_path) == sorted([f"{stem}.json", video.name])
    assert json.loads((tmp_path / f"{stem}.json").read_text()) == record
    assert record == {**RECORD, "output": video.name}
    assert video.stat().st_mode & 0o777 == (0o750 if form == "png" else 0o640)
    if form == "png":
        assert names(video) == [f"{k:04d}.png" for k in range(1, 6)]
        assert {file.stat().st_mode & 0o777 for file in video.iterdir()} == {0o640}


def test_pixels_reach_the_video(tmp_path):
    with Outputs(tmp_path / "frames", form="png") as outputs:
        made(outputs)
    levels = np.round((pixels()[0, :, 4].transpose(1, 2, 0) + 1) * 127.5)
    with Image.open(tmp_path / "frames" / "0005.png") as image:
        np.testing.assert_array_equal(np.asarray(image), levels)
        assert json.loads(image.text["Comment"])["prompt"] == "a ship"


def test_the_crf_reaches_the_mp4(tmp_path):
    sizes = []
    for crf in (0, None, 51):
        with Outputs(tmp_path / "v.mp4", form="mp4", crf=crf) as outputs:
            made(outputs)
        sizes.append((tmp_path / "v.mp4").stat().st_size)
    assert sizes[0] > sizes[1] > sizes[2]


def test_files_go_to_another_process(tmp_path):
    with Outputs(tmp_path / "v.mkv", form="mkv", saves=True) as outputs:
        plain = json.loads(json.dumps(as_plain(outputs.files)))
        assert from_plain(plain, Files) == outputs.files
    assert from_plain(json.loads(json.dumps(as_plain(Files()))), Files) == Files()


def test_a_name_that_is_no_text_stands_in_the_record(tmp_path):
    video = tmp_path / os.fsdecode(b"caf\xe9.gif")
    with Outputs(video, form="gif") as outputs:
        made(outputs)
    assert json.loads(record_beside(video).read_bytes())["output"] == video.name


def test_arrays_for_python_and_no_video(tmp_path):
    path = tmp_path / "a.safetensors"
    Files(arrays=path).write(pixels(), FPS, ABOUT, latents())
    with safe_open(path, "numpy") as file:
        np.testing.assert_array_equal(file.get_tensor("latents"), latents())
        assert file.get_tensor("frames").shape == (5, 32, 32, 3)
    assert names(tmp_path) == ["a.safetensors"]


def test_frames_that_are_there_already(tmp_path):
    """As a caller in Python saves them: no latents, and none are taken away."""
    video = tmp_path / "v.gif"
    latents_beside(video).write_bytes(b"another run's")
    with Outputs(video, form="gif") as outputs:
        outputs.files.write_frames(np.zeros((3, 16, 16, 3), np.uint8), FPS, ABOUT)
        outputs.commit(RECORD)
    assert names(tmp_path) == ["v.gif", "v.json", "v.latents.safetensors"]
    assert latents_beside(video).read_bytes() == b"another run's"


# --- latents --------------------------------------------------------------------------------------


def test_latents_are_whole_before_they_are_decoded(tmp_path):
    with Outputs(tmp_path / "v.mp4", form="mp4") as outputs:
        outputs.files.save_latents(latents().astype(np.float64), METADATA)
        values, metadata = read_latents(tmp_path / "v.latents.safetensors")
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, latents())
    assert metadata == METADATA


def test_latents_stay_after_a_failure(tmp_path):
    with Outputs(tmp_path / "v.mp4", form="mp4") as outputs:
        outputs.files.save_latents(latents(), METADATA)
    assert names(tmp_path) == ["v.latents.safetensors"]


def test_latents_that_are_named_stay(tmp_path):
    with Outputs(tmp_path / "v.mp4", form="mp4", latents=tmp_path / "l.safetensors") as outputs:
        made(outputs)
    assert names(tmp_path) == ["l.safetensors", "v.json", "v.mp4"]
    np.testing.assert_array_equal(read_latents(tmp_path / "l.safetensors")[0], latents())


def test_latents_named_as_those_of_nobody_stay(tmp_path):
    video = tmp_path / "v.mp4"
    with Outputs(video, form="mp4", latents=latents_beside(video)) as outputs:
        made(outputs)
    assert names(tmp_path) == ["v.json", "v.latents.safetensors", "v.mp4"]


def test_latents_are_written_twice_where_a_run_repeats(tmp_path):
    with Outputs(tmp_path / "v.gif", form="gif", latents=tmp_path / "l") as outputs:
        outputs.files.save_latents(0 * latents(), METADATA)
        made(outputs)
    assert names(tmp_path) == ["l", "v.gif", "v.json"]
    np.testing.assert_array_equal(read_latents(tmp_path / "l")[0], latents())


def test_no_latents_where_no_file_is_wanted(tmp_path):
    Files().save_latents(latents(), METADATA)
    Files().write(pixels(), FPS, ABOUT, latents())
    assert names(tmp_path) == []


@pytest.mark.parametrize("taken", ["v.mp4", "v.json", "v.steps.safetensors", "../here/v.json"])
def test_latents_may_not_take_another_file_s_name(tmp_path, taken):
    here = tmp_path / "here"
    here.mkdir()
    with pytest.raises(RunError, match=re.escape(f"{taken}: that name is of the video, its rec")):
        Outputs(here / "v.mp4", form="mp4", latents=here / taken)
    assert names(here) == []


def test_latents_may_not_lie_among_frames(tmp_path):
    with pytest.raises(RunError, match="that name is of the video"):
        Outputs(tmp_path / "frames", form="png", latents=tmp_path / "frames" / "l.safetensors")


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_a_run_that_ends_early_leaves_what_was_there(tmp_path, form):
    video = tmp_path / name_of(form)
    with Outputs(video, form=form) as outputs:
        made(outputs, frames=3)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with Outputs(video, form=form, saves=True) as outputs:
        outputs.files.write(pixels(), FPS, ABOUT, latents())
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert all(not name.startswith(UNFINISHED) for name in names(tmp_path))


@pytest.mark.parametrize("form", FORMATS)
def test_a_process_that_ends_without_a_word_leaves_nothing(tmp_path, form):
    outputs = Outputs(tmp_path / name_of(form), form=form, saves=True)
    outputs.files.write(pixels(), FPS, ABOUT, latents())
    discard_unfinished()
    assert names(tmp_path) == []
    with outputs:
        pass


@pytest.mark.parametrize("form", FORMATS)
def test_a_folder_that_is_not_there_is_found_early(tmp_path, form):
    video = tmp_path / "gone" / name_of(form)
    with pytest.raises(RunError, match=rf"^output {video} cannot be written: No such file or dir"):
        Outputs(video, form=form)


@pytest.mark.parametrize("taken", ["v.mp4", "v.json", "v.latents.safetensors"])
def test_a_name_that_a_folder_has_is_found_early(tmp_path, taken):
    (tmp_path / taken).mkdir()
    with pytest.raises(RunError, match=rf"{taken} cannot be written: .* is a directory"):
        Outputs(tmp_path / "v.mp4", form="mp4")
    assert names(tmp_path) == [taken]


def test_a_crf_that_no_format_has_is_found_early(tmp_path):
    with pytest.raises(RequestError, match="crf 52"):
        Outputs(tmp_path / "v.mp4", form="mp4", crf=52)
    with pytest.raises(RequestError, match="crf 18: is of mp4 alone"):
        Outputs(tmp_path / "v.webp", form="webp", crf=18)
    assert names(tmp_path) == []


@pytest.mark.parametrize("step", ["save_latents", "write"])
def test_a_full_disk_is_a_failed_run(tmp_path, monkeypatch, step):
    def full(*_):
        raise OSError(28, "No space left on device")

    where = {"save_latents": "write_arrays", "write": "write_video"}[step]
    monkeypatch.setattr(f"wanc.run.outputs.{where}", full)
    name = {"save_latents": "v.latents.safetensors", "write": "v.mp4"}[step]
    said = rf"^output {tmp_path / name} cannot be written: No space left on device$"
    with Outputs(tmp_path / "v.mp4", form="mp4") as outputs, pytest.raises(RunError, match=said):
        made(outputs)
    left = [] if step == "save_latents" else ["v.latents.safetensors"]
    assert names(tmp_path) == left


# --- folders of frames ----------------------------------------------------------------------------


def frames_in(folder: Path, count: int) -> None:
    with Outputs(folder, form="png") as outputs:
        made(outputs, count)


def test_numbered_frames_are_replaced_and_none_is_left_over(tmp_path):
    frames_in(tmp_path / "frames", 9)
    first = (tmp_path / "frames" / "0001.png").stat().st_ino
    frames_in(tmp_path / "frames", 5)
    assert names(tmp_path / "frames") == [f"{k:04d}.png" for k in range(1, 6)]
    assert (tmp_path / "frames" / "0001.png").stat().st_ino != first
    assert names(tmp_path) == ["frames", "frames.json"]


def test_an_empty_folder_is_replaced(tmp_path):
    (tmp_path / "frames").mkdir()
    frames_in(tmp_path / "frames", 3)
    assert names(tmp_path) == ["frames", "frames.json"]
    assert len(names(tmp_path / "frames")) == 3


@pytest.mark.parametrize("other", ["notes.txt", "0001.png/", "0001.jpg", ".hidden", "0001.png ->"])
def test_a_folder_with_anything_else_is_refused_before_any_work(tmp_path, other):
    folder = tmp_path / "frames"
    frames_in(folder, 2)
    name = other.removesuffix("/").removesuffix(" ->")
    (folder / name).unlink(missing_ok=True)
    if other.endswith("/"):
        (folder / name).mkdir()
    elif other.endswith("->"):
        (folder / name).symlink_to(folder / "0002.png")
    else:
        (folder / name).write_text("mine")
    before = names(folder)
    said = f"output {folder} cannot be written: it holds '{name}', which would be lost: name anot"
    with pytest.raises(RunError, match=re.escape(said)):
        Outputs(folder, form="png")
    assert names(folder) == before


def test_a_file_put_there_meanwhile_is_not_lost(tmp_path):
    folder = tmp_path / "frames"
    frames_in(folder, 2)
    with Outputs(folder, form="png") as outputs:
        (folder / "notes.txt").write_text("mine")
        with pytest.raises(RunError, match=r"it holds 'notes\.txt'"):
            made(outputs)
    assert names(folder) == ["0001.png", "0002.png", "notes.txt"]
    assert "frames.latents.safetensors" in names(tmp_path)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_frames_do_not_replace_what_is_no_folder(tmp_path, kind):
    video, elsewhere = tmp_path / "frames", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "file":
        video.write_text("mine")
    else:
        video.symlink_to(elsewhere)
    with pytest.raises(RunError, match="it is there, and no folder: name another"):
        Outputs(video, form="png")
    assert video.read_text() == "mine" if kind == "file" else video.is_symlink()


def test_frames_do_not_replace_a_mounted_file_system():
    mounted = next(Path(p) for p in ("/dev/shm", "/proc", "/sys") if os.path.ismount(p))
    with pytest.raises(OSError, match="a file system is mounted there: name a folder in it"):
        ReservedFolder(mounted, re.compile(".*"))


@pytest.mark.parametrize("fails", [1, 2])
def test_old_frames_are_back_where_new_ones_cannot_take_their_place(tmp_path, monkeypatch, fails):
    """The old folder leaves by the first rename; by the second the new one comes."""
    folder = tmp_path / "frames"
    frames_in(folder, 2)
    old = (folder / "0001.png").read_bytes()
    replace, calls = Path.replace, []

    def once_broken(self, target):
        if folder in (self, target):
            calls.append(self)
            if len(calls) == fails:
                raise KeyboardInterrupt
        return replace(self, target)

    with Outputs(folder, form="png") as outputs:
        outputs.files.write(pixels(3), FPS, ABOUT, latents())
        monkeypatch.setattr(Path, "replace", once_broken)
        with pytest.raises(KeyboardInterrupt):
            outputs.commit(RECORD)
    assert names(folder) == ["0001.png", "0002.png"]
    assert (folder / "0001.png").read_bytes() == old
    assert names(tmp_path) == ["frames", "frames.json"]


def test_a_folder_that_is_still_written_into_goes_all_the_same(tmp_path, monkeypatch):
    """A run's frames and the end of its process come from different threads."""
    import shutil

    rmtree, left = shutil.rmtree, [2]

    def disturbed(path, **options):
        rmtree(path, **options)
        if left[0]:
            left[0] -= 1
            path.mkdir()
            (path / "0003.png").write_bytes(b"")

    outputs = Outputs(tmp_path / "frames", form="png")
    outputs.files.write(pixels(), FPS, ABOUT, latents())
    monkeypatch.setattr(shutil, "rmtree", disturbed)
    discard_unfinished()
    assert names(tmp_path) == []
    outputs.__exit__()

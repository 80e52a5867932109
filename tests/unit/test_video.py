"""Videos of every format, read back: their frames, their times, and what they say of themselves."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from imageio_ffmpeg import count_frames_and_secs, get_ffmpeg_exe
from PIL import ExifTags, Image

from wanc.errors import RequestError, RunError
from wanc.run.video import (
    CRF,
    FORMATS,
    FRAME_NAMES,
    About,
    check_crf,
    find_encoder,
    format_of,
    read_frames,
    to_frames,
    write_arrays,
    write_video,
)

WIDTH_PX, HEIGHT_PX = 208, 128
H264_LEVELS = 4
"""Flat colours at crf 18 were seen to come back within 2 of 255 levels."""
GIF_MEAN, GIF_MOST = 1.5, 8
"""256 colours for a smooth picture of one hue: levels of 0.6 and 4 were seen."""
ENTIRE = {"mkv", "webp", "png"}
"""Formats that hold every frame to the bit."""

NASTY = "a \0 ship;\r\n= #\\ \x1b[1m \x7f\x85 'quoted' \"twice\" \udce9 \U0001f600 海边的灯塔"
PROMPTS = ["a lighthouse above a stormy sea", "", NASTY, "x" * 1_000_000, "海" * 40_000]


def about(prompt="a ship") -> About:
    return About(prompt=prompt, seed=2**64 - 1, bundle=f"sha256:{'a' * 64}", wanc="0.1.0")


def noise(frames=9) -> np.ndarray:
    shape = (frames, HEIGHT_PX, WIDTH_PX, 3)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def smooth(frames=9) -> np.ndarray:
    """Brighter to the right, and from frame to frame."""
    right = np.linspace(0, 128, WIDTH_PX)[None, None, :, None]
    later = np.linspace(0, 100, frames)[:, None, None, None]
    colour = np.array([1.0, 0.7, 0.4])
    whole = np.broadcast_to((right + later) * colour, (frames, HEIGHT_PX, WIDTH_PX, 3))
    return whole.round().astype(np.uint8)


def written(folder: Path, form: str, frames=None, *, fps=16, prompt="a ship", **options) -> Path:
    path = folder / f"v.{form}"
    if form == "png":
        path.mkdir(exist_ok=True)
    write_video(path, form, noise() if frames is None else frames, fps, about(prompt), **options)
    return path


def frames_of(path: Path) -> np.ndarray:
    form = path.suffix.removeprefix(".")
    frames = read_frames(path, form)
    assert frames.dtype == np.uint8
    return frames


def probed(path: Path) -> str:
    """What ffmpeg says of a file."""
    return subprocess.run([get_ffmpeg_exe(), "-i", path], capture_output=True, text=True).stderr


def ffmetadata(path: Path) -> dict[str, str]:
    command = [get_ffmpeg_exe(), "-loglevel", "error", "-i", path, "-f", "ffmetadata", "-"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = re.split(r"(?<!\\)\n", text)
    pairs = [line.split("=", 1) for line in lines if "=" in line]
    return {key.lower(): re.sub(r"\\(.)", r"\1", value, flags=re.S) for key, value in pairs}


def comment_of(path: Path) -> str:
    if path.suffix in (".mp4", ".mkv"):
        return ffmetadata(path)["comment"]
    with Image.open(path / "0001.png" if path.is_dir() else path) as image:
        if path.suffix == ".webp":
            return image.getexif()[ExifTags.Base.ImageDescription]
        if path.suffix == ".gif":
            return image.info["comment"].decode()
        return image.text["Comment"]


# --- what is asked for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "asked", "form"),
    [
        ("v.mp4", None, "mp4"),
        ("a/v.MKV", None, "mkv"),
        ("v.webp", "webp", "webp"),
        ("v.1.gif", None, "gif"),
        ("frames.png", None, "png"),
        ("frames", "png", "png"),
        ("frames.v2", "png", "png"),
        ("v.mp4", "png", "png"),
    ],
)
def test_the_format_of_an_output(path, asked, form):
    assert format_of(Path(path), asked) == form


@pytest.mark.parametrize(
    ("path", "asked", "said"),
    [
        ("v.avi", None, "v.avi: ends in '.avi'; needs .mp4, .mkv, .webp or .gif, or --format png"),
        ("v", None, "v: ends in ''; needs .mp4"),
        ("v.mp4", "mkv", "v.mp4: ends in '.mp4', and format mkv needs .mkv"),
        ("v", "gif", "v: ends in '', and format gif needs .gif"),
        ("v.mp4", "avi", "format 'avi': needs mp4, mkv, webp, gif or png"),
        ("v.mp4", "", "format '': needs mp4"),
        (".", "png", "output .: needs a name of its own"),
        ("..", "png", "output ..: needs a name of its own"),
    ],
)
def test_formats_that_are_refused(path, asked, said):
    with pytest.raises(RequestError, match=re.escape(said)):
        format_of(Path(path), asked)


def test_the_quality_of_an_mp4():
    assert check_crf("mp4", None) == check_crf("gif", None) == CRF == 18
    assert [check_crf("mp4", crf) for crf in (0, 51)] == [0, 51]


@pytest.mark.parametrize(
    ("form", "crf", "said"),
    [
        ("mp4", -1, "crf -1: needs 0 (best) to 51 (smallest)"),
        ("mp4", 52, "crf 52: needs 0 (best) to 51 (smallest)"),
        ("mkv", 18, "crf 18: is of mp4 alone; leave it out for mkv"),
    ],
)
def test_qualities_that_are_refused(form, crf, said):
    with pytest.raises(RequestError, match=re.escape(said)):
        check_crf(form, crf)


def test_a_missing_encoder_is_found_where_it_is_needed(monkeypatch):
    def missing():
        raise RuntimeError("No ffmpeg exe could be found")

    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", missing)
    for form in ("mp4", "mkv"):
        with pytest.raises(RunError, match="no video can be written: No ffmpeg"):
            find_encoder(form)
    for form in ("webp", "gif", "png"):
        find_encoder(form)


# --- frames ---------------------------------------------------------------------------------------


def test_pixels_become_the_nearest_levels():
    levels = np.arange(256, dtype=np.float32)
    pixels = np.zeros((1, 3, 2, 1, 256), np.float32)
    pixels[0, 0] = levels / 127.5 - 1
    pixels[0, 2] = -1
    frames = to_frames(pixels)
    assert frames.shape == (2, 1, 256, 3)
    assert frames.dtype == np.uint8
    np.testing.assert_array_equal(frames[1, 0, :, 0], levels)
    assert (frames[..., 1] == 128).all()
    assert not frames[..., 2].any()


@pytest.mark.parametrize("form", sorted(ENTIRE))
@pytest.mark.parametrize("fps", [16, 24])
@pytest.mark.parametrize("frames", [1, 9], ids="{} frames".format)
def test_formats_that_hold_every_frame_to_the_bit(tmp_path, form, fps, frames):
    given = noise(frames)
    np.testing.assert_array_equal(frames_of(written(tmp_path, form, given, fps=fps)), given)


def test_frames_in_any_memory_order_are_taken(tmp_path):
    given = noise().transpose(0, 2, 1, 3)[:, :HEIGHT_PX, :HEIGHT_PX].transpose(0, 2, 1, 3)[:, ::-1]
    path = tmp_path / "v.mkv"
    write_video(path, "mkv", given, 16, about())
    np.testing.assert_array_equal(frames_of(path), given)


def test_mp4_is_close_and_plays_everywhere(tmp_path):
    """H.264 in yuv420p with tagged colours, and its index before its data."""
    flat = np.array([[200, 30, 40], [20, 160, 60], [30, 60, 220]], np.uint8)[:, None, None, :]
    given = np.broadcast_to(flat, (3, HEIGHT_PX, WIDTH_PX, 3)).repeat(3, axis=0)
    path = written(tmp_path, "mp4", given)
    assert np.abs(frames_of(path).astype(int) - given).max() <= H264_LEVELS
    assert re.search(r"h264 .* yuv420p\(tv, bt709, progressive\), 208x128", probed(path))
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")


def test_a_larger_factor_makes_a_smaller_mp4(tmp_path):
    sizes = [written(tmp_path, "mp4", crf=crf).stat().st_size for crf in (0, 18, 51)]
    assert sizes[0] > 2 * sizes[1] > 4 * sizes[2]


def test_mkv_is_ffv1(tmp_path):
    assert re.search(r"ffv1.*, bgr0\(pc, gbr.* 208x128", probed(written(tmp_path, "mkv")))


def test_gif_has_every_frame_in_256_colours(tmp_path):
    given = smooth()
    errors = np.abs(frames_of(written(tmp_path, "gif", given)).astype(int) - given)
    assert errors.shape == given.shape
    assert errors.mean() < GIF_MEAN
    assert errors.max() < GIF_MOST


def test_png_frames_are_numbered_from_1(tmp_path):
    folder = written(tmp_path, "png", noise(12))
    names = [file.name for file in sorted(folder.iterdir())]
    assert names == [f"{k:04d}.png" for k in range(1, 13)]
    assert all(FRAME_NAMES.fullmatch(name) for name in names)
    assert not any(map(FRAME_NAMES.fullmatch, ["1.png", "a0001.png", "0001.png.txt", "0001.PNG"]))


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_frames_give_the_same_bytes(tmp_path, form):
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        path = written(tmp_path / name, form)
        made.append(
            [file.read_bytes() for file in sorted(path.glob("*") if path.is_dir() else [path])]
        )
    assert made[0] == made[1]


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["mp4", "mkv"])
@pytest.mark.parametrize(("fps", "frames"), [(16, 81), (24, 121)])
def test_a_container_s_rate_and_length(tmp_path, form, fps, frames):
    path = written(tmp_path, form, np.zeros((frames, 16, 16, 3), np.uint8), fps=fps)
    counted, seconds = count_frames_and_secs(path)
    assert counted == frames
    assert seconds == pytest.approx(frames / fps, abs=0.02)  # ffmpeg prints hundredths
    assert f" {fps} fps" in probed(path)


@pytest.mark.parametrize(("form", "unit_ms"), [("gif", 10), ("webp", 1)])
@pytest.mark.parametrize(("fps", "frames"), [(16, 81), (24, 121), (24, 17)])
def test_an_animation_s_frames_end_when_they_should(tmp_path, form, unit_ms, fps, frames):
    given = np.random.default_rng(0).integers(0, 256, (frames, 16, 16, 3), np.uint8)
    with Image.open(written(tmp_path, form, given, fps=fps)) as image:
        assert image.n_frames == frames
        assert image.info["loop"] == 0
        lasts = []
        for k in range(frames):
            image.seek(k)
            image.load()
            lasts.append(image.info["duration"])
    ends = np.cumsum(lasts)
    assert np.abs(ends - 1000 * np.arange(1, frames + 1) / fps).max() <= unit_ms / 2
    assert set(np.array(lasts) // unit_ms) <= {n := 1000 // unit_ms // fps, n + 1}


def test_frames_that_stand_still_last_as_long(tmp_path):
    """Pillow joins them to one; so may webp."""
    given = np.full((48, 16, 16, 3), 90, np.uint8)
    given[40:] = 200
    for form in ("gif", "webp"):
        with Image.open(written(tmp_path, form, given, fps=24)) as image:
            total = 0
            for k in range(image.n_frames):
                image.seek(k)
                image.load()
                total += image.info["duration"]
        assert total == 2000


# --- what files say of themselves -----------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("prompt", PROMPTS, ids=["plain", "none", "nasty", "huge", "huge Chinese"])
def test_every_format_says_how_it_was_made(tmp_path, form, prompt):
    path = written(tmp_path, form, noise(2)[:, :16, :16], prompt=prompt)
    said = json.loads(comment_of(path))
    told = said.pop("prompt")
    assert said == {"seed": 2**64 - 1, "bundle": f"sha256:{'a' * 64}", "wanc": "0.1.0"}
    assert told == prompt if len(prompt) < 1000 else prompt.startswith(told)
    assert len(told) >= min(len(prompt), 5000)


@pytest.mark.parametrize("form", ["mp4", "mkv", "png"])
def test_the_title_is_the_prompt_in_one_line(tmp_path, form):
    path = written(tmp_path, form, noise(2)[:, :16, :16], prompt=NASTY)
    if form == "png":
        with Image.open(path / "0002.png") as image:
            title = str(image.text["Title"])
    else:
        title = ffmetadata(path)["title"]
    assert title == "a ship; = #\\ [1m 'quoted' \"twice\" \U0001f600 海边的灯塔"


def test_what_is_said_fits_a_command_line():
    for prompt in PROMPTS:
        made = about(prompt)
        assert len(f"comment={made.comment}".encode()) < 32 << 10
        assert made.comment.isascii()
        assert made.comment.isprintable()
        assert len(made.title) <= 200
    assert about("x" * 300).title == "x" * 200


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["mp4", "mkv", "webp", "gif"])
def test_a_full_disk_is_told(form):
    """Also where all frames were taken, and what is missing is the end."""
    with pytest.raises(OSError, match="No space left on device"):
        write_video(Path("/dev/full"), form, noise(2), 16, about())


@pytest.mark.parametrize("form", FORMATS)
def test_a_folder_that_is_gone_is_told(tmp_path, form):
    with pytest.raises(OSError, match="No such file or directory") as raised:
        write_video(tmp_path / "gone" / f"v.{form}", form, noise(2), 16, about())
    assert "0x" not in str(raised.value)


def test_an_encoder_that_is_killed_is_told(tmp_path, monkeypatch):
    encoder = tmp_path / "ffmpeg"
    encoder.write_text("#!/bin/sh\nkill -9 $$\n")
    encoder.chmod(0o755)
    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", lambda: str(encoder))
    with pytest.raises(OSError, match=r"^ffmpeg was killed by SIGKILL$"):
        write_video(tmp_path / "v.mp4", "mp4", noise(2), 16, about())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("content", ["none", "empty", "other"])
def test_what_is_no_video_is_told(tmp_path, form, content):
    path = tmp_path / f"v.{form}"
    if content != "none":
        (path.mkdir() if form == "png" else path.touch())
    if content == "other":
        (path / "0001.png" if form == "png" else path).write_text("hello")
    with pytest.raises(RunError, match=rf"^{path}: cannot be read as {form}: "):
        read_frames(path, form)


def test_arrays_have_their_metadata(tmp_path):
    from safetensors import safe_open

    path, array = tmp_path / "a.safetensors", np.arange(6, dtype=np.float32).reshape(2, 3)
    write_arrays(path, {"turned": array.T}, {"wanc": "x"})
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"wanc": "x"}
        np.testing.assert_array_equal(file.get_tensor("turned"), array.T)

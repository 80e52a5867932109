"""Pixels to frames, and frames to a video's files. Knows codecs, and nothing of how pixels came.

mp4 is H.264 that plays everywhere; mkv (FFV1), webp and png hold every frame to the bit; gif has
256 colours. Each carries how the video was made: its prompt, seed, bundle and wanc's version.
"""

import json
import re
import subprocess
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from signal import Signals
from typing import Any, Literal, get_args

import numpy as np

from wanc.errors import RequestError, RunError

Array = np.ndarray[Any, Any]

Format = Literal["mp4", "mkv", "webp", "gif", "png"]
"""``png`` is a folder of numbered frames; the others are one file."""

FORMATS: tuple[Format, ...] = get_args(Format)

FRAME_NAMES = re.compile(r"\d{4,}\.png")
"""Of a png video's frames, which count from 0001.png."""

CRF = 18
"""x264's constant rate factor: visually lossless."""
MOST_CRF = 51

_TITLE_CHARACTERS = 200
_PROMPT_BYTES = 31_000
"""Of JSON: with the rest of a comment it stays below 32 KiB, which any command line takes."""
_PALETTE_FRAMES = 5
_COLOURS = 256
_LAST_LINES = 3
"""What is told of ffmpeg's words; the cause is seldom in the very last line."""

_BT709 = "setparams=colorspace=bt709:color_primaries=bt709:color_trc=bt709"
"""Players guess at BT.601 or BT.709 where colours are not tagged."""

_FFMPEG_PLACE = re.compile(r"\[\S+ @ 0x[0-9a-f]+\] ")
"""In its words: which part of it speaks, and the address of that."""

_CODECS: Mapping[str, tuple[str, ...]] = {
    "mp4": (
        *("-vf", f"scale=out_color_matrix=bt709:out_range=tv,format=yuv420p,{_BT709}"),
        *("-c:v", "libx264", "-movflags", "+faststart", "-f", "mp4"),
    ),
    "mkv": ("-pix_fmt", "bgr0", "-c:v", "ffv1", "-level", "3", "-f", "matroska"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a video's files say of its making."""

    prompt: str
    seed: int
    bundle: str
    """The bundle's digest."""
    wanc: str
    """The version that made it."""

    @property
    def title(self) -> str:
        """The beginning of the prompt, in one line and without control characters."""
        shown = (" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in self.prompt)
        return " ".join("".join(shown).split())[:_TITLE_CHARACTERS]

    @property
    def comment(self) -> str:
        """All of it as JSON in ASCII, which every format takes as it is; a huge prompt is cut."""
        spent = accumulate(len(json.dumps(c)) - 2 for c in self.prompt[:_PROMPT_BYTES])
        kept = sum(count <= _PROMPT_BYTES for count in spent)
        return json.dumps(asdict(replace(self, prompt=self.prompt[:kept])))


def format_of(path: Path, asked: str | None) -> Format:
    """The format that an output's suffix says, or the one asked for; raises RequestError."""
    if path.name in ("", ".."):
        raise RequestError(f"output {path}: needs a name of its own, as video.mp4")
    suffix = path.suffix.lower().removeprefix(".")
    for form in FORMATS:
        if form == (suffix if asked is None else asked):
            if form not in ("png", suffix):
                raise RequestError(
                    f"output {path}: ends in {path.suffix!r}, and format {form} needs .{form}"
                )
            return form
    if asked is not None:
        raise RequestError(f"format {asked!r}: needs {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    raise RequestError(
        f"output {path}: ends in {path.suffix!r}; needs .mp4, .mkv, .webp or .gif, "
        "or --format png for a folder of numbered frames"
    )


def check_crf(form: Format, crf: int | None) -> int:
    """The constant rate factor to use, given or not; raises RequestError."""
    if crf is None:
        return CRF
    if form != "mp4":
        raise RequestError(f"crf {crf}: is of mp4 alone; leave it out for {form}")
    if not 0 <= crf <= MOST_CRF:
        raise RequestError(f"crf {crf}: needs 0 (best) to {MOST_CRF} (smallest)")
    return crf


def find_encoder(form: Format) -> None:
    """Raise RunError where ffmpeg is needed and missing: better now than after hours of work."""
    if form in _CODECS:
        _ffmpeg()


def to_frames(pixels_BCFHW: Array) -> Array:
    """One video's pixels in [-1, 1] as frames [frames, rows, columns, 3] in uint8."""
    frames: Array = np.round((pixels_BCFHW[0].transpose(1, 2, 3, 0) + 1) * 127.5).astype(np.uint8)
    return frames


def write_video(
    path: Path, form: Format, frames_FHWC: Array, fps: int, about: About, crf: int = CRF
) -> None:
    """Write frames in uint8 to a file, or for png into a folder that is there.

    The same frames give the same bytes, with the same ffmpeg or Pillow. Raises OSError.
    """
    frames_FHWC = np.ascontiguousarray(frames_FHWC)
    if form in _CODECS:
        _encode(path, form, frames_FHWC, fps, about, crf)
    elif form == "png":
        _write_png(path, frames_FHWC, about)
    elif form == "webp":
        _write_webp(path, frames_FHWC, fps, about)
    else:
        _write_gif(path, frames_FHWC, fps, about)


def read_frames(path: Path, form: Format) -> Array:
    """A video's frames [frames, rows, columns, 3] in uint8; raises RunError.

    Frames that stand still may be one in a gif or a webp.
    """
    try:
        return _decode(path) if form in _CODECS else _read_pictures(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise RunError(f"{path}: cannot be read as {form}: {error}") from error


def write_arrays(
    path: Path, arrays: Mapping[str, Array], metadata: dict[str, str] | None = None
) -> None:
    """Write arrays as safetensors; raises OSError."""
    from safetensors.numpy import save

    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    path.write_bytes(save(whole, metadata))


def _ffmpeg() -> str:
    from imageio_ffmpeg import get_ffmpeg_exe

    try:
        return str(get_ffmpeg_exe())
    except RuntimeError as error:
        raise RunError(f"no video can be written: {error}") from error


def _encode(path: Path, form: Format, frames_FHWC: Array, fps: int, about: About, crf: int) -> None:
    """By an ffmpeg whose end is judged: it is the last bytes that a full disk leaves out."""
    _, height, width, _ = frames_FHWC.shape
    command = [
        *(_ffmpeg(), "-loglevel", "error", "-y"),
        *("-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", f"{width}x{height}"),
        *("-framerate", str(fps), "-i", "pipe:0", *_CODECS[form]),
        *(("-crf", str(crf)) if form == "mp4" else ()),
        *("-metadata", f"title={about.title}", "-metadata", f"comment={about.comment}"),
        *("-fflags", "+bitexact", f"file:{path}"),
    ]
    done = subprocess.run(command, input=frames_FHWC.data.cast("B"), capture_output=True)
    if done.returncode < 0:
        raise OSError(f"ffmpeg was killed by {Signals(-done.returncode).name}")
    if done.returncode:
        text = _FFMPEG_PLACE.sub("", done.stderr.decode(errors="backslashreplace"))
        said = text.strip().splitlines()[-_LAST_LINES:]
        raise OSError(f"ffmpeg failed: {'; '.join(said) or 'it does not say why'}")


def _decode(path: Path) -> Array:
    from imageio_ffmpeg import read_frames as decoded

    frames = decoded(path)
    width, height = next(frames)["size"]
    return np.stack([np.frombuffer(f, np.uint8).reshape(height, width, 3) for f in frames])


def _read_pictures(path: Path) -> Array:
    """Of one file, or of all in a folder."""
    from PIL import Image, ImageSequence

    pictures = []
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        with Image.open(file) as image:
            frames = ImageSequence.Iterator(image)
            pictures += [np.asarray(frame.convert("RGB")) for frame in frames]
    return np.stack(pictures)


def _write_png(folder: Path, frames_FHWC: Array, about: About) -> None:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    text = PngInfo()
    text.add_text("Title", about.title)
    text.add_text("Comment", about.comment)
    for number, frame_HWC in enumerate(frames_FHWC, start=1):
        Image.fromarray(frame_HWC).save(folder / f"{number:04d}.png", "PNG", pnginfo=text)


def _write_webp(path: Path, frames_FHWC: Array, fps: int, about: About) -> None:
    from PIL import ExifTags, Image

    exif = Image.Exif()
    exif[ExifTags.Base.ImageDescription] = about.comment
    first, *rest = (Image.fromarray(frame_HWC) for frame_HWC in frames_FHWC)
    first.save(
        path,
        "WEBP",
        save_all=True,
        append_images=rest,
        duration=_durations_ms(len(frames_FHWC), fps, unit_ms=1),
        loop=0,
        lossless=True,
        exif=exif,
    )


def _write_gif(path: Path, frames_FHWC: Array, fps: int, about: About) -> None:
    """With one palette for all frames: a palette for each would flicker."""
    from PIL import Image

    count = len(frames_FHWC)
    sampled = frames_FHWC[np.linspace(0, count - 1, min(count, _PALETTE_FRAMES)).astype(int)]
    palette = Image.fromarray(np.concatenate(sampled)).quantize(_COLOURS)
    first, *rest = (Image.fromarray(frame).quantize(palette=palette) for frame in frames_FHWC)
    first.save(
        path,
        "GIF",
        save_all=True,
        append_images=rest,
        duration=_durations_ms(count, fps, unit_ms=10),
        loop=0,
        comment=about.comment,
    )


def _durations_ms(frames: int, fps: int, *, unit_ms: int) -> list[int]:
    """What each frame lasts, in whole units; each frame ends within half a unit of its time."""
    per_second = 1000 // unit_ms
    ends = [(2 * per_second * k + fps) // (2 * fps) for k in range(frames + 1)]
    return [unit_ms * (end - start) for start, end in pairwise(ends)]

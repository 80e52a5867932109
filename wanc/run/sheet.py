"""A contact sheet: a few frames of every video of a run in one PNG. Knows pictures and captions."""

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wanc.files import Reserved
from wanc.run.outputs import as_run_error

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

Array = np.ndarray[Any, Any]

MOST_ROWS = 100
MOST_FRAMES = 5
SIDE_PX, SMALL_SIDE_PX = 240, 160
"""The most that a frame is wide or high, with few rows and with many."""

_FEW_ROWS = 25
_GAP_PX = 8
_LINE_PX, _TEXT_PX = 20, 14
_LEAST_WIDTH_PX = 640
"""For captions to say something beside narrow frames."""
_END_CHARACTERS = 28
"""What stays of a caption that is cut: room for a seed of twenty digits in brackets."""
_BOX_PX = 60
"""How high the box of a failed video is."""

_DASHES = str.maketrans("\u2013\u2014\u2212", "---")
_DRAWN = frozenset("‘’“”…«»‹›") | frozenset(map(chr, range(0x20, 0x7F)))
"""All of text that Pillow's own font has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetRow:
    """One video, or why there is none."""

    caption: str
    """Prompt and seed in one line; where it is cut, its end stays."""
    frames_FHWC: Array | None = None
    """In uint8; few_frames of them are enough."""
    error: str | None = None
    """Of a video that failed."""


def few_frames(frames_FHWC: Array) -> Array:
    """Up to five frames, evenly spread, the first and the last among them, and as small as shown.

    A sheet of many videos needs no more of each, and memory may not have room for more.
    """
    count = len(frames_FHWC)
    picked = np.linspace(0, count - 1, min(count, MOST_FRAMES)).round().astype(int)
    return np.stack([np.asarray(_small(frames_FHWC[i], SIDE_PX)) for i in picked])


def write_sheet(path: Path, rows: Sequence[SheetRow]) -> None:
    """Write a PNG with one row for each video; raises RunError.

    Of more than MOST_ROWS the last row says how many are left out.
    """
    shown = rows if len(rows) <= MOST_ROWS else rows[: MOST_ROWS - 1]
    side = SIDE_PX if len(shown) <= _FEW_ROWS else SMALL_SIDE_PX
    strips = [_strip(row, side) for row in shown]
    left_out = len(rows) - len(shown)
    sheet = _stack(strips, f"and {left_out} more" if left_out else None)
    with as_run_error(path), Reserved(path) as file:
        file.fill(lambda temporary: sheet.save(temporary, "PNG"))
        file.commit()


def _strip(row: SheetRow, side_px: int) -> "Image":
    """A video's frames beside each other and its caption under them."""
    from PIL import Image, ImageDraw

    pictures = []
    if row.error is None and row.frames_FHWC is not None:
        pictures = [_small(frame_HWC, side_px) for frame_HWC in few_frames(row.frames_FHWC)]
    across = sum(picture.width + _GAP_PX for picture in pictures) - _GAP_PX
    height = max((picture.height for picture in pictures), default=_BOX_PX)
    strip = Image.new("RGB", (max(across, _LEAST_WIDTH_PX), height + _LINE_PX), "white")
    draw = ImageDraw.Draw(strip)
    left = 0
    for picture in pictures:
        strip.paste(picture, (left, 0))
        left += picture.width + _GAP_PX
    if not pictures:
        draw.rectangle((0, 0, strip.width - 1, height - 1), outline="red", width=2)
        _write(draw, (_GAP_PX, (height - _TEXT_PX) // 2), row.error or "no frames", "red")
    _write(draw, (0, height + 2), row.caption, "black", end_characters=_END_CHARACTERS)
    return strip


def _stack(strips: list["Image"], last_line: str | None) -> "Image":
    from PIL import Image, ImageDraw

    width = max((strip.width for strip in strips), default=_LEAST_WIDTH_PX)
    height = sum(strip.height + _GAP_PX for strip in strips) + (_LINE_PX if last_line else 0)
    sheet = Image.new("RGB", (width + 2 * _GAP_PX, height + _GAP_PX), "white")
    top = _GAP_PX
    for strip in strips:
        sheet.paste(strip, (_GAP_PX, top))
        top += strip.height + _GAP_PX
    if last_line:
        _write(ImageDraw.Draw(sheet), (_GAP_PX, top), last_line, "black")
    return sheet


def _small(frame_HWC: Array, side_px: int) -> "Image":
    """A frame scaled down to fit a square; a smaller one stays as it is."""
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(frame_HWC))
    picture.thumbnail((side_px, side_px), Image.Resampling.LANCZOS)
    return picture


def _write(
    draw: "ImageDraw", at: tuple[int, int], text: str, colour: str, *, end_characters: int = 0
) -> None:
    """The first line of a text in Pillow's own font, cut to fit before so much of its end."""
    from PIL import ImageFont

    font = ImageFont.load_default(_TEXT_PX)
    line = _in_font(next(iter(text.strip().splitlines()), ""))
    room = draw.im.size[0] - at[0] - _GAP_PX
    if font.getlength(line) > room:
        end = "…" + line[len(line) - end_characters :]
        fit = bisect_right(range(len(line)), room, key=lambda n: font.getlength(line[:n] + end))
        line = line[: max(fit - 1, 0)].rstrip() + end
    draw.text(at, line, fill=colour, font=font)


def _in_font(line: str) -> str:
    """The line without accents, and with a question mark for any other letter the font lacks."""
    spaced = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in line)
    plain = unicodedata.normalize("NFKD", " ".join(spaced.split()).translate(_DASHES))
    letters = (c for c in plain if not unicodedata.combining(c))
    return "".join(c if c in _DRAWN else "?" for c in letters)

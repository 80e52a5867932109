"""Makes the pictures of docs/gallery.md, of a compiled bundle of both toys.

Run as ``python -m tools.gallery BUNDLE``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tools.toy.grammar import DIRECTIONS
from wanc.api import load
from wanc.run.sheet import SheetRow, write_sheet

PICTURES = Path("docs/pictures")
SEED = 1

PROMPTS = (
    "a red circle moving left over a dark background",
    "a green triangle moving up over a light background",
    "a blue square moving right over a dark background",
    "a yellow circle moving down over a light background",
    "a yellow triangle moving right over a dark background",
    "a blue circle moving up over a light background",
    "a green square moving left over a dark background",
    "a red triangle moving down over a light background",
    "a red square moving up over a dark background",
)
_ACROSS, _GAP_PX, _CAPTION_PX, _TEXT_PX, _FRAME_MS = 3, 8, 18, 12, 160
_REST_MS = 640
"""How long the last frame stays."""


def main(bundle: Path) -> None:
    """Writes every picture."""
    PICTURES.mkdir(exist_ok=True)
    with load(bundle, "toy-t2v") as toy:
        videos = [toy.generate(prompt, seed=SEED).frames for prompt in PROMPTS]
        _write_sheet("prompts", PROMPTS, videos)
        _write_animation("prompts", PROMPTS, videos)
        _write_sheet(*_seeds(toy))
        _write_sheet(*_guidances(toy))
        _write_sheet(*_negatives(toy))
    with load(bundle, "toy-i2v") as toy:
        _write_sheet(*_images(toy, videos[0][0]))


Rows = tuple[str, Sequence[str], Sequence[Any]]
"""A picture's name, and the caption and the frames of each of its rows."""


def _seeds(toy: Any) -> Rows:
    """One prompt, four seeds."""
    prompt = PROMPTS[0]
    seeds = range(SEED, SEED + 4)
    videos = [toy.generate(prompt, seed=seed).frames for seed in seeds]
    return "seeds", [f"{prompt} (seed {seed})" for seed in seeds], videos


def _guidances(toy: Any) -> Rows:
    """One prompt and seed, guidance from none to too much."""
    prompt = PROMPTS[1]
    scales = (1.0, 2.0, 4.0, 12.0)
    videos = [toy.generate(prompt, seed=SEED, guidance=scale).frames for scale in scales]
    return "guidance", [f"{prompt} (guidance {scale:g})" for scale in scales], videos


def _negatives(toy: Any) -> Rows:
    """A prompt that leaves the color open, and what it shall not be."""
    prompt = "a circle moving right over a dark background"
    negatives = ("", *(f"a {color} circle" for color in ("red", "green", "blue")))
    videos = [toy.generate(prompt, negative=text, seed=SEED).frames for text in negatives]
    captions = [f"{prompt} (not: {text})" if text else prompt for text in negatives]
    return "negative", captions, videos


def _images(toy: Any, image_HWC: Any) -> Rows:
    """One first frame, four directions."""
    with TemporaryDirectory() as folder:
        first = Path(folder) / "first.png"
        Image.fromarray(image_HWC).save(first)
        prompts = [f"a shape moving {direction}" for direction in DIRECTIONS]
        videos = [toy.generate(prompt, image=first, seed=SEED).frames for prompt in prompts]
    return "image", [f"{prompt} (from one image)" for prompt in prompts], videos


def _write_sheet(name: str, captions: Sequence[str], videos: Sequence[Any]) -> None:
    rows = (
        SheetRow(caption=caption, frames_FHWC=frames)
        for caption, frames in zip(captions, videos, strict=True)
    )
    write_sheet(PICTURES / f"{name}.png", list(rows))
    print(PICTURES / f"{name}.png")


def _write_animation(name: str, captions: Sequence[str], videos: Sequence[Any]) -> None:
    """All videos beside each other, moving."""
    frames, height, width = videos[0].shape[:3]
    font = ImageFont.load_default(_TEXT_PX)
    down = -(-len(videos) // _ACROSS)
    cell_width, cell_height = width + _GAP_PX, height + _CAPTION_PX + _GAP_PX
    size = (_ACROSS * cell_width + _GAP_PX, down * cell_height + _GAP_PX)
    pictures = []
    for frame in range(frames):
        picture = Image.new("RGB", size, "white")
        draw = ImageDraw.Draw(picture)
        for i, (caption, video) in enumerate(zip(captions, videos, strict=True)):
            left = _GAP_PX + i % _ACROSS * cell_width
            top = _GAP_PX + i // _ACROSS * cell_height
            picture.paste(Image.fromarray(np.ascontiguousarray(video[frame])), (left, top))
            said = caption.removesuffix(" background").replace(" over a ", ", ")
            draw.text((left, top + height + 2), said, fill="black", font=font)
        pictures.append(picture.quantize(256, dither=Image.Dither.NONE))
    path = PICTURES / f"{name}.gif"
    pictures[0].save(
        path,
        save_all=True,
        append_images=pictures[1:],
        duration=[_FRAME_MS] * (frames - 1) + [_REST_MS],
        loop=0,
        optimize=True,
    )
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

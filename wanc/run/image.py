"""Conditioning images: a file's bytes to pixels of a video's size. Knows no model and no encoder.

Files are untrusted. What is transparent lies over white; colour profiles are not applied.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from wanc.arrays import Array
from wanc.digest import of_bytes
from wanc.errors import RequestError
from wanc.spec.shape import Shape

Fit = Literal["crop", "pad", "stretch"]
"""``crop``: the middle of the picture covers the video; ``pad``: the whole picture, and black at
two sides; ``stretch``: the whole picture, out of proportion, as diffusers does."""

FITS: tuple[Fit, ...] = get_args(Fit)

Size = tuple[int, int]
"""Width and height in pixels."""

Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels."""

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MOST_MIB = 64
MOST_MEGAPIXELS = 100
LEAST_SIDE_PX = 16
MOST_SIDE_PX = 65_535
"""JPEG's own; a far longer picture would be scaled by way of one as long and as wide as a video."""

_TAKEN = (
    f"needs sides of {LEAST_SIDE_PX} to {MOST_SIDE_PX} px, and at most {MOST_MEGAPIXELS} megapixels"
)
_DEPTH_AT = 24
"""Of a PNG's bits per sample, in its first chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecord:
    """A conditioning image, as a run's record has it."""

    digest: str
    """Of the file's bytes."""
    format: str
    """``PNG``; ``MPO`` is a JPEG that other pictures follow, of which the first is read."""
    mode: str
    """Pillow's name of the pixels' kind in the file, as ``RGBA``."""
    width_px: int
    """Of the upright picture, as the height."""
    height_px: int
    turned: bool
    """Whether it was turned or mirrored, as its EXIF data ask for."""
    fit: Fit
    kept: Box
    """What of the upright picture the video has."""
    placed: tuple[int, int, int, int]
    """Where in the video that lies: left, top, width, height in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedImage:
    """A conditioning image in a video's size."""

    pixels_CHW: Array
    """[3, H, W] fp32 in [-1, 1]: red, green, blue."""
    record: ImageRecord


def read_image(path: Path) -> bytes:
    """A file's bytes; raises RequestError where there are none, or more than MOST_MIB."""
    most_bytes = MOST_MIB << 20
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        why = getattr(error, "strerror", None) or error
        raise RequestError(f"{path}: cannot be read: {why}") from error
    if not data:
        raise RequestError(f"{path}: is empty; needs an image ({_listed(FORMATS)})")
    if len(data) > most_bytes:
        raise RequestError(f"{path}: has more than {MOST_MIB} MiB, which is the most for an image")
    return data


def fit_images(
    paths: Sequence[Path], files: Sequence[bytes], shape: Shape, fit: str | None
) -> list[FittedImage]:
    """Images in a video's size; without a fit, by the first of FITS. Raises RequestError."""
    return [
        fit_image(
            data,
            str(path),
            width_px=shape.width_px,
            height_px=shape.height_px,
            fit=fit or FITS[0],
        )
        for path, data in zip(paths, files, strict=True)
    ]


def fit_image(data: bytes, where: str, *, width_px: int, height_px: int, fit: str) -> FittedImage:
    """An image file's bytes as pixels of a size; raises RequestError, naming where they are from.

    Scales with Lanczos on 8 bits, as diffusers does, and a picture of the right size not at all.
    """
    how = next((known for known in FITS if known == fit), None)
    if how is None:
        raise RequestError(f"fit {fit!r}: needs {_listed(FITS)}")
    image = _open(data, where)
    stored_mode = image.mode
    with _reading(where):
        image.load()
    turned = _turn_upright(image, where)
    with _reading(where):
        picture = _over_white(image)
    kept, placed = _boxes(picture.size, (width_px, height_px), how)
    fitted = _place(picture, kept, placed, (width_px, height_px))
    record = ImageRecord(
        digest=of_bytes(data),
        format=str(image.format),
        mode=stored_mode,
        width_px=picture.width,
        height_px=picture.height,
        turned=turned,
        fit=how,
        kept=kept,
        placed=placed,
    )
    return FittedImage(pixels_CHW=_to_pixels(fitted), record=record)


@contextmanager
def _reading(where: str, fault: str = "cannot be read as an image") -> Iterator[None]:
    """Have whatever Pillow raises be a RequestError; its warnings are of what is checked here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Image.DecompressionBombError as error:
        seen = f"has more than {MOST_MEGAPIXELS} megapixels"
        raise RequestError(f"{where}: {seen}; {_TAKEN}") from error
    except UnidentifiedImageError as error:
        why = f"it is no {_listed(FORMATS)} file, or its header is damaged; save it as PNG"
        raise RequestError(f"{where}: {fault}: {why}") from error
    except Exception as error:  # whatever a damaged file makes the decoders raise
        raise RequestError(f"{where}: {fault}: {str(error) or type(error).__name__}") from error


def _open(data: bytes, where: str) -> Image.Image:
    """The image of one frame, its header read and its pixels not yet."""
    with _reading(where):
        image = Image.open(BytesIO(data), formats=FORMATS)
    width, height = image.size
    sides = range(LEAST_SIDE_PX, MOST_SIDE_PX + 1)
    if width not in sides or height not in sides or width * height > MOST_MEGAPIXELS * 10**6:
        raise RequestError(f"{where}: has {width}x{height} px; {_TAKEN}")
    with _reading(where):
        frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
        if image.format == "PNG":
            _scale_transparent_colour(image, depth_bits=data[_DEPTH_AT])
    if frames > 1:
        raise RequestError(
            f"{where}: has {frames} frames, and one is needed: save the one that is meant as PNG"
        )
    return image


def _turn_upright(image: Image.Image, where: str) -> bool:
    """Turn or mirror an image as its EXIF data ask for; whether they do."""
    with _reading(where, "its EXIF data cannot be read (save it without them)"):
        Image.Exif().load(image.info.get("exif", b""))  # getexif hides some damage of a JPEG's
        turned = image.getexif().get(ExifTags.Base.Orientation) in range(2, 9)
        ImageOps.exif_transpose(image, in_place=True)
    return turned


def _scale_transparent_colour(image: Image.Image, *, depth_bits: int) -> None:
    """Bring a PNG's one transparent colour to 8 bits: Pillow brings only the samples there."""
    colour = image.info.get("transparency")
    if image.mode == "L" and isinstance(colour, int):
        image.info["transparency"] = colour * 255 // ((1 << depth_bits) - 1)
    if image.mode == "RGB" and isinstance(colour, tuple) and depth_bits == 16:
        image.info["transparency"] = tuple(sample >> 8 for sample in colour)


def _over_white(image: Image.Image) -> Image.Image:
    """The image in 8 bits of red, green and blue, what is transparent over white."""
    if image.mode.startswith("I"):
        image = _eight_bits(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    picture = Image.new("RGB", image.size, "white")
    layer = image.convert("RGBA")
    picture.paste(layer, mask=layer)
    return picture


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 bits in 8, a transparent grey as white; Pillow would clip it at 255."""
    grey = np.array(image, np.uint32)
    if "transparency" in image.info:
        grey[grey == image.info["transparency"]] = 0xFFFF
    return Image.fromarray(((grey + 128) // 257).astype(np.uint8))


def _boxes(source: Size, video: Size, fit: Fit) -> tuple[Box, tuple[int, int, int, int]]:
    """What is kept of a picture, and where in the video it is placed."""
    kept: Box = (0.0, 0.0, float(source[0]), float(source[1]))
    placed = (0, 0, *video)
    if fit == "crop":
        width, height = _largest(video, within=source)
        kept = ((source[0] - width) / 2, (source[1] - height) / 2, width, height)
    if fit == "pad":
        across, down = (max(1, round(side)) for side in _largest(source, within=video))
        placed = ((video[0] - across) // 2, (video[1] - down) // 2, across, down)
    return kept, placed


def _largest(proportions: Size, *, within: Size) -> tuple[float, float]:
    """The largest width and height of such proportions within a size."""
    across, down = proportions
    width, height = within
    if width * down > height * across:
        return height * across / down, float(height)
    return float(width), width * down / across


def _place(
    picture: Image.Image, kept: Box, placed: tuple[int, int, int, int], video: Size
) -> Image.Image:
    """A part of a picture scaled into a part of the video, which is black elsewhere."""
    left, top, width, height = kept
    box = (left, top, left + width, top + height)
    scaled = picture.resize(placed[2:], Image.Resampling.LANCZOS, box=box)
    if placed[2:] == video:
        return scaled
    whole = Image.new("RGB", video)
    whole.paste(scaled, placed[:2])
    return whole


def _to_pixels(picture: Image.Image) -> Array:
    """[3, H, W] fp32 in [-1, 1], rounded as diffusers' are."""
    pixels_HWC = 2.0 * (np.asarray(picture).astype(np.float32) / 255.0) - 1.0
    return np.ascontiguousarray(pixels_HWC.transpose(2, 0, 1))


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:-1]) + f" or {names[-1]}"

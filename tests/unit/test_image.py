"""Conditioning images: what is read, how it lies in the video, and what is refused."""

import os
import re
import struct
import zlib
from io import BytesIO
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import ExifTags, Image, ImageFile

from wanc.digest import of_bytes
from wanc.errors import RequestError
from wanc.run.image import FITS, ImageRecord, fit_image, read_image

WIDTH_PX, HEIGHT_PX = 208, 128
LEVEL = 2 / 255
"""Of 8 bits, in pixels."""
JPEG_LEVELS = 3
"""JPEG at quality 100 was seen to change even areas of the tests' colours by 2."""

PNG_START = b"\x89PNG\r\n\x1a\n"


def saved(picture: Image.Image, kind="PNG", **options) -> bytes:
    file = BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def fitted(data: bytes, *, width_px=WIDTH_PX, height_px=HEIGHT_PX, fit="crop"):
    return fit_image(data, "first.png", width_px=width_px, height_px=height_px, fit=fit)


def levels(image) -> np.ndarray:
    """[rows, columns, 3] of a fitted image, as levels of 0 to 255."""
    return ((image.pixels_CHW.transpose(1, 2, 0) + 1) / LEVEL).round().astype(int)


def read_levels(data: bytes) -> np.ndarray:
    """The levels of an image that is not scaled, whatever the fit."""
    with Image.open(BytesIO(data)) as image:
        width_px, height_px = image.size
    return levels(fitted(data, width_px=width_px, height_px=height_px))


def gradient(width_px: int, height_px: int) -> Image.Image:
    """Red grows to the right, green downwards; blue is 64."""
    red = np.linspace(0, 255, width_px)[None, :].repeat(height_px, 0)
    green = np.linspace(0, 255, height_px)[:, None].repeat(width_px, 1)
    return Image.fromarray(np.stack([red, green, 0 * red + 64], -1).round().astype(np.uint8))


def noise(*shape: int, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width_px: int, height_px: int, depth: int, colour: int, rows: list[bytes], *chunks: bytes):
    """A PNG of kinds that Pillow does not write; rows are filtered by nothing."""
    header = struct.pack(">IIBBBBB", width_px, height_px, depth, colour, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return PNG_START + chunk(b"IHDR", header) + b"".join(chunks) + body + chunk(b"IEND", b"")


def header_of(width_px: int, height_px: int) -> bytes:
    """A PNG that declares a size and has no pixels."""
    return png(width_px, height_px, 8, 2, [])


# --- orientation and colours ----------------------------------------------------------------------


@pytest.mark.parametrize("fit", FITS)
def test_corners_and_colours_land_where_they_belong(fit):
    got = levels(fitted(saved(gradient(104, 64)), fit=fit))
    assert got.shape == (HEIGHT_PX, WIDTH_PX, 3)
    corners = got[[0, 0, -1, -1], [0, -1, 0, -1]]
    wanted = [[0, 0, 64], [255, 0, 64], [0, 255, 64], [255, 255, 64]]
    assert np.abs(corners - wanted).max() <= 3  # a corner of a larger picture is half a step in


STORED = {  # where the picture's own top row and left column are stored, by the EXIF standard
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


def stored(upright: np.ndarray, orientation: int) -> np.ndarray:
    """The rows and columns of a file whose row 0 and column 0 are such sides of the picture."""
    row, column = STORED[orientation]
    picture = upright.swapaxes(0, 1) if row in ("left", "right") else upright
    picture = picture[::-1] if row in ("bottom", "right") else picture
    return picture[:, ::-1] if column in ("bottom", "right") else picture


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = orientation
    return tags


@pytest.mark.parametrize("orientation", STORED)
def test_every_exif_orientation(orientation):
    upright = np.asarray(gradient(48, 32))
    data = saved(Image.fromarray(stored(upright, orientation)), exif=exif(orientation))
    image = fitted(data, width_px=48, height_px=32)
    assert (levels(image) == upright).all()
    record = image.record
    assert (record.width_px, record.height_px) == (48, 32)
    assert record.turned == (orientation != 1)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "MPO"])
def test_formats_that_carry_exif(kind):
    upright = np.asarray(gradient(48, 32))
    data = saved(Image.fromarray(stored(upright, 6)), kind, quality=95, exif=exif(6))
    image = fitted(data, width_px=48, height_px=32)
    assert image.record.turned
    assert np.abs(levels(image) - upright).max() < 12  # 16 columns of a turn are 85


def test_orientation_of_grey_of_16_bits():
    values = (noise(32, 48).astype(np.uint16)) * 257
    data = saved(Image.fromarray(stored(values, 8)), exif=exif(8))
    assert (levels(fitted(data, width_px=48, height_px=32))[..., 0] == values // 257).all()


def test_an_orientation_that_does_not_exist_is_none():
    upright = np.asarray(gradient(48, 32))
    image = fitted(saved(Image.fromarray(upright), exif=exif(9)), width_px=48, height_px=32)
    assert (levels(image) == upright).all()
    assert not image.record.turned


# --- fits -----------------------------------------------------------------------------------------


def ramp(count: int, first: float, last: float, *, of: int) -> np.ndarray:
    """Levels of a gradient of so many pixels, where steps between two of its edges lie."""
    at = first + (np.arange(count) + 0.5) * (last - first) / count - 0.5
    return np.clip(at, 0, of - 1) * 255 / (of - 1)


def assert_ramps(got: np.ndarray, red: np.ndarray, green: np.ndarray) -> None:
    """Lanczos bends a ramp a little at the picture's own edges alone."""
    assert np.abs(got[..., 0] - red[None, :]).max() < 3
    assert np.abs(got[..., 1] - green[:, None]).max() < 3
    assert np.abs(got[4:-4, 4:-4, 0] - red[None, 4:-4]).max() <= 1
    assert np.abs(got[4:-4, 4:-4, 1] - green[4:-4, None]).max() <= 1
    assert (got[..., 2] == 64).all()


def test_crop_keeps_the_middle_of_a_taller_picture():
    image = fitted(saved(gradient(160, 120)), fit="crop")
    high = 160 * HEIGHT_PX / WIDTH_PX
    top = (120 - high) / 2
    assert image.record.kept == pytest.approx((0, top, 160, high))
    assert image.record.placed == (0, 0, WIDTH_PX, HEIGHT_PX)
    green = ramp(HEIGHT_PX, top, top + high, of=120)
    assert_ramps(levels(image), ramp(WIDTH_PX, 0, 160, of=160), green)


def test_crop_keeps_the_middle_of_a_wider_picture():
    image = fitted(saved(gradient(900, 300)), fit="crop")
    wide = 300 * WIDTH_PX / HEIGHT_PX
    left = (900 - wide) / 2
    assert image.record.kept == pytest.approx((left, 0, wide, 300))
    red = ramp(WIDTH_PX, left, left + wide, of=900)
    assert_ramps(levels(image), red, ramp(HEIGHT_PX, 0, 300, of=300))


@pytest.mark.parametrize("size", [(161, 121), (77, 200), (500, 90)])
def test_crop_cuts_evenly(size):
    """A picture that is turned by half gives what it gave, turned by half."""
    picture = Image.fromarray(noise(*size[::-1], 3))
    one = fitted(saved(picture)).pixels_CHW
    other = fitted(saved(picture.rotate(180))).pixels_CHW
    assert np.abs(one - other[:, ::-1, ::-1]).max() <= 1.01 * LEVEL


def test_pad_has_bars_left_and_right_of_a_taller_picture():
    image = fitted(saved(gradient(160, 120)), fit="pad")
    assert image.record.kept == (0, 0, 160, 120)
    assert image.record.placed == (18, 0, 171, 128)  # 128 * 4 / 3 is 170.67
    assert (image.pixels_CHW[:, :, :18] == -1).all()
    assert (image.pixels_CHW[:, :, 189:] == -1).all()
    inside = levels(image)[:, 18:189]
    assert_ramps(inside, ramp(171, 0, 160, of=160), ramp(128, 0, 120, of=120))


def test_pad_has_bars_above_and_below_a_wider_picture():
    image = fitted(saved(gradient(900, 300)), fit="pad")
    assert image.record.placed == (0, 29, 208, 69)  # 208 / 3 is 69.33
    assert (image.pixels_CHW[:, :29] == -1).all()
    assert (image.pixels_CHW[:, 98:] == -1).all()
    inside = levels(image)[29:98]
    assert_ramps(inside, ramp(208, 0, 900, of=900), ramp(69, 0, 300, of=300))


def test_pad_shows_a_line_of_a_picture_that_is_all_length():
    image = fitted(saved(Image.new("RGB", (16, 8000), "white")), fit="pad")
    assert image.record.placed == (103, 0, 1, 128)
    assert (image.pixels_CHW[:, :, 103] == 1).all()


def test_stretch_reaches_all_edges():
    image = fitted(saved(gradient(160, 120)), fit="stretch")
    assert image.record.kept == (0, 0, 160, 120)
    assert image.record.placed == (0, 0, WIDTH_PX, HEIGHT_PX)
    red, green = ramp(WIDTH_PX, 0, 160, of=160), ramp(HEIGHT_PX, 0, 120, of=120)
    assert_ramps(levels(image), red, green)


@pytest.mark.parametrize("size", [(160, 120), (417, 258), (208, 128), (33, 300)])
def test_stretch_is_what_diffusers_does(size):
    from diffusers.video_processor import VideoProcessor

    picture = Image.fromarray(noise(*size[::-1], 3))
    processor = VideoProcessor(vae_scale_factor=8)
    wanted = processor.preprocess(picture, height=HEIGHT_PX, width=WIDTH_PX)[0].numpy()
    got = fitted(saved(picture), fit="stretch").pixels_CHW
    assert got.dtype == wanted.dtype
    assert got.tobytes() == np.ascontiguousarray(wanted).tobytes()


@pytest.mark.parametrize("fit", FITS)
def test_a_picture_of_the_size_is_not_resampled(fit):
    pixels = noise(HEIGHT_PX, WIDTH_PX, 3)
    image = fitted(saved(Image.fromarray(pixels)), fit=fit)
    assert (levels(image) == pixels).all()
    assert image.record.kept == image.record.placed == (0, 0, WIDTH_PX, HEIGHT_PX)


@pytest.mark.parametrize("size", [(208, 100), (100, 128)])
def test_pad_does_not_resample_what_fits_as_it_is(size):
    pixels = noise(*size[::-1], 3)
    image = fitted(saved(Image.fromarray(pixels)), fit="pad")
    left, top, width, height = image.record.placed
    assert (width, height) == size
    assert (levels(image)[top : top + height, left : left + width] == pixels).all()


def test_pixels_of_every_level():
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = fitted(saved(Image.fromarray(grey)), width_px=16, height_px=16)
    pixels = image.pixels_CHW
    assert (pixels.dtype, pixels.shape) == (np.float32, (3, 16, 16))
    assert pixels.flags.c_contiguous
    wanted = np.float32(2) * (grey.astype(np.float32) / np.float32(255)) - np.float32(1)
    assert (pixels == wanted).all()
    assert (pixels.min(), pixels.max()) == (-1, 1)


# --- kinds of pixels ------------------------------------------------------------------------------

GREY = noise(16, 20)
COLOURS = noise(16, 20, 3)
INDEXES = noise(16, 20, seed=1) % 4
PALETTE = np.array([[250, 10, 20], [30, 240, 40], [50, 60, 230], [7, 8, 9]], np.uint8)


def three(grey: np.ndarray) -> np.ndarray:
    return np.stack([grey] * 3, -1)


def over_white(colours: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    exact = colours * (alpha[..., None] / 255.0) + (255.0 - alpha[..., None])
    return np.floor(exact + 0.5).astype(int)


def paletted() -> Image.Image:
    picture = Image.fromarray(INDEXES)
    picture.putpalette(PALETTE.tobytes())
    assert picture.mode == "P"
    return picture


def test_one_bit():
    data = saved(Image.fromarray(GREY > 127))
    assert fitted(data).record.mode == "1"
    assert (read_levels(data) == three((GREY > 127) * 255)).all()


def test_one_bit_with_a_transparent_grey():
    data = saved(Image.fromarray(GREY > 127), transparency=0)
    assert (read_levels(data) == 255).all()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF"])
def test_grey(kind):
    data = saved(Image.fromarray(GREY), kind)
    assert fitted(data).record.format == kind
    assert (read_levels(data) == three(GREY)).all()


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_grey_with_a_transparent_grey(kind):
    key = int(GREY[3, 4])
    got = read_levels(saved(Image.fromarray(GREY), kind, transparency=key))
    assert (got == three(np.where(key == GREY, 255, GREY))).all()


@pytest.mark.parametrize("depth", [2, 4])
def test_grey_of_few_bits_with_a_transparent_grey(depth):
    """The transparent grey has the file's own depth."""
    samples = noise(16, 24, seed=2) >> (8 - depth)
    bits = np.unpackbits(samples[..., None], axis=-1)[..., 8 - depth :]
    key = chunk(b"tRNS", struct.pack(">H", 2))
    rows = [row.tobytes() for row in np.packbits(bits.reshape(16, -1), axis=1)]
    data = png(24, 16, depth, 0, rows, key)
    scaled = samples.astype(int) * (255 // ((1 << depth) - 1))
    assert (read_levels(data) == three(np.where(samples == 2, 255, scaled))).all()


def test_grey_with_alpha():
    c, a = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    data = saved(Image.fromarray(np.stack([c, a], -1)))
    assert fitted(data).record.mode == "LA"
    assert (read_levels(data) == over_white(three(c), a)).all()


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_colours_with_alpha(kind):
    alpha = noise(16, 20, 1, seed=3)
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    data = saved(Image.fromarray(np.concatenate([COLOURS, alpha], -1)), kind, **options)
    assert fitted(data).record.mode == "RGBA"
    assert (read_levels(data) == over_white(COLOURS, alpha[..., 0])).all()


def test_colours_with_a_transparent_colour():
    key = tuple(map(int, COLOURS[3, 4]))
    got = read_levels(saved(Image.fromarray(COLOURS), transparency=key))
    assert (got[3, 4] == 255).all()
    assert (got == np.where((key == COLOURS).all(-1, keepdims=True), 255, COLOURS)).all()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_colours(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(Image.fromarray(COLOURS), kind, **options)
    record = fitted(data).record
    assert (record.format, record.mode) == (kind, "RGB")
    assert (read_levels(data) == COLOURS).all()


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP"])
def test_palette(kind):
    data = saved(paletted(), kind)
    assert fitted(data).record.mode == "P"
    assert (read_levels(data) == PALETTE[INDEXES]).all()


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_palette_with_a_transparent_entry(kind):
    got = read_levels(saved(paletted(), kind, transparency=2))
    assert (got == np.where(INDEXES[..., None] == 2, 255, PALETTE[INDEXES])).all()


def test_palette_with_alphas():
    alphas = np.array([0, 100, 255, 200], np.uint8)
    got = read_levels(saved(paletted(), transparency=alphas.tobytes()))
    assert (got == over_white(PALETTE[INDEXES], alphas[INDEXES])).all()


def test_grey_of_16_bits_is_scaled():
    values = np.linspace(0, 65535, 16 * 20).reshape(16, 20).astype(np.uint16)
    data = saved(Image.fromarray(values))
    assert fitted(data).record.mode == "I;16"
    assert (read_levels(data) == three(np.round(values / 257.0).astype(int))).all()


def test_grey_of_16_bits_with_a_transparent_grey():
    values = np.linspace(0, 60000, 16 * 20).reshape(16, 20).astype(np.uint16)
    got = read_levels(saved(Image.fromarray(values), transparency=int(values[3, 4])))
    wanted = np.round(values / 257.0).astype(int)
    wanted[3, 4] = 255
    assert (got == three(wanted)).all()


def test_colours_of_16_bits_with_a_transparent_colour():
    values = (noise(16, 20, 3).astype(int) * 256 + 128).astype(">u2")
    key = chunk(b"tRNS", values[3, 4].tobytes())
    wanted = values // 256
    wanted[3, 4] = 255
    data = png(20, 16, 16, 2, [row.tobytes() for row in values], key)
    assert (read_levels(data) == wanted).all()


AREAS = np.array([[10, 200, 90], [240, 240, 20], [0, 0, 0], [120, 30, 220]], np.uint8)


def areas(values: np.ndarray) -> np.ndarray:
    """Four even areas of 16 px, in a row."""
    return values[np.arange(64) // 16][None].repeat(16, 0)


@pytest.mark.parametrize("mode", ["RGB", "YCbCr"])
def test_jpeg(mode):
    picture = Image.fromarray(areas(AREAS)).convert(mode)
    data = saved(picture, "JPEG", quality=100, subsampling=0)
    assert fitted(data).record.format == "JPEG"
    assert np.abs(read_levels(data) - areas(AREAS)).max() <= JPEG_LEVELS


def test_jpeg_of_inks():
    inks = np.array([[255, 0, 0, 0], [0, 128, 255, 0], [0, 0, 0, 200], [20, 90, 3, 77]], np.uint8)
    data = saved(Image.fromarray(areas(inks), "CMYK"), "JPEG", quality=100, subsampling=0)
    assert fitted(data).record.mode == "CMYK"
    wanted = (255.0 - inks[:, :3]) * (255.0 - inks[:, 3:]) / 255
    assert np.abs(read_levels(data) - areas(wanted)).max() <= JPEG_LEVELS


def test_the_first_picture_of_a_telephones_jpeg():
    """Telephones append a small or a depth picture to the one that they took."""
    first, second = Image.fromarray(areas(AREAS)), Image.new("RGB", (32, 32), "white")
    data = saved(first, "MPO", save_all=True, append_images=[second], quality=100, subsampling=0)
    assert fitted(data).record.format == "MPO"
    assert np.abs(read_levels(data) - areas(AREAS)).max() <= JPEG_LEVELS


# --- the record -----------------------------------------------------------------------------------


def test_record():
    data = saved(gradient(160, 120).convert("RGBA"))
    record = fitted(data, fit="pad").record
    assert record == ImageRecord(
        digest=of_bytes(data),
        format="PNG",
        mode="RGBA",
        width_px=160,
        height_px=120,
        turned=False,
        fit="pad",
        kept=(0.0, 0.0, 160.0, 120.0),
        placed=(18, 0, 171, 128),
    )
    assert msgspec.json.decode(msgspec.json.encode(record), type=ImageRecord) == record


# --- reading --------------------------------------------------------------------------------------


def refused(text: str):
    return pytest.raises(RequestError, match=f"^{re.escape(text)}$")


def test_read_image(tmp_path):
    (tmp_path / "a.png").write_bytes(b"anything")
    assert read_image(tmp_path / "a.png") == b"anything"


def test_what_is_no_file(tmp_path):
    with refused(f"{tmp_path}/a.png: cannot be read: No such file or directory"):
        read_image(tmp_path / "a.png")
    with refused(f"{tmp_path}: cannot be read: Is a directory"):
        read_image(tmp_path)
    with refused("a\0b.png: cannot be read: embedded null byte"):
        read_image(Path("a\0b.png"))


def test_an_empty_file(tmp_path):
    (tmp_path / "a.png").touch()
    with refused(f"{tmp_path}/a.png: is empty; needs an image (PNG, JPEG, WEBP, BMP or GIF)"):
        read_image(tmp_path / "a.png")


def test_a_file_that_is_too_large(tmp_path):
    path = tmp_path / "a.png"
    path.touch()
    os.truncate(path, 64 << 20)
    assert len(read_image(path)) == 64 << 20
    os.truncate(path, (64 << 20) + 1)
    with refused(f"{path}: has more than 64 MiB, which is the most for an image"):
        read_image(path)


def test_a_file_without_end():
    with refused("/dev/zero: has more than 64 MiB, which is the most for an image"):
        read_image(Path("/dev/zero"))


# --- what is refused ------------------------------------------------------------------------------

UNREAD = "cannot be read as an image"
TAKEN = "needs sides of 16 to 65535 px, and at most 100 megapixels"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"<svg xmlns='http://www.w3.org/2000/svg' width='64' height='64'/>",
        b"%PDF-1.7\n" + bytes(200),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EOF\n",
        saved(gradient(32, 32), "TIFF"),
        saved(gradient(32, 32), "PPM"),
        saved(gradient(32, 32), "ICO"),
    ],
    ids=["empty", "text", "svg", "pdf", "eps", "tiff", "ppm", "ico"],
)
def test_other_formats(data):
    with refused(
        "first.png: cannot be read as an image: it is no PNG, JPEG, WEBP, BMP or GIF file, or its "
        "header is damaged; save it as PNG"
    ):
        fitted(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
def test_half_a_file(kind):
    data = saved(Image.fromarray(noise(64, 64, 3)), kind)
    with pytest.raises(RequestError, match=r"^first\.png: cannot be read as an image: [^<>]+$"):
        fitted(data[: len(data) // 2])


def test_a_damaged_checksum():
    data = bytearray(saved(Image.fromarray(noise(64, 64, 3))))
    data[200] ^= 1
    with refused(
        "first.png: cannot be read as an image: broken data stream when reading image file"
    ):
        fitted(bytes(data))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_damaged_exif_data(kind):
    """How the picture lies is not known."""
    data = saved(gradient(32, 32), kind, exif=b"Exif\0\0no such thing")
    fault = r"its EXIF data cannot be read \(save it without them\): not a TIFF file"
    with pytest.raises(RequestError, match=rf"^first\.png: {fault}"):
        fitted(data)


@pytest.mark.parametrize("error", [MemoryError(), EOFError("the end"), zlib.error("no")])
def test_whatever_a_decoder_raises(monkeypatch, error):
    def load(self):
        raise error

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    with refused(f"first.png: {UNREAD}: {str(error) or 'MemoryError'}"):
        fitted(saved(gradient(32, 32), "BMP"))


@pytest.mark.parametrize(("kind", "frames"), [("GIF", 3), ("WEBP", 2), ("PNG", 4)])
def test_animations(kind, frames):
    pictures = [Image.fromarray(noise(32, 32, 3, seed=k)) for k in range(frames)]
    data = saved(pictures[0], kind, save_all=True, append_images=pictures[1:])
    with refused(
        f"first.png: has {frames} frames, and one is needed: save the one that is meant as PNG"
    ):
        fitted(data)


@pytest.mark.parametrize("size", [(15, 16), (16, 15), (1, 1000)])
def test_pictures_that_are_too_small(size):
    with refused(f"first.png: has {size[0]}x{size[1]} px; {TAKEN}"):
        fitted(saved(Image.new("RGB", size)))


def test_the_smallest_picture():
    assert fitted(saved(Image.new("RGB", (16, 16), "white"))).pixels_CHW.min() == 1


@pytest.mark.parametrize("size", [(10_001, 10_000), (65_536, 16), (16, 65_536)])
def test_pictures_that_are_too_large_are_not_decoded(size):
    """They have no pixels, which decoding would complain of."""
    with refused(f"first.png: has {size[0]}x{size[1]} px; {TAKEN}"):
        fitted(header_of(*size))


@pytest.mark.parametrize("size", [(20_000, 20_000), (0x7FFF_FFFF, 0x7FFF_FFFF)])
def test_bombs_are_not_decoded(size):
    with refused(f"first.png: has more than 100 megapixels; {TAKEN}"):
        fitted(header_of(*size))


def test_a_bomb_of_another_format():
    data = saved(Image.new("P", (16, 16)), "GIF")
    large = data[:6] + struct.pack("<HH", 65_535, 65_535) + data[10:]
    with refused(f"first.png: has more than 100 megapixels; {TAKEN}"):
        fitted(large)


def test_the_largest_picture_is_read():
    with pytest.raises(RequestError, match="cannot be read as an image: image file is truncated"):
        fitted(header_of(65_535, 1525))


def test_an_unknown_fit():
    with refused("fit 'cover': needs crop, pad or stretch"):
        fitted(saved(gradient(32, 32)), fit="cover")


# --- damage ---------------------------------------------------------------------------------------


def damaged(data: bytes, seed: int) -> bytes:
    """Cut short, or with a few bytes changed."""
    draw = np.random.default_rng(seed)
    if draw.random() < 0.3:
        return data[: draw.integers(len(data))]
    changed = bytearray(data)
    for at in draw.integers(len(data), size=draw.integers(1, 8)):
        changed[at] ^= int(draw.integers(1, 256))
    return bytes(changed)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_damage_is_refused_or_harmless(kind):
    """Nothing but RequestError, and no warning; most of what is damaged is refused."""
    options = {"exif": exif(6)} if kind in ("PNG", "JPEG", "WEBP") else {}
    data = saved(Image.fromarray(noise(24, 20, 3) // 32 * 32), kind, **options)
    refusals = []
    for seed in range(200):
        try:
            image = fitted(damaged(data, seed), width_px=32, height_px=16)
        except RequestError as error:
            refusals.append(str(error))
        else:
            assert image.pixels_CHW.shape == (3, 16, 32)
            assert np.abs(image.pixels_CHW).max() <= 1
    assert all(text.startswith("first.png: ") for text in refusals)
    assert len(refusals) > 40

"""Contact sheets, read back: where frames lie, what is written, and how large they get."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wanc.errors import RunError
from wanc.run.sheet import (
    MOST_FRAMES,
    MOST_ROWS,
    SIDE_PX,
    SMALL_SIDE_PX,
    SheetRow,
    few_frames,
    write_sheet,
)

GAP_PX, LINE_PX = 8, 20
WHITE, RED, BLACK = (255, 255, 255), (255, 0, 0), (0, 0, 0)


def video(frames: int, width_px=96, height_px=64) -> np.ndarray:
    """Frame k is grey of level 2k."""
    levels = 2 * np.arange(frames, dtype=np.uint8)[:, None, None, None]
    return np.broadcast_to(levels, (frames, height_px, width_px, 3)).copy()


def sheet_of(folder: Path, *rows: SheetRow) -> np.ndarray:
    write_sheet(folder / "sheet.png", rows)
    with Image.open(folder / "sheet.png") as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def row(frames=9, caption="seed 1: a ship", **size) -> SheetRow:
    return SheetRow(caption=caption, frames_FHWC=video(frames, **size))


def has(part: np.ndarray, colour: tuple[int, int, int]) -> bool:
    return bool((part == colour).all(axis=-1).any())


@pytest.mark.parametrize(
    ("frames", "levels"),
    [
        (81, [0, 40, 80, 120, 160]),
        (121, [0, 60, 120, 180, 240]),
        (5, [0, 2, 4, 6, 8]),
        (3, [0, 2, 4]),
        (1, [0]),
    ],
)
def test_five_frames_evenly_spread_the_first_and_the_last_among_them(frames, levels):
    assert few_frames(video(frames))[:, 0, 0, 0].tolist() == levels


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ((832, 480), (240, 138)),
        ((480, 832), (138, 240)),
        ((240, 240), (240, 240)),
        ((96, 64), (96, 64)),
    ],
)
def test_frames_are_scaled_down_and_never_up(size, shown):
    found = few_frames(video(2, *size))
    assert found.shape[2:0:-1] == shown
    assert found.dtype == np.uint8


def test_few_frames_are_enough_for_a_sheet(tmp_path):
    whole = video(81, 832, 480)
    both = [SheetRow(caption="a", frames_FHWC=frames) for frames in (whole, few_frames(whole))]
    np.testing.assert_array_equal(sheet_of(tmp_path, both[0]), sheet_of(tmp_path, both[1]))


def test_frames_lie_in_a_row_and_the_caption_under_them(tmp_path):
    sheet = sheet_of(tmp_path, row(81, width_px=832, height_px=480))
    assert sheet.shape[1] == 5 * SIDE_PX + 6 * GAP_PX
    assert sheet.shape[0] == 138 + LINE_PX + 2 * GAP_PX
    lefts = [GAP_PX + k * (SIDE_PX + GAP_PX) for k in range(MOST_FRAMES)]
    for left, level in zip(lefts, [0, 40, 80, 120, 160], strict=True):
        assert (sheet[GAP_PX : GAP_PX + 138, left : left + SIDE_PX] == level).all()
        assert (sheet[:, left - GAP_PX : left] == WHITE).all()
    assert has(sheet[GAP_PX + 138 :], BLACK)


def test_rows_lie_under_each_other(tmp_path):
    sheet = sheet_of(tmp_path, row(), row(height_px=32), row())
    assert sheet.shape[0] == 64 + 32 + 64 + 3 * LINE_PX + 4 * GAP_PX
    top = GAP_PX + 64 + LINE_PX + GAP_PX
    assert (sheet[top : top + 32, GAP_PX : GAP_PX + 96] == 0).all()


def test_a_failed_video_is_a_red_box(tmp_path):
    failed = SheetRow(caption="seed 2: a ship", error="stage decode: one colour\nsecond line")
    sheet = sheet_of(tmp_path, failed)
    assert (sheet[GAP_PX, GAP_PX:-GAP_PX] == RED).all()
    assert (sheet[GAP_PX : GAP_PX + 60, GAP_PX] == RED).all()
    assert has(sheet[GAP_PX + 4 : GAP_PX + 56, GAP_PX + 4 : -GAP_PX - 4], RED)
    assert has(sheet[GAP_PX + 60 :], BLACK)
    first_line = SheetRow(caption="seed 2: a ship", error="stage decode: one colour")
    np.testing.assert_array_equal(sheet_of(tmp_path, first_line), sheet)


def test_an_error_hides_the_frames(tmp_path):
    failed = SheetRow(caption="", frames_FHWC=video(9), error="late")
    assert (sheet_of(tmp_path, failed)[GAP_PX, GAP_PX:-GAP_PX] == RED).all()


def test_a_row_of_nothing_says_so(tmp_path):
    empty, told = (SheetRow(caption="a", error=error) for error in (None, "no frames"))
    np.testing.assert_array_equal(sheet_of(tmp_path, empty), sheet_of(tmp_path, told))


def test_a_long_caption_is_cut_before_its_end_and_leaves_the_margin(tmp_path):
    """The end is where the seed may stand."""
    long, longer, other = (
        sheet_of(tmp_path, row(caption="a ship " * n + f"(seed {seed})"))
        for n, seed in ((90, 1), (900, 1), (90, 7))
    )
    np.testing.assert_array_equal(long, longer)
    assert (long != other).any()
    assert (long[:, -GAP_PX:] == WHITE).all()
    under = (long[GAP_PX + 64 :] != WHITE).any(axis=(0, 2))
    assert under[-6 * GAP_PX :].any()


def test_a_long_error_is_cut_at_its_end(tmp_path):
    errors = ["stage decode: " + "a pixel " * n for n in (90, 900)]
    sheets = [sheet_of(tmp_path, SheetRow(caption="", error=error)) for error in errors]
    np.testing.assert_array_equal(*sheets)


@pytest.mark.parametrize(
    ("written", "drawn"),
    [
        ("seed 1:\ta \0ship\x1b  sails", "seed 1: a ship sails"),
        ("seed 1: a ship sails\nsecond line", "seed 1: a ship sails"),
        ("un café — “naïf”", "un cafe - “naif”"),
        ("海边的 ships \U0001f600", "??? ships ?"),
        ("\udce9a\u200db", "a b"),
        ("\n\n", ""),
    ],
)
def test_captions_are_drawn_with_what_the_font_has(tmp_path, written, drawn):
    sheets = [sheet_of(tmp_path, row(caption=caption)) for caption in (written, drawn)]
    np.testing.assert_array_equal(*sheets)


def test_a_caption_is_legible(tmp_path):
    """Other words give another picture."""
    ship, shop = (sheet_of(tmp_path, row(caption=caption)) for caption in ("ship", "shop"))
    assert (ship != shop).any()


def test_many_rows_are_smaller(tmp_path):
    large = {"width_px": 832, "height_px": 480}
    few = sheet_of(tmp_path, *[row(2, **large)] * 25)
    many = sheet_of(tmp_path, *[row(2, **large)] * 26)
    assert (few[GAP_PX, GAP_PX : GAP_PX + SIDE_PX] == 0).all()
    assert (many[GAP_PX, GAP_PX : GAP_PX + SMALL_SIDE_PX] == 0).all()
    assert (many[GAP_PX, GAP_PX + SMALL_SIDE_PX] == WHITE).all()


def test_no_more_rows_than_a_sheet_takes(tmp_path):
    full, over = (sheet_of(tmp_path, *[row(1)] * n) for n in (MOST_ROWS, MOST_ROWS + 4))
    each = 64 + LINE_PX + GAP_PX
    assert full.shape[0] == MOST_ROWS * each + GAP_PX
    assert over.shape[0] == (MOST_ROWS - 1) * each + LINE_PX + GAP_PX
    np.testing.assert_array_equal(over[: -LINE_PX - GAP_PX], full[: -each - GAP_PX])
    assert has(over[-LINE_PX - GAP_PX :], BLACK)


def test_a_sheet_of_nothing_is_a_picture(tmp_path):
    assert (sheet_of(tmp_path) == WHITE).all()


def test_a_sheet_that_cannot_be_written(tmp_path):
    with pytest.raises(RunError, match=r"sheet\.png cannot be written: No such file"):
        write_sheet(tmp_path / "gone" / "sheet.png", [row()])


def test_an_earlier_sheet_stays_where_writing_fails(tmp_path, monkeypatch):
    before = sheet_of(tmp_path, row())

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(RunError, match="No space left on device"):
        write_sheet(tmp_path / "sheet.png", [row(), row()])
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]
    assert Image.open(tmp_path / "sheet.png").size == before.shape[1::-1]

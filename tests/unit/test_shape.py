"""Shapes as people write them: what is read, what is refused, and with which advice."""

import pytest

from wanc.errors import RequestError
from wanc.spec.shape import GRAIN_PX, Shape, nearest_frames, nearest_multiples


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("832x480x81", (832, 480, 81)),
        ("480x832x81", (480, 832, 81)),
        ("1280x720x121", (1280, 720, 121)),
        ("208x128x5", (208, 128, 5)),
        ("16x16x1", (16, 16, 1)),
    ],
)
def test_legal_shape_is_read_and_written_back(text, size):
    shape = Shape.parse(text)
    assert (shape.width_px, shape.height_px, shape.frames) == size
    assert str(shape) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "832", "832x480", "832x480x81x1", "832*480*81", "832X480X81", "832 x 480 x 81"),
        *("832x480x81 ", "832x480x81\n", "-832x480x81", "832x+480x81", "832.0x480x81"),
        *("0x1p4x480x81", "1e3x480x81", "８３２x480x81", "8320000x480x81", "832xx81"),
    ],
)
def test_other_grammar_is_refused_with_an_example(text):
    with pytest.raises(RequestError, match="write it as 832x480x81") as caught:
        Shape.parse(text)
    assert repr(text) in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("208x128x6", "frames 6 is not 4k+1; nearest are 5 and 9"),
        ("208x128x80", "frames 80 is not 4k+1; nearest are 77 and 81"),
        ("208x128x4", "frames 4 is not 4k+1; nearest are 1 and 5"),
        ("208x128x0", "frames 0 is not 4k+1; nearest are 1"),
        ("210x128x5", "width 210 is not a positive multiple of 16; nearest are 208 and 224"),
        ("1920x1080x81", "height 1080 is not a positive multiple of 16; nearest are 1072 and 1088"),
        ("8x128x5", "width 8 is not a positive multiple of 16; nearest are 16"),
        ("0x128x5", "width 0 is not a positive multiple of 16; nearest are 16"),
    ],
)
def test_value_that_no_model_takes_names_the_nearest(text, message):
    with pytest.raises(RequestError) as caught:
        Shape.parse(text)
    assert str(caught.value) == f"shape {text}: {message}"
    assert caught.value.exit_code == 2


def test_every_problem_of_a_shape_is_named_at_once():
    with pytest.raises(RequestError) as caught:
        Shape.parse("210x130x6")
    assert [part.split()[:2] for part in str(caught.value).split(": ")[1].split("; ")[::2]] == [
        ["width", "210"],
        ["height", "130"],
        ["frames", "6"],
    ]


def test_nearest_values_are_legal_and_closest():
    for frames in range(1, 200):
        near = nearest_frames(frames)
        assert all(value % 4 == 1 for value in near)
        assert min(abs(value - frames) for value in near) <= 2
        assert near[0] <= frames < near[-1]
    for value in range(1, 200):
        near = nearest_multiples(value, GRAIN_PX)
        assert all(v > 0 and v % GRAIN_PX == 0 and abs(v - value) <= GRAIN_PX for v in near)
        assert near[-1] > value

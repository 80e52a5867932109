"""Prompts from a file: what a line says, and that a wrong line is wrong alone."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wanc.errors import RequestError
from wanc.run import lines
from wanc.run.batch import Item
from wanc.run.lines import Line, read_lines, seeds_of
from wanc.run.request import Guidance, RunRequest
from wanc.run.video import Format

OUT = Path("out")
GIVEN = RunRequest(
    negative="grain",
    steps=7,
    guidance=Guidance(high=1.0, low=2.0),
    flow_shift=3.0,
    seed=8,
    sampler="euler",
    expert="high_noise",
    preset="vllm-omni",
    image=Path("given.png"),
    last_image=Path("given-last.png"),
    fit="pad",
    profile=True,
    check_ranks=True,
    save_every=5,
)
"""Every value that a command line can give beside a file of prompts."""

LINE = {
    "prompt": "a harbour at dawn",
    "negative": "blur",
    "seed": 42,
    "steps": 12,
    "guidance": "high=4,low=3.5",
    "flow_shift": 5.5,
    "sampler": "dpm++",
    "expert": "low_noise",
    "preset": "official",
    "image": "pictures/first.png",
    "last_image": "pictures/last.png",
    "fit": "stretch",
    "output": "harbour.mp4",
}

Read = Callable[..., list[Item]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """read(line, line, …, common=…, form=…): lines as JSON values, or as they stand, in bytes."""

    def of(
        *said: Any, common: RunRequest = GIVEN, form: Format = "mp4", crf: int | None = None
    ) -> list[Item]:
        path = tmp_path / "prompts.jsonl"
        data = [each if isinstance(each, bytes) else dumped(each) for each in said]
        path.write_bytes(b"\n".join(data) + b"\n")
        return read_lines(path, OUT, common, form, crf)

    return of


def dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def names(items: list[Item]) -> list[str]:
    return [str(item.output) for item in items]


# --- what a line says -----------------------------------------------------------------------------


def test_every_field_of_a_line_is_tried_here() -> None:
    assert set(LINE) == set(Line.__struct_fields__)


def test_every_field_wins_over_the_command_line(read: Read, tmp_path: Path) -> None:
    (item,) = read(LINE, crf=30)
    assert item == Item(
        name="line 1",
        request=RunRequest(
            prompt="a harbour at dawn",
            negative="blur",
            seed=42,
            steps=12,
            guidance=Guidance(high=4.0, low=3.5),
            flow_shift=5.5,
            sampler="dpm++",
            expert="low_noise",
            preset="official",
            image=tmp_path / "pictures/first.png",
            last_image=tmp_path / "pictures/last.png",
            fit="stretch",
            profile=True,
            check_ranks=True,
            save_every=5,
        ),
        output=OUT / "harbour.mp4",
        form="mp4",
        crf=30,
    )


@pytest.mark.parametrize("name", [name for name in LINE if name not in ("prompt", "output")])
def test_what_a_line_leaves_out_is_as_the_command_line_has_it(read: Read, name: str) -> None:
    left_out = {key: value for key, value in LINE.items() if key != name}
    items = read(left_out, {**LINE, name: None, "output": "null.mp4"})
    assert [getattr(item.request, name) for item in items] == [getattr(GIVEN, name)] * 2


def test_a_prompt_alone_is_enough(read: Read) -> None:
    (item,) = read({"prompt": "a ship"}, common=RunRequest())
    assert item.request == RunRequest(prompt="a ship")
    assert (item.error, item.latents, item.crf) == (None, None, None)


def test_values_that_count_as_nothing_are_values(read: Read) -> None:
    """An empty negative prompt, seed 0 and guidance 0 are choices."""
    (item,) = read({"prompt": "", "negative": "", "seed": 0, "guidance": 0})
    assert (item.request.prompt, item.request.negative, item.request.seed) == ("", "", 0)
    assert item.request.guidance == Guidance(high=0.0, low=0.0)


@pytest.mark.parametrize(
    ("said", "high", "low"),
    [(5, 5, 5), (3.5, 3.5, 3.5), ("4", 4, 4), ("high=4,low=3", 4, 3), ("low=3,high=4", 4, 3)],
)
def test_guidance_is_a_number_or_two_by_name(
    read: Read, said: Any, high: float, low: float
) -> None:
    (item,) = read({"prompt": "a", "guidance": said})
    assert item.request.guidance == Guidance(high=high, low=low)


def test_text_is_taken_as_it_stands(read: Read) -> None:
    said = ['a "lighthouse"\n灯塔 🗼', "\u2028\x00\t", "a" * 100_000]
    items = read(*({"prompt": text} for text in said))
    assert [item.request.prompt for item in items] == said


def test_images_lie_from_the_file_s_folder_on(read: Read, tmp_path: Path) -> None:
    said = [{"prompt": "a", "image": name} for name in ("a.png", "../b.png", "/c/d.png")]
    paths = [item.request.image for item in read(*said)]
    assert paths == [tmp_path / "a.png", tmp_path / "../b.png", Path("/c/d.png")]
    assert read({"prompt": "a"})[0].request.image == Path("given.png"), "the user's own folder"


# --- lines and names ------------------------------------------------------------------------------


def test_videos_are_named_by_line_and_blank_lines_count(read: Read) -> None:
    a = {"prompt": "a"}
    items = read(b"", a, b"  \t", b"\r", a)
    assert [item.name for item in items] == ["line 2", "line 5"]
    assert names(items) == ["out/0002.mp4", "out/0005.mp4"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_ends_of_lines_and_the_mark_at_the_start_are_any_editor_s(
    tmp_path: Path, start: bytes, end: bytes
) -> None:
    path = tmp_path / "p"
    path.write_bytes(start + end.join([b'{"prompt": "a"}', b'{"prompt": "b"}']))
    items = read_lines(path, OUT, RunRequest(), "mp4", None)
    assert [(item.request.prompt, item.error) for item in items] == [("a", None), ("b", None)]


@pytest.mark.parametrize("form", ["mp4", "mkv", "webp", "gif"])
def test_videos_have_the_suffix_of_the_run_s_format(read: Read, form: Format) -> None:
    named = {"prompt": "a", "output": f"x.{form}"}
    items = read({"prompt": "a"}, named, {**named, "output": "x.avi"}, form=form)
    assert names(items) == [f"out/0001.{form}", f"out/x.{form}", f"out/0003.{form}"]
    assert [item.form for item in items] == [form] * 3
    said = f"output 'x.avi': the videos of this run end in .{form}"
    assert [item.error for item in items] == [None, None, said]


def test_folders_of_frames_have_none(read: Read) -> None:
    items = read({"prompt": "a"}, {"prompt": "a", "output": "x"}, form="png")
    assert names(items) == ["out/0001", "out/x"]
    assert [item.error for item in items] == [None, None]


# --- wrong lines ----------------------------------------------------------------------------------

DEEP = 100_000
GOOD = {"prompt": "good"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"a lighthouse", "JSON is malformed"),
        (b'{"prompt": "a"', "truncated"),
        (b'{"prompt": "a"} {"prompt": "b"}', "trailing characters"),
        (b"null", "Expected `object`, got `null`"),
        (b'["a"]', "Expected `object`, got `array`"),
        (b"{}", "missing required field `prompt`"),
        (b'{"prompt": null}', "Expected `str`, got `null` - at `$.prompt`"),
        (b'{"prompt": "a", "promt": "b"}', "unknown field `promt`"),
        (b'{"prompt": "a", "resume": "v.steps.safetensors"}', "unknown field `resume`"),
        (b'{"prompt": "a", "seed": "1"}', "Expected `int | null`, got `str` - at `$.seed`"),
        (b'{"prompt": "a", "seed": 1.5}', "Expected `int | null`, got `float`"),
        (b'{"prompt": "a", "steps": true}', "Expected `int | null`, got `bool`"),
        (b'{"prompt": "a", "guidance": true}', "Expected `float | str | null`, got `bool`"),
        (b'{"prompt": "a", "guidance": [4, 3]}', "got `array` - at `$.guidance`"),
        (b'{"prompt": "a", "guidance": "high=4"}', "guidance 'high=4': write one number"),
        (b'{"prompt": "a", "guidance": 1e999}', "out of range"),
        (b'{"prompt": "a", "guidance": NaN}', "JSON is malformed"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "out of range"),
        (b'{"prompt": "a", "image": ["a.png"]}', "got `array` - at `$.image`"),
        (b'{"prompt": "a", "output": 1}', "got `int` - at `$.output`"),
        (b'{"prompt": "\xff"}', "Invalid UTF-8"),
        (b'{"prompt": "\xed\xa0\x80"}', "Invalid UTF-8"),
        (b'{"prompt": "\\ud800"}', "truncated"),
        (b'{"prompt": "\\ud800 and more"}', "surrogate"),
        (b'{"prompt": "\\udc00\\ud800"}', "surrogate"),
        ('{"prompt": "a"}'.encode("utf-16"), "JSON is malformed"),
        (b"[" * DEEP, "Expected `object`, got `array`"),
        (b'{"prompt": ' + b"[" * DEEP, "Expected `str`, got `array`"),
        (b'{"prompt": "a", "x": ' + b'{"x": ' * DEEP, "unknown field `x`"),
    ],
    ids=lambda value: repr(value[:32]) if isinstance(value, bytes) else "",
)
def test_a_wrong_line_is_an_error_of_that_line_alone(read: Read, line: bytes, told: str) -> None:
    before, wrong, after = read(GOOD, line, GOOD)
    assert (before.error, after.error) == (None, None)
    assert [before.request.prompt, after.request.prompt] == ["good", "good"]
    assert wrong.error
    assert told in wrong.error
    assert (wrong.name, wrong.output) == ("line 2", OUT / "0002.mp4")


@pytest.mark.parametrize(
    "name",
    [
        *("../x.mp4", "/tmp/x.mp4", "a/b.mp4", "a/../x.mp4", "./x.mp4", "x.mp4/", "x.mp4/."),
        *("", ".", "..", "/", "x\0.mp4", "\0"),
    ],
)
@pytest.mark.parametrize("form", ["mp4", "png"])
def test_a_name_leads_nowhere_else(read: Read, name: str, form: Format) -> None:
    before, wrong, after = read(GOOD, {"prompt": "a", "output": name}, GOOD, form=form)
    assert (before.error, after.error) == (None, None)
    assert wrong.error == f"output {name!r}: needs the plain name of a file"
    assert wrong.output.parent == OUT
    assert wrong.output.stem == "0002"


@pytest.mark.parametrize("name", ["x", "x.mkv", "x.mp4.json", "x.MP4", "mp4"])
def test_a_name_ends_as_the_run_s_format_does(read: Read, name: str) -> None:
    (item,) = read({"prompt": "a", "output": name})
    assert item.error == f"output {name!r}: the videos of this run end in .mp4"


def test_of_two_lines_with_one_name_the_second_is_wrong(read: Read) -> None:
    x = {"prompt": "a", "output": "x.mp4"}
    errors = [item.error for item in read(x, GOOD, x, x)]
    taken = "output x.mp4: line 1 writes that name"
    assert errors == [None, None, taken, taken]


def test_names_of_lines_count_too(read: Read) -> None:
    errors = [item.error for item in read({"prompt": "a", "output": "0002.mp4"}, GOOD)]
    assert errors == [None, "output 0002.mp4: line 1 writes that name"]


def test_a_wrong_line_takes_no_name(read: Read) -> None:
    items = read(b"{}", {"prompt": "a", "output": "0001.mp4"})
    assert [item.error is None for item in items] == [False, True]


@pytest.mark.parametrize("second", ["x.png", "x.json"])
def test_nor_may_one_record_be_two_videos(read: Read, second: str) -> None:
    """x and x.png have their records in x.json."""
    said = [{"prompt": "a", "output": name} for name in ("x", second)]
    errors = [item.error for item in read(*said, form="png")]
    assert errors == [None, f"output {second}: line 1 writes that name"]


# --- files ----------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(RequestError) as caught:
        read_lines(path, OUT, RunRequest(), "mp4", None)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    return said.removeprefix(f"{path}: ")


@pytest.mark.parametrize("data", [b"", b"\n\n", b" \r\n\t\n", b"\xef\xbb\xbf"])
def test_a_file_without_prompts(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "p"
    path.write_bytes(data)
    assert refused(path) == "0 prompts; needs 1 to 100000"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refused(tmp_path / "none") == "cannot be read: No such file or directory"
    assert refused(tmp_path) == "cannot be read: Is a directory"


def test_a_file_too_large_to_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(lines.MOST_BYTES + 1)  # takes no space
    assert refused(path) == "larger than 64 MiB"


def test_a_file_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is said to be 0."""
    monkeypatch.setattr(lines, "MOST_BYTES", 1 << 20)
    assert refused(Path("/dev/zero")) == "larger than 1 MiB"


def test_a_pipe_is_as_good_as_a_file() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb"):
        with open(writer, "wb") as file:
            file.write(b'{"prompt": "a"}\n')
        items = read_lines(Path(f"/dev/fd/{reader}"), OUT, RunRequest(), "mp4", None)
    assert [item.request.prompt for item in items] == ["a"]


def test_too_many_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_LINES", 3)
    path = tmp_path / "p"
    path.write_bytes(b"{}\n" * 3 + b"\n")
    assert len(read_lines(path, OUT, RunRequest(), "mp4", None)) == 3
    path.write_bytes(b"{}\n" * 4)
    assert refused(path) == "4 prompts; needs 1 to 3"


# --- seeds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "first"), [(5, 5), (0, 0), (None, 77)])
def test_seeds_count_from_the_given_one_or_the_drawn_one(
    read: Read, seed: int | None, first: int
) -> None:
    (item,) = read({"prompt": "a", "output": "v.mp4"}, common=RunRequest(seed=seed))
    made = seeds_of(item, 3, drawn=77)
    seeds = [first, first + 1, first + 2]
    assert [each.request for each in made] == [RunRequest(prompt="a", seed=k) for k in seeds]
    assert names(made) == [f"out/v-{k}.mp4" for k in seeds]
    assert [each.name for each in made] == [f"line 1, seed {k}" for k in seeds]


def test_seeds_stand_behind_the_name_of_a_folder(read: Read) -> None:
    (item,) = read({"prompt": "a"}, common=RunRequest(seed=5), form="png")
    assert names(seeds_of(item, 2, drawn=0)) == ["out/0001-5", "out/0001-6"]


def test_a_wrong_line_is_wrong_once(read: Read) -> None:
    (item,) = read(b"{}")
    assert seeds_of(item, 3, drawn=77) == [item]

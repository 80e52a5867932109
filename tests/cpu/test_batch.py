"""wanc run over a file of prompts and over seeds: the videos, and what one that fails leaves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.cpu.test_parity import WHOLE
from tests.cpu.test_processes import faulty, launch
from tests.cpu.test_run import check_video
from wanc.cli import main
from wanc.run import pipeline
from wanc.run.video import read_frames

STEPS = 2
BAD_SEED = 13
"""Of the line whose noise is NaN."""


def arguments(wanc: Any, bundle: Path, output: Path, *more: Any) -> list[str]:
    given = ["--bundle", bundle, "--weights", wanc.checkpoint, "--steps", STEPS, "-o", output]
    return ["run", *map(str, given), *map(str, more)]


def run(given: list[str], capsys: Any, *, code: int = 0) -> Any:
    """What the command says on its two streams."""
    with pytest.raises(SystemExit) as ended:
        main(given)
    said = capsys.readouterr()
    assert ended.value.code == code, said.err
    return said


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def states(out: str) -> list[str]:
    return [each["state"] for each in json.loads(out)]


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file's time and bytes."""
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def record(video: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(video.with_suffix(".json").read_text())
    return value


@pytest.fixture
def bundle(wanc: Any) -> Path:
    path: Path = wanc.bundle(WHOLE, "tp1")
    return path


# --- files of prompts -----------------------------------------------------------------------------

LINES = [
    {"prompt": "a ship", "seed": 1},
    {"prompt": "a whale", "steps": "2"},
    {"prompt": "a harbour", "guidance": 1, "output": "harbour.mp4"},
]


def test_the_same_command_makes_what_a_wrong_line_left_out(
    wanc: Any, bundle: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, folder = write_lines(tmp_path / "p.jsonl", *LINES), tmp_path / "out"
    sheet = tmp_path / "sheet.png"
    given = arguments(wanc, bundle, folder, "--prompts", prompts, "--sheet", sheet, "--seed", 4)
    said = run(given, capsys, code=6)
    assert "line 2: Expected `int | null`, got `str` - at `$.steps`" in said.err
    assert "1 of 3 videos failed (line 2)" in said.err
    before = contents(folder)
    assert sorted(before) == ["0001.json", "0001.mp4", "harbour.json", "harbour.mp4"]
    for name, prompt, seed, guidance in (
        ("0001", "a ship", 1, 4.0),
        ("harbour", "a harbour", 4, 1),
    ):
        check_video(folder / f"{name}.mp4")
        made = record(folder / f"{name}.mp4")
        assert made["prompt"] == prompt
        assert (made["sampling"]["seed"], made["sampling"]["guidance_high"]) == (seed, guidance)
        assert made["output"] == f"{name}.mp4"
    check_sheet(sheet, [folder / "0001.mp4", None, folder / "harbour.mp4"])

    write_lines(prompts, LINES[0], {"prompt": "a whale", "steps": 1}, LINES[2])
    said = run([*given, "--json"], capsys)
    assert states(said.out) == ["kept", "made", "kept"]
    assert "line 2, 1 of 1: " in said.err
    assert len(record(folder / "0002.mp4")["steps"]) == 1
    assert before.items() < contents(folder).items(), "neither written nor touched"
    check_sheet(sheet, [folder / name for name in ("0001.mp4", "0002.mp4", "harbour.mp4")])

    monkeypatch.setattr("wanc.run.pipeline.load", lambda *_: pytest.fail("loaded"))
    assert states(run([*given, "--json"], capsys).out) == ["kept"] * 3


def check_sheet(path: Path, videos: list[Path | None]) -> None:
    """A row for each video, which begins with its first frame; a low one where there is none."""
    gap, line, box = 8, 20, 60
    top = gap
    with Image.open(path) as image:
        sheet = np.asarray(image.convert("RGB"))
    for video in videos:
        height = box
        if video is not None:
            first = read_frames(video, "mp4")[0]
            height = len(first)
            shown = sheet[top : top + height, gap : gap + first.shape[1]]
            assert np.array_equal(shown, first)
        top += height + line + gap
    assert len(sheet) == top


def test_what_changed_is_made_again_and_the_rest_is_kept(
    wanc: Any, bundle: Path, tmp_path: Path, capsys: Any
) -> None:
    prompts, folder = write_lines(tmp_path / "p.jsonl", LINES[0], LINES[2]), tmp_path / "out"
    more = ["--prompts", prompts, "--seed", "4", "--json"]
    run(arguments(wanc, bundle, folder, *more), capsys)
    before = record(folder / "0001.mp4")
    write_lines(prompts, {**LINES[0], "seed": 2}, LINES[2])
    assert states(run(arguments(wanc, bundle, folder, *more), capsys).out) == ["made", "kept"]
    assert record(folder / "0001.mp4")["noise"] != before["noise"]
    other = wanc.bundle(WHOLE, "cp2")
    assert states(run(arguments(wanc, other, folder, *more), capsys).out) == ["made", "made"]


# --- seeds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["t2v", "i2v"])
def test_each_of_many_videos_is_that_of_its_seed_alone(
    of_task: Any, pictures: Any, wanc: Any, tmp_path: Path, capsys: Any, task: str
) -> None:
    """huggingface/diffusers #13578: several videos of one prompt and one image."""
    wanc = wanc if task == "t2v" else of_task(task)[0]
    bundle, image = wanc.bundle(WHOLE, "tp1"), pictures(WHOLE)[0] if task == "i2v" else None
    more = [] if image is None else ["--image", image]
    given = arguments(wanc, bundle, tmp_path / "v.mp4", "--prompt", "a ship", *more)
    run([*given, "--num-videos", "3", "--seed", "5"], capsys)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"v-{seed}.{suffix}" for seed in (5, 6, 7) for suffix in ("json", "mp4")]
    made = [record(tmp_path / f"v-{seed}.mp4")["latents"] for seed in (5, 6, 7)]
    alone = []
    for seed in (7, 6, 5):
        run([*given, "--seed", str(seed)], capsys)
        alone.append(record(tmp_path / "v.mp4")["latents"])
    assert made == alone[::-1]
    assert len(set(made)) == 3


# --- failures while running -----------------------------------------------------------------------

SEEDS = (1, BAD_SEED, 3)
NAN_IN_PROCESSES = f"""
import sys
if "wanc.worker" in sys.orig_argv:
    import wanc.run.pipeline as pipeline
    right = pipeline.predict_noise

    def predict_noise(session, seen, timestep, expert, values, state):
        noise = right(session, seen, timestep, expert, values, state)
        return noise * float("nan") if values.seed == {BAD_SEED} else noise

    pipeline.predict_noise = predict_noise
"""


@pytest.fixture
def three(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "p.jsonl", *({"prompt": "a ship", "seed": k} for k in SEEDS))


def at_bad_seed(monkeypatch: pytest.MonkeyPatch, act: Callable[[Any], Any]) -> None:
    """Have something done to the noise of the second line."""
    right = pipeline.predict_noise

    def predict_noise(session, seen, timestep, expert, values, state):
        noise = right(session, seen, timestep, expert, values, state)
        return act(noise) if values.seed == BAD_SEED else noise

    monkeypatch.setattr(pipeline, "predict_noise", predict_noise)


def check_middle_failed(folder: Path, said: Any) -> None:
    assert states(said.out) == ["made", "failed", "made"]
    error = json.loads(said.out)[1]["error"]
    assert "noise at step 1 of 2" in error
    assert "line 2" in said.err
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["0001.json", "0001.mp4", "0003.json", "0003.mp4"]
    for name in ("0001.mp4", "0003.mp4"):
        check_video(folder / name)


def test_a_line_that_fails_stops_no_other(
    wanc: Any, bundle: Path, tmp_path: Path, three: Path, capsys: Any, monkeypatch: Any
) -> None:
    """And nothing of it reaches the next: its latents are those of a run alone."""
    at_bad_seed(monkeypatch, lambda noise: noise * float("nan"))
    given = arguments(wanc, bundle, tmp_path / "out", "--prompts", three, "--json")
    check_middle_failed(tmp_path / "out", run(given, capsys, code=6))
    alone = wanc.generate(
        bundle, tmp_path / "v.mp4", prompt="a ship", seed=3, steps=STEPS, guidance=None
    )
    assert record(tmp_path / "out" / "0003.mp4")["latents"] == alone["latents"]


def test_processes_that_a_line_ended_are_followed_by_new_ones(
    wanc: Any, tmp_path: Path, three: Path, capsys: Any, monkeypatch: Any
) -> None:
    """The error ends both processes; two new ones load again, and go on with the next line."""
    faulty(monkeypatch, tmp_path / "site", NAN_IN_PROCESSES)
    more = ["--prompts", three, "--processes", "2", "--json"]
    given = arguments(wanc, wanc.bundle(WHOLE, "cp2"), tmp_path / "out", *more)
    said = run(given, capsys, code=6)
    check_middle_failed(tmp_path / "out", said)
    assert said.err.count("starting 2 processes") == 2


def test_ctrl_c_leaves_what_was_made_and_nothing_half_written(
    wanc: Any, bundle: Path, tmp_path: Path, three: Path, capsys: Any, monkeypatch: Any
) -> None:
    def interrupt(noise: Any) -> None:
        raise KeyboardInterrupt

    at_bad_seed(monkeypatch, interrupt)
    given = arguments(wanc, bundle, tmp_path / "out", "--prompts", three)
    said = run(given, capsys, code=130)
    assert "interrupted" in said.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0001.json", "0001.mp4"]
    check_video(tmp_path / "out" / "0001.mp4")


def test_processes_of_a_launcher_go_through_the_lines_together(
    wanc: Any, tmp_path: Path, three: Path
) -> None:
    """Also past a line whose file process 0 cannot write; it alone says what became of them."""
    (tmp_path / "out" / "0002.mp4").mkdir(parents=True)
    more = ["--prompts", three, "--json"]
    given = arguments(wanc, wanc.bundle(WHOLE, "cp2"), tmp_path / "out", *more)
    started = launch(given, 2)
    ended = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [6, 0], ended
    assert states(ended[0][0]) == ["made", "failed", "made"]
    assert "0002.mp4 is a directory" in ended[0][1]
    assert ended[1][0] == ""
    for name in ("0001.mp4", "0003.mp4"):
        check_video(tmp_path / "out" / name)

"""Many videos from one load: what is made, kept and made again, and what one that fails leaves.

The runner here writes a few words for a video.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit.conftest import variant_of
from wanc.bundle.config import VariantConfig
from wanc.cli import main
from wanc.errors import BundleError, LostError, RequestError, RunError
from wanc.processes.launch import Launch
from wanc.progress import Silent
from wanc.run.batch import Item, Outcome, run_many
from wanc.run.outputs import Files
from wanc.run.request import LoadRequest, RunRequest
from wanc.run.start import Processes
from wanc.spec.presets import TINY_MODELS

GOOD = ("a ship", "a harbour", "a lighthouse")
ENDED = RunError("rank 0 has NaN")


@dataclass
class Fake:
    """Stands for a bundle and a checkpoint; prompts say what fails, before or in decoding."""

    weights: Path
    config: VariantConfig
    bundle: str = "sha256:b"
    fails: dict[str, BaseException] = field(default_factory=dict)
    fails_late: dict[str, BaseException] = field(default_factory=dict)
    ends: bool = False
    """Whether an error ends the runner, as where it has processes of its own."""
    replaceable: bool = True
    launch: Launch | None = None
    hears: dict[str, list[str]] = field(default_factory=dict)
    """What process 0 says of each subject, where this is another process of a launch."""
    started: int = 0
    ran: list[RunRequest] = field(default_factory=list)
    closed: list[BaseException | None] = field(default_factory=list)

    def start(self, *_: Any) -> "FakeRunner":
        self.started += 1
        return FakeRunner(self, replaceable=self.replaceable)


@dataclass
class FakeRunner:
    fake: Fake
    replaceable: bool
    alive: bool = True

    def agree(self, subject: str, say: Callable[[], str]) -> str:
        assert self.alive
        return self.fake.hears[subject].pop(0) if self.fake.hears else say()

    def run(self, request: RunRequest, files: Files) -> dict[str, Any]:
        assert self.alive
        self.fake.ran.append(request)
        assert request.prompt is not None
        self.fail(self.fake.fails.get(request.prompt))
        files.save_latents(np.zeros((1, 1), np.float32), {})
        self.fail(self.fake.fails_late.get(request.prompt))
        if files.unfinished_video:
            files.unfinished_video.write_text(f"{request.prompt} {len(self.fake.ran)}")
        return {"prompt": request.prompt, "sampling": {"seed": request.seed}}

    def fail(self, error: BaseException | None) -> None:
        if error is not None:
            self.alive = not self.fake.ends
            raise error

    def close(self, error: BaseException | None = None) -> None:
        self.fake.closed.append(error)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    weights = tmp_path / "weights"
    (weights / "vae").mkdir(parents=True)
    (weights / "vae" / "model.safetensors").write_bytes(b"weights")
    made = Fake(weights, variant_of().config)
    chosen = lambda load: (SimpleNamespace(digest=made.bundle), made.config)  # noqa: E731
    monkeypatch.setattr("wanc.run.batch.choose", chosen)
    monkeypatch.setattr("wanc.run.batch.start", made.start)
    for where in ("batch", "start"):
        monkeypatch.setattr(f"wanc.run.{where}.find_launch", lambda processes: made.launch)
    return made


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def items_of(out: Path, *prompts: str, **changed: Any) -> list[Item]:
    return [
        Item(
            name=f"line {k}",
            request=RunRequest(prompt=prompt, steps=2, seed=k),
            output=out / f"{k}.mp4",
            form="mp4",
            **changed,
        )
        for k, prompt in enumerate(prompts, start=1)
    ]


def batch(fake: Fake, items: list[Item], told: list[Outcome] | None = None) -> list[Outcome]:
    load = LoadRequest(bundle=Path("bundle"), weights=fake.weights)
    tell = (lambda outcome: None) if told is None else told.append
    return run_many(load, Processes(), Silent(), items, tell)


def states(outcomes: list[Outcome]) -> list[str]:
    return [outcome.state for outcome in outcomes]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- made and kept --------------------------------------------------------------------------------


def test_one_load_makes_all_in_their_order(fake: Fake, out: Path) -> None:
    told: list[Outcome] = []
    outcomes = batch(fake, items_of(out, *GOOD), told)
    assert states(outcomes) == ["made"] * 3
    assert told == outcomes
    assert (fake.started, fake.closed) == (1, [None])
    assert [request.prompt for request in fake.ran] == list(GOOD)
    assert sorted(contents(out)) == ["1.json", "1.mp4", "2.json", "2.mp4", "3.json", "3.mp4"]
    for outcome in outcomes:
        beside = json.loads(outcome.item.output.with_suffix(".json").read_text())
        assert outcome.record == beside
        assert beside["output"] == outcome.item.output.name


def test_what_is_there_is_kept_and_nothing_is_loaded(fake: Fake, out: Path) -> None:
    first = batch(fake, items_of(out, *GOOD))
    before = contents(out)
    again = batch(fake, items_of(out, *GOOD))
    assert states(again) == ["kept"] * 3
    assert [outcome.record for outcome in again] == [outcome.record for outcome in first]
    assert contents(out) == before
    assert fake.started == 1


def test_only_what_is_missing_is_made(fake: Fake, out: Path) -> None:
    batch(fake, items_of(out, *GOOD[:2]))
    before = contents(out)
    told: list[Outcome] = []
    outcomes = batch(fake, items_of(out, *GOOD), told)
    assert states(outcomes) == ["kept", "kept", "made"]
    assert told == outcomes
    assert before.items() < contents(out).items()
    assert len(fake.ran) == 3


CHANGED: dict[str, Any] = {
    "prompt": "a whale",
    "negative": "",
    "steps": 3,
    "seed": 9,
    "flow_shift": 3.0,
    "sampler": "euler",
    "expert": "low_noise",
    "preset": "vllm-omni",
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_request_that_changed_is_made_again(fake: Fake, out: Path, name: str) -> None:
    items = items_of(out, *GOOD[:2])
    batch(fake, items)
    changed = replace(items[1], request=replace(items[1].request, **{name: CHANGED[name]}))
    assert states(batch(fake, [items[0], changed])) == ["kept", "made"]
    assert states(batch(fake, [items[0], changed])) == ["kept", "kept"]


@pytest.mark.parametrize("what", ["bundle", "variant", "weights", "time of weights", "crf"])
def test_what_a_video_is_made_with_counts_too(fake: Fake, out: Path, what: str) -> None:
    items = items_of(out, *GOOD[:2])
    batch(fake, items)
    file = fake.weights / "vae" / "model.safetensors"
    if what == "bundle":
        fake.bundle = "sha256:c"
    elif what == "variant":  # of the same bundle
        fake.config = variant_of("224x128x5").config
    elif what == "weights":
        file.write_bytes(b"other weights")
    elif what == "time of weights":
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    else:
        items = [replace(item, crf=30) for item in items]
    assert states(batch(fake, items)) == ["made", "made"]
    assert states(batch(fake, items)) == ["kept", "kept"]


def test_where_files_lie_does_not_count(fake: Fake, out: Path, tmp_path: Path) -> None:
    """Nor does what a downloader keeps for itself."""
    batch(fake, items_of(out, *GOOD))
    fake.weights = fake.weights.rename(tmp_path / "moved")
    (fake.weights / ".cache").mkdir()
    (fake.weights / ".cache" / "lock").write_text("")
    moved = out.rename(tmp_path / "elsewhere")
    assert states(batch(fake, items_of(moved, *GOOD))) == ["kept"] * 3


def test_a_seed_that_nobody_gave_is_drawn_once(fake: Fake, out: Path) -> None:
    (item,) = items_of(out, GOOD[0])
    item = replace(item, request=replace(item.request, seed=None))
    assert states(batch(fake, [item])) == ["made"]
    assert states(batch(fake, [item])) == ["kept"]


def test_images_count_by_what_they_hold(fake: Fake, out: Path, tmp_path: Path) -> None:
    model = TINY_MODELS["i2v"]
    variant = replace(fake.config.variant, task="i2v")
    fake.config = replace(fake.config, model=model, variant=variant)
    picture, moved = tmp_path / "first.png", tmp_path / "moved.png"
    Image.new("RGB", (208, 128), "red").save(picture)
    (item,) = items_of(out, GOOD[0])
    item = replace(item, request=replace(item.request, image=picture))
    assert states(batch(fake, [item])) == ["made"]
    picture.rename(moved)
    item = replace(item, request=replace(item.request, image=moved))
    assert states(batch(fake, [item])) == ["kept"]
    Image.new("RGB", (208, 128), "blue").save(moved)
    assert states(batch(fake, [item])) == ["made"]
    moved.write_bytes(b"no picture")
    (outcome,) = batch(fake, [item])
    assert outcome.state == "failed"
    assert str(moved) in str(outcome.error)
    assert fake.started == 2


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "null", "{}", '{"asked": 1}', "[" * 100_000, "\0"]
)
def test_a_record_that_is_of_no_use_is_none(fake: Fake, out: Path, text: str | None) -> None:
    items = items_of(out, *GOOD)
    batch(fake, items)
    if text is None:
        (out / "2.json").unlink()
    else:
        (out / "2.json").write_text(text)
    assert states(batch(fake, items)) == ["kept", "made", "kept"]


def test_a_record_without_its_video_is_none(fake: Fake, out: Path) -> None:
    items = items_of(out, *GOOD)
    batch(fake, items)
    (out / "2.mp4").unlink()
    assert states(batch(fake, items)) == ["kept", "made", "kept"]


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"steps": 0}, "steps 0: needs 1 to 1000"),
        ({"seed": -1}, "seed -1"),
        ({"sampler": "ddim"}, "sampler 'ddim'"),
        ({"image": Path("first.png")}, "from a prompt alone"),
        ({"negative": "\ud800"}, "is not UTF-8"),
    ],
)
def test_what_cannot_be_asked_for_is_found_before_loading(
    fake: Fake, out: Path, changed: dict[str, Any], told: str
) -> None:
    items = items_of(out, *GOOD)
    items[1] = replace(items[1], request=replace(items[1].request, **changed))
    (outcome,) = batch(fake, items[1:2])
    assert outcome.state == "failed"
    assert told in str(outcome.error)
    assert (fake.started, contents(out)) == (0, {})


def test_an_item_with_an_error_is_not_run(fake: Fake, out: Path) -> None:
    items = items_of(out, *GOOD)
    items[1] = replace(items[1], error="no JSON")
    told: list[Outcome] = []
    outcomes = batch(fake, items, told)
    assert states(outcomes) == ["made", "failed", "made"]
    assert outcomes[1].error == "no JSON"
    assert told == [outcomes[1], outcomes[0], outcomes[2]]
    assert sorted(contents(out)) == ["1.json", "1.mp4", "3.json", "3.mp4"]


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("error", [ENDED, LostError("rank 1 is gone"), RequestError("no such")])
def test_one_that_fails_stops_no_other(fake: Fake, out: Path, error: Exception, ends: bool) -> None:
    """Where the error ends the processes, new ones are started for the next item."""
    fake.fails, fake.ends = {GOOD[1]: error}, ends
    outcomes = batch(fake, items_of(out, *GOOD))
    assert states(outcomes) == ["made", "failed", "made"]
    assert outcomes[1].error == str(error)
    assert fake.started == 1 + ends
    assert sorted(contents(out)) == ["1.json", "1.mp4", "3.json", "3.mp4"]


def test_no_processes_are_started_after_the_last_item(fake: Fake, out: Path) -> None:
    fake.fails, fake.ends = {GOOD[2]: ENDED}, True
    assert states(batch(fake, items_of(out, *GOOD))) == ["made", "made", "failed"]
    assert fake.started == 1


def test_an_older_video_outlives_one_that_fails(fake: Fake, out: Path) -> None:
    items = items_of(out, *GOOD)
    batch(fake, items)
    before = contents(out)
    changed = replace(items[1], request=replace(items[1].request, prompt="fails"))
    fake.fails = {"fails": ENDED}
    assert states(batch(fake, [items[0], changed])) == ["kept", "failed"]
    assert contents(out) == before


@pytest.mark.parametrize(
    ("error", "said"), [(ENDED, "rank 0 has NaN"), (MemoryError("3 GiB"), "memory ran out: 3 GiB")]
)
def test_latents_outlive_a_decode_that_fails(
    fake: Fake, out: Path, error: Exception, said: str
) -> None:
    """kijai/ComfyUI-WanVideoWrapper #1476: memory runs out at the very end of 15 hours."""
    fake.fails_late = {GOOD[1]: error}
    outcomes = batch(fake, items_of(out, *GOOD))
    assert states(outcomes) == ["made", "failed", "made"]
    left = out / "2.latents.safetensors"
    lines = str(outcomes[1].error).splitlines()
    assert lines[0] == said
    assert f"`wanc decode --latents {left}`" in lines[1]
    wanted = ["1.json", "1.mp4", "2.latents.safetensors", "3.json", "3.mp4"]
    assert sorted(contents(out)) == wanted
    fake.fails_late = {}
    assert states(batch(fake, items_of(out, *GOOD))) == ["kept", "made", "kept"]
    assert not left.exists(), "the video is whole"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BundleError("damaged"), ValueError("bug")])
def test_what_is_no_item_s_fault_ends_the_batch(
    fake: Fake, out: Path, error: BaseException
) -> None:
    fake.fails = {GOOD[1]: error}
    with pytest.raises(type(error)):
        batch(fake, items_of(out, *GOOD))
    assert sorted(contents(out)) == ["1.json", "1.mp4"]
    assert fake.closed == [error]


def test_a_name_that_takes_no_file_is_wrong_alone(fake: Fake, out: Path) -> None:
    (out / "2.mp4").mkdir()
    items = items_of(out, *GOOD)
    items[2] = replace(items[2], output=out / ("x" * 300 + ".mp4"))
    outcomes = batch(fake, items)
    assert states(outcomes) == ["made", "failed", "failed"]
    assert "2.mp4 is a directory" in str(outcomes[1].error)
    assert "File name too long" in str(outcomes[2].error)
    assert len(fake.ran) == 1


# --- processes of a launcher ----------------------------------------------------------------------


def place(process: int) -> Launch:
    return Launch(process=process, processes=2, host="h", port=1, address="127.0.0.1")


def test_process_0_of_a_launch_has_the_outcomes(fake: Fake, out: Path) -> None:
    fake.launch, fake.ends, fake.replaceable = place(0), True, False
    items = items_of(out, *GOOD)
    (out / "2.mp4").mkdir()
    assert states(batch(fake, items)) == ["made", "failed", "made"]
    assert [request.prompt for request in fake.ran] == [GOOD[0], GOOD[2]], "others skip it too"
    assert states(batch(fake, items)) == ["kept", "failed", "kept"]
    assert fake.started == 2, "the others are waited for"


def test_other_processes_run_what_process_0_runs(
    fake: Fake, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they have of the request may differ: their own files, and images that they lack."""
    said: dict[str, list[str]] = {}

    def heard(runner: FakeRunner, subject: str, say: Callable[[], str]) -> str:
        said.setdefault(subject, []).append(say())
        return said[subject][-1]

    fake.launch = place(0)
    (out / "2.mp4").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(FakeRunner, "agree", heard)
        batch(fake, items_of(out, *GOOD))
    (out / "2.mp4").rmdir()
    ran, before = list(fake.ran), contents(out)
    fake.launch, fake.ran, fake.hears = place(1), [], said
    told: list[Outcome] = []
    assert batch(fake, items_of(out, "another", "file", "here"), told) == []
    assert told == []
    assert fake.ran == ran
    assert contents(out) == before
    assert not any(said.values()), "every word was heard"


def test_a_launch_that_an_error_has_ended_is_over(fake: Fake, out: Path) -> None:
    fake.launch, fake.ends, fake.replaceable = place(0), True, False
    fake.fails = {GOOD[1]: ENDED}
    with pytest.raises(RunError, match="rank 0 has NaN"):
        batch(fake, items_of(out, *GOOD))
    assert fake.started == 1
    assert sorted(contents(out)) == ["1.json", "1.mp4"]


# --- the command ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def command(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """wanc run with more arguments."""

    def run(*more: str) -> Said:
        with pytest.raises(SystemExit) as ended:
            main(["run", "--bundle", "b", "--weights", str(fake.weights), "--steps", "2", *more])
        captured = capsys.readouterr()
        return Said(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file of prompts, the second line of which is wrong."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a ship"}\n{"promt": "a"}\n{"prompt": "a harbour", "seed": 3}\n')
    return path


def test_a_wrong_line_is_named_and_the_folder_is_made(
    command: Command, prompts: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "videos"
    said = command("--prompts", str(prompts), "-o", str(folder))
    assert said.code == 6
    assert "line 2: Object contains unknown field `promt`" in said.err
    assert "1 of 3 videos failed (line 2)" in said.err
    rows = [line.split()[:2] for line in said.out.splitlines() if ".mp4" in line]
    assert rows == [["0001.mp4", "made"], ["0002.mp4", "failed"], ["0003.mp4", "made"]]
    assert sorted(contents(folder)) == ["0001.json", "0001.mp4", "0003.json", "0003.mp4"]


def test_a_table_row_is_a_line_whatever_a_prompt_says(
    command: Command, prompts: Path, tmp_path: Path
) -> None:
    prompts.write_text(json.dumps({"prompt": "a\n\nb\r\tc"}))
    said = command("--prompts", str(prompts), "-o", str(tmp_path / "out"))
    assert said.code == 0
    assert "a b c" in said.out


def test_json_is_one_list_also_where_a_line_failed(
    command: Command, prompts: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    said = command("--prompts", str(prompts), "-o", str(folder), "--json")
    assert said.code == 6
    answer = json.loads(said.out)
    assert [each["state"] for each in answer] == ["made", "failed", "made"]
    assert [each["name"] for each in answer] == ["line 1", "line 2", "line 3"]
    assert [each["output"] for each in answer] == [str(folder / f"000{k}.mp4") for k in (1, 2, 3)]
    assert [bool(each["error"]) for each in answer] == [False, True, False]
    assert answer[0]["record"] == json.loads((folder / "0001.json").read_text())
    assert answer[1]["record"] is None
    assert "1 of 3 videos failed" in said.err


def test_many_failures_are_counted(command: Command, prompts: Path, tmp_path: Path) -> None:
    prompts.write_text("{}\n" * 7)
    said = command("--prompts", str(prompts), "-o", str(tmp_path / "out"))
    assert "7 of 7 videos failed (line 1, line 2, line 3, line 4, line 5 and 2 more)" in said.err


def test_seeds_count_on_from_the_given_one(command: Command, out: Path) -> None:
    arguments = ["--prompt", "a ship", "--num-videos", "3", "-o", str(out / "v.mp4")]
    said = command(*arguments, "--seed", "5", "--json")
    assert said.code == 0
    answer = json.loads(said.out)
    assert [each["record"]["sampling"]["seed"] for each in answer] == [5, 6, 7]
    wanted = [f"v-{seed}.{suffix}" for seed in (5, 6, 7) for suffix in ("json", "mp4")]
    assert sorted(contents(out)) == wanted
    assert "is drawn" not in said.err


def test_a_seed_is_drawn_once_and_told(
    command: Command, fake: Fake, out: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a line gives is its own."""
    monkeypatch.setattr("wanc.run.request.draw_seed", lambda: 77)
    arguments = ["--prompts", str(prompts), "--num-videos", "2", "-o", str(out)]
    said = command(*arguments)
    assert said.code == 6
    assert "--seed 77 asks for the same videos again" in said.err
    assert [request.seed for request in fake.ran] == [77, 78, 3, 4]
    assert "1 of 5 videos failed (line 2)" in said.err
    assert command(*arguments, "--seed", "77").code == 6
    assert len(fake.ran) == 4, "all are kept"


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (["--prompts", "{prompts}", "--prompt", "a ship"], 2, "give one of --prompt, --prompts"),
        (["--prompts", "{prompts}", "--resume", "s"], 2, "give one of --prompt, --prompts"),
        (["--prompts", "{prompts}", "--save-latents", "l"], 2, "are of one video"),
        (["--prompt", "a", "--num-videos", "2", "--save-latents", "l"], 2, "are of one video"),
        (["--resume", "s", "--num-videos", "2"], 2, "are of one video"),
        (["--prompts", "{prompts}", "--format", "avi"], 2, "format 'avi'"),
        (["--prompts", "{prompts}", "--format", "mkv", "--crf", "9"], 2, "crf 9: is of mp4 alone"),
        (["--prompts", "{prompts}", "--crf", "99"], 2, "crf 99: needs 0 (best) to 51"),
        (["--prompts", "{out}"], 2, "Is a directory"),
        (["--prompts", "{prompts}", "--sheet", "{out}/none/s.png"], 6, "none/s.png cannot be"),
        (["--prompt", "a ship", "--sheet", "{out}"], 6, "cannot be written"),
    ],
)
def test_what_no_batch_can_have_is_refused_before_any_work(
    command: Command,
    fake: Fake,
    prompts: Path,
    out: Path,
    more: list[str],
    code: int,
    told: str,
) -> None:
    where = out if "--prompts" in more else out / "v.mp4"
    said = command("-o", str(where), *(text.format(prompts=prompts, out=out) for text in more))
    assert said.code == code, said.err
    assert told in said.err
    assert (fake.started, contents(out)) == (0, {})


def test_a_file_where_the_folder_should_be(command: Command, prompts: Path, out: Path) -> None:
    (out / "file").write_text("")
    said = command("--prompts", str(prompts), "-o", str(out / "file"))
    assert said.code == 6
    assert "cannot be made: File exists" in said.err

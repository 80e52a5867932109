"""wanc decode: the latents that a failed run left, or that one saved, become its very video."""

import json
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from tests.compiled import PROMPT, SEED, tiny_plan
from tests.cpu.test_parity import WHOLE
from wanc.bundle.store import open_bundle
from wanc.cli import main
from wanc.errors import RunError
from wanc.run.outputs import Files
from wanc.run.request import sampling_values
from wanc.run.saved import read_saved
from wanc.run.session import Session
from wanc.run.video import read_frames
from wanc.weights.needs import calls

ASKED = [
    *("--prompt", PROMPT, "--negative", "", "--seed", str(SEED), "--steps", "2"),
    *("--guidance", "high=4,low=3.5", "--flow-shift", "5", "--sampler", "euler"),
]
OF_THE_RUN = ("prompt", "negative_prompt", "sampling", "noise", "latents", "bundle", "wanc")
"""What the record of a decode has as that of the run."""


def call(*arguments: Any, code: int = 0) -> str:
    """What a command says on stderr."""
    said = StringIO()
    with pytest.raises(SystemExit) as ended, redirect_stderr(said):
        main([str(each) for each in arguments])
    assert ended.value.code == code, said.getvalue()
    return said.getvalue()


def record(video: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(video.with_suffix(".json").read_text())
    return value


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def bundle(wanc: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two variants of one shape."""
    path: Path = tmp_path_factory.mktemp("both") / "bundle"
    wanc.compile([tiny_plan(WHOLE, topology) for topology in ("tp1", "cp2")], path)
    return path


@pytest.fixture(scope="module")
def given(wanc: Any, bundle: Path) -> list[Any]:
    return ["--bundle", bundle, "--weights", wanc.checkpoint]


@dataclass(frozen=True)
class Whole:
    """A run that nothing disturbed, on tp1."""

    video: Path
    latents: Path
    """That it saved."""


@pytest.fixture(scope="module")
def whole(given: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    made = Whole(folder / "v.mkv", folder / "l.safetensors")
    more = ["--topology", "tp1", "--save-latents", made.latents, "-o", made.video]
    call("run", *given, *ASKED, *more)
    return made


Decode = Callable[..., str]


@pytest.fixture
def decode(given: list[Any]) -> Decode:
    """decode(latents, output, more…, code=…): what the command says."""

    def run(latents: Path, output: Path, *more: Any, code: int = 0) -> str:
        return call("decode", *given, "--latents", latents, "-o", output, *more, code=code)

    return run


# --- after a failure ------------------------------------------------------------------------------

FAILURES = {
    "a rank": ("wanc.run.vae.decode", RunError("rank 0: RESOURCE_EXHAUSTED"), "RESOURCE_EXHAUSTED"),
    "memory": ("wanc.run.vae.decode", MemoryError("3 GiB"), "memory ran out: 3 GiB"),
    "pixels": ("wanc.run.pipeline.check_pixels", RunError("all are grey"), "all are grey"),
    "disk": ("wanc.run.outputs.write_video", OSError(28, "No space left"), "No space left"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_what_a_failed_decode_left_becomes_the_same_video(
    given: list[Any], whole: Whole, decode: Decode, tmp_path: Path, monkeypatch: Any, what: str
) -> None:
    """kijai/ComfyUI-WanVideoWrapper #1476: after 15 hours memory ran out at decode.

    Decoded on another topology, to the same bytes.
    """
    place, error, told = FAILURES[what]

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(place, fail)
        more = ["--topology", "tp1", "-o", tmp_path / "v.mkv"]
        said = call("run", *given, *ASKED, *more, code=6)
    left = tmp_path / "v.latents.safetensors"
    assert told in said
    assert f"`wanc decode --latents {left}`" in said
    assert names(tmp_path) == [left.name], "and nothing else"
    before = left.read_bytes()
    assert before == whole.latents.read_bytes()

    decode(left, tmp_path / "v.mkv", "--topology", "cp2")
    assert (tmp_path / "v.mkv").read_bytes() == whole.video.read_bytes()
    assert left.read_bytes() == before, "decoding removes nothing"
    assert names(tmp_path) == ["v.json", left.name, "v.mkv"]


def test_the_record_is_of_the_run_that_made_the_latents(
    whole: Whole, decode: Decode, tmp_path: Path
) -> None:
    decode(whole.latents, tmp_path / "w.mkv", "--topology", "cp2")
    ours, theirs = record(tmp_path / "w.mkv"), record(whole.video)
    assert {key: ours[key] for key in OF_THE_RUN} == {key: theirs[key] for key in OF_THE_RUN}
    assert ours["sampling"]["seed"] == SEED
    assert ours["sampling"]["sampler"] == "euler"
    assert ours["prompt"] == PROMPT
    assert (ours["variant"]["topology"], theirs["variant"]["topology"]) == ("cp2", "tp1")
    assert (ours["output"], ours["steps"], ours["compile_count"]) == ("w.mkv", [], 0)
    assert set(ours["seconds"]) == {"load", "decode", "write", "total"}


def test_processes_share_the_tiles(whole: Whole, decode: Decode, tmp_path: Path) -> None:
    decode(whole.latents, tmp_path / "v.mkv", "--topology", "cp2", "--processes", "2")
    assert (tmp_path / "v.mkv").read_bytes() == whole.video.read_bytes()
    assert len(record(tmp_path / "v.mkv")["processes"]) == 2


def test_any_format_has_the_same_frames(whole: Whole, decode: Decode, tmp_path: Path) -> None:
    decode(whole.latents, tmp_path / "frames", "--topology", "tp1", "--format", "png")
    frames = read_frames(tmp_path / "frames", "png")
    assert np.array_equal(frames, read_frames(whole.video, "mkv"))


def test_latents_from_an_image_need_no_image(of_task: Any, pictures: Any, tmp_path: Path) -> None:
    wanc, _ = of_task("i2v")
    bundle, (image, _) = wanc.bundle(WHOLE, "tp1"), pictures(WHOLE)
    latents, video = tmp_path / "l.safetensors", tmp_path / "v.mkv"
    made = wanc.generate(bundle, video, image=image, steps=1, latents=latents)
    again = tmp_path / "w.mkv"
    call("decode", "--bundle", bundle, "--weights", wanc.checkpoint, *to(latents, again))
    assert again.read_bytes() == video.read_bytes()
    assert record(again)["latents"] == made["latents"]


def to(latents: Path, output: Path) -> list[Any]:
    return ["--latents", latents, "-o", output]


# --- what is loaded -------------------------------------------------------------------------------


def test_nothing_but_the_decoder_is_loaded(
    bundle: Path, whole: Whole, decode: Decode, tmp_path: Path, monkeypatch: Any
) -> None:
    """Neither an expert nor the text encoder, whose tokenizer and scheduler are not read either."""
    programs, components = set(), set()
    executable, weight = Session._executable, Session._weight

    def seen_executable(session: Session, program: Any, ranks: Any) -> Any:
        programs.add(program.name)
        return executable(session, program, ranks)

    def seen_weight(session: Session, call: Any, *given: Any) -> Any:
        components.add(call.component)
        return weight(session, call, *given)

    monkeypatch.setattr(Session, "_executable", seen_executable)
    monkeypatch.setattr(Session, "_weight", seen_weight)
    for name in ("Tokenizer", "load_scheduler", "predict_noise", "encode_prompts"):
        monkeypatch.setattr(f"wanc.run.pipeline.{name}", lambda *_: pytest.fail("is not needed"))
    decode(whole.latents, tmp_path / "v.mkv", "--topology", "tp1")
    config = open_bundle(bundle).variants[0].config
    everything = {call.component for call in calls(config.schedule)}
    assert programs == {"vae_decode_first", "vae_decode_rest"}
    assert components == {"vae"}
    assert everything > components
    read, theirs = (record(path)["processes"][0] for path in (tmp_path / "v.mkv", whole.video))
    assert read["weights_touched_bytes"] < theirs["weights_touched_bytes"] / 2


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "the bundle has 2 variants that fit; choose with --shape, --topology or --precision"),
        (["--topology", "tp2"], "the bundle has no variant of topology tp2"),
        (["--topology", "cp2", "--format", "gif"], "ends in '.mkv', and format gif needs .gif"),
        (["--topology", "cp2", "--crf", "9"], "crf 9: is of mp4 alone"),
    ],
)
def test_what_cannot_be_chosen(
    whole: Whole, decode: Decode, tmp_path: Path, more: list[str], told: str
) -> None:
    assert told in decode(whole.latents, tmp_path / "v.mkv", *more, code=2)
    assert names(tmp_path) == []


def saved_with(whole: Whole, bundle: Path, path: Path, **changed: Any) -> Path:
    """The run's latents with something changed."""
    config = open_bundle(bundle).variants[0].config
    saved = replace(read_saved(whole.latents.read_bytes(), whole.latents), **changed)
    files = Files(latents=path, unfinished_latents=path)
    header = saved.header(sampling_values(saved.request, config))
    files.save_latents(saved.latents.numpy(), header)
    return path


def test_latents_of_another_shape_are_refused(
    whole: Whole, bundle: Path, decode: Decode, tmp_path: Path
) -> None:
    latents = saved_with(
        whole,
        bundle,
        tmp_path / "l.safetensors",
        latents=torch.zeros(1, 16, 3, 6, 10),
        variant={"shape": "80x48x9"},
    )
    said = decode(latents, tmp_path / "v.mkv", "--topology", "cp2", code=2)
    assert "the saved latents are (1, 16, 3, 6, 10), and variant t2v 208x128x5 cp2" in said
    assert "has (1, 16, 2, 16, 26): they were saved by a run of 80x48x9" in said
    assert names(tmp_path) == ["l.safetensors"]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: data[:-1], "not a file of saved steps, or a damaged one"),
        (lambda data: data[: len(data) // 2], "not a file of saved steps, or a damaged one"),
        (lambda data: b"", "not a file of saved steps, or a damaged one"),
        (lambda data: b"\xff" + data[1:], "not a file of saved steps, or a damaged one"),
        (lambda data: save({"latents": torch.zeros(1)}), "__metadata__"),
    ],
    ids=["last byte", "half", "empty", "header", "of another program"],
)
def test_a_damaged_file_is_refused(
    whole: Whole,
    decode: Decode,
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
    told: str,
) -> None:
    latents = tmp_path / "l.safetensors"
    latents.write_bytes(damage(whole.latents.read_bytes()))
    said = decode(latents, tmp_path / "v.mkv", "--topology", "cp2", code=6)
    assert str(latents) in said
    assert told in said
    assert names(tmp_path) == ["l.safetensors"]


@pytest.mark.parametrize("name", ["none.safetensors", "."])
def test_a_file_that_is_not_there_is_found_before_loading(
    decode: Decode, tmp_path: Path, monkeypatch: Any, name: str
) -> None:
    monkeypatch.setattr("wanc.run.pipeline.load", lambda *_: pytest.fail("loaded"))
    said = decode(tmp_path / name, tmp_path / "v.mkv", "--topology", "cp2", code=2)
    assert f"{tmp_path / name}: no such file of saved latents" in said


def test_latents_that_hold_nan_are_refused(
    whole: Whole, bundle: Path, decode: Decode, tmp_path: Path
) -> None:
    """As a run's own are: a black video is no success."""
    latents = torch.full((1, 16, 2, 16, 26), float("nan"))
    path = saved_with(whole, bundle, tmp_path / "l.safetensors", latents=latents)
    said = decode(path, tmp_path / "v.mkv", "--topology", "cp2", code=6)
    assert "tile 1 of 1: 399360 of 399360 values are not finite" in said
    assert names(tmp_path) == ["l.safetensors"]

"""Files of saved steps: the same bits after them, and every damaged one refused."""

import json
import random
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.conftest import variant_of
from wanc.bundle.config import VariantConfig
from wanc.errors import RequestError, RunError
from wanc.run.outputs import Files
from wanc.run.request import (
    SAMPLERS,
    Guidance,
    RunRequest,
    Sampler,
    SamplingValues,
    sampling_values,
)
from wanc.run.sampler import draw_noise, make_scheduler, make_scheduler_at, state_of
from wanc.run.saved import Saved, read_bytes, read_saved, resumed

STEPS = 6
SAVED = 3
"""A step between others: the scheduler has gathered all that it ever does."""
WHERE = Path("v.steps.safetensors")
REQUEST = RunRequest(
    prompt='a "lighthouse"\n灯塔 🗼',
    negative="",
    steps=STEPS,
    guidance=Guidance(high=4.0, low=3.1),
    flow_shift=2.7,
    seed=(1 << 64) - 1,
    sampler="unipc",
    expert="low_noise",
    preset="vllm-omni",
)
CARRIED = (
    *("prompt", "negative", "steps", "guidance", "flow_shift", "seed"),
    *("sampler", "expert", "preset"),
)


@pytest.fixture(scope="module")
def config() -> VariantConfig:
    return variant_of("16x16x5").config


@pytest.fixture(scope="module")
def values(config: VariantConfig) -> SamplingValues:
    return sampling_values(REQUEST, config)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(saved=tmp_path / WHERE, unfinished=tmp_path / ".new-steps.safetensors")


def go_on(scheduler: Any, latents: Tensor, first: int, last: int) -> Tensor:
    """Some steps with a model that costs nothing."""
    for timestep in scheduler.timesteps[first:last]:
        noise = torch.sin(latents * (1 + timestep / 1000))
        latents = scheduler.step(noise, timestep, latents, return_dict=False)[0]
    return latents


def saved_after(step: int, config: VariantConfig, values: SamplingValues) -> Saved:
    grid = config.geometry
    size = (grid.latent_frames, grid.latent_rows, grid.latent_columns)
    noise = draw_noise(values.seed, (1, config.model.transformer.out_channels, *size))
    scheduler = make_scheduler(values)
    latents = go_on(scheduler, noise, 0, step)
    return Saved(
        step=step,
        latents=latents,
        scheduler=state_of(scheduler, tuple(latents.shape)),
        sampler=values.sampler,
        request=REQUEST,
        noise="sha256:1234",
        variant=config.variant.texts(),
    )


@pytest.fixture
def saved(config: VariantConfig, values: SamplingValues) -> Saved:
    return saved_after(SAVED, config, values)


@pytest.fixture
def data(saved: Saved, values: SamplingValues, files: Files) -> bytes:
    """A good file."""
    saved.write(files, values)
    return files.saved.read_bytes()


# --- the same bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("step", range(1, STEPS))
def test_a_resumed_run_ends_with_the_same_bits(
    config: VariantConfig, files: Files, step: int, sampler: Sampler
) -> None:
    values = sampling_values(replace(REQUEST, sampler=sampler), config)
    whole = saved_after(STEPS, config, values).latents
    saved_after(step, config, values).write(files, values)
    read = read_saved(read_bytes(files.saved), files.saved)
    assert (read.step, read.sampler, read.request.sampler) == (step, sampler, sampler)
    size = tuple(read.latents.shape)
    scheduler = make_scheduler_at(values, read.step, size, read.scheduler)
    assert torch.equal(go_on(scheduler, read.latents, step, STEPS), whole)
    assert not torch.equal(read.latents, whole)


def test_a_run_may_be_resumed_and_saved_again(
    config: VariantConfig, values: SamplingValues, files: Files
) -> None:
    """What a resumed run saves is what a run in one go saves, to the byte."""
    saved_after(2, config, values).write(files, values)
    first = read_saved(files.saved.read_bytes(), files.saved)
    scheduler = first.check(config, values)
    latents = go_on(scheduler, first.latents, 2, 4)
    again = replace(
        first, step=4, latents=latents, scheduler=state_of(scheduler, tuple(latents.shape))
    )
    again.write(files, values)
    resumed_data = files.saved.read_bytes()
    saved_after(4, config, values).write(files, values)
    assert resumed_data == files.saved.read_bytes()


def test_a_saved_run_that_is_over_has_only_latents_left(
    config: VariantConfig, values: SamplingValues, files: Files
) -> None:
    over = saved_after(STEPS, config, values)
    over.write(files, values)
    read = read_saved(files.saved.read_bytes(), files.saved)
    scheduler = read.check(config, values)
    assert torch.equal(go_on(scheduler, read.latents, STEPS, STEPS), over.latents)


def test_all_that_was_saved_is_read(
    saved: Saved, data: bytes, config: VariantConfig, values: SamplingValues
) -> None:
    read = read_saved(data, WHERE)
    assert read.request == REQUEST
    assert sampling_values(resumed(RunRequest(), read), config) == values
    assert (read.step, read.noise, read.variant) == (saved.step, saved.noise, saved.variant)
    assert read.images == saved.images
    assert read.latents.dtype == torch.float32
    assert torch.equal(read.latents, saved.latents)
    assert sorted(read.scheduler) == sorted(saved.scheduler)


def test_two_runs_go_on_from_one_file(
    data: bytes, config: VariantConfig, values: SamplingValues
) -> None:
    """As --profile does. A scheduler changes its lists in place."""
    read = read_saved(data, WHERE)
    ends = [go_on(read.check(config, values), read.latents, SAVED, STEPS) for _ in range(2)]
    assert torch.equal(*ends)


# --- files ----------------------------------------------------------------------------------------


def test_one_file_is_written_over_and_over(
    config: VariantConfig, values: SamplingValues, files: Files
) -> None:
    for step in (1, 2, 4):
        saved_after(step, config, values).write(files, values)
        assert [path.name for path in files.saved.parent.iterdir()] == [WHERE.name]
        assert read_saved(files.saved.read_bytes(), files.saved).step == step


def test_writing_again_gives_the_same_bytes(
    saved: Saved, data: bytes, values: SamplingValues, files: Files
) -> None:
    saved.write(files, values)
    assert files.saved.read_bytes() == data


def test_a_folder_that_is_gone(saved: Saved, values: SamplingValues, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(RunError, match="cannot be written: No such file or directory"):
        saved.write(Files(saved=gone / "s", unfinished=gone / "u"), values)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="none: cannot be read: No such file or directory"):
        read_bytes(tmp_path / "none")
    with pytest.raises(RunError, match="cannot be read: Is a directory"):
        read_bytes(tmp_path)


def test_files_too_large_to_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate((8 << 30) + 1)  # takes no space
    with pytest.raises(RunError, match="large: larger than any file of saved steps"):
        read_bytes(path)


# --- damage ---------------------------------------------------------------------------------------


def take_apart(data: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """A file's table of tensors, its metadata, and its numbers."""
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    return table, json.loads(table.pop("__metadata__")["wanc"]), data[8 + length :]


def put_together(table: Any, numbers: bytes) -> bytes:
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + numbers


def changed(data: bytes, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> bytes:
    """The file with another table or other metadata."""
    table, metadata, numbers = take_apart(data)
    change(table, metadata)
    return put_together({**table, "__metadata__": {"wanc": json.dumps(metadata)}}, numbers)


def renamed(old: str, new: str) -> Callable[[dict[str, Any], dict[str, Any]], Any]:
    return lambda table, metadata: table.update({new: table.pop(old)})


def test_taking_apart_changes_nothing(data: bytes) -> None:
    assert read_saved(changed(data, lambda table, metadata: None), WHERE).request == REQUEST


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "a header of 0 bytes in 0 bytes|truncated"),
        (b"abc", "a header of 6513249 bytes in 3 bytes"),
        (bytes(8), "truncated"),
        (b"\xff" * 8 + b"{}", "a header of 18446744073709551615 bytes in 10 bytes"),
        (b"\x00\x01garbage" * 1000, "a header of"),
        (b"\x08" + bytes(7) + b"garbage!", "malformed"),
        (b"\x02" + bytes(7) + b"{}", "__metadata__"),
        (b"\x14" + bytes(7) + b'{"__metadata__": {}}', "wanc"),
        (put_together({"__metadata__": {"wanc": 5}}, b""), "Expected `str`, got `int`"),
        (put_together({"__metadata__": None}, b""), "Expected `object`, got `null`"),
        (put_together([], b""), "Expected `object`, got `array`"),
        (put_together({"__metadata__": {"wanc": ""}}, b""), "truncated"),
        (put_together({"__metadata__": {"wanc": "[" * 100_000}}, b""), "recursion"),
        ((100_000).to_bytes(8, "little") + b"[" * 100_000, "Expected `object`, got `array`"),
    ],
)
def test_files_of_another_kind(data: bytes, told: str) -> None:
    with pytest.raises(RunError, match="not a file of saved steps, or a damaged one") as refused:
        read_saved(data, WHERE)
    assert str(refused.value).startswith(f"{WHERE}: ")
    assert any(each in str(refused.value) for each in told.split("|"))


def test_files_cut_short(data: bytes) -> None:
    for length in [*range(64), *range(64, len(data), 61), len(data) - 1]:
        with pytest.raises(RunError, match="not a file of saved steps"):
            read_saved(data[:length], WHERE)


def test_files_with_more_behind_them(data: bytes) -> None:
    with pytest.raises(RunError, match="not a file of saved steps"):
        read_saved(data + b"more", WHERE)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda table, metadata: metadata.update(format=3), "this wanc reads format 2"),
        (lambda table, metadata: metadata.update(format=1), "this wanc reads format 2"),
        (lambda table, metadata: metadata.update(format="2"), "this wanc reads format 2"),
        (lambda table, metadata: metadata.pop("noise"), "missing required field `noise`"),
        (lambda table, metadata: metadata.clear(), "this wanc reads format 2"),
        (lambda table, metadata: metadata.update(step=True), "Expected `int`, got `bool`"),
        (lambda table, metadata: metadata.update(step=1.5), "Expected `int`, got `float`"),
        (lambda table, metadata: metadata.update(prompt=None), "Expected `str`, got `null`"),
        (lambda table, metadata: metadata["sampling"].pop("seed"), "missing required field `seed`"),
        (lambda table, metadata: metadata["sampling"].update(steps="6"), "Expected `int`"),
        (lambda table, metadata: metadata["sampling"].update(sampler="ddim"), "enum value 'ddim'"),
        (lambda table, metadata: metadata["sampling"].update(only="both"), "enum value 'both'"),
        (lambda table, metadata: metadata.pop("images"), "missing required field `images`"),
        (lambda table, metadata: table.pop("latents"), "latents|invalid offset"),
        (renamed("latents", "latent"), "latents"),
        (lambda table, metadata: table["latents"].update(dtype="F64"), "deserializing"),
        (lambda table, metadata: table["latents"].update(dtype="PY"), "deserializing"),
        (lambda table, metadata: table["latents"].update(shape=[1 << 62, 1 << 62]), "overflow"),
        (lambda table, metadata: table["latents"].update(shape=[-1]), "deserializing"),
        (lambda table, metadata: table["latents"].update(data_offsets=[0, 1 << 60]), "deserial"),
    ],
)
def test_damage(data: bytes, change: Callable[..., Any], told: str) -> None:
    with pytest.raises(RunError, match="not a file of saved steps, or a damaged one") as refused:
        read_saved(changed(data, change), WHERE)
    assert any(each in str(refused.value) for each in told.split("|"))


@pytest.mark.parametrize(
    "name",
    [
        *("model_outputs.2", "model_outputs.-1", "model_outputs.x", "model_outputs", "nowhere.1"),
        *(".1", "_step_index.0", "step", "__class__", "convert_model_output", "timesteps"),
    ],
)
def test_only_tensors_that_a_scheduler_holds_are_set(
    data: bytes, config: VariantConfig, values: SamplingValues, name: str
) -> None:
    saved = read_saved(changed(data, renamed("model_outputs.1", name)), WHERE)
    with pytest.raises(RequestError, match="the saved unipc is damaged"):
        saved.check(config, values)


@pytest.mark.parametrize("tensor", [torch.zeros(3), torch.zeros(1, 16, 2, 2, 2).bfloat16()])
def test_of_their_size_and_dtype(
    saved: Saved, config: VariantConfig, values: SamplingValues, tensor: Tensor
) -> None:
    other = replace(saved, scheduler={**saved.scheduler, "last_sample": tensor})
    with pytest.raises(RequestError, match="the saved unipc is damaged"):
        other.check(config, values)


def test_another_sampler(saved: Saved, config: VariantConfig, values: SamplingValues) -> None:
    with pytest.raises(RequestError, match="after step 3 of euler; the run has 6 of unipc"):
        replace(saved, sampler="euler").check(config, values)


@pytest.mark.parametrize("sampler", ["euler", "dpm++"])
def test_state_of_another_sampler(saved: Saved, config: VariantConfig, sampler: Sampler) -> None:
    """UniPC keeps more than the others do."""
    values = sampling_values(replace(REQUEST, sampler=sampler), config)
    other = replace(saved, sampler=sampler)
    with pytest.raises(RequestError, match=re.escape(f"the saved {sampler} is damaged: it holds")):
        other.check(config, values)


@pytest.mark.parametrize(
    ("saved_of", "given"), [("sha256:1", ""), ("", "sha256:1"), ("sha256:1", "sha256:2")]
)
def test_other_images(
    saved: Saved, config: VariantConfig, values: SamplingValues, saved_of: str, given: str
) -> None:
    with pytest.raises(RequestError, match="goes on with the images that it began with"):
        replace(saved, images=saved_of).check(config, values, given)


def test_the_same_images(
    saved: Saved, config: VariantConfig, values: SamplingValues, files: Files
) -> None:
    replace(saved, images="sha256:1").write(files, values)
    read = read_saved(files.saved.read_bytes(), files.saved)
    assert read.images == "sha256:1"
    assert read.check(config, values, "sha256:1").step_index == SAVED


def test_changed_bytes(
    data: bytes,
    config: VariantConfig,
    values: SamplingValues,
    repetitions: Callable[[int, int], int],
) -> None:
    """In the table and the metadata: refused in words, or as good as another file."""
    header = 8 + int.from_bytes(data[:8], "little")
    chance = random.Random(0)
    for _ in range(repetitions(300, 20_000)):
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 2, 5))):
            damaged[chance.randrange(header)] = chance.randrange(256)
        with suppress(RunError, RequestError):
            read_saved(bytes(damaged), WHERE).check(config, values)


# --- another variant, another request -------------------------------------------------------------


def test_another_size(saved: Saved, values: SamplingValues) -> None:
    other = variant_of("32x16x5").config
    with pytest.raises(RequestError) as refused:
        saved.check(other, values)
    told = str(refused.value)
    assert "the saved latents are (1, 16, 2, 2, 2), and variant t2v 32x16x5" in told
    assert "has (1, 16, 2, 2, 4): they were saved by a run of 16x16x5" in told


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_another_dtype(
    saved: Saved, config: VariantConfig, values: SamplingValues, dtype: torch.dtype
) -> None:
    with pytest.raises(RequestError, match="the saved latents are"):
        replace(saved, latents=saved.latents.to(dtype)).check(config, values)


@pytest.mark.parametrize("step", [-1, 0, STEPS + 1, 1 << 40])
def test_steps_beyond_the_run(
    saved: Saved, config: VariantConfig, values: SamplingValues, step: int
) -> None:
    with pytest.raises(RequestError, match=f"saved after step {step} of unipc; the run has"):
        replace(saved, step=step).check(config, values)


@pytest.mark.parametrize(
    "asked",
    [
        RunRequest(),
        RunRequest(resume=WHERE, save_every=2, profile=True, check_ranks=True),
        RunRequest(prompt=REQUEST.prompt, seed=REQUEST.seed),
        replace(REQUEST, resume=WHERE),
    ],
    ids=["nothing", "how to run", "some", "all"],
)
def test_a_request_takes_what_it_leaves_open(saved: Saved, asked: RunRequest) -> None:
    merged = resumed(asked, saved)
    taken = [getattr(merged, name) for name in CARRIED]
    assert taken == [getattr(REQUEST, name) for name in CARRIED]
    ways = ("resume", "save_every", "profile", "check_ranks")
    assert [getattr(merged, name) for name in ways] == [getattr(asked, name) for name in ways]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"prompt": "a harbour"}, "prompt 'a harbour', saved was 'a \"lighthouse\""),
        ({"prompt": ""}, "prompt '', saved was"),
        ({"negative": "blurred"}, "negative 'blurred', saved was ''"),
        ({"steps": 7}, "steps 7, saved was 6"),
        ({"guidance": Guidance(high=4.0, low=4.0)}, "low=4.0"),
        ({"flow_shift": 2.71}, "flow shift 2.71, saved was 2.7"),
        ({"seed": 0}, "seed 0, saved was 18446744073709551615"),
        ({"sampler": "euler"}, "sampler 'euler', saved was 'unipc'"),
        ({"expert": "high_noise"}, "expert 'high_noise', saved was 'low_noise'"),
        ({"preset": "official"}, "preset 'official', saved was 'vllm-omni'"),
    ],
)
def test_a_request_that_differs(saved: Saved, asked: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError, match="leave these out") as refused:
        resumed(RunRequest(**asked), saved)
    assert told in str(refused.value)
    assert len(str(refused.value).splitlines()) == 2


def test_all_that_differs_is_named_at_once(saved: Saved) -> None:
    with pytest.raises(RequestError) as refused:
        resumed(RunRequest(negative="blurred", steps=7, seed=0, flow_shift=2.7), saved)
    assert [line.split()[0] for line in str(refused.value).splitlines()[1:]] == [
        "negative",
        "steps",
        "seed",
    ]

"""The toy checkpoints as they come with wanc: found by name, small, and what their presets say."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

from wanc.spec.checkpoint import checkpoint_directory, read_checkpoint, resolve_model
from wanc.spec.model import EXPERT_COMPONENTS
from wanc.spec.presets import SAMPLING, TOY_MODELS

TOYS = list(TOY_MODELS)
MOST_BYTES = 20_000_000
COMPONENTS = (*EXPERT_COMPONENTS.values(), "text_encoder", "vae")


@pytest.mark.parametrize("name", TOYS)
def test_a_name_is_a_directory_and_a_path_stays_one(name, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert checkpoint_directory(name).is_absolute()
    assert (checkpoint_directory(name) / "model_index.json").is_file()
    assert checkpoint_directory(f"./{name}") == Path(name)
    assert checkpoint_directory(Path("somewhere")) == Path("somewhere")


@pytest.mark.parametrize("name", TOYS)
def test_the_checkpoint_is_the_preset(name):
    """Its sampling too, which no config states but for the boundary."""
    assert read_checkpoint(checkpoint_directory(name)) == TOY_MODELS[name]
    assert resolve_model(str(checkpoint_directory(name))) == resolve_model(name)
    assert TOY_MODELS[name].sampling != SAMPLING[TOY_MODELS[name].task]


def test_another_boundary_is_another_model_sampled_as_the_toy_is(tmp_path):
    shutil.copytree(checkpoint_directory("toy-t2v"), tmp_path / "toy")
    index = tmp_path / "toy" / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"boundary_ratio": 0.5}))
    other = read_checkpoint(tmp_path / "toy")
    assert other.sampling == replace(TOY_MODELS["toy-t2v"].sampling, boundary=0.5)
    assert other.name.startswith("custom-")


@pytest.mark.parametrize("name", TOYS)
def test_files_are_small_bf16_and_nothing_else(name):
    files = [path for path in checkpoint_directory(name).rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".md"}
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    for component in COMPONENTS:
        (weights,) = (checkpoint_directory(name) / component).glob("*.safetensors")
        with safe_open(weights, "np") as file:
            dtypes = {file.get_slice(key).get_dtype() for key in file.offset_keys()}
        assert dtypes == {"BF16"}


@pytest.mark.parametrize("name", TOYS)
def test_a_card_says_what_it_is_and_what_not(name):
    card = (checkpoint_directory(name) / "README.md").read_text()
    for said in (name, "a red circle moving left over a dark background", "cannot do", " dB"):
        assert said in card

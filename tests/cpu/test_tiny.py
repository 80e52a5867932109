"""The tiny checkpoint: what is written, that diffusers runs it, that it is the same everywhere."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wanc import digest, tiny, tiny_weights
from wanc.errors import RequestError
from wanc.spec.checkpoint import read_checkpoint
from wanc.spec.model import EXPERT_COMPONENTS, TEXT_TOKENS
from wanc.spec.presets import NEGATIVE_PROMPT, TINY
from wanc.tiny import write_tiny_checkpoint

MAX_BYTES = 40_000_000
MODELS = (*EXPERT_COMPONENTS.values(), "text_encoder", "vae")
UNK = 2


def digests(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): digest.of_file(path) for path in files}


def tensors(directory: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return {
        f"{component}/{name}": tensor
        for component in MODELS
        for path in sorted((directory / component).glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sharded") / "tiny"
    write_tiny_checkpoint(directory, shards=2)
    return directory


def test_configs_are_the_preset(tiny_checkpoint: Path) -> None:
    assert read_checkpoint(tiny_checkpoint) == replace(TINY, name=tiny_checkpoint.name)
    scheduler = json.loads((tiny_checkpoint / "scheduler/scheduler_config.json").read_text())
    assert scheduler["flow_shift"] == TINY.sampling.flow_shift


def test_small_and_nothing_left_beside(tiny_checkpoint: Path) -> None:
    assert sum(path.stat().st_size for path in tiny_checkpoint.rglob("*")) < MAX_BYTES
    assert list(tiny_checkpoint.parent.iterdir()) == [tiny_checkpoint]


def test_same_seed_same_bytes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_tiny_checkpoint(tmp_path / "empty", seed=0)
    assert digests(tmp_path / "empty") == digests(tiny_checkpoint)


def test_other_seed_other_bytes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path / "other", seed=1)
    ours, others = tensors(tiny_checkpoint), tensors(tmp_path / "other")
    assert ours.keys() == others.keys()
    assert not [name for name in ours if np.array_equal(ours[name], others[name])]


def test_bytes_do_not_depend_on_the_machine() -> None:
    drawn = {
        name: digest.of_bytes(
            tiny_weights.draw(name, shape, seed=0, heads=TINY.transformer.heads).tobytes()
        )[:19]
        for name, shape in (
            ("transformer/blocks.0.attn1.norm_q.weight", (192,)),
            ("transformer/blocks.0.attn1.to_q.weight", (192, 192)),
            ("vae/decoder.conv_in.bias", (64,)),
        )
    }
    assert drawn == {
        "transformer/blocks.0.attn1.norm_q.weight": "sha256:c178d3686253",
        "transformer/blocks.0.attn1.to_q.weight": "sha256:cb93571af795",
        "vae/decoder.conv_in.bias": "sha256:e7dfd522b8ee",
    }


def test_experts_differ(tiny_checkpoint: Path) -> None:
    drawn = tensors(tiny_checkpoint)
    high = {name for name in drawn if name.startswith("transformer/")}
    assert high
    for name in high:
        assert not np.array_equal(drawn[name], drawn[name.replace("transformer", "transformer_2")])


def test_every_rule_draws_something(tiny_checkpoint: Path) -> None:
    used = {tiny_weights.rule_for(name).pattern for name in tensors(tiny_checkpoint)}
    assert used == {rule.pattern for rule in tiny_weights.RULES}


def test_heads_have_levels_of_their_own(tiny_checkpoint: Path) -> None:
    norm = tensors(tiny_checkpoint)["transformer/blocks.0.attn1.norm_q.weight"]
    by_head = np.sort(norm.reshape(TINY.transformer.heads, -1).mean(axis=1))
    assert np.all(np.diff(by_head) > 0.1)


def test_text_encoder_table_is_stored_once(tiny_checkpoint: Path) -> None:
    tables = [
        name
        for name in tensors(tiny_checkpoint)
        if name.endswith(("shared.weight", "tokens.weight"))
    ]
    assert tables == ["text_encoder/shared.weight"]


@pytest.mark.parametrize("component", MODELS)
def test_loads_with_no_weight_missing_or_new(
    tiny_checkpoint: Path, sharded: Path, component: str
) -> None:
    import torch
    from diffusers import AutoencoderKLWan, WanTransformer3DModel
    from transformers import UMT5EncoderModel

    network: Any = {"text_encoder": UMT5EncoderModel, "vae": AutoencoderKLWan}.get(
        component, WanTransformer3DModel
    )
    states = []
    for directory in (tiny_checkpoint, sharded):
        model, report = network.from_pretrained(directory / component, output_loading_info=True)
        assert not any(report.values()), report
        states.append(model.state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    if component == "text_encoder":
        assert torch.equal(model.encoder.embed_tokens.weight, states[0]["shared.weight"])
        assert model.encoder.embed_tokens.weight.std() > 0.5


@pytest.mark.parametrize("component", MODELS)
def test_shards_are_named_and_indexed_as_published(sharded: Path, component: str) -> None:
    from safetensors import safe_open

    stem = "model" if component == "text_encoder" else "diffusion_pytorch_model"
    index = json.loads((sharded / component / f"{stem}.safetensors.index.json").read_text())
    files = [f"{stem}-00001-of-00002.safetensors", f"{stem}-00002-of-00002.safetensors"]
    assert sorted(set(index["weight_map"].values())) == files
    assert sorted(path.name for path in (sharded / component).glob("*.safetensors")) == files
    stored_bytes = 0
    for file in files:
        with safe_open(sharded / component / file, framework="numpy") as opened:
            assert opened.metadata() == {"format": "pt"}
            assert set(opened.keys()) == {n for n, f in index["weight_map"].items() if f == file}
            stored_bytes += sum(opened.get_tensor(name).nbytes for name in opened.keys())  # noqa: SIM118
    assert index["metadata"]["total_size"] == stored_bytes


def test_diffusers_runs_both_experts(tiny_checkpoint: Path) -> None:
    import torch
    from diffusers import WanPipeline

    load: Any = WanPipeline.from_pretrained
    pipeline = load(tiny_checkpoint)
    pipeline.set_progress_bar_config(disable=True)
    latents, timesteps = [], []

    def keep(_: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        timesteps.append(int(timestep))
        latents.append(tensors["latents"])
        return tensors

    pixels = pipeline(
        prompt="Two anthropomorphic cats in comfy boxing gear fight intensely.",
        negative_prompt=NEGATIVE_PROMPT,
        width=208,
        height=128,
        num_frames=5,
        num_inference_steps=3,  # two steps with shift 12 are both above the boundary
        guidance_scale=TINY.sampling.guidance_high,
        guidance_scale_2=TINY.sampling.guidance_low,
        generator=torch.Generator("cpu").manual_seed(1),
        output_type="np",
        callback_on_step_end=keep,
        return_dict=False,
    )[0]
    boundary = pipeline.config.boundary_ratio * pipeline.scheduler.config.num_train_timesteps
    assert min(timesteps) < boundary <= max(timesteps)
    assert latents[-1].shape == (1, 16, 2, 16, 26)
    assert 0.5 < latents[-1].std() < 5
    assert latents[-1].abs().max() < 20
    assert pixels.shape == (1, 5, 128, 208, 3)
    assert np.quantile(pixels, 0.05) < 0.3
    assert np.quantile(pixels, 0.95) > 0.7
    assert np.mean((pixels == 0) | (pixels == 1)) < 0.1


def test_tokenizer(tiny_checkpoint: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    directory = tiny_checkpoint / "tokenizer"
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, UNK)
    assert len(tokenizer) <= TINY.text_encoder.vocabulary
    as_written = Tokenizer.from_file(str(directory / "tokenizer.json"))
    texts = ("", "A cat walks.", "A dog walks.", "a cat walks.", "naïve 😀 ~", NEGATIVE_PROMPT)
    rows = [tokenizer(text).input_ids for text in texts]
    assert rows == [as_written.encode(text).ids for text in texts]
    assert len({tuple(row) for row in rows}) == len(texts)
    assert all(row[-1] == tokenizer.eos_token_id and UNK not in row for row in rows)
    assert max(map(len, rows)) <= TEXT_TOKENS
    assert "<0xE8>" in tokenizer.convert_ids_to_tokens(rows[-1])


def test_existing_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(RequestError, match="already holds 1 entry; give the name of a new"):
        write_tiny_checkpoint(tmp_path)
    with pytest.raises(RequestError, match="is a file"):
        write_tiny_checkpoint(tmp_path / "kept")
    assert digests(tmp_path) == {"kept": digest.of_bytes(b"mine")}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="is the working directory"):
        write_tiny_checkpoint(Path())


@pytest.mark.parametrize("shards", [0, 23])
def test_illegal_shards_are_refused(tmp_path: Path, shards: int) -> None:
    with pytest.raises(RequestError, match=f"shards is {shards}; .* work"):
        write_tiny_checkpoint(tmp_path / "tiny", shards=shards)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny, "draw", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_tiny_checkpoint(tmp_path / "tiny")
    assert not list(tmp_path.iterdir())

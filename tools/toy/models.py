"""The networks of a toy checkpoint, from their first random weights to its files.

Knows no training. Files are in diffusers' layout, weights in bf16; networks in memory are fp32
that bf16 holds, so that what is trained on them is trained on what is stored.
"""

import json
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from transformers import AutoTokenizer

from tools.toy.grammar import WORDS
from tools.toy.prompts import Sentences
from wanc.spec.model import Model
from wanc.tiny import model_index, networks, scheduler
from wanc.tiny_tokenizer import write_tokenizer

_SEED = 0


def new_networks(model: Model) -> dict[str, Any]:
    """The networks by component, as they are before any training: the same on every call."""
    torch.manual_seed(_SEED)
    made = networks(model, device="cpu")
    for component, network in made.items():
        network.requires_grad_(component != "text_encoder")
        if component.startswith("transformer"):
            nn.init.zeros_(network.proj_out.weight)
            nn.init.zeros_(network.proj_out.bias)
        if component == "text_encoder":
            round_to_bf16(network.eval())
    return made


def sentences_of(model: Model, text_encoder: nn.Module) -> Sentences:
    """The grammar's sentences through the frozen encoder."""
    with TemporaryDirectory() as folder:
        write_tokenizer(
            Path(folder), vocabulary=model.text_encoder.vocabulary, words=" ".join(WORDS)
        )
        return Sentences(text_encoder, AutoTokenizer.from_pretrained(folder))


@torch.no_grad()
def round_to_bf16(network: nn.Module) -> None:
    """Rounds every weight in place, to the nearest that bf16 holds."""
    for parameter in network.parameters():
        parameter.copy_(parameter.bfloat16())


@torch.no_grad()
def start_from(narrow: nn.Module, wide: Any) -> None:
    """Starts an expert from another; of condition channels that only it has it sees nothing yet."""
    weights = dict(narrow.state_dict())
    patch = torch.zeros_like(wide.patch_embedding.weight)
    patch[:, : weights["patch_embedding.weight"].shape[1]] = weights["patch_embedding.weight"]
    wide.load_state_dict({**weights, "patch_embedding.weight": patch})


def write_checkpoint(folder: Path, model: Model, trained: dict[str, Any], card: str) -> None:
    """Writes every component in diffusers' layout, with the model card as README.md."""
    for component, network in trained.items():
        deepcopy(network).bfloat16().save_pretrained(folder / component)
    (folder / "tokenizer").mkdir(exist_ok=True)
    write_tokenizer(
        folder / "tokenizer", vocabulary=model.text_encoder.vocabulary, words=" ".join(WORDS)
    )
    scheduler(model).save_config(folder / "scheduler")
    for weights in folder.glob("*/*.safetensors"):
        weights.chmod(0o644)  # transformers and diffusers write them for their owner alone
    index = json.dumps(model_index(model), indent=2, sort_keys=True)
    (folder / "model_index.json").write_text(index + "\n")
    (folder / "README.md").write_text(card)

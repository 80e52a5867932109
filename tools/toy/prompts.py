"""Sentences as the frozen text encoder gives them, and as an expert in training takes them.

Wan's pipelines pad every prompt to 512 tokens with zero rows, and cross-attention takes pads for
tokens. All pads of a prompt are one key and one value, so softmax over n of them is softmax over
one whose score is greater by log n. ``PadsAsOne`` does that: exact, and a third less to compute.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from torch import Tensor, nn

from tools.toy.grammar import BACKGROUNDS, COLORS, DIRECTIONS, KINDS, Scene
from wanc.spec.model import TEXT_TOKENS

DROPPED = 0.1
"""Of all prompts: what guidance starts from."""
LEFT_OPEN = 0.3
"""Of the others some part is not named; each by chance one half."""

LONGEST_TOKENS = 13
"""Of a sentence with its end, and one pad."""

Encoded = tuple[Tensor, Tensor]
"""Text (B, LONGEST_TOKENS, D) and the bias (B, 1, 1, LONGEST_TOKENS) of its scores."""


class PadsAsOne(WanAttnProcessor):
    """Cross-attention over a sentence and one pad that stands for all."""

    def __init__(self) -> None:
        super().__init__()
        self.bias: Tensor | None = None

    def __call__(self, attn: Any, hidden: Tensor, text: Tensor, *_: Any) -> Tensor:
        """As its parent, with this step's bias."""
        return super().__call__(attn, hidden, text, self.bias, None)


class Sentences:
    """Every sentence of the grammar, encoded once."""

    def __init__(self, encoder: nn.Module, tokenizer: Any) -> None:
        options = [(None, *part) for part in (COLORS, KINDS, DIRECTIONS, BACKGROUNDS)]
        sentences = ["", *(Scene(*parts).sentence() for parts in product(*options))]
        self._rows = {sentence: row for row, sentence in enumerate(sentences)}
        tokens = tokenizer(
            sentences, padding="max_length", max_length=LONGEST_TOKENS, return_tensors="pt"
        )
        mask = tokens.attention_mask
        assert mask.shape[1] == LONGEST_TOKENS, "a sentence is longer than LONGEST_TOKENS"
        lengths = mask.sum(1)
        assert int(lengths.max()) < LONGEST_TOKENS, "no pad is left"
        with torch.no_grad():
            text = encoder(tokens.input_ids, mask).last_hidden_state
        self._text = text * mask[:, :, None]
        position = torch.arange(LONGEST_TOKENS)[None]
        pads = torch.tensor([math.log(TEXT_TOKENS - int(n)) for n in lengths])[:, None]
        bias = torch.where(position == lengths[:, None], pads, torch.tensor(float("-inf")))
        self._bias = torch.where(position < lengths[:, None], torch.tensor(0.0), bias)

    def encoded(self, sentences: Sequence[str]) -> Encoded:
        """A batch of sentences of the grammar, or empty ones."""
        rows = torch.tensor([self._rows[sentence] for sentence in sentences])
        return self._text[rows], self._bias[rows][:, None, None]


def said_of(scene: Scene, generator: torch.Generator) -> str:
    """What a training step is told of a clip: all, some, or nothing."""
    chance, *parts = torch.rand(5, generator=generator).tolist()
    if chance < DROPPED:
        return ""
    if chance > DROPPED + LEFT_OPEN:
        return scene.sentence()
    values = (scene.color, scene.kind, scene.direction, scene.background)
    kept = (value if part < 0.5 else None for value, part in zip(values, parts, strict=True))
    return Scene(*kept).sentence()


def use_pads_as_one(transformer: nn.Module) -> list[PadsAsOne]:
    """Sets a processor on each block's cross-attention, whose bias is to be set at each step."""
    processors = []
    for block in transformer.blocks:
        processor = PadsAsOne()
        block.attn2.set_processor(processor)
        processors.append(processor)
    return processors

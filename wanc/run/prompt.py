"""Prompts to token ids: the official cleaning, and the checkpoint's tokenizer.

Knows no encoder. Tokenizer files come from the checkpoint and are recorded by digest.
"""

import html
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ftfy
import numpy as np

from wanc.digest import of_file
from wanc.errors import WeightsError
from wanc.spec.model import TEXT_TOKENS

_WHITESPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokens:
    """One prompt's token ids, padded to TEXT_TOKENS."""

    ids: tuple[int, ...]
    real: int
    """Tokens of the prompt itself, its end mark among them."""

    @property
    def mask(self) -> "np.ndarray[Any, Any]":
        """[TEXT_TOKENS] fp32: 1 at the prompt's own tokens."""
        return (np.arange(TEXT_TOKENS) < self.real).astype(np.float32)


def clean_prompt(text: str) -> str:
    """The official cleaning: broken Unicode mended, HTML unescaped twice, whitespace collapsed."""
    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return _WHITESPACE.sub(" ", text.strip()).strip()


class Tokenizer:
    """The checkpoint's tokenizer."""

    def __init__(self, checkpoint: Path) -> None:
        self.folder = checkpoint / "tokenizer"
        if not self.folder.is_dir():
            raise WeightsError(f"{self.folder}: the checkpoint has no tokenizer folder")
        from transformers import AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                self.folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # whatever a damaged file makes the library raise
            raise WeightsError(f"{self.folder}: cannot load the tokenizer: {error}") from error

    def __call__(self, prompt: str) -> PromptTokens:
        """Clean and tokenize; longer prompts are cut at TEXT_TOKENS."""
        encoded = self._tokenizer(
            clean_prompt(prompt),
            padding="max_length",
            max_length=TEXT_TOKENS,
            truncation=True,
            add_special_tokens=True,
            return_attention_mask=True,
        )
        return PromptTokens(
            ids=tuple(encoded["input_ids"]), real=int(sum(encoded["attention_mask"]))
        )

    def digests(self) -> dict[str, str]:
        """Digest of each tokenizer file, by name."""
        return {
            file.name: of_file(file) for file in sorted(self.folder.iterdir()) if file.is_file()
        }

"""Builds a tokenizer for a small checkpoint: Unigram with byte fallback, the kind UMT5 has.

Knows nothing of models, and nothing is drawn: the same pieces and scores every time.

The class named in tokenizer_config.json is transformers' generic one, which reads
tokenizer.json as it stands and which transformers itself maps to UMT5 models. Its
``T5Tokenizer`` (5.24, models/t5/tokenization_t5.py) rebuilds the tokenizer from the pieces,
without byte fallback and without any normalizer but a SentencePiece character map.
"""

import json
import string
from pathlib import Path

from wanc.spec.model import TEXT_TOKENS

TOKENIZER_CLASS = "PreTrainedTokenizerFast"

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"
_SPECIAL = (PAD, EOS, UNK)  # ids 0, 1, 2, as UMT5 has them

_SPACE = "▁"
TINY_WORDS = """
a an and as at beside black blue boxing by camera cat cats clothes comfy dog down drinks fight for
forest from girl golden green house in intensely into is it light man mountain moving night ocean of
old on over person quick rain red river road rose runs sea sky slow slowly small snow spotlighted
stage street sun that the through to two under video walks water white wind with woman young
"""
"""Of the tiny checkpoint, whose prompts may say anything."""

_ENDINGS = "ed er es est ing ion ly ment ness th 's"

_WORD_SCORE, _ENDING_SCORE, _CHARACTER_SCORE, _BYTE_SCORE = -6.0, -8.0, -10.0, -20.0
"""Log-probabilities: a word beats its letters; a byte serves only characters without a piece."""


def write_tokenizer(directory: Path, *, vocabulary: int, words: str = TINY_WORDS) -> None:
    """Writes tokenizer.json and tokenizer_config.json; ``vocabulary`` is the table's row count.

    ``words`` get a piece each, and others are made of letters. The table may be larger: rows past
    the last piece stay unused.
    """
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
    from tokenizers.models import Unigram

    pieces = _pieces(words)
    assert len(pieces) <= vocabulary, f"{len(pieces)} pieces do not fit {vocabulary} rows"
    tokenizer = Tokenizer(Unigram(pieces, unk_id=_SPECIAL.index(UNK), byte_fallback=True))
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(_SPACE, "always")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(_SPACE, "always")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", special_tokens=[(EOS, _SPECIAL.index(EOS))]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": TOKENIZER_CLASS,
        "pad_token": PAD,
        "eos_token": EOS,
        "unk_token": UNK,
        "model_max_length": TEXT_TOKENS,
        "padding_side": "right",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _pieces(words: str) -> list[tuple[str, float]]:
    """Every piece with its score, in the order of ids."""
    printable = string.digits + string.ascii_letters + string.punctuation
    return [
        *((token, 0.0) for token in _SPECIAL),
        *((f"<0x{byte:02X}>", _BYTE_SCORE) for byte in range(256)),
        *((character, _CHARACTER_SCORE) for character in _SPACE + printable),
        *((_SPACE + word, _WORD_SCORE) for word in words.split()),
        *((ending, _ENDING_SCORE) for ending in _ENDINGS.split()),
    ]

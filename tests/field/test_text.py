"""Cases from the field about prompts and the text encoder.

Each test names the public report that it retells.
"""

import os
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.cpu.test_parity import MASKED, TEXT_TOLERANCE, difference
from wanc.run.prompt import Tokenizer, clean_prompt

pytestmark = pytest.mark.xdist_group("field-run")

BROKEN = "Itâ€™s &amp;amp; fine"
"""An apostrophe of UTF-8 read as Windows-1252, and an ampersand escaped twice."""
TABLES = ("shared.weight", "encoder.embed_tokens.weight")
"""Names of UMT5's one table: published checkpoints have either or both."""


@pytest.fixture
def renamed(tiny_checkpoint, tmp_path):
    """The checkpoint with its embedding table under these names."""

    def renamed(names: tuple[str, ...]) -> Path:
        copy = tmp_path / "renamed"
        shutil.copytree(tiny_checkpoint, copy, copy_function=os.link)
        file = copy / "text_encoder" / "model.safetensors"
        tensors = load_file(file)
        table = tensors.pop(TABLES[0])
        file.unlink()  # a link to the shared one
        save_file({**tensors, **dict.fromkeys(names, table)}, file, metadata={"format": "pt"})
        return copy

    return renamed


@pytest.mark.parametrize("names", [TABLES[:1], TABLES[1:], TABLES], ids=["shared", "own", "both"])
def test_either_name_of_the_table_gives_the_embeddings(wanc, diffusers_result, renamed, names):
    """huggingface/transformers #43992, vllm-omni PR #4919: zero or random embeddings."""
    bundle = wanc.denoiser(MASKED, "tp1")
    found = replace(wanc, checkpoint=renamed(names)).embeddings(bundle)
    assert np.array_equal(found, wanc.embeddings(bundle))
    assert difference(found, diffusers_result(MASKED).prompt_embeddings) < TEXT_TOLERANCE
    prompt, negative = np.abs(found).max(axis=(1, 2))
    assert prompt > 0.1
    assert negative > 0.1
    assert difference(*found) > 0.1


def test_prompt_has_the_official_token_ids(diffusers_result, tiny_checkpoint):
    """vllm-omni ``_prompt_clean`` (source): a split and a join, where the official code mends."""
    from diffusers.pipelines.wan.pipeline_wan import prompt_clean

    tokenizer = diffusers_result.pipeline().tokenizer
    official = tokenizer(prompt_clean(BROKEN), padding="max_length", max_length=512).input_ids
    assert Tokenizer(tiny_checkpoint)(BROKEN).ids == tuple(official)
    assert Tokenizer(tiny_checkpoint)("It's & fine").ids == tuple(official)
    assert tokenizer(" ".join(BROKEN.split())).input_ids != official[:20]


@pytest.mark.parametrize(
    ("prompt", "clean"),
    [
        ("  a \n\t cat\u3000on\xa0 a  mat ", "a cat on a mat"),
        ("a < b &amp;lt; c &amp;amp;lt; d", "a < b < c &lt; d"),  # ftfy leaves these alone
        ("&amp;nbsp;x&amp;nbsp;", "x"),
        ("âœ” dÃ©jÃ\xa0 vu", "✔ déjà vu"),
        ("“quoted”… ﬁne", '"quoted"… fine'),
        ("一艘船，雨天", "一艘船,雨天"),
        ("", ""),
    ],
    ids=["whitespace", "escapes", "escaped space", "mojibake", "ligature", "width", "nothing"],
)
def test_prompts_are_cleaned_as_the_official_code_does(prompt, clean):
    """vllm-omni ``_prompt_clean`` (source). ftfy mends, HTML is unescaped twice, spaces are one."""
    from diffusers.pipelines.wan.pipeline_wan import prompt_clean

    assert clean_prompt(prompt) == prompt_clean(prompt) == clean


def test_rows_past_each_prompt_s_own_end_are_zero(wanc):
    """Per prompt, not per batch: a short prompt beside a longer negative one."""
    prompts = "a cat", "a ship in a storm, " * 9
    tokens = [Tokenizer(wanc.checkpoint)(prompt).real for prompt in prompts]
    found = wanc.embeddings(wanc.denoiser(MASKED, "tp1"), prompt=prompts[0], negative=prompts[1])
    assert found.shape == (2, 512, 64)
    assert tokens[0] < tokens[1] // 2
    for rows, real in zip(np.abs(found).max(axis=-1), tokens, strict=True):
        assert rows[:real].min() > 0.1
        assert not rows[real:].any()


def test_ftfy_is_a_dependency():
    """huggingface/diffusers PR #12314: without ftfy, a NameError at the first prompt."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert any(line.startswith("ftfy") for line in project["dependencies"])

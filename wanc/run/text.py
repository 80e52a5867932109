"""Prompts on the ranks: embeddings of every guidance branch, and each expert's keys and values."""

from typing import Any

import numpy as np

from wanc.errors import WeightsError
from wanc.plan.text_encoder import EMBEDDING_NAMES
from wanc.run.guards import check_finite
from wanc.run.prompt import PromptTokens
from wanc.run.request import SamplingValues
from wanc.run.session import Session, Values
from wanc.spec.model import Expert
from wanc.spec.topology import GUIDANCE_BRANCHES

Array = np.ndarray[Any, Any]


def encode_prompts(
    session: Session, prompts: list[PromptTokens], values: SamplingValues, state: Values
) -> Array:
    """Prompt embeddings of every wanted branch, and each expert's keys and values of them."""
    session.feed("token_embeddings", token_embeddings(session, prompts))
    session.feed("text_mask", np.stack([prompt.mask for prompt in prompts]))
    experts = values.experts(session.config.model)
    wanted = {branch for expert in experts for branch in branches(values, expert)}
    session.run("encode_text", state, branches=wanted)
    embeddings = session.results("encode_text", state, branches=wanted)
    check_finite(embeddings, "text encoding", "prompt embeddings")
    for expert in experts:
        session.run(f"context.{expert}", state, branches=branches(values, expert))
    return embeddings


def branches(values: SamplingValues, expert: Expert) -> range:
    """Guidance branches of an expert: without guidance only the conditioned one."""
    return range(GUIDANCE_BRANCHES if values.guidance(expert) > 1 else 1)


def token_embeddings(session: Session, prompts: list[PromptTokens]) -> Array:
    """Rows [branches, T, D] of the embedding table, read from the mapped file."""
    component = session.components["text_encoder"]
    name = next(name for name in EMBEDDING_NAMES if name in component.tensors)
    ids = sorted({i for prompt in prompts for i in prompt.ids})
    vocabulary = session.config.model.text_encoder.vocabulary
    if ids[-1] >= vocabulary:
        raise WeightsError(f"the tokenizer gives id {ids[-1]}; the table has {vocabulary} rows")
    rows = {i: component.read(name, [slice(i, i + 1), slice(None)])[0] for i in ids}
    return np.stack([[rows[i] for i in prompt.ids] for prompt in prompts]).astype(np.float32)

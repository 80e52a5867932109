"""The diffusion transformer as one rank runs it. Knows degrees, never which rank it is.

Same arithmetic as diffusers' WanTransformer3DModel, with tensor parallelism, sequence parallelism
inside tp and context parallelism written out. plan/transformer.py holds the ABI.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from wanc.model import ops
from wanc.model.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLayout:
    """How tokens lie on this rank's tp group; see plan's TokenSplit."""

    tp: int
    chunk_tokens: int
    padded_chunk_tokens: int

    @property
    def tail(self) -> int:
        """Pads at the end of the chunk."""
        return self.padded_chunk_tokens - self.chunk_tokens

    def gather(self, x_BLD: Tensor) -> Tensor:
        """This rank's shard -> the cp chunk, without its tail pads."""
        if self.tp > 1:
            x_BLD = ops.all_gather(x_BLD, "tp", self.tp, 1)
        return x_BLD[:, : self.chunk_tokens] if self.tail else x_BLD

    def reduce(self, partial_BLD: Tensor) -> Tensor:
        """Partial sums of the cp chunk -> this rank's shard of their sum over tp."""
        if self.tp == 1:
            return partial_BLD
        if self.tail:
            partial_BLD = F.pad(partial_BLD, (0, 0, 0, self.tail))
        return ops.reduce_scatter(partial_BLD, "tp", self.tp, 1)


def for_tokens(per_timestep: Tensor, given_BL1: Tensor | None) -> Tensor:
    """[timesteps, 1, D], of the step and of what is given -> [1, L or 1, D], by token."""
    if given_BL1 is None:
        return per_timestep
    return torch.where(given_BL1 > 0, per_timestep[1:], per_timestep[:1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextGraph:
    """prompt_embeddings -> cross-attention keys and values of a layer group."""

    heads: int
    head_width: int
    norm_width: int
    tp: int
    eps: float
    layers: int

    def __call__(self, w: Weights, prompt_BTD: Tensor) -> tuple[Tensor, ...]:
        embedder = w.at("condition_embedder.text_embedder")
        hidden = F.gelu(embedder.linear("linear_1", prompt_BTD), approximate="tanh")
        text_BTD = embedder.linear("linear_2", hidden)
        outputs = []
        for k in range(self.layers):
            attn = w.at(f"blocks.{k}.attn2")
            key, value = attn.linear("to_k", text_BTD), attn.linear("to_v", text_BTD)
            (normed,) = ops.head_norms(
                (key, attn["norm_k.weight"]), width=self.norm_width, tp=self.tp, eps=self.eps
            )
            outputs += [
                ops.split_heads(normed.to(key.dtype), self.heads).contiguous(),
                ops.split_heads(value, self.heads).contiguous(),
            ]
        return tuple(outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedGraph:
    """tokens, one or two timesteps -> hidden; for each timestep time_embedding, modulation."""

    def __call__(self, w: Weights, tokens: Tensor, timestep: Tensor) -> tuple[Tensor, ...]:
        hidden = w.linear("patch_embedding", tokens)
        embedder = w.at("condition_embedder")
        time = F.silu(embedder.linear("time_embedder.linear_1", timestep))
        time = embedder.linear("time_embedder.linear_2", time).to(tokens.dtype)
        modulation = embedder.linear("time_proj", F.silu(time)).unflatten(1, (6, -1))
        return hidden, time, modulation


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksGraph:
    """hidden, modulation, RoPE, (key mask), (given tokens), the prompt's K and V -> hidden."""

    heads: int
    head_width: int
    norm_width: int
    tp: int
    cp: int
    eps: float
    chunk_tokens: int
    padded_chunk_tokens: int
    layers: int
    masked: bool
    attention: str
    query_tile_tokens: int
    cross_query_tile_tokens: int
    given_tokens: bool = False

    @property
    def layout(self) -> TokenLayout:
        return TokenLayout(
            tp=self.tp,
            chunk_tokens=self.chunk_tokens,
            padded_chunk_tokens=self.padded_chunk_tokens,
        )

    def __call__(
        self, w: Weights, x_BLD: Tensor, modulation: Tensor, cos: Tensor, sin: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        keep_SL, rest = (rest[0], rest[1:]) if self.masked else (None, rest)
        given_BL1, context = (rest[0], rest[1:]) if self.given_tokens else (None, rest)
        for k in range(self.layers):
            block = w.at(f"blocks.{k}")
            table = block["scale_shift_table"] + modulation.float()
            modulated = [for_tokens(part, given_BL1) for part in table.chunk(6, 1)]
            x_BLD = self.block(block, x_BLD, modulated, cos, sin, keep_SL, *context[2 * k :][:2])
        return (x_BLD,)

    def block(
        self,
        w: Weights,
        x_BLD: Tensor,
        modulated: list[Tensor],
        cos: Tensor,
        sin: Tensor,
        keep_SL: Tensor | None,
        text_key: Tensor,
        text_value: Tensor,
    ) -> Tensor:
        """Self-attention, cross-attention and feed-forward on this rank's shard."""
        dtype = x_BLD.dtype
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = modulated

        normed = ops.modulated_norm(x_BLD, shift, scale, self.eps)
        attended = self.self_attention(w.at("attn1"), normed, cos, sin, keep_SL)
        x_BLD = (x_BLD.float() + attended * gate).to(dtype)

        normed = ops.layer_norm(x_BLD, self.eps) * w["norm2.weight"] + w["norm2.bias"]
        x_BLD = x_BLD + self.cross_attention(w.at("attn2"), normed.to(dtype), text_key, text_value)

        normed = ops.modulated_norm(x_BLD, ffn_shift, ffn_scale, self.eps)
        fed = self.feed_forward(w.at("ffn.net"), normed)
        return (x_BLD.float() + fed.float() * ffn_gate).to(dtype)

    def self_attention(
        self, w: Weights, x_BLD: Tensor, cos: Tensor, sin: Tensor, keep_SL: Tensor | None
    ) -> Tensor:
        """Attention over every token of the video."""
        chunk = self.layout.gather(x_BLD)
        q, k, v = (w.linear(name, chunk) for name in ("to_q", "to_k", "to_v"))
        q_norm, k_norm = ops.head_norms(
            (q, w["norm_q.weight"]),
            (k, w["norm_k.weight"]),
            width=self.norm_width,
            tp=self.tp,
            eps=self.eps,
        )
        q_BNLK, k_BNLK = (
            ops.rotate(x.unflatten(2, (self.heads, -1)), cos, sin).transpose(1, 2).to(chunk.dtype)
            for x in (q_norm, k_norm)
        )
        v_BNLK = ops.split_heads(v, self.heads)
        if keep_SL is not None:
            k_BNLK, v_BNLK = (self.zero_pads(x, keep_SL) for x in (k_BNLK, v_BNLK))
        out = self.attend(q_BNLK, k_BNLK, v_BNLK, keep_SL)
        return self.project(w, ops.merge_heads(out))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep_SL: Tensor | None) -> Tensor:
        """Every query of this chunk over the keys of every chunk."""
        tile = self.query_tile_tokens
        if self.attention == "ring":
            return ops.ring_attention(q, k, v, degree=self.cp, query_tile=tile, keep_SL=keep_SL)
        keep_T = None
        if self.cp > 1:
            k, v = (ops.all_gather(x, "cp", self.cp, 2) for x in (k, v))
            if keep_SL is not None:
                keep_T = ops.all_gather(keep_SL[0], "cp", self.cp, 0)
        return ops.attention(q, k, v, query_tile=tile, keep_T=keep_T)

    def zero_pads(self, x_BNLK: Tensor, keep_SL: Tensor) -> Tensor:
        """Zero the pad rows of this rank's own chunk: a masked NaN would still be a NaN."""
        keep = keep_SL[0].reshape(1, 1, -1, 1) > 0
        return torch.where(keep, x_BNLK, torch.zeros_like(x_BNLK))

    def cross_attention(self, w: Weights, x_BLD: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention over the prompt, whose keys and values are given."""
        q = w.linear("to_q", self.layout.gather(x_BLD))
        (normed,) = ops.head_norms(
            (q, w["norm_q.weight"]), width=self.norm_width, tp=self.tp, eps=self.eps
        )
        q_BNLK = ops.split_heads(normed.to(q.dtype), self.heads)
        out = ops.attention(q_BNLK, key, value, query_tile=self.cross_query_tile_tokens)
        return self.project(w, ops.merge_heads(out))

    def project(self, w: Weights, heads_BLI: Tensor) -> Tensor:
        """Output projection; the bias comes after the reduction, once."""
        partial = ops.linear(heads_BLI, w["to_out.0.weight"])
        return self.layout.reduce(partial) + w["to_out.0.bias"]

    def feed_forward(self, w: Weights, x_BLD: Tensor) -> Tensor:
        """The block's MLP."""
        partial = ops.gelu_mlp(
            self.layout.gather(x_BLD), w["0.proj.weight"], w["0.proj.bias"], w["2.weight"]
        )
        return self.layout.reduce(partial) + w["2.bias"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadGraph:
    """hidden, time_embedding, (given tokens) -> noise of all tokens and branches, everywhere."""

    tp: int
    cp: int
    cfg: int
    chunk_tokens: int
    padded_chunk_tokens: int
    eps: float
    given_tokens: bool = False

    def __call__(
        self, w: Weights, x_BLD: Tensor, time_BD: Tensor, given_BL1: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        table = w["scale_shift_table"] + time_BD.unsqueeze(1)
        shift, scale = (for_tokens(part, given_BL1) for part in table.chunk(2, 1))
        normed = ops.modulated_norm(x_BLD, shift, scale, self.eps)
        layout = TokenLayout(
            tp=self.tp,
            chunk_tokens=self.chunk_tokens,
            padded_chunk_tokens=self.padded_chunk_tokens,
        )
        # fp32 here costs little, and guidance multiplies what rounding would lose
        projected = ops.matmul_fp32(normed, w["proj_out.weight"].t().unsqueeze(0))
        noise = layout.gather(projected + w["proj_out.bias"].float())
        if self.cp > 1:
            noise = ops.all_gather(noise, "cp", self.cp, 1)
        if self.cfg > 1:
            noise = ops.all_gather(noise, "cfg", self.cfg, 0)
        return (noise,)

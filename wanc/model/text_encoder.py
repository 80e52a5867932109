"""The UMT5 encoder as one rank runs it, split over tp. Knows no tokenizer and no table.

Same arithmetic as transformers' UMT5EncoderModel: no scale on scores, a relative position bias in
every layer, RMS norms in fp32.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wanc.model import ops
from wanc.model.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoderGraph:
    """token_embeddings, text_mask -> prompt_embeddings, rows past the prompt zero."""

    layers: int
    heads: int
    head_width: int
    position_buckets: int
    max_distance_tokens: int
    eps: float
    tp: int

    def __call__(self, w: Weights, x_BTD: Tensor, mask_BT: Tensor) -> tuple[Tensor, ...]:
        buckets = position_buckets(x_BTD.shape[1], self.position_buckets, self.max_distance_tokens)
        chosen_PR = torch.tensor(buckets).unsqueeze(1) == torch.arange(self.position_buckets)
        for layer in range(self.layers):
            block = w.at(f"encoder.block.{layer}")
            x_BTD = self.self_attention(block.at("layer.0"), x_BTD, mask_BT[0], chosen_PR)
            x_BTD = self.feed_forward(block.at("layer.1"), x_BTD)
        x_BTD = self.norm(w["encoder.final_layer_norm.weight"], x_BTD)
        return (self.zero_pads(x_BTD, mask_BT),)

    def zero_pads(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Zero the rows past each prompt's own length: cross-attention attends to all of them."""
        return torch.where(mask_BT[..., None] > 0, x_BTD, torch.zeros_like(x_BTD))

    def self_attention(
        self, w: Weights, x_BTD: Tensor, keep_T: Tensor, chosen_PR: Tensor
    ) -> Tensor:
        normed, attn = self.norm(w["layer_norm.weight"], x_BTD), w.at("SelfAttention")
        q, k, v = (
            ops.split_heads(ops.linear(normed, attn[f"{name}.weight"]), self.heads)
            for name in "qkv"
        )
        bias = self.position_bias(chosen_PR, attn["relative_attention_bias.weight"])
        out = ops.attention(
            q, k, v, query_tile=x_BTD.shape[1], keep_T=keep_T, scale=1.0, bias_BNLT=bias
        )
        return x_BTD + self.reduce(ops.linear(ops.merge_heads(out), attn["o.weight"]))

    def feed_forward(self, w: Weights, x_BTD: Tensor) -> Tensor:
        normed, dense = self.norm(w["layer_norm.weight"], x_BTD), w.at("DenseReluDense")
        gate = F.gelu(ops.linear(normed, dense["wi_0.weight"]), approximate="tanh")
        hidden = gate * ops.linear(normed, dense["wi_1.weight"])
        return x_BTD + self.reduce(ops.linear(hidden, dense["wo.weight"]))

    def norm(self, weight_D: Tensor, x_BTD: Tensor) -> Tensor:
        """RMS norm, without a mean and without a bias."""
        variance = x_BTD.float().pow(2).mean(-1, keepdim=True)
        return weight_D * (x_BTD.float() * torch.rsqrt(variance + self.eps)).to(x_BTD.dtype)

    def reduce(self, partial_BTD: Tensor) -> Tensor:
        return ops.all_reduce(partial_BTD, "tp") if self.tp > 1 else partial_BTD

    def position_bias(self, chosen_PR: Tensor, table_RN: Tensor) -> Tensor:
        """Bias of every (query, key): a row per distance, then each query's window of rows.

        The windows are a Toeplitz matrix: repeat the row of P = 2T-1 distances with one pad, read
        it back in rows of P, and every row has moved on by one.
        """
        distances = chosen_PR.shape[0]
        tokens = (distances + 1) // 2
        rows_NP = (chosen_PR.to(table_RN.dtype) @ table_RN).transpose(0, 1)
        repeated = F.pad(rows_NP, (0, 1)).unsqueeze(1).expand(-1, tokens, -1).flatten(1)
        moved = repeated[:, tokens - 1 : tokens - 1 + tokens * distances]
        windows = moved.unflatten(1, (tokens, distances))[:, :, :tokens]
        return windows.unsqueeze(0).float()


def position_buckets(tokens: int, buckets: int, max_distance: int) -> list[int]:
    """Bucket of each distance key - query from 1 - tokens to tokens - 1.

    Formula of mesh-tensorflow's T5, bidirectional, in float32 as transformers computes it: exact
    buckets near, logarithmic ones further off.
    """
    half = buckets // 2
    exact = half // 2
    distance = np.arange(1 - tokens, tokens)
    away = np.abs(distance)
    ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact))
    ratio = ratio / np.float32(math.log(max_distance / exact)) * np.float32(half - exact)
    far = np.minimum(exact + ratio.astype(np.int64), half - 1)
    return [int(b) for b in np.where(away < exact, away, far) + half * (distance > 0)]

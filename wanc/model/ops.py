"""Operations that a kernel may replace, and the collectives. Knows shapes, not programs.

A kernel that replaces an operation takes its name and its arguments. Collectives name a mesh axis
and its degree, never a rank: they stay opaque nodes through export, and lowering gives them their
groups. Softmax, norms, modulation and RoPE compute in fp32 whatever the dtype of activations.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

MASKED_SCORE = -1e30
"""Score of a masked key. Finite: an infinite one makes NaN of a row with no key yet."""


# --- collectives ---------------------------------------------------------------------------


@torch.library.custom_op("wanc::all_reduce", mutates_args=())
def all_reduce(x: Tensor, axis: str) -> Tensor:
    """Sum over the ranks of an axis."""
    raise RuntimeError("a collective runs only in a compiled program")


@all_reduce.register_fake
def _(x: Tensor, axis: str) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("wanc::all_gather", mutates_args=())
def all_gather(x: Tensor, axis: str, degree: int, dim: int) -> Tensor:
    """The parts of all ranks of an axis, joined on dim in the axis' order."""
    raise RuntimeError("a collective runs only in a compiled program")


@all_gather.register_fake
def _(x: Tensor, axis: str, degree: int, dim: int) -> Tensor:
    return x.new_empty([size * degree if i == dim else size for i, size in enumerate(x.shape)])


@torch.library.custom_op("wanc::reduce_scatter", mutates_args=())
def reduce_scatter(x: Tensor, axis: str, degree: int, dim: int) -> Tensor:
    """Sum over the ranks of an axis; each keeps its part along dim."""
    raise RuntimeError("a collective runs only in a compiled program")


@reduce_scatter.register_fake
def _(x: Tensor, axis: str, degree: int, dim: int) -> Tensor:
    return x.new_empty([size // degree if i == dim else size for i, size in enumerate(x.shape)])


@torch.library.custom_op("wanc::ring_shift", mutates_args=())
def ring_shift(x: Tensor, axis: str) -> Tensor:
    """Send to the next rank of an axis, the last to the first; receive from the one before."""
    raise RuntimeError("a collective runs only in a compiled program")


@ring_shift.register_fake
def _(x: Tensor, axis: str) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("wanc::matmul_fp32", mutates_args=())
def matmul_fp32(a: Tensor, b: Tensor) -> Tensor:
    """Batched matrix product whose sums and result are fp32, whatever the inputs are."""
    return a.float() @ b.float()


@matmul_fp32.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty([*a.shape[:-1], b.shape[-1]], dtype=torch.float32)


# --- norms and projections -----------------------------------------------------------------


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x_BLI @ weight_OI.T + bias_O."""
    return F.linear(x, weight, bias)


def layer_norm(x_BLD: Tensor, eps: float) -> Tensor:
    """Layer norm without weights, in fp32."""
    return F.layer_norm(x_BLD.float(), x_BLD.shape[-1:], None, None, eps)


def modulated_norm(x_BLD: Tensor, shift_B1D: Tensor, scale_B1D: Tensor, eps: float) -> Tensor:
    """layer_norm(x) * (1 + scale) + shift, in x's dtype."""
    return (layer_norm(x_BLD, eps) * (1 + scale_B1D) + shift_B1D).to(x_BLD.dtype)


def head_norms(*pairs: tuple[Tensor, Tensor], width: int, tp: int, eps: float) -> list[Tensor]:
    """RMS norm over all heads of every rank, in fp32, of each (x_BLI, weight_I).

    A rank holds I = width / tp of the values, so the square sums of all x take one all-reduce.
    """
    squares = torch.stack([x.float().pow(2).sum(-1) for x, _ in pairs], -1)
    if tp > 1:
        squares = all_reduce(squares, "tp")
    scale = torch.rsqrt(squares / width + eps)
    return [
        x.float() * scale[..., i : i + 1] * weight.float() for i, (x, weight) in enumerate(pairs)
    ]


def rotate(x_BLNK: Tensor, cos_BL1P: Tensor, sin_BL1P: Tensor) -> Tensor:
    """RoPE on interleaved pairs; P = K / 2 angles."""
    even, odd = x_BLNK.unflatten(-1, (-1, 2)).unbind(-1)
    turned = (even * cos_BL1P - odd * sin_BL1P, even * sin_BL1P + odd * cos_BL1P)
    return torch.stack(turned, -1).flatten(-2)


def split_heads(x_BLI: Tensor, heads: int) -> Tensor:
    """B L (N K) -> B N L K."""
    return x_BLI.unflatten(2, (heads, -1)).transpose(1, 2)


def merge_heads(x_BNLK: Tensor) -> Tensor:
    """B N L K -> B L (N K)."""
    return x_BNLK.transpose(1, 2).flatten(2)


def gelu_mlp(x_BLD: Tensor, up_FD: Tensor, up_bias_F: Tensor, down_DF: Tensor) -> Tensor:
    """Feed-forward with tanh GELU, without the last bias: under tp it comes after the reduction."""
    return linear(F.gelu(linear(x_BLD, up_FD, up_bias_F), approximate="tanh"), down_DF)


# --- attention -----------------------------------------------------------------------------


def attention(
    q_BNLK: Tensor,
    k_BNTK: Tensor,
    v_BNTK: Tensor,
    *,
    query_tile: int,
    keep_T: Tensor | None = None,
    scale: float | None = None,
    bias_BNLT: Tensor | None = None,
) -> Tensor:
    """Softmax attention in query tiles. keep_T is 0 at keys to leave out, else 1."""
    tiles = [
        _Softmax().add(
            _scores(q, k_BNTK, scale, keep_T, None if bias_BNLT is None else bias_BNLT[:, :, at]),
            v_BNTK,
        )
        for at, q in _tiles(q_BNLK, query_tile)
    ]
    return torch.cat([tile.result(q_BNLK.dtype) for tile in tiles], 2)


def ring_attention(
    q_BNLK: Tensor,
    k_BNLK: Tensor,
    v_BNLK: Tensor,
    *,
    degree: int,
    query_tile: int,
    keep_SL: Tensor | None = None,
) -> Tensor:
    """Exact attention over the keys of every cp rank, which pass by in a ring.

    keep_SL says which keys of the chunk that arrives at each ring step count. Online softmax: each
    query tile keeps its running maximum, sum and weighted values in fp32.
    """
    tiles = [(q, _Softmax()) for _, q in _tiles(q_BNLK, query_tile)]
    for step in range(degree):
        keep_T = None if keep_SL is None else keep_SL[step]
        for q, softmax in tiles:
            softmax.add(_scores(q, k_BNLK, None, keep_T, None), v_BNLK)
        if step + 1 < degree:
            k_BNLK, v_BNLK = ring_shift(k_BNLK, "cp"), ring_shift(v_BNLK, "cp")
    return torch.cat([softmax.result(q_BNLK.dtype) for _, softmax in tiles], 2)


class _Softmax:
    """Softmax over keys that come in parts: maximum, sum of exponentials, weighted values."""

    maximum: Tensor
    total: Tensor
    weighted: Tensor
    empty = True

    def add(self, scores_BNLT: Tensor, v_BNTK: Tensor) -> "_Softmax":
        maximum = scores_BNLT.amax(-1, keepdim=True)
        if not self.empty:
            maximum = torch.maximum(self.maximum, maximum)
        weights = torch.exp(scores_BNLT - maximum)
        total = weights.sum(-1, keepdim=True)
        weighted = matmul_fp32(weights.to(v_BNTK.dtype), v_BNTK)
        if not self.empty:
            fade = torch.exp(self.maximum - maximum)
            total = self.total * fade + total
            weighted = self.weighted * fade + weighted
        self.maximum, self.total, self.weighted, self.empty = maximum, total, weighted, False
        return self

    def result(self, dtype: torch.dtype) -> Tensor:
        return (self.weighted / self.total).to(dtype)


def _tiles(q_BNLK: Tensor, tile: int) -> list[tuple[slice, Tensor]]:
    queries = q_BNLK.shape[2]
    spans = [slice(start, min(start + tile, queries)) for start in range(0, queries, tile)]
    return [(span, q_BNLK[:, :, span]) for span in spans]


def _scores(
    q_BNLK: Tensor,
    k_BNTK: Tensor,
    scale: float | None,
    keep_T: Tensor | None,
    bias_BNLT: Tensor | None,
) -> Tensor:
    """fp32 scores; the scale is 1/sqrt(K) where none is given."""
    scale = q_BNLK.shape[-1] ** -0.5 if scale is None else scale
    scores = matmul_fp32(q_BNLK, k_BNTK.transpose(-1, -2))
    if scale != 1:
        scores = scores * scale
    if bias_BNLT is not None:
        scores = scores + bias_BNLT
    if keep_T is not None:
        scores = torch.where(keep_T > 0, scores, torch.full_like(scores, MASKED_SCORE))
    return scores

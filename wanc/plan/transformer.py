"""Programs of the diffusion transformer: their ABI on one rank.

Arithmetic only; model/transformer.py holds the graphs that these describe.
"""

from dataclasses import dataclass

from wanc.plan.abi import Program, Tensor, Weight
from wanc.plan.geometry import TokenSplit, query_tile_tokens
from wanc.plan.mesh import Groups, Mesh
from wanc.spec.model import TEXT_TOKENS, Transformer
from wanc.spec.target import DType
from wanc.spec.topology import Axis
from wanc.spec.variant import Attention

MODULATIONS = 6
"""Shift, scale and gate of self-attention and of the feed-forward."""

HEAD_MODULATIONS = 2
"""Shift and scale before the output projection."""

GIVEN = "given_tokens"
"""Input and feed that says which tokens are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerCut:
    """How one expert is cut for a variant."""

    model: Transformer
    mesh: Mesh
    split: TokenSplit
    dtype: DType
    attention: Attention
    layers: int
    """Transformer blocks in one program; divides the model's."""
    score_budget_bytes: int
    given_tokens: bool = False
    """Whether tokens of a given image come with a timestep of their own."""

    @property
    def timesteps(self) -> int:
        """Timesteps of one call: that of the step, and that of what is given, which is 0."""
        return 2 if self.given_tokens else 1

    @property
    def local_heads(self) -> int:
        """Heads on one rank."""
        return self.model.heads // self.mesh.topology.tp

    @property
    def patch_width(self) -> int:
        """Values of one input token: channels times the patch."""
        f, h, w = self.model.patch_FHW
        return self.model.in_channels * f * h * w

    def groups(self, *axes: Axis) -> dict[str, Groups]:
        """Rank groups of those axes that have more than one member."""
        degree = self.mesh.topology.degree
        return {axis: self.mesh.groups(axis) for axis in axes if degree(axis) > 1}


def context_program(cut: TransformerCut) -> Program:
    """Cross-attention keys and values of a layer group, once per prompt and expert."""
    model, dtype = cut.model, cut.dtype
    weights = [
        *_linear("condition_embedder.text_embedder.linear_1", model.width, model.text_width, dtype),
        *_linear("condition_embedder.text_embedder.linear_2", model.width, model.width, dtype),
    ]
    kv_shape = (1, cut.local_heads, TEXT_TOKENS, model.head_width)
    outputs = []
    for k in range(cut.layers):
        weights += [*_column(cut, k, "attn2.to_k"), *_column(cut, k, "attn2.to_v")]
        weights += [_head_norm(cut, k, "attn2.norm_k")]
        outputs += [Tensor(name=f"{n}_{k}", shape=kv_shape, dtype=dtype) for n in ("key", "value")]
    return _program(
        cut,
        "dit_context",
        axes=("tp",),
        definition={**_heads(cut), "layers": cut.layers},
        weights=weights,
        inputs=[
            Tensor(name="prompt_embeddings", shape=(1, TEXT_TOKENS, model.text_width), dtype=dtype)
        ],
        outputs=outputs,
    )


def embed_program(cut: TransformerCut) -> Program:
    """Patches to tokens of width D, and the timestep to modulations."""
    model, dtype, width = cut.model, cut.dtype, cut.model.width
    time = "condition_embedder.time_embedder.linear"
    patch = (width, model.in_channels, *model.patch_FHW)
    return _program(
        cut,
        "dit_embed",
        axes=(),
        definition={},
        weights=[
            _weight("patch_embedding.weight", patch, dtype, shape=(width, cut.patch_width)),
            _weight("patch_embedding.bias", (width,), dtype),
            *_linear(f"{time}_1", width, model.frequency_width, "float32"),
            *_linear(f"{time}_2", width, width, "float32"),
            *_linear("condition_embedder.time_proj", MODULATIONS * width, width, dtype),
        ],
        inputs=[
            Tensor(name="tokens", shape=(1, cut.split.shard_tokens, cut.patch_width), dtype=dtype),
            Tensor(name="timestep", shape=(cut.timesteps, model.frequency_width), dtype="float32"),
        ],
        outputs=[_hidden(cut), _time(cut), _modulation(cut)],
    )


def blocks_program(cut: TransformerCut) -> Program:
    """A group of transformer blocks."""
    model, split, topology = cut.model, cut.split, cut.mesh.topology
    rope = (1, split.chunk_tokens, 1, model.head_width // 2)
    keys = split.chunk_tokens * (topology.cp if cut.attention == "allgather" else 1)

    def tile(key_tokens: int) -> int:
        return query_tile_tokens(
            cut.local_heads, split.chunk_tokens, key_tokens, cut.score_budget_bytes
        )

    inputs = [
        _hidden(cut),
        _modulation(cut),
        Tensor(name="rope_cos", shape=rope, dtype="float32"),
        Tensor(name="rope_sin", shape=rope, dtype="float32"),
    ]
    if split.masked:
        mask = (topology.cp, split.chunk_tokens)
        inputs.append(Tensor(name="key_mask", shape=mask, dtype="float32"))
    inputs += [*_given(cut)]
    inputs += context_program(cut).outputs
    return _program(
        cut,
        "dit_blocks",
        axes=("tp", "cp"),
        definition={
            **_heads(cut),
            **_chunk(cut),
            **_with_given(cut),
            "layers": cut.layers,
            "cp": topology.cp,
            "masked": split.masked,
            "attention": cut.attention,
            "query_tile_tokens": tile(keys),
            "cross_query_tile_tokens": tile(TEXT_TOKENS),
        },
        weights=[weight for k in range(cut.layers) for weight in _block_weights(cut, k)],
        inputs=inputs,
        outputs=[_hidden(cut)],
    )


def head_program(cut: TransformerCut) -> Program:
    """Tokens to noise in fp32, gathered over the whole sequence and every guidance branch."""
    model, topology = cut.model, cut.mesh.topology
    table = (1, HEAD_MODULATIONS, model.width)
    values = cut.patch_width // model.in_channels * model.out_channels
    noise = (topology.cfg, topology.cp * cut.split.chunk_tokens, values)
    return _program(
        cut,
        "dit_head",
        axes=("tp", "cp", "cfg"),
        definition={
            **_chunk(cut),
            **_with_given(cut),
            "cp": topology.cp,
            "cfg": topology.cfg,
            "eps": model.eps,
        },
        weights=[
            _weight("scale_shift_table", table, "float32"),
            *_linear("proj_out", values, model.width, cut.dtype),
        ],
        inputs=[_hidden(cut), _time(cut), *_given(cut)],
        outputs=[Tensor(name="noise", shape=noise, dtype="float32")],
    )


def _block_weights(cut: TransformerCut, k: int) -> list[Weight]:
    model, dtype = cut.model, cut.dtype
    width, ffn, tp = model.width, model.ffn_width, cut.mesh.topology.tp
    up, down = "ffn.net.0.proj", "ffn.net.2"
    return [
        _layer(k, "scale_shift_table", (1, MODULATIONS, width), "float32"),
        *_column(cut, k, "attn1.to_q"),
        *_column(cut, k, "attn1.to_k"),
        *_column(cut, k, "attn1.to_v"),
        _head_norm(cut, k, "attn1.norm_q"),
        _head_norm(cut, k, "attn1.norm_k"),
        *_row(cut, k, "attn1.to_out.0"),
        _layer(k, "norm2.weight", (width,), "float32"),
        _layer(k, "norm2.bias", (width,), "float32"),
        *_column(cut, k, "attn2.to_q"),
        _head_norm(cut, k, "attn2.norm_q"),
        *_row(cut, k, "attn2.to_out.0"),
        _layer(k, f"{up}.weight", (ffn, width), dtype, tp=tp),
        _layer(k, f"{up}.bias", (ffn,), dtype, tp=tp),
        _layer(k, f"{down}.weight", (width, ffn), dtype, tp=tp, dim=1),
        _layer(k, f"{down}.bias", (width,), dtype),
    ]


def _column(cut: TransformerCut, k: int, name: str) -> list[Weight]:
    """A projection to heads, split by its outputs."""
    width, tp = cut.model.width, cut.mesh.topology.tp
    return [
        _layer(k, f"{name}.weight", (width, width), cut.dtype, tp=tp),
        _layer(k, f"{name}.bias", (width,), cut.dtype, tp=tp),
    ]


def _row(cut: TransformerCut, k: int, name: str) -> list[Weight]:
    """A projection from heads, split by its inputs; the bias is added after the reduction."""
    width, tp = cut.model.width, cut.mesh.topology.tp
    return [
        _layer(k, f"{name}.weight", (width, width), cut.dtype, tp=tp, dim=1),
        _layer(k, f"{name}.bias", (width,), cut.dtype),
    ]


def _head_norm(cut: TransformerCut, k: int, name: str) -> Weight:
    return _layer(k, f"{name}.weight", (cut.model.width,), cut.dtype, tp=cut.mesh.topology.tp)


def _layer(
    k: int, name: str, stored: tuple[int, ...], dtype: DType, *, tp: int = 1, dim: int = 0
) -> Weight:
    shape = tuple(size // tp if i == dim else size for i, size in enumerate(stored))
    return Weight(
        name=f"blocks.{k}.{name}",
        tensor=f"blocks.{{{k}}}.{name}",
        stored_shape=stored,
        shape=shape,
        dtype=dtype,
        axis="tp" if tp > 1 else None,
        dim=dim,
    )


def _weight(
    name: str, stored: tuple[int, ...], dtype: DType, *, shape: tuple[int, ...] | None = None
) -> Weight:
    return Weight(name=name, tensor=name, stored_shape=stored, shape=shape or stored, dtype=dtype)


def _linear(name: str, outputs: int, inputs: int, dtype: DType) -> list[Weight]:
    return [
        _weight(f"{name}.weight", (outputs, inputs), dtype),
        _weight(f"{name}.bias", (outputs,), dtype),
    ]


def _hidden(cut: TransformerCut) -> Tensor:
    shape = (1, cut.split.shard_tokens, cut.model.width)
    return Tensor(name="hidden", shape=shape, dtype=cut.dtype)


def _time(cut: TransformerCut) -> Tensor:
    shape = (cut.timesteps, cut.model.width)
    return Tensor(name="time_embedding", shape=shape, dtype=cut.dtype)


def _modulation(cut: TransformerCut) -> Tensor:
    shape = (cut.timesteps, MODULATIONS, cut.model.width)
    return Tensor(name="modulation", shape=shape, dtype=cut.dtype)


def _given(cut: TransformerCut) -> list[Tensor]:
    """1 at the rank's tokens that are given, else 0."""
    if not cut.given_tokens:
        return []
    return [Tensor(name=GIVEN, shape=(1, cut.split.shard_tokens, 1), dtype="float32")]


def _with_given(cut: TransformerCut) -> dict[str, object]:
    return {"given_tokens": True} if cut.given_tokens else {}


def _heads(cut: TransformerCut) -> dict[str, object]:
    return {
        "heads": cut.local_heads,
        "head_width": cut.model.head_width,
        "norm_width": cut.model.width,
        "tp": cut.mesh.topology.tp,
        "eps": cut.model.eps,
    }


def _chunk(cut: TransformerCut) -> dict[str, object]:
    return {
        "tp": cut.mesh.topology.tp,
        "chunk_tokens": cut.split.chunk_tokens,
        "padded_chunk_tokens": cut.split.padded_chunk_tokens,
    }


def _program(
    cut: TransformerCut,
    name: str,
    *,
    axes: tuple[Axis, ...],
    definition: dict[str, object],
    weights: list[Weight],
    inputs: list[Tensor],
    outputs: list[Tensor],
) -> Program:
    return Program(
        name=name,
        ranks="all",
        replica_count=cut.mesh.topology.ranks,
        kind=name,
        definition=definition,
        groups=cut.groups(*axes),
        weights=tuple(weights),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        donated={},
    )

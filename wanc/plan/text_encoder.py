"""The text encoder's program: its ABI on one rank, split over tp.

The embedding table stays on the host: the program takes the rows that the prompt needs.
"""

from wanc.plan.abi import Program, Tensor, Weight
from wanc.plan.mesh import Mesh
from wanc.spec.model import TEXT_TOKENS, TextEncoder
from wanc.spec.target import DType

EMBEDDING_NAMES = ("shared.weight", "encoder.embed_tokens.weight")
"""One tensor under two names; a checkpoint carries either or both."""


def text_encoder_program(model: TextEncoder, mesh: Mesh, dtype: DType) -> Program:
    """Prompt embeddings from token embeddings; rows past the prompt are zero."""
    tp = mesh.topology.tp
    inner = model.heads * model.head_width

    def weight(name: str, *stored: int, dim: int | None = None) -> Weight:
        shape = tuple(size // tp if i == dim else size for i, size in enumerate(stored))
        split = tp > 1 and dim is not None
        return Weight(
            name=name,
            tensor=name,
            stored_shape=stored,
            shape=shape,
            dtype=dtype,
            axis="tp" if split else None,
            dim=dim if split and dim is not None else 0,
        )

    weights = []
    for layer in range(model.layers):
        attention = f"encoder.block.{layer}.layer.0.SelfAttention"
        ffn = f"encoder.block.{layer}.layer.1.DenseReluDense"
        weights += [
            weight(f"encoder.block.{layer}.layer.0.layer_norm.weight", model.width),
            *(weight(f"{attention}.{n}.weight", inner, model.width, dim=0) for n in "qkv"),
            weight(f"{attention}.o.weight", model.width, inner, dim=1),
            weight(
                f"{attention}.relative_attention_bias.weight",
                *(model.position_buckets, model.heads),
                dim=1,
            ),
            weight(f"encoder.block.{layer}.layer.1.layer_norm.weight", model.width),
            weight(f"{ffn}.wi_0.weight", model.ffn_width, model.width, dim=0),
            weight(f"{ffn}.wi_1.weight", model.ffn_width, model.width, dim=0),
            weight(f"{ffn}.wo.weight", model.width, model.ffn_width, dim=1),
        ]
    weights.append(weight("encoder.final_layer_norm.weight", model.width))
    rows = (1, TEXT_TOKENS, model.width)
    return Program(
        name="text_encoder",
        ranks="all",
        replica_count=mesh.topology.ranks,
        kind="text_encoder",
        definition={
            "layers": model.layers,
            "heads": model.heads // tp,
            "head_width": model.head_width,
            "position_buckets": model.position_buckets,
            "max_distance_tokens": model.max_distance_tokens,
            "eps": model.eps,
            "tp": tp,
        },
        groups={"tp": mesh.groups("tp")} if tp > 1 else {},
        weights=tuple(weights),
        inputs=(
            Tensor(name="token_embeddings", shape=rows, dtype=dtype),
            Tensor(name="text_mask", shape=(1, TEXT_TOKENS), dtype="float32"),
        ),
        outputs=(Tensor(name="prompt_embeddings", shape=rows, dtype=dtype),),
        donated={},
    )

"""The graph of each program: from a plan's record to a function of tensors.

Knows which graph belongs to which kind of program, and nothing of tracing or ranks.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from wanc.model.text_encoder import TextEncoderGraph
from wanc.model.transformer import BlocksGraph, ContextGraph, EmbedGraph, HeadGraph
from wanc.model.vae import decode_graph, encode_graph
from wanc.model.weights import Weights
from wanc.plan.abi import Program

Graph = Callable[..., tuple[Tensor, ...]]
"""(weights, *inputs) -> outputs, all as the program's ABI names and shapes them."""


def graph_of(program: Program) -> Graph:
    """The function that a program computes on one rank."""
    how: dict[str, Any] = program.definition
    match program.kind:
        case "text_encoder":
            return TextEncoderGraph(**how)
        case "dit_context":
            return ContextGraph(**how)
        case "dit_embed":
            return EmbedGraph(**how)
        case "dit_blocks":
            return BlocksGraph(**how)
        case "dit_head":
            return HeadGraph(**how)
        case "vae_encode_first" | "vae_encode_rest":
            return encode_graph(**how, cache_shapes=_cache_shapes(program))
        case "vae_decode_first" | "vae_decode_rest":
            first = program.kind.endswith("first")
            return decode_graph(**how, cache_shapes=_cache_shapes(program), first=first)
    raise AssertionError(f"no graph of kind {program.kind}")


def _cache_shapes(program: Program) -> list[tuple[int, ...]]:
    return [tensor.shape for tensor in program.outputs[1:]]


def call_graph(graph: Graph, program: Program, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Compute a graph on tensors in the order of its program's ABI: weights, then inputs."""
    count = len(program.weights)
    named = zip((weight.name for weight in program.weights), tensors[:count], strict=True)
    return graph(Weights(dict(named)), *tensors[count:])

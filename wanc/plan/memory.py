"""Bytes on one rank, by part. Weights and caches are exact sums over the ABI; work is an estimate.

Knows nothing of a target's limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from wanc.plan.abi import Program
from wanc.plan.schedule import Schedule
from wanc.spec.target import DTYPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """One part of a rank's memory."""

    name: str
    bytes: int


def memory_parts(programs: Sequence[Program], schedule: Schedule) -> tuple[MemoryPart, ...]:
    """Parts of the rank that holds most: one that decodes a VAE tile too."""
    by_name = {program.name: program for program in programs}
    weights: dict[str, dict[str, tuple[int, bool]]] = {}
    context_bytes = 0
    for stage in schedule.stages:
        for call in stage.calls:
            program = by_name[call.program]
            held = weights.setdefault(call.component, {})
            for weight in program.weights:
                held[weight.tensor_in(call.layers)] = (weight.bytes, weight.axis is not None)
            if stage.name.startswith("context."):
                context_bytes += sum(tensor.bytes for tensor in program.outputs)
    parts = []
    for component, held in weights.items():
        split = sum(size for size, is_split in held.values() if is_split)
        whole = sum(size for size, is_split in held.values() if not is_split)
        parts.append(MemoryPart(name=f"{component} weights, split by tp", bytes=split))
        parts.append(MemoryPart(name=f"{component} weights, replicated", bytes=whole))
    parts.append(MemoryPart(name="prompt keys and values", bytes=context_bytes))
    parts.append(MemoryPart(name="transformer work, estimated", bytes=_block_work(programs)))
    decoders = [program for program in programs if program.kind == "vae_decode_rest"]
    caches = max(sum(tensor.bytes for tensor in program.inputs) for program in decoders)
    parts.append(MemoryPart(name="VAE tile caches", bytes=caches))
    parts.append(MemoryPart(name="VAE tile work, estimated", bytes=_decode_work(decoders)))
    return tuple(part for part in parts if part.bytes)


def _block_work(programs: Sequence[Program]) -> int:
    """Live tensors of one block at its widest: in attention, or in the feed-forward."""
    blocks = next(program for program in programs if program.kind == "dit_blocks")
    how: dict[str, int] = blocks.definition
    hidden = blocks.inputs[0]
    size = DTYPE_BYTES[hidden.dtype]
    chunk, width = how["chunk_tokens"], how["norm_width"]
    head_values = chunk * how["heads"] * how["head_width"]
    keys = chunk * (how["cp"] if blocks.definition["attention"] == "allgather" else 1)
    scores = 2 * 4 * how["heads"] * min(chunk, how["query_tile_tokens"]) * keys
    in_flight = 2 * 2 * head_values * size  # keys and values here, and on their way
    attention = 3 * head_values * size + in_flight + 4 * head_values + scores
    ffn_width = max(weight.shape[0] for weight in blocks.weights)
    feed_forward = chunk * (ffn_width + width) * size
    gathered = chunk * width * size
    work: int = 2 * hidden.bytes + gathered + max(attention, feed_forward)
    return work


def _decode_work(decoders: Sequence[Program]) -> int:
    """Three tensors as large as the decoder's largest activation."""
    largest = 0
    for program in decoders:
        frames = program.outputs[0].shape[2]
        for cache in program.inputs[1:]:
            largest = max(largest, cache.bytes // cache.shape[2] * frames)
    return 3 * largest

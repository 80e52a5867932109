"""Bytes on one rank, by part. Weights and caches are exact sums over the ABI; work is an estimate.

On an accelerator what the compiler and the runtime take for themselves comes to it, scaled from
public sums of one configuration; and a limit. Sums are as if nothing were let go of between stages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wanc.plan.abi import Program
from wanc.plan.schedule import Schedule
from wanc.plan.transformer import GIVEN
from wanc.plan.vae import convolutions
from wanc.plan.work import call_work
from wanc.spec.target import DTYPE_BYTES, Accelerator

USABLE_HBM = 0.93
"""Part of a logical core's HBM that a plan may fill: 24.0 of trn2's 25.8 GB (24 GiB).

A sum of about 24.4 GB is reported not to fit there (T2V A14B, 1280x720x81, tp4-cp8-cfg2).
"""

SCRATCHPAD_FACTOR = 7.1
"""What the compiler keeps in HBM for itself, over a block's widest live tensors.

In the same report 1.5 GB, where the live tensors of a block are 0.21 GB; programs share it.
"""

CODE_AND_RUNTIME_BYTES = 550_000_000
"""Code and the runtime's own buffers: 0.55 GB in the same report, for two whole graphs; taken
whole whichever programs are loaded."""

RING_BYTES_PER_FLOP = 3.7e9 / 204e12
"""DMA descriptors of a program that is loaded, by the matmul FLOPs of a call.

In the same report 3.7 GB for each whole graph, of 204 TFLOP a rank, with attention kernels. What
plain StableHLO attention needs is not known.
"""

LIVE_IN_VAE = 3
"""Tensors as large as the VAE's largest that live at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """One part of a rank's memory."""

    name: str
    bytes: int


def usable_bytes(accelerator: Accelerator) -> int:
    """Most bytes that a plan may put on a logical core."""
    return int(accelerator.core_hbm_bytes * USABLE_HBM)


def memory_parts(
    programs: Sequence[Program],
    schedule: Schedule,
    accelerator: Accelerator | None = None,
    *,
    kernels: bool = False,
) -> tuple[MemoryPart, ...]:
    """Parts of the rank that holds most: one that decodes a VAE tile too.

    kernels: whether attention is one, so that no scores lie in memory.
    """
    parts = [*_weights(programs, schedule), _context(programs, schedule)]
    parts += _on_cpu(programs) if accelerator is None else _on_core(programs, kernels=kernels)
    return tuple(part for part in parts if part.bytes)


def _weights(programs: Sequence[Program], schedule: Schedule) -> Iterable[MemoryPart]:
    """Split and replicated weights of each component; one that several calls take counts once."""
    by_name = {program.name: program for program in programs}
    held: dict[str, dict[tuple[str, tuple[int, ...]], tuple[int, bool]]] = {}
    for call in (call for stage in schedule.stages for call in stage.calls):
        taken = held.setdefault(call.component, {})
        for weight in by_name[call.program].weights:
            layers = call.layers if "{" in weight.tensor else ()
            taken[weight.tensor, layers] = (weight.bytes, weight.axis is not None)
    for component, taken in held.items():
        split = sum(size for size, is_split in taken.values() if is_split)
        whole = sum(size for size, is_split in taken.values() if not is_split)
        yield MemoryPart(name=f"{component} weights, split by tp", bytes=split)
        yield MemoryPart(name=f"{component} weights, replicated", bytes=whole)


def _context(programs: Sequence[Program], schedule: Schedule) -> MemoryPart:
    """Of every expert and of every guidance branch that the rank works on."""
    by_name = {program.name: program for program in programs}
    calls = [
        call
        for stage in schedule.stages
        if stage.name.startswith("context.")
        for call in stage.calls
    ]
    size = sum(tensor.bytes for call in calls for tensor in by_name[call.program].outputs)
    return MemoryPart(name="prompt keys and values", bytes=size)


def _on_cpu(programs: Sequence[Program]) -> list[MemoryPart]:
    blocks = _blocks(programs)
    live, exchanged = _live(blocks), _exchanged(blocks)
    attention = live.attention + exchanged.passing + _scores(blocks)
    work = live.hidden + exchanged.gathered + max(attention, live.feed_forward)
    return [
        MemoryPart(name="transformer work, estimated", bytes=work),
        MemoryPart(name="VAE tile caches", bytes=_caches(programs)),
        MemoryPart(name="VAE tile work, estimated", bytes=_vae_work(programs)),
    ]


def _on_core(programs: Sequence[Program], *, kernels: bool) -> list[MemoryPart]:
    blocks = _blocks(programs)
    live, exchanged = _live(blocks), _exchanged(blocks)
    widest = live.hidden + max(live.attention, live.feed_forward)
    scratchpad = max(int(SCRATCHPAD_FACTOR * widest), _vae_work(programs))
    flops = sum(work.flops for program in programs for work in call_work(program).values())
    return [
        MemoryPart(name="activations between calls", bytes=_between_calls(programs)),
        MemoryPart(name="scratchpad, estimated", bytes=scratchpad),
        MemoryPart(name="attention scores of a tile", bytes=0 if kernels else _scores(blocks)),
        MemoryPart(name="collective buffers", bytes=exchanged.gathered + exchanged.passing),
        MemoryPart(name="VAE tile caches", bytes=_caches(programs)),
        MemoryPart(name="code and runtime", bytes=CODE_AND_RUNTIME_BYTES),
        MemoryPart(name="DMA rings, estimated", bytes=int(RING_BYTES_PER_FLOP * flops)),
    ]


def _blocks(programs: Sequence[Program]) -> Program:
    return next(program for program in programs if program.kind == "dit_blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    """Bytes of a block's tensors: input and output, and what either half holds at its widest."""

    hidden: int
    attention: int
    feed_forward: int


def _live(blocks: Program) -> _Live:
    how, hidden = blocks.definition, blocks.inputs[0]
    size = DTYPE_BYTES[hidden.dtype]
    values = how["chunk_tokens"] * how["heads"] * how["head_width"]
    ffn_width = max(w.shape[0] for w in blocks.weights if w.name.endswith("ffn.net.0.proj.weight"))
    return _Live(
        hidden=2 * hidden.bytes,
        attention=3 * values * size + DTYPE_BYTES["float32"] * values,  # q, k, v; weighted values
        feed_forward=how["chunk_tokens"] * (ffn_width + how["norm_width"]) * size,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchanged:
    """Bytes of what collectives give: a chunk gathered over tp, keys and values on their way."""

    gathered: int
    passing: int


def _exchanged(blocks: Program) -> _Exchanged:
    how, size = blocks.definition, DTYPE_BYTES[blocks.inputs[0].dtype]
    values = how["chunk_tokens"] * how["heads"] * how["head_width"]
    arriving = how["cp"] if how["attention"] == "allgather" else 1
    return _Exchanged(
        gathered=how["chunk_tokens"] * how["norm_width"] * size,
        passing=2 * (1 + arriving) * values * size,  # keys and values: its own, and those
    )


def _scores(blocks: Program) -> int:
    """A query tile's fp32 scores, and their softmax weights in the activations' dtype."""
    how = blocks.definition
    chunk = how["chunk_tokens"]
    keys = chunk * (how["cp"] if how["attention"] == "allgather" else 1)
    scores: int = how["heads"] * min(chunk, how["query_tile_tokens"]) * keys
    return scores * (DTYPE_BYTES["float32"] + DTYPE_BYTES[blocks.inputs[0].dtype])


def _between_calls(programs: Sequence[Program]) -> int:
    """Inputs and outputs of a step's programs but for keys and values; hidden comes and goes."""
    held = {
        (program.kind, tensor.name): tensor.bytes
        for program in programs
        if program.kind in ("dit_embed", "dit_head")
        for tensor in (*program.inputs, *program.outputs)
    }
    fed = ("rope_cos", "rope_sin", "key_mask", GIVEN)
    rope = sum(tensor.bytes for tensor in _blocks(programs).inputs if tensor.name in fed)
    return sum(held.values()) + rope


def _of_tiles(programs: Sequence[Program]) -> list[Program]:
    return [p for p in programs if p.kind in ("vae_encode_rest", "vae_decode_rest")]


def _caches(programs: Sequence[Program]) -> int:
    """Caches, and the latent or the pixels, of the largest tile."""
    sizes = [sum(tensor.bytes for tensor in program.inputs) for program in _of_tiles(programs)]
    return max(sizes, default=0)


def _vae_work(programs: Sequence[Program]) -> int:
    """Some tensors as large as what the VAE's hungriest convolution takes."""
    sizes = [
        DTYPE_BYTES["float32"] * each.inputs * each.positions
        for program in _of_tiles(programs)
        for each in convolutions(program)
    ]
    return LIVE_IN_VAE * max(sizes, default=0)

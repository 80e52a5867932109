"""What calls ask of a rank: matmul FLOPs, bytes moved to and from HBM, bytes sent to other ranks.

Counted from the programs' records, so that what a schedule calls is what is counted. Knows no
machine and no seconds. Counts operands and results of matmuls and convolutions: a chain of
elementwise operations is taken as fused with its neighbour, and holds no FLOPs.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from math import prod

from wanc.plan.abi import Program, Weight
from wanc.plan.schedule import Schedule, Stage
from wanc.plan.tiles import TilePlan
from wanc.plan.transformer import GIVEN
from wanc.plan.vae import convolutions
from wanc.spec.model import TEXT_TOKENS
from wanc.spec.target import DTYPE_BYTES, DType

FP32_BYTES = DTYPE_BYTES["float32"]

MULTIPLY_ADD = 2
"""FLOPs of one step of a sum of products."""

SCORE_FP32_PASSES = 3
"""Scores in fp32: written by q·k, read for the row's maximum, read for the exponential."""

SCORE_NARROW_PASSES = 2
"""Softmax weights in the activations' dtype: written by the exponential, read by weights·v."""

FADE_PASSES = 4
"""Weighted values in fp32 for every part of the keys: written, then old and new read for the sum of
the online softmax, and that written."""

GATHERS = 3
"""Of hidden over tp, in a block: before self-attention, cross-attention and the feed-forward. As
many reduce-scatters follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one rank does. Sums are Work again."""

    bf16_flops: int = 0
    """Of matmuls whose operands are bf16; sums are fp32 all the same."""
    fp32_flops: int = 0
    """Of matmuls and convolutions whose operands are fp32."""
    hbm_bytes: int = 0
    """Read and written, with attention as a kernel: scores never leave the core."""
    score_bytes: int = 0
    """Read and written besides where attention is plain StableHLO: scores and running sums."""
    gathered_bytes: int = 0
    """Sent in all-gathers: (n - 1) times the rank's part."""
    scattered_bytes: int = 0
    """Sent in reduce-scatters: (n - 1) / n of the whole."""
    reduced_bytes: int = 0
    """Sent in all-reduces: 2 (n - 1) / n of the whole, a reduce-scatter and an all-gather."""
    permuted_bytes: int = 0
    """Sent to the next rank of a ring."""

    def __add__(self, other: "Work") -> "Work":
        return Work(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in _FIELDS})

    def __mul__(self, times: int) -> "Work":
        return Work(**{f.name: getattr(self, f.name) * times for f in _FIELDS})

    @property
    def flops(self) -> int:
        """All matmul and convolution FLOPs."""
        return self.bf16_flops + self.fp32_flops

    @property
    def sent_bytes(self) -> int:
        """All bytes sent to other ranks."""
        collected = self.gathered_bytes + self.scattered_bytes + self.reduced_bytes
        return collected + self.permuted_bytes


_FIELDS = fields(Work)

Parts = dict[str, Work]
"""Work by the part of a program. Parts follow one another; within one, resources overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """Work of a stage on its busiest rank."""

    name: str
    """``encode_text``; ``context``, of every expert; ``step``, one of denoising; ``encode_image``,
    where images are taken; ``decode``."""
    launches: int
    """Calls of programs, one after the other."""
    waves: int
    """Tiles that the rank works on, one after the other; 1 for other stages."""
    parts: Parts

    @property
    def total(self) -> Work:
        """Sum over the parts."""
        return sum(self.parts.values(), Work())


def stage_works(
    programs: Sequence[Program], schedule: Schedule, tiles: TilePlan, latent_frames: int
) -> tuple[StageWork, ...]:
    """Work of text and image encoding, of all contexts, of one guided step, and of decoding."""
    works = {program.name: call_work(program) for program in programs}

    def together(name: str, stages: Iterable[Stage]) -> StageWork:
        calls = [works[call.program] for stage in stages for call in stage.calls]
        return StageWork(name=name, launches=len(calls), waves=1, parts=_joined(calls))

    named = {stage.name: stage for stage in schedule.stages}
    contexts = [stage for name, stage in named.items() if name.startswith("context.")]
    step = next(stage for name, stage in named.items() if name.startswith("step."))
    of_tiles = {"encode_image": "vae_encode", "decode": "vae_decode"}
    kinds = [program.kind for program in programs]
    given = any(tensor.name == GIVEN for program in programs for tensor in program.inputs)
    frames = {"encode_image": 1 if given else latent_frames, "decode": latent_frames}
    return (
        together("encode_text", [named["encode_text"]]),
        together("context", contexts),
        together("step", [step]),
        *(
            _of_tiles(name, kind, works, tiles, frames[name])
            for name, kind in of_tiles.items()
            if f"{kind}_first" in kinds
        ),
    )


def _of_tiles(
    name: str, kind: str, works: dict[str, Parts], tiles: TilePlan, latent_frames: int
) -> StageWork:
    """The rank whose tiles are most work: a first and many later latent frames of each."""
    later = latent_frames - 1
    calls: dict[int, list[Parts]] = {}
    for tile, rank in zip(tiles.tiles, tiles.ranks, strict=True):
        suffix = tiles.suffix(tile.rows, tile.columns)
        first, rest = (works[f"{kind}_{part}{suffix}"] for part in ("first", "rest"))
        calls.setdefault(rank, []).append(
            _joined([first, {name: work * later for name, work in rest.items()}])
        )
    busiest = max(calls.values(), key=lambda tiled: sum(w.flops for p in tiled for w in p.values()))
    return StageWork(
        name=name,
        launches=len(busiest) * latent_frames,
        waves=len(busiest),
        parts=_joined(busiest),
    )


def _joined(parts: Iterable[Parts]) -> Parts:
    found: Parts = {}
    for one in parts:
        for name, work in one.items():
            found[name] = found.get(name, Work()) + work
    return found


def call_work(program: Program) -> Parts:
    """Work of one call on one rank, by part."""
    return _KINDS[program.kind](program)


def _text_encoder(program: Program) -> Parts:
    """24 layers of projections on 512 rows, and attention with a bias made of a table of rows."""
    how, rows = program.definition, program.inputs[0]
    distances = 2 * TEXT_TOKENS - 1
    tables = [w for w in _matrices(program) if "relative_attention_bias" in w.name]
    others = [w for w in _matrices(program) if "relative_attention_bias" not in w.name]
    attention = _attention(
        rows.dtype,
        heads=how["heads"],
        queries=TEXT_TOKENS,
        keys=TEXT_TOKENS,
        width=how["head_width"],
        tile=TEXT_TOKENS,
    )
    reduced = 2 * how["layers"] * _all_reduce(rows.bytes, how["tp"])
    return {
        "projections": _linears(others, TEXT_TOKENS) + _linears(tables, distances),
        "attention": attention * how["layers"],
        "collectives": Work(reduced_bytes=reduced),
    }


def _context(program: Program) -> Parts:
    """Keys and values of 512 rows of text, and the square sums of the keys' norm."""
    how = program.definition
    squares = _all_reduce(TEXT_TOKENS * FP32_BYTES, how["tp"])
    return {
        "projections": _linears(_matrices(program), TEXT_TOKENS),
        "collectives": Work(reduced_bytes=how["layers"] * squares),
    }


def _embed(program: Program) -> Parts:
    """The rank's own tokens, and a timestep or two, whose weights are most of what is read."""
    patch, *time = _matrices(program)
    tokens, timesteps = program.inputs
    return {"embedding": _linears([patch], tokens.shape[1]) + _linears(time, timesteps.shape[0])}


def _blocks(program: Program) -> Parts:
    """Per layer: projections and feed-forward of a chunk; attention to L keys and to the text."""
    how, hidden = program.definition, program.inputs[0]
    chunk, layers, cp = how["chunk_tokens"], how["layers"], how["cp"]
    heads, width = how["heads"], how["head_width"]
    ring = how["attention"] == "ring"
    feed_forward = [weight for weight in _matrices(program) if ".ffn." in weight.name]
    projections = [weight for weight in _matrices(program) if ".ffn." not in weight.name]
    attention = _attention(
        hidden.dtype,
        heads=heads,
        queries=chunk,
        keys=chunk * cp,
        width=width,
        tile=how["query_tile_tokens"],
        arrivals=cp if ring else 1,
    )
    cross = _attention(
        hidden.dtype,
        heads=heads,
        queries=chunk,
        keys=TEXT_TOKENS,
        width=width,
        tile=how["cross_query_tile_tokens"],
    )
    passed = (cp - 1) * 2 * heads * chunk * width * DTYPE_BYTES[hidden.dtype]
    if ring:  # chunks pass by while those that are here are attended to
        attention += Work(permuted_bytes=passed)
    collectives = _tensor_parallel(hidden.bytes, chunk, how["tp"])
    if not ring:
        mask = (cp - 1) * chunk * FP32_BYTES if how["masked"] else 0
        collectives += Work(gathered_bytes=passed + mask)
    return {
        "projections": _linears(projections, chunk),
        "feed-forward": _linears(feed_forward, chunk),
        "self-attention": attention * layers,
        "cross-attention": cross * layers,
        "collectives": collectives * layers,
    }


def _tensor_parallel(shard_bytes: int, chunk_tokens: int, tp: int) -> Work:
    """Collectives over tp in one block; the square sums are of q and k, then of the cross q."""
    others = (tp - 1) * shard_bytes
    squares = (2 + 1) * chunk_tokens * FP32_BYTES
    return Work(
        gathered_bytes=GATHERS * others,
        scattered_bytes=GATHERS * others,
        reduced_bytes=_all_reduce(squares, tp),
    )


def _head(program: Program) -> Parts:
    """The rank's own tokens to noise, gathered over tp, cp and cfg in turn."""
    how, tokens = program.definition, program.inputs[0].shape[1]
    (projection,) = _matrices(program)
    row = projection.shape[0] * FP32_BYTES
    chunk = how["chunk_tokens"] * row
    gathered = (how["tp"] - 1) * tokens * row + (how["cp"] - 1) * chunk
    gathered += (how["cfg"] - 1) * how["cp"] * chunk
    return {
        "head": _linears([projection], tokens),
        "collectives": Work(gathered_bytes=gathered),
    }


def _vae(program: Program) -> Parts:
    """Convolutions of one latent frame, its caches, and the middle's attention within frames."""
    flops, attention = 0, Work()
    moved = sum(tensor.bytes for tensor in (*program.arguments, *program.outputs))
    for c in convolutions(program):
        flops += MULTIPLY_ADD * c.outputs * c.inputs * c.taps * c.positions
        moved += FP32_BYTES * (c.inputs + c.outputs) * c.positions
        if c.name.endswith("to_qkv"):
            places = c.positions // c.frames
            one = _attention(
                "float32", heads=1, queries=places, keys=places, width=c.inputs, tile=places
            )
            attention += one * c.frames
    return {"convolutions": Work(fp32_flops=flops, hbm_bytes=moved), "attention": attention}


_KINDS: dict[str, Callable[[Program], Parts]] = {
    "text_encoder": _text_encoder,
    "dit_context": _context,
    "dit_embed": _embed,
    "dit_blocks": _blocks,
    "dit_head": _head,
    "vae_encode_first": _vae,
    "vae_encode_rest": _vae,
    "vae_decode_first": _vae,
    "vae_decode_rest": _vae,
}


def _matrices(program: Program) -> list[Weight]:
    """Weights that multiply a row of values for every token."""
    return [weight for weight in program.weights if len(weight.shape) == 2]


def _linears(weights: Iterable[Weight], tokens: int) -> Work:
    """2·tokens·outputs·inputs FLOPs each; rows in and out once, and the weight."""
    flops: dict[DType, int] = {"bfloat16": 0, "float32": 0}
    moved = 0
    for weight in weights:
        flops[weight.dtype] += MULTIPLY_ADD * tokens * prod(weight.shape)
        moved += weight.bytes + tokens * sum(weight.shape) * DTYPE_BYTES[weight.dtype]
    return Work(bf16_flops=flops["bfloat16"], fp32_flops=flops["float32"], hbm_bytes=moved)


def _attention(
    dtype: DType, *, heads: int, queries: int, keys: int, width: int, tile: int, arrivals: int = 1
) -> Work:
    """Two matmuls of 2·N·L·T·K FLOPs each. Every query tile reads all keys and values.

    The scores of plain StableHLO are those of model/ops.py's online softmax; keys come in so many
    arrivals, and the weighted values are summed at each.
    """
    size, products = DTYPE_BYTES[dtype], heads * queries * keys * width
    tiles = -(-queries // tile)
    moved = 2 * heads * width * (queries + tiles * keys) * size
    score = SCORE_FP32_PASSES * FP32_BYTES + SCORE_NARROW_PASSES * size
    fade = FADE_PASSES * FP32_BYTES * heads * queries * width * arrivals
    return _in(dtype, 2 * MULTIPLY_ADD * products) + Work(
        hbm_bytes=moved, score_bytes=score * heads * queries * keys + fade
    )


def _in(dtype: DType, flops: int) -> Work:
    return Work(fp32_flops=flops) if dtype == "float32" else Work(bf16_flops=flops)


def _all_reduce(whole_bytes: int, ranks: int) -> int:
    """Bytes that each rank sends."""
    return 2 * (ranks - 1) * whole_bytes // ranks

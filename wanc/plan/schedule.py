"""A variant's schedule: which programs are called in which order, and where inputs come from.

A small typed program that the run side interprets. The records know nothing of Wan; the builder
is the one place that knows how Wan was cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from wanc.plan.abi import Program
from wanc.plan.mesh import Mesh
from wanc.plan.tiles import TilePlan
from wanc.plan.transformer import GIVEN, TransformerCut
from wanc.spec.model import EXPERT_COMPONENTS, TEXT_TOKENS, Expert, Model, TextEncoder
from wanc.spec.target import DType
from wanc.spec.topology import GUIDANCE_BRANCHES, Axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One cut of a feed, along a dimension.

    ``split``: pad with zeros to pad_to, cut into as many equal parts as the axis has degrees, and
    take the part of the rank's coordinate. ``take``: keep the one index.
    """

    kind: Literal["split", "take"]
    dim: int
    axis: Axis | None = None
    pad_to: int | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Where one input of a call comes from: a feed and its cuts, or a value of an earlier call."""

    feed: str | None = None
    value: str | None = None
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a program."""

    program: str
    component: str
    """Checkpoint folder that the program's weights come from."""
    layers: tuple[int, ...] = ()
    """Layer numbers that ``{k}`` in the weights' tensor names stand for."""
    inputs: tuple[Binding, ...]
    outputs: tuple[str, ...]
    """Names that the outputs get; a name that stands already is bound anew."""
    branches: tuple[int, ...]
    """Guidance branches that this call serves; it is left out where none of them is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A value that the host fetches after a stage, from any one of the ranks that hold it."""

    value: str
    ranks: tuple[int, ...]
    """Ranks with the same bits of it; any rank that a stage of single replicas ran on, if none."""
    branches: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Calls that run together."""

    name: str
    calls: tuple[Call, ...]
    results: tuple[Result, ...]
    """Joined on dimension 0, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """An input that the host supplies, whole."""

    name: str
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Feeds and stages of a variant."""

    feeds: tuple[Feed, ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """The guidance branches that one sweep over the ranks serves, and its values' suffix."""

    branches: tuple[int, ...]
    suffix: str


_BRANCHES = tuple(range(GUIDANCE_BRANCHES))


def build_schedule(
    model: Model, cut: TransformerCut, tiles: TilePlan, programs: Sequence[Program]
) -> Schedule:
    """The schedule of a variant."""
    stages = [_encode_text(cut.mesh)]
    for expert in model.experts:
        stages += [_context(cut, expert), _step(cut, expert)]
    of_tiles = [program for program in programs if program.ranks == "one"]
    stages += [_of_tile(program) for program in of_tiles]
    feeds = [*_text_feeds(model.text_encoder, cut.dtype), *_token_feeds(cut)]
    feeds += dict.fromkeys(
        Feed(name=tile_feed(program), shape=program.inputs[0].shape, dtype="float32")
        for program in of_tiles
    )
    return Schedule(feeds=tuple(feeds), stages=tuple(stages))


def _passes(mesh: Mesh) -> tuple[_Pass, ...]:
    if mesh.topology.cfg == GUIDANCE_BRANCHES:
        return (_Pass(branches=_BRANCHES, suffix=""),)
    return tuple(_Pass(branches=(branch,), suffix=f".{branch}") for branch in _BRANCHES)


def _encode_text(mesh: Mesh) -> Stage:
    calls, results = [], []
    for sweep in _passes(mesh):
        if len(sweep.branches) > 1:
            cut = Slice(kind="split", dim=0, axis="cfg")
        else:
            cut = Slice(kind="take", dim=0, index=sweep.branches[0])
        value = f"prompt{sweep.suffix}"
        calls.append(
            Call(
                program="text_encoder",
                component="text_encoder",
                inputs=(
                    Binding(feed="token_embeddings", slices=(cut,)),
                    Binding(feed="text_mask", slices=(cut,)),
                ),
                outputs=(value,),
                branches=sweep.branches,
            )
        )
        for place, branch in enumerate(sweep.branches):
            ranks = tuple(
                rank
                for rank, coordinates in enumerate(mesh.coordinates)
                if len(sweep.branches) == 1 or coordinates.cfg == place
            )
            results.append(Result(value=value, ranks=ranks, branches=(branch,)))
    return Stage(name="encode_text", calls=tuple(calls), results=tuple(results))


def _layer_groups(cut: TransformerCut) -> list[tuple[int, ...]]:
    return [
        tuple(range(first, first + cut.layers)) for first in range(0, cut.model.layers, cut.layers)
    ]


def _context_values(expert: Expert, layers: tuple[int, ...], suffix: str) -> tuple[str, ...]:
    return tuple(f"{expert}.{n}.{i}{suffix}" for i in layers for n in ("key", "value"))


def _context(cut: TransformerCut, expert: Expert) -> Stage:
    calls = [
        Call(
            program="dit_context",
            component=EXPERT_COMPONENTS[expert],
            layers=layers,
            inputs=(Binding(value=f"prompt{sweep.suffix}"),),
            outputs=_context_values(expert, layers, sweep.suffix),
            branches=sweep.branches,
        )
        for sweep in _passes(cut.mesh)
        for layers in _layer_groups(cut)
    ]
    return Stage(name=f"context.{expert}", calls=tuple(calls), results=())


def _step(cut: TransformerCut, expert: Expert) -> Stage:
    component = EXPERT_COMPONENTS[expert]
    split, topology = cut.split, cut.mesh.topology
    chunk = Slice(kind="split", dim=1, axis="cp", pad_to=topology.cp * split.chunk_tokens)
    shard = Slice(kind="split", dim=1, axis="tp", pad_to=split.padded_chunk_tokens)
    rope = [Binding(feed=name, slices=(chunk,)) for name in ("rope_cos", "rope_sin")]
    if split.masked:
        rope.append(
            Binding(feed="key_mask", slices=(Slice(kind="split", dim=0, axis="cp"),)),
        )
    given = (Binding(feed=GIVEN, slices=(chunk, shard)),) if cut.given_tokens else ()
    calls = [
        Call(
            program="dit_embed",
            component=component,
            inputs=(Binding(feed="tokens", slices=(chunk, shard)), Binding(feed="timestep")),
            outputs=("hidden", "time_embedding", "modulation"),
            branches=_BRANCHES,
        )
    ]
    results = []
    for sweep in _passes(cut.mesh):
        hidden = "hidden"
        for layers in _layer_groups(cut):
            context = _context_values(expert, layers, sweep.suffix)
            calls.append(
                Call(
                    program="dit_blocks",
                    component=component,
                    layers=layers,
                    inputs=(
                        Binding(value=hidden),
                        Binding(value="modulation"),
                        *rope,
                        *given,
                        *(Binding(value=name) for name in context),
                    ),
                    outputs=(f"hidden{sweep.suffix}",),
                    branches=sweep.branches,
                )
            )
            hidden = f"hidden{sweep.suffix}"
        calls.append(
            Call(
                program="dit_head",
                component=component,
                inputs=(Binding(value=hidden), Binding(value="time_embedding"), *given),
                outputs=(f"noise{sweep.suffix}",),
                branches=sweep.branches,
            )
        )
        results.append(
            Result(value=f"noise{sweep.suffix}", ranks=cut.mesh.ranks, branches=sweep.branches)
        )
    return Stage(name=f"step.{expert}", calls=tuple(calls), results=tuple(results))


def tile_feed(program: Program) -> str:
    """The feed of one tile's latent frame, or of its frames of pixels."""
    taken = program.inputs[0]
    frames, rows, columns = taken.shape[2:]
    return f"{taken.name}_{frames}x{rows}x{columns}"


def _of_tile(program: Program) -> Stage:
    caches = tuple(Binding(value=tensor.name) for tensor in program.inputs[1:])
    call = Call(
        program=program.name,
        component="vae",
        inputs=(Binding(feed=tile_feed(program)), *caches),
        outputs=tuple(tensor.name for tensor in program.outputs),
        branches=_BRANCHES,
    )
    result = Result(value=program.outputs[0].name, ranks=(), branches=_BRANCHES)
    return Stage(name=program.name, calls=(call,), results=(result,))


def _text_feeds(model: TextEncoder, dtype: DType) -> list[Feed]:
    rows = (GUIDANCE_BRANCHES, TEXT_TOKENS)
    return [
        Feed(name="token_embeddings", shape=(*rows, model.width), dtype=dtype),
        Feed(name="text_mask", shape=rows, dtype="float32"),
    ]


def _token_feeds(cut: TransformerCut) -> list[Feed]:
    model, split, cp = cut.model, cut.split, cut.mesh.topology.cp
    rope = (1, split.tokens, 1, model.head_width // 2)
    feeds = [
        Feed(name="tokens", shape=(1, split.tokens, cut.patch_width), dtype=cut.dtype),
        Feed(name="timestep", shape=(cut.timesteps, model.frequency_width), dtype="float32"),
        Feed(name="rope_cos", shape=rope, dtype="float32"),
        Feed(name="rope_sin", shape=rope, dtype="float32"),
    ]
    if split.masked:
        mask = (cp, cp, split.chunk_tokens)
        feeds.append(Feed(name="key_mask", shape=mask, dtype="float32"))
    if cut.given_tokens:
        feeds.append(Feed(name=GIVEN, shape=(1, split.tokens, 1), dtype="float32"))
    return feeds

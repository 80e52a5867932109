"""Everything that is known of a variant before anything is traced.

Pure arithmetic on spec's records: no torch, no jax, no files.
"""

from dataclasses import dataclass

from wanc.errors import RefusedError
from wanc.plan.abi import Program
from wanc.plan.geometry import Geometry, TokenSplit, geometry, split_tokens
from wanc.plan.memory import MemoryPart, memory_parts
from wanc.plan.mesh import Mesh
from wanc.plan.schedule import Schedule, build_schedule
from wanc.plan.sharding import check_topology
from wanc.plan.text_encoder import text_encoder_program
from wanc.plan.tiles import TilePlan, plan_tiles
from wanc.plan.transformer import (
    TransformerCut,
    blocks_program,
    context_program,
    embed_program,
    head_program,
)
from wanc.plan.vae import decode_programs
from wanc.spec.model import Model
from wanc.spec.target import DTYPES, target_facts
from wanc.spec.variant import Options, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A variant, worked out."""

    model: Model
    variant: Variant
    options: Options
    geometry: Geometry
    tokens: TokenSplit
    mesh: Mesh
    tiles: TilePlan
    programs: tuple[Program, ...]
    schedule: Schedule
    memory: tuple[MemoryPart, ...]
    warnings: tuple[str, ...]

    @property
    def memory_bytes(self) -> int:
        """Sum of all parts on the fullest rank."""
        return sum(part.bytes for part in self.memory)


def make_plan(
    model: Model, variant: Variant, options: Options, *, max_ranks: int | None = None
) -> Plan:
    """Work out a variant; raises RefusedError naming values that would work."""
    topology, facts = variant.topology, target_facts(variant.target)
    grid = geometry(variant.shape, model)
    check_topology(topology, model, tokens=grid.tokens, max_ranks=max_ranks)
    mesh = Mesh.linear(topology)
    split = split_tokens(grid.tokens, topology)
    cut = TransformerCut(
        model=model.transformer,
        mesh=mesh,
        split=split,
        dtype=DTYPES[variant.precision],
        attention=options.attention,
        layers=_layers_per_program(model, options, facts.blocks_per_program),
        score_budget_bytes=facts.score_budget_bytes,
    )
    tiles = plan_tiles(grid, options.vae_tiles, topology.ranks)
    programs = (
        text_encoder_program(model.text_encoder, mesh, cut.dtype),
        context_program(cut),
        embed_program(cut),
        blocks_program(cut),
        head_program(cut),
        *(
            program
            for rows, columns in tiles.shapes
            for program in decode_programs(model.vae, rows, columns, tiles.suffix(rows, columns))
        ),
    )
    schedule = build_schedule(model, cut, tiles, programs)
    return Plan(
        model=model,
        variant=variant,
        options=options,
        geometry=grid,
        tokens=split,
        mesh=mesh,
        tiles=tiles,
        programs=programs,
        schedule=schedule,
        memory=memory_parts(programs, schedule),
        warnings=_warnings(model, variant),
    )


def _layers_per_program(model: Model, options: Options, most: int) -> int:
    layers = model.transformer.layers
    divisors = [n for n in range(1, layers + 1) if layers % n == 0]
    wanted = options.blocks_per_program
    if wanted is None:
        return max(n for n in divisors if n <= most)
    if wanted not in divisors:
        raise RefusedError(
            f"blocks per program {wanted} does not divide the {layers} layers of {model.name}; "
            f"try {', '.join(map(str, divisors))}"
        )
    return wanted


def _warnings(model: Model, variant: Variant) -> tuple[str, ...]:
    trained = model.sampling.trained_frames
    if variant.shape.frames > trained:
        return (
            f"{variant.shape}: {model.name} was trained on {trained} frames; "
            "longer videos tend to have burnt frames",
        )
    return ()

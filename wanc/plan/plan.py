"""Everything that is known of a variant before anything is traced.

Pure arithmetic on spec's records: no torch, no jax, no files.
"""

from dataclasses import dataclass, replace

from wanc.errors import RefusedError
from wanc.plan.abi import Program
from wanc.plan.cost import Cost, predict
from wanc.plan.fabric import mesh_problems
from wanc.plan.geometry import Geometry, TokenSplit, geometry, split_tokens
from wanc.plan.instructions import of_blocks
from wanc.plan.memory import MemoryPart, memory_parts, usable_bytes
from wanc.plan.mesh import Mesh
from wanc.plan.placement import lay_out
from wanc.plan.propose import what_would_work
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
from wanc.plan.vae import decode_programs, encode_programs
from wanc.plan.work import StageWork, stage_works
from wanc.spec.model import Model
from wanc.spec.target import DTYPES, GIB, Accelerator, TargetFacts, target_facts
from wanc.spec.topology import Topology
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
    """Of the fullest rank."""
    hbm_bytes: int | None
    """Most that a core may hold; None where the machine is any CPU."""
    work: tuple[StageWork, ...]
    """Of the busiest rank, with plain StableHLO's scores apart."""
    cost: Cost | None
    """None where the machine is any CPU: nothing is known of its speed."""
    warnings: tuple[str, ...]
    not_compilable: str | None
    """Why the variant can be planned and not compiled yet, or None."""

    @property
    def memory_bytes(self) -> int:
        """Sum of all parts on the fullest rank."""
        return sum(part.bytes for part in self.memory)

    def stage_work(self, name: str) -> StageWork:
        """Work of a stage by name."""
        return next(work for work in self.work if work.name == name)


def make_plan(
    model: Model, variant: Variant, options: Options, *, max_ranks: int | None = None
) -> Plan:
    """Work out a variant; raises RefusedError naming values that would work."""

    def attempt(variant: Variant, options: Options) -> Plan:
        return work_out(model, variant, options, max_ranks=max_ranks)

    try:
        return attempt(variant, options)
    except RefusedError as error:
        advice = what_would_work(model, variant, options, attempt)
        first, *rest = str(error).splitlines()
        raise RefusedError("\n".join([f"{first}{advice and f'; {advice}'}", *rest])) from error


def work_out(
    model: Model, variant: Variant, options: Options, *, max_ranks: int | None = None
) -> Plan:
    """Work out a variant; raises RefusedError without looking for what would work."""
    topology, facts = variant.topology, target_facts(variant.target)
    grid = geometry(variant.shape, model)
    check_topology(
        topology,
        model,
        tokens=grid.tokens,
        max_ranks=max_ranks,
        suggest=facts.accelerator is None,  # elsewhere what fits in memory is proposed
    )
    check_cores(facts.accelerator, topology)
    mesh = lay_out(topology, variant.placement)
    check_fabric(facts.accelerator, mesh, options)
    split = split_tokens(grid.tokens, topology)
    cut = TransformerCut(
        model=model.transformer,
        mesh=mesh,
        split=split,
        dtype=DTYPES[variant.precision],
        attention=options.attention,
        layers=1,
        score_budget_bytes=facts.score_budget_bytes,
        given_tokens=model.task == "ti2v",
    )
    cut = replace(cut, layers=layers_per_program(cut, model, options, facts))
    tiles = plan_tiles(
        grid, options.vae_tiles, topology.ranks, px_per_latent=model.vae.spatial_stride
    )
    programs = (
        text_encoder_program(model.text_encoder, mesh, cut.dtype),
        context_program(cut),
        embed_program(cut),
        blocks_program(cut),
        head_program(cut),
        *vae_programs(model, tiles),
    )
    schedule = build_schedule(model, cut, tiles, programs)
    memory = memory_parts(programs, schedule, facts.accelerator)
    check_memory(facts.accelerator, variant, memory)
    work = stage_works(programs, schedule, tiles, grid.latent_frames)
    blocks = next(program for program in programs if program.kind == "dit_blocks")
    reason = not_compilable(model, facts.accelerator, blocks)
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
        memory=memory,
        hbm_bytes=usable_bytes(facts.accelerator) if facts.accelerator else None,
        work=work,
        cost=_cost(facts.accelerator, work, model, variant),
        warnings=_warnings(model, variant),
        not_compilable=reason,
    )


def vae_programs(model: Model, tiles: TilePlan) -> list[Program]:
    """Of every tile shape: the decoder's, and the encoder's where images are taken."""
    kinds = (decode_programs,) if model.task == "t2v" else (encode_programs, decode_programs)
    return [
        program
        for make in kinds
        for rows, columns in tiles.shapes
        for program in make(model.vae, rows, columns, tiles.suffix(rows, columns))
    ]


def check_memory(
    accelerator: Accelerator | None, variant: Variant, memory: tuple[MemoryPart, ...]
) -> None:
    """Raise RefusedError where the fullest core cannot hold its parts."""
    if accelerator is None:
        return
    needed, usable = sum(part.bytes for part in memory), usable_bytes(accelerator)
    if needed <= usable:
        return
    parts = sorted(memory, key=lambda part: -part.bytes)
    shown = [(f"{part.bytes / GIB:.1f}", part.name) for part in parts]
    listed = "".join(f"\n  {gib:>5} GiB  {name}" for gib, name in shown if float(gib))
    raise RefusedError(
        f"topology {variant.topology} at {variant.shape} in {variant.precision} needs "
        f"{needed / GIB:.1f} GiB on a core of {variant.target}, which can hold "
        f"{usable / GIB:.1f} GiB{listed}"
    )


def _cost(
    accelerator: Accelerator | None, work: tuple[StageWork, ...], model: Model, variant: Variant
) -> Cost | None:
    if accelerator is None:
        return None
    shape = variant.shape
    pixels = shape.width_px * shape.height_px * shape.frames
    return predict(accelerator, work, steps=model.sampling.steps, pixels=pixels)


def check_cores(accelerator: Accelerator | None, topology: Topology) -> None:
    """Raise RefusedError where one machine has not as many cores as there are ranks."""
    if accelerator and topology.ranks > accelerator.fabric.cores:
        raise RefusedError(
            f"topology {topology}: {topology.ranks} ranks are more than the "
            f"{accelerator.fabric.cores} cores of one machine"
        )


def check_fabric(accelerator: Accelerator | None, mesh: Mesh, options: Options) -> None:
    """Raise RefusedError where the target's fabric cannot carry the mesh's collectives."""
    if accelerator is None:
        return
    problems = mesh_problems(accelerator.fabric, mesh, ring=options.attention == "ring")
    if problems:
        raise RefusedError(f"topology {mesh.topology}: " + "; ".join(problems))


def layers_per_program(
    cut: TransformerCut, model: Model, options: Options, facts: TargetFacts
) -> int:
    """Blocks in one program: as asked, else the most that the target and its compiler suggest."""
    divisors = [n for n in range(1, cut.model.layers + 1) if cut.model.layers % n == 0]
    wanted = options.blocks_per_program
    if wanted is None:
        most = facts.blocks_per_program
        if facts.accelerator:
            each = of_blocks(blocks_program(cut))
            most = min(most, facts.accelerator.limits.usual_instructions // each)
        return max(n for n in divisors if n <= max(most, 1))
    if wanted not in divisors:
        raise RefusedError(
            f"blocks per program {wanted} does not divide the {cut.model.layers} layers of "
            f"{model.name}; try {', '.join(map(str, divisors))}"
        )
    return wanted


def not_compilable(
    model: Model, accelerator: Accelerator | None = None, blocks: Program | None = None
) -> str | None:
    """Why a variant can be planned and not compiled, or None."""
    seen = of_blocks(blocks) if blocks else 0
    if accelerator and blocks and seen > accelerator.limits.instructions:
        layers = blocks.definition["layers"]
        most = max(layers * accelerator.limits.instructions // seen, 1)
        fits = max(n for n in range(1, most + 1) if model.transformer.layers % n == 0)
        return (
            f"{layers} blocks are about {seen / 1e6:.1f} million instructions, and the compiler "
            f"takes {accelerator.limits.instructions / 1e6:.0f} million in one program: "
            f"--blocks-per-program {fits} or less"
        )
    return None


def _warnings(model: Model, variant: Variant) -> tuple[str, ...]:
    warnings = []
    trained = model.sampling.trained_frames
    if variant.shape.frames > trained:
        warnings.append(
            f"{variant.shape}: {model.name} was trained on {trained} frames; "
            "longer videos tend to have burnt frames"
        )
    return tuple(warnings)

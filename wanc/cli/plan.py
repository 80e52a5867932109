"""wanc plan: everything that is known before anything is traced."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from wanc.cli import options
from wanc.cli.predicted import NOT_MEASURED, flops, limit, print_rankings
from wanc.cli.request import AUTO, plans_of, rankings_of
from wanc.cli.stage import print_stage, stage_json
from wanc.cli.terminal import emit, emit_json, note, table
from wanc.errors import RequestError
from wanc.plan.cost import Cost
from wanc.plan.plan import Plan
from wanc.plan.work import Work
from wanc.spec.sets import Request
from wanc.spec.stage import Stage, read_stage
from wanc.units import count, seconds, size


def plan_command(
    set_file: options.SetFile = None,
    model: options.Model = None,
    shape: options.Shapes = None,
    topology: options.Topologies = None,
    precision: options.PrecisionName = None,
    placement: options.PlacementName = None,
    target: options.TargetName = None,
    blocks_per_program: options.Blocks = None,
    attention: options.AttentionName = None,
    vae_tiles: options.VaeTiles = None,
    max_ranks: options.MaxRanks = None,
    cores: Annotated[
        int | None,
        typer.Option(
            "--cores",
            min=1,
            help="With --topology auto: rank topologies of at most so many cores. "
            "[default: the machine's, up to 64]",
        ),
    ] = None,
    stage: Annotated[
        Path | None,
        typer.Option(
            "--from-stage",
            metavar="FILE.yaml",
            help="Take topology, model and precision from a stage file of vLLM-Omni, and say what "
            "became of each field; flags override it.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Work out variants in milliseconds.

    Geometry, programs, memory, predicted times; refuses what cannot work, naming what would.
    With --topology auto, ranks the topologies that fit."""
    flags = Request(
        model=model,
        shapes=tuple(shape or ()),
        topologies=tuple(topology or ()),
        precision=precision,
        placement=placement,
        target=target,
        blocks_per_program=blocks_per_program,
        attention=attention,
        vae_tiles=vae_tiles,
    )
    found = read_stage(stage) if stage else None
    if found:
        flags = flags.over(found.request)
    if cores is not None and flags.topologies != (AUTO,):
        raise RequestError("--cores goes with --topology auto; --max-ranks limits other topologies")
    if found and not json:
        print_stage(found)
    if flags.topologies == (AUTO,):
        print_rankings(rankings_of(set_file, flags, cores, max_ranks), json, found)
        return
    _, plans = plans_of(set_file, flags, max_ranks)
    print_plans(plans, json, found)


# --- plans ---------------------------------------------------------------------------------------


def print_plans(plans: list[Plan], as_json: bool, stage: Stage | None = None) -> None:
    """Plans for people or for programs."""
    if as_json:
        value = {"variants": [plan_json(plan) for plan in plans], "compiles": compiles(plans)}
        emit_json(value | stage_json(stage))
        return
    for plan in plans:
        if plan.not_compilable:
            name = plan.model.name
            note(f"{plan.variant} of {name} can only be planned: {plan.not_compilable}")
    if len(plans) == 1:
        print_plan(plans[0])
        return
    print_summary(plans)
    emit(f"{count(len(plans), 'variant')}, {count(compiles(plans), 'program')} to compile")


def print_summary(plans: Sequence[Plan]) -> None:
    """A line for each of several variants; each alone is shown in full."""
    rows = [
        (
            *(str(plan.variant.shape), str(plan.variant.topology), plan.variant.precision),
            str(blocks(plan)),
            size(plan.memory_bytes),
            "-" if plan.hbm_bytes is None else size(plan.hbm_bytes - plan.memory_bytes),
            seconds(plan.cost.kernels.seconds) if plan.cost else "-",
            seconds(plan.cost.stablehlo.seconds) if plan.cost else "-",
        )
        for plan in plans
    ]
    heads = ("shape", "topology", "", "blocks>", "memory>", "margin>", "video>", "plain>")
    table(f"{plans[0].model.name} for {plans[0].variant.target}", heads, rows)
    if plans[0].cost:
        emit("Video is with attention kernels, plain is without.")
        emit(NOT_MEASURED)


def blocks(plan: Plan) -> int:
    """Transformer blocks in one program."""
    counts: list[int] = [p.definition["layers"] for p in plan.programs if p.kind == "dit_blocks"]
    return counts[0]


def compiles(plans: Sequence[Plan]) -> int:
    """How many programs are to be compiled; equal ones of several variants once."""
    programs = (replace(program, name="") for plan in plans for program in plan.programs)
    return len({msgspec.json.encode(program) for program in programs})


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan for programs."""
    value: dict[str, Any] = msgspec.to_builtins(plan)
    step, ranks = plan.stage_work("step"), plan.variant.topology.ranks
    value["variant"] = plan.variant.texts()
    value["memory_bytes"] = plan.memory_bytes
    value["compiles"] = compiles([plan])
    value["communicators"] = communicators(plan)
    value["step"] = {
        "launches": step.launches,
        "flops": step.total.flops * ranks,
        "rank_flops": step.total.flops,
        "rank_hbm_bytes": step.total.hbm_bytes,
        "rank_hbm_bytes_stablehlo": step.total.hbm_bytes + step.total.score_bytes,
        "rank_sent_bytes": step.total.sent_bytes,
    }
    return value


def communicators(plan: Plan) -> dict[str, int]:
    """Distinct lists of replica groups in each program that joins ranks."""
    joined = {program.name: len(set(program.groups.values())) for program in plan.programs}
    return {name: number for name, number in joined.items() if number}


def print_plan(plan: Plan) -> None:
    """A plan for people."""
    table(f"{plan.variant}", ("", ""), _facts(plan))
    _print_programs(plan)
    _print_memory(plan)
    _print_step(plan)
    if plan.cost:
        _print_cost(plan.cost)


def _facts(plan: Plan) -> list[tuple[str, str]]:
    grid, split, tiles = plan.geometry, plan.tokens, plan.tiles
    topology = plan.variant.topology
    tail = split.padded_chunk_tokens - split.chunk_tokens
    pads = topology.cp * split.chunk_tokens - split.tokens
    stride = plan.model.vae.spatial_stride
    shapes = ", ".join(f"{stride * c}x{stride * r} px" for r, c in tiles.shapes)
    waves = plan.stage_work("decode").waves
    on = f"{count(len(set(tiles.ranks)), 'rank')}{f' in {waves} waves' if waves > 1 else ''}"
    return [
        ("model", plan.model.name),
        ("latent", f"{grid.latent_frames} frames of {grid.latent_columns}x{grid.latent_rows}"),
        ("tokens", f"{split.tokens}, {split.shard_tokens} a rank"),
        ("padding", f"{count(tail, 'row')} at each chunk's tail, sliced off before attention"),
        ("masked keys", f"{pads} pads in the last chunks" if split.masked else "none"),
        ("ranks", f"{topology.ranks}, {plan.variant.placement}"),
        ("attention", plan.options.attention),
        ("blocks", f"{blocks(plan)} of {plan.model.transformer.layers} in a program"),
        ("VAE tiles", f"{len(tiles.tiles)} of {shapes} on {on}"),
        ("compiles", count(compiles([plan]), "program")),
    ]


def _print_programs(plan: Plan) -> None:
    joined = communicators(plan)
    table(
        "Programs",
        ("program", "ranks", "weights>", "inputs>", "outputs>", "communicators>"),
        [
            (
                program.name,
                program.ranks,
                size(sum(weight.bytes for weight in program.weights)),
                size(sum(tensor.bytes for tensor in program.inputs)),
                size(sum(tensor.bytes for tensor in program.outputs)),
                str(joined.get(program.name, "-")),
            )
            for program in plan.programs
        ],
    )


def _print_memory(plan: Plan) -> None:
    rows = [(part.name, size(part.bytes)) for part in plan.memory]
    rows.append(("sum", size(plan.memory_bytes)))
    if plan.hbm_bytes is not None:
        rows.append(("HBM that can be filled", size(plan.hbm_bytes)))
        rows.append(("margin", size(plan.hbm_bytes - plan.memory_bytes)))
    table(f"Memory of a {'rank' if plan.hbm_bytes is None else 'core'}", ("part", "size>"), rows)


def _print_step(plan: Plan) -> None:
    """What one step of denoising asks of a rank, and of all."""
    step, ranks = plan.stage_work("step"), plan.variant.topology.ranks
    work = step.total
    plain = work.hbm_bytes + work.score_bytes
    memory = [("memory read and written", size(plain), "")]
    if plan.cost:
        memory = [
            ("HBM read and written", size(work.hbm_bytes), "with attention kernels"),
            ("", size(plain), "with plain StableHLO attention"),
        ]
    rows = [
        ("matmuls", flops(work.flops), f"{flops(work.flops * ranks)} on all ranks"),
        *memory,
        *((f"sent in {how}", size(sent), "") for how, sent in _sent(work) if sent),
        ("calls of programs", str(step.launches), "both guidance branches"),
    ]
    table("A step of denoising on a rank", ("", ">", ""), rows)


def _sent(work: Work) -> list[tuple[str, int]]:
    return [
        ("all-gathers", work.gathered_bytes),
        ("reduce-scatters", work.scattered_bytes),
        ("all-reduces", work.reduced_bytes),
        ("ring permutes", work.permuted_bytes),
    ]


def _print_cost(cost: Cost) -> None:
    kernels, plain = cost.kernels, cost.stablehlo
    images = () if kernels.image is None else (("image encoding", kernels.image, plain.image),)
    stages = (
        ("text encoding", kernels.text, plain.text),
        *images,
        ("one step", kernels.step, plain.step),
        (f"denoising, {cost.steps} steps", kernels.denoise, plain.denoise),
        ("VAE decoding", kernels.decode, plain.decode),
    )
    rows = [
        (name, seconds(a.seconds), limit(a), seconds(b.seconds), limit(b))
        for name, a, b in stages
        if b is not None
    ]
    rows.append(("host", seconds(kernels.host_seconds), "", seconds(plain.host_seconds), ""))
    rows.append(("a video", seconds(kernels.seconds), "", seconds(plain.seconds), ""))
    heads = ("", "with kernels>", "limited by", "plain StableHLO>", "limited by")
    table("Predicted times", heads, rows)
    emit(NOT_MEASURED)

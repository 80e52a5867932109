"""wanc plan: everything that is known before anything is traced."""

from typing import Any

from wanc.cli import options
from wanc.cli.request import plans_of
from wanc.cli.terminal import count, emit_json, size, table
from wanc.plan.plan import Plan
from wanc.spec.sets import Request


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
    json: options.Json = False,
) -> None:
    """Work out variants in milliseconds.

    Geometry, programs, memory; refuses what cannot work, naming what would."""
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
    _, plans = plans_of(set_file, flags, max_ranks)
    print_plans(plans, json)


def print_plans(plans: list[Plan], as_json: bool) -> None:
    """Plans for people or for programs."""
    if as_json:
        emit_json({"variants": [plan_json(plan) for plan in plans]})
        return
    for plan in plans:
        print_plan(plan)


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan for programs."""
    import msgspec

    value: dict[str, Any] = msgspec.to_builtins(plan)
    value["variant"] = plan.variant.texts()
    value["memory_bytes"] = plan.memory_bytes
    return value


def print_plan(plan: Plan) -> None:
    """A plan for people."""
    grid, split, tiles = plan.geometry, plan.tokens, plan.tiles
    topology = plan.variant.topology
    tail = split.padded_chunk_tokens - split.chunk_tokens
    pads = topology.cp * split.chunk_tokens - split.tokens
    stride = plan.model.vae.spatial_stride
    shapes = ", ".join(f"{stride * c}x{stride * r} px" for r, c in tiles.shapes)
    rows = [
        ("model", plan.model.name),
        ("latent", f"{grid.latent_frames} frames of {grid.latent_columns}x{grid.latent_rows}"),
        ("tokens", f"{split.tokens}, {split.shard_tokens} a rank"),
        ("padding", f"{count(tail, 'row')} at each chunk's tail, sliced off before attention"),
        ("masked keys", f"{pads} pads in the last chunks" if split.masked else "none"),
        ("ranks", str(topology.ranks)),
        ("VAE tiles", f"{len(tiles.tiles)} of {shapes} on {count(len(set(tiles.ranks)), 'rank')}"),
    ]
    table(f"{plan.variant}", ("", ""), rows)
    table(
        "Programs",
        ("program", "ranks", "weights>", "inputs>", "outputs>"),
        [
            (
                program.name,
                program.ranks,
                size(sum(weight.bytes for weight in program.weights)),
                size(sum(tensor.bytes for tensor in program.inputs)),
                size(sum(tensor.bytes for tensor in program.outputs)),
            )
            for program in plan.programs
        ],
    )
    memory = [(part.name, size(part.bytes)) for part in plan.memory]
    table("Memory of a rank", ("part", "size>"), [*memory, ("sum", size(plan.memory_bytes))])

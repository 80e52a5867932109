"""A variant's config against the plan that its model, variant and options have today.

Arithmetic on untrusted numbers: sizes that no plan would end on are findings, and so is whatever
planning raises.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from wanc.bundle.config import VariantConfig
from wanc.digest import canonical_json
from wanc.plan.plan import work_out
from wanc.spec.checkpoint import MOST, MOST_LAYERS
from wanc.spec.model import EXPERT_COMPONENTS
from wanc.verify.findings import Findings

MOST_RANKS = 4096
MOST_SIDE_PX = 16_384
MOST_FRAMES = 100_000
MOST_DIMS = 16
"""Of a tensor."""


def check_sizes(where: str, config: VariantConfig, found: Findings) -> bool:
    """Whether a config's numbers are of sizes that anything can be worked out of."""
    absurd = _absurd(config)
    if absurd:
        found.fault("plan", where, f"sizes that are not planned: {'; '.join(absurd)}")
    return not absurd


def check_plan(where: str, config: VariantConfig, found: Findings) -> None:
    """Everything that follows from model, variant and options is what it follows to."""
    vae = config.model.vae
    for numbers in ("latents_mean", "latents_std"):
        if (seen := len(getattr(vae, numbers))) != vae.z_channels:
            needed = f"the VAE has {vae.z_channels} channels"
            found.fault("plan", where, f"{numbers} has {seen} numbers; {needed}")
    try:
        plan = work_out(config.model, config.variant, config.options)
    except Exception as error:  # of numbers that fit their types and nothing else
        found.fault("plan", where, f"cannot be planned: {type(error).__name__}: {error}")
        return
    order = [program.name for program in plan.programs]
    programs = {record.program.name: record.program for record in config.programs}
    if [*programs] != order and sorted(programs) == sorted(order):
        found.fault("plan", where, "its programs are in another order than planned")
    for part in ("geometry", "tokens", "mesh", "tiles", "schedule"):
        if getattr(plan, part) != getattr(config, part):
            found.fault("plan", where, f"its {part} is not what the plan has")
    for program in plan.programs:
        mine = programs.pop(program.name, None)
        if mine is None:
            found.fault("plan", where, f"program {program.name} is not there")
        elif differing := [
            name
            for name, value in msgspec.to_builtins(program).items()
            if not _is_same(value, msgspec.to_builtins(getattr(mine, name)))
        ]:
            listed = ", ".join(differing)
            found.fault("plan", where, f"program {program.name} has another {listed} than planned")
    for name in programs:
        found.fault("plan", where, f"program {name} is not in the plan")


def _is_same(planned: Any, seen: Any) -> bool:
    """Whether JSON values are: 1, 1.0 and True are three. What is not equal may be too deep."""
    return bool(planned == seen) and canonical_json(planned) == canonical_json(seen)


def _absurd(config: VariantConfig) -> list[str]:
    """Numbers that a plan would take too long or too much memory for."""
    shape, topology = config.variant.shape, config.variant.topology
    named = {
        "width": (shape.width_px, MOST_SIDE_PX),
        "height": (shape.height_px, MOST_SIDE_PX),
        "frames": (shape.frames, MOST_FRAMES),
        "tp": (topology.tp, MOST_RANKS),
        "cp": (topology.cp, MOST_RANKS),
        "cfg": (topology.cfg, MOST_RANKS),
        "ranks": (topology.ranks, MOST_RANKS),
    }
    for name, part in (
        ("transformer", config.model.transformer),
        ("text encoder", config.model.text_encoder),
        ("VAE", config.model.vae),
    ):
        for key, value in msgspec.to_builtins(part).items():
            if type(value) is int:
                most = MOST_LAYERS if key in ("layers", "residual_blocks") else MOST
                named[f"{name} {key}"] = value, most
    named["number of experts"] = len(config.model.experts), len(EXPERT_COMPONENTS)
    blocks = config.options.blocks_per_program
    named["blocks per program"] = 1 if blocks is None else blocks, MOST_LAYERS
    named["dimensions of a tensor"] = max(1, *map(len, _shapes(config))), MOST_DIMS
    return [f"{name} {value}" for name, (value, most) in named.items() if not 1 <= value <= most]


def _shapes(config: VariantConfig) -> Iterator[tuple[int, ...]]:
    """Of all tensors, beginning with one of no dimension."""
    yield ()
    yield from (feed.shape for feed in config.schedule.feeds)
    for record in config.programs:
        program = record.program
        yield from (tensor.shape for tensor in (*program.arguments, *program.outputs))
        yield from (weight.stored_shape for weight in program.weights)

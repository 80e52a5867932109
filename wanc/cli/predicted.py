"""Predicted times for people: their units, what they rest on, and topologies ranked by them."""

from typing import Any

import msgspec

from wanc.cli.request import Ranking
from wanc.cli.stage import stage_json
from wanc.cli.terminal import emit, emit_json, table
from wanc.plan.cost import Time
from wanc.plan.plan import Plan
from wanc.spec.stage import Stage
from wanc.units import count, seconds, size

NOT_MEASURED = (
    "Times are predictions. Those with attention kernels are calibrated on public\n"
    "runs on trn2; those with plain StableHLO, which this version compiles, are not."
)


def print_rankings(rankings: list[Ranking], as_json: bool, stage: Stage | None = None) -> None:
    """Topologies that suit each shape, fastest first, for people or for programs."""
    if as_json:
        ranked = [_ranked_json(plan) for ranking in rankings for plan in ranking.plans]
        emit_json({"proposals": ranked} | stage_json(stage))
        return
    for ranking in rankings:
        variant = ranking.variant
        what = f"{variant.task} {variant.shape} {variant.precision} {variant.target}"
        heads = ("topology", "ranks>", "step>", "video>", "limited by")
        table(
            f"{what}: topologies for {count(ranking.cores, 'core')}, fastest first",
            (*heads, "plain>", "memory>", "margin>"),
            [_ranked_row(plan) for plan in ranking.plans],
        )
    emit("Step and video are with attention kernels, plain is a video without.")
    emit(NOT_MEASURED)


def _ranked_row(plan: Plan) -> tuple[str, ...]:
    assert plan.cost is not None
    assert plan.hbm_bytes is not None
    kernels = plan.cost.kernels
    return (
        str(plan.variant.topology),
        str(plan.variant.topology.ranks),
        seconds(kernels.step.seconds),
        seconds(kernels.seconds),
        limit(kernels.step),
        seconds(plan.cost.stablehlo.seconds),
        size(plan.memory_bytes),
        size(plan.hbm_bytes - plan.memory_bytes),
    )


def _ranked_json(plan: Plan) -> dict[str, Any]:
    return {
        "variant": plan.variant.texts(),
        "ranks": plan.variant.topology.ranks,
        "cost": msgspec.to_builtins(plan.cost),
        "memory_bytes": plan.memory_bytes,
        "hbm_bytes": plan.hbm_bytes,
    }


def flops(number: int) -> str:
    """FLOPs for people."""
    value = number / 1e9
    for unit in ("GFLOP", "TFLOP", "PFLOP"):
        if value < 1000 or unit == "PFLOP":
            break
        value /= 1000
    return f"{value:.1f} {unit}"


def limit(time: Time) -> str:
    """What limits a time most, and its share."""
    return f"{time.limited_by} {time.share(time.limited_by) / time.seconds:.0%}"

"""Predicted seconds of a run's steps, for who watches whether they stall."""

from wanc.bundle.config import VariantConfig
from wanc.plan.cost import stage_time
from wanc.plan.work import StageWork, stage_works
from wanc.run.memory import plain_programs
from wanc.spec.target import Accelerator, target_facts

SLOW_HOST_FLOPS_PER_SECOND = 1e9
"""Of a machine whose ranks lie on the CPU. Any does more: it is a bound, and no estimate."""

_TASKS = {
    "encode_text": "encode text",
    "context": "encode text",
    "encode_image": "encode image",
    "step": "denoise",
}
"""Where a stage's work is reported; decoding, as itself."""


def step_seconds(config: VariantConfig) -> dict[str, float]:
    """Seconds that a step of each task should take at most, by its name; none for odd configs."""
    try:
        works = stage_works(
            [*plain_programs(config).values()],
            config.schedule,
            config.tiles,
            config.geometry.latent_frames,
        )
    except (LookupError, TypeError, ValueError, StopIteration):  # of definitions, which are free
        return {}
    accelerator = target_facts(config.variant.target).accelerator
    found: dict[str, float] = {}
    for work in works:
        task = _TASKS.get(work.name, work.name)
        seconds = _seconds(work, accelerator, config.variant.topology.ranks)
        found[task] = found.get(task, 0.0) + seconds
    return found


def _seconds(work: StageWork, accelerator: Accelerator | None, ranks: int) -> float:
    if accelerator:
        return stage_time(accelerator, work, "stablehlo").seconds
    return ranks * work.total.flops / SLOW_HOST_FLOPS_PER_SECOND

"""What would work in place of a request that is refused, and which topologies suit it best.

Varies a request and ranks what is accepted by predicted time. How a plan is made is given to it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Protocol, TypeVar

from wanc.errors import RefusedError
from wanc.plan.cost import Cost
from wanc.plan.sharding import legal_tp_degrees
from wanc.spec.model import Model
from wanc.spec.shape import nearest_frames, nearest_multiples
from wanc.spec.target import TARGETS, target_facts
from wanc.spec.topology import GUIDANCE_BRANCHES, Topology
from wanc.spec.variant import Options, Variant

MOST = 3
"""Proposals in a message."""

SMALLER = (0.75, 0.5, 0.25)
"""Parts of a side, and by their squares of the frames, tried where nothing else works."""


class Planned(Protocol):
    """A plan, as far as ranking needs it."""

    @property
    def variant(self) -> Variant:
        """What was planned."""

    @property
    def cost(self) -> Cost | None:
        """Predicted times, where the target has any."""


P = TypeVar("P", bound=Planned)
Attempt = Callable[[Variant, Options], P]
"""Plans a variant; raises RefusedError."""


def best_topologies(
    model: Model, variant: Variant, options: Options, cores: int, attempt: Attempt[P]
) -> list[P]:
    """Plans of the topologies that fit so many cores, fastest first.

    Those that leave cores idle are there only where they are faster than all that leave none, or
    where there are no others; those that leave more than half idle only where nothing else fits.
    """
    tried = [replace(variant, topology=t) for t in topologies(model, variant, cores)]
    busy = [one for one in tried if 2 * one.topology.ranks >= cores]
    idle = [one for one in tried if 2 * one.topology.ranks < cores]
    found = _ranked(_accepted(busy, options, attempt) or _accepted(idle, options, attempt))
    full = [plan for plan in found if plan.variant.topology.ranks == cores]
    return found[: found.index(full[0])] + full if full else found


def topologies(model: Model, variant: Variant, cores: int) -> Iterator[Topology]:
    """Legal degrees of tp and cfg, and cp so that the ranks divide the cores or the machine's."""
    accelerator = target_facts(variant.target).accelerator
    machine = accelerator.fabric.cores if accelerator else cores
    for tp in legal_tp_degrees(model):
        for cfg in range(1, GUIDANCE_BRANCHES + 1):
            for cp in range(1, cores // (tp * cfg) + 1):
                ranks = tp * cp * cfg
                if not cores % ranks or not machine % ranks:
                    yield Topology(tp=tp, cp=cp, cfg=cfg)


def what_would_work(model: Model, variant: Variant, options: Options, attempt: Attempt[P]) -> str:
    """What to say after a refusal, or nothing where nothing near it is accepted.

    Shapes of the model's grain; on an accelerator also placement, precision, fewer blocks in a
    program, topologies, targets and, if none of these helps, smaller videos. Smaller ones stand
    largest first, all others fastest first.
    """
    facts = target_facts(variant.target)
    at_home = replace(variant, placement=facts.default_placement)

    def accepted(tried: Iterable[Variant]) -> list[P]:
        return _accepted(tried, options, attempt)

    coarser = list(_on_grain(model, variant))
    if coarser or facts.accelerator is None:
        return _joined([_named("shape", _ranked(accepted(coarser)))])
    if at_home != variant and (placed := accepted([at_home])):
        return _joined([_named("placement", placed)])
    narrow = replace(variant, precision=facts.default_precision)
    others = [
        _named("precision", accepted([narrow] if narrow != variant else [])),
        _fewer_blocks(model, variant, options, attempt),
        _named("topology", _ranked(_nearest_topologies(model, variant, accepted))),
        _named("target", _ranked(accepted(_elsewhere(variant)))),
    ]
    return _joined(others) or _joined([_named("shape", accepted(_smaller(model, variant)))])


def _joined(advice: Iterable[str]) -> str:
    said = " or ".join(filter(None, advice))
    times = ", with predicted times" if "(" in said else ""
    return f"would work{times}: {said}" if said else ""


def _named(flag: str, plans: list[P]) -> str:
    """The flag and its values, with predicted times."""
    values = [f"{plan.variant.texts()[flag]}{_seconds(plan)}" for plan in plans[:MOST]]
    return f"--{flag} {', '.join(values)}" if values else ""


def _seconds(plan: Planned) -> str:
    return f" ({plan.cost.kernels.seconds:.0f} s)" if plan.cost else ""


def _fewer_blocks(model: Model, variant: Variant, options: Options, attempt: Attempt[P]) -> str:
    """The most blocks in a program, fewer than asked for, that are accepted."""
    layers = model.transformer.layers
    asked = options.blocks_per_program or target_facts(variant.target).blocks_per_program
    for blocks in (n for n in range(min(layers, asked - 1), 0, -1) if layers % n == 0):
        for plan in _accepted([variant], replace(options, blocks_per_program=blocks), attempt):
            return f"--blocks-per-program {blocks}{_seconds(plan)}"
    return ""


def _accepted(tried: Iterable[Variant], options: Options, attempt: Attempt[P]) -> list[P]:
    plans = []
    for variant in tried:
        try:
            plans.append(attempt(variant, options))
        except RefusedError:
            continue
    return plans


def _ranked(plans: Iterable[P]) -> list[P]:
    """Fastest first, with kernels; plans without times stay as they come."""
    return sorted(plans, key=lambda plan: plan.cost.kernels.seconds if plan.cost else 0.0)


def _nearest_topologies(
    model: Model, variant: Variant, accepted: Callable[[Iterable[Variant]], list[P]]
) -> list[P]:
    """Those of about as many ranks that are accepted, else of twice as many, and so on."""
    accelerator = target_facts(variant.target).accelerator
    assert accelerator is not None, "only an accelerator's machine has a size"
    machine = accelerator.fabric.cores
    cores = min(machine, 1 << (variant.topology.ranks - 1).bit_length())
    while True:
        found = accepted(
            replace(variant, topology=topology)
            for topology in topologies(model, variant, cores)
            if 2 * topology.ranks >= cores
        )
        if found or cores == machine:
            return found
        cores = min(machine, 2 * cores)


def _elsewhere(variant: Variant) -> Iterator[Variant]:
    """The variant on every other accelerator, placed as is usual there."""
    for name, facts in TARGETS.items():
        if facts.accelerator and name != variant.target:
            yield replace(variant, target=name, placement=facts.default_placement)


def _on_grain(model: Model, variant: Variant) -> Iterator[Variant]:
    """The nearest shapes that the model can make; none where it can make the variant's own."""
    shape, grain = variant.shape, _grain_px(model)
    if not (shape.width_px % grain or shape.height_px % grain):
        return
    widths, heights = (_multiples(size, grain) for size in (shape.width_px, shape.height_px))
    for width, height in product(widths, heights):
        yield replace(variant, shape=replace(shape, width_px=width, height_px=height))


def _multiples(size_px: int, grain_px: int) -> tuple[int, ...]:
    return nearest_multiples(size_px, grain_px) if size_px % grain_px else (size_px,)


def _smaller(model: Model, variant: Variant) -> Iterator[Variant]:
    """The video with a part of its width and height, and with a part of its frames."""
    shape, grain = variant.shape, _grain_px(model)
    for part in SMALLER:
        width, height = (
            max(grain, int(part * size) // grain * grain)
            for size in (shape.width_px, shape.height_px)
        )
        yield replace(variant, shape=replace(shape, width_px=width, height_px=height))
        frames, *_ = nearest_frames(int(part * part * shape.frames))
        yield replace(variant, shape=replace(shape, frames=frames))


def _grain_px(model: Model) -> int:
    return model.vae.spatial_stride * model.transformer.patch_FHW[1]

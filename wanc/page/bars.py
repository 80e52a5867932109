"""Stacked bars: the memory of a rank and the time of a video. Parts with their place in percent."""

from collections.abc import Iterable
from dataclasses import dataclass

from wanc.plan.cost import Cost, Time
from wanc.plan.plan import Plan

TONES = {"weights": 4, "held": 10}
"""Colours of the style sheet for components' weights, and for all else that a rank holds."""
SPLIT, REPLICATED = ", split by tp", ", replicated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part of a bar."""

    name: str
    value: float
    """Bytes or seconds."""
    tone: str
    """Class of its colour, the same all over a page."""
    start_percent: float
    width_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBar:
    """The fullest rank."""

    segments: tuple[Segment, ...]
    bytes: int
    limit_bytes: int | None
    """Most that a core may hold; None where the machine is any CPU."""
    limit_percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRow:
    """A stage's time and what limits it, with attention as a kernel and as plain StableHLO."""

    name: str
    tone: str
    kernels_seconds: float
    stablehlo_seconds: float
    kernels: Time | None = None
    """None where nothing of the accelerator limits it."""
    stablehlo: Time | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """A video's time by stage, twice, on one scale."""

    steps: int
    rows: tuple[TimeRow, ...]
    step: TimeRow
    """One step of those that denoising is."""
    kernels: tuple[Segment, ...]
    stablehlo: tuple[Segment, ...]
    kernels_seconds: float
    stablehlo_seconds: float


def stack(parts: Iterable[tuple[str, float, str]], most: float) -> tuple[Segment, ...]:
    """Parts (name, value, tone) one after the other, on a scale that ends at most."""
    segments, at = [], 0.0
    for name, value, tone in parts:
        segments.append(
            Segment(
                name=name,
                value=value,
                tone=tone,
                start_percent=percent(at, most),
                width_percent=percent(value, most),
            )
        )
        at += value
    return tuple(segments)


def percent(value: float, most: float) -> float:
    """A part of a scale, as precise as a screen can show."""
    return round(100 * value / most, 3)


# --- memory ---------------------------------------------------------------------------------------


def memory_scale(plans: Iterable[Plan]) -> int:
    """Bytes at which the scale of all bars ends."""
    return max((max(plan.memory_bytes, plan.hbm_bytes or 0) for plan in plans), default=1)


def memory_bar(plan: Plan, most: int, tones: dict[str, str]) -> MemoryBar:
    """The parts of a plan's memory."""
    limit = plan.hbm_bytes
    return MemoryBar(
        segments=stack(((p.name, p.bytes, tones[p.name]) for p in plan.memory), most),
        bytes=plan.memory_bytes,
        limit_bytes=limit,
        limit_percent=None if limit is None else percent(limit, most),
    )


def memory_tones(plans: Iterable[Plan]) -> dict[str, str]:
    """A class for every part: one for each component's weights, paler where they are replicated."""
    parts = dict.fromkeys(part.name for plan in plans for part in plan.memory)
    numbers: dict[str, dict[str, int]] = {kind: {} for kind in TONES}
    tones = {}
    for name in parts:
        base = name.removesuffix(SPLIT).removesuffix(REPLICATED)
        kind = "held" if base == name else "weights"
        number = numbers[kind].setdefault(base, len(numbers[kind])) % TONES[kind]
        tones[name] = f"{kind}-{number}{' pale' if name.endswith(REPLICATED) else ''}"
    return tones


# --- times ----------------------------------------------------------------------------------------


def times_of(cost: Cost) -> Times:
    """Both predictions of a plan."""
    kernels, plain = cost.kernels, cost.stablehlo
    rows = tuple(
        _row(name, tone, a, b)
        for name, tone, a, b in (
            ("text encoding", "text", kernels.text, plain.text),
            ("image encoding", "image", kernels.image, plain.image),
            (f"denoising, {cost.steps} steps", "denoise", kernels.denoise, plain.denoise),
            ("VAE decoding", "decode", kernels.decode, plain.decode),
        )
        if a is not None and b is not None
    )
    host = TimeRow(
        name="host",
        tone="stage-host",
        kernels_seconds=kernels.host_seconds,
        stablehlo_seconds=plain.host_seconds,
    )
    rows = (*rows, host)
    most = max(kernels.seconds, plain.seconds)
    return Times(
        steps=cost.steps,
        rows=rows,
        step=_row("one step", "denoise", kernels.step, plain.step),
        kernels=stack(((r.name, r.kernels_seconds, r.tone) for r in rows), most),
        stablehlo=stack(((r.name, r.stablehlo_seconds, r.tone) for r in rows), most),
        kernels_seconds=kernels.seconds,
        stablehlo_seconds=plain.seconds,
    )


def _row(name: str, tone: str, kernels: Time, stablehlo: Time) -> TimeRow:
    return TimeRow(
        name=name,
        tone=f"stage-{tone}",
        kernels_seconds=kernels.seconds,
        stablehlo_seconds=stablehlo.seconds,
        kernels=kernels,
        stablehlo=stablehlo,
    )

"""A variant's schedule for a page: stages, their calls in order, what goes in and comes out."""

from dataclasses import dataclass
from itertools import groupby

from wanc.bundle.config import VariantConfig
from wanc.bundle.described import holders
from wanc.plan.schedule import Call, Stage
from wanc.units import spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Calls of one program that follow one another."""

    program: str
    component: str
    calls: int
    layers: str
    """As ``0-39``; empty where the program is of no layers."""
    branches: str
    """Guidance branches served, as ``0-1``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage."""

    name: str
    calls: int
    runs: tuple[Run, ...]
    feeds: tuple[str, ...]
    """What the host supplies."""
    results: tuple[str, ...]
    """What the host fetches, and from which ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRow:
    """An input that the host supplies, whole."""

    name: str
    shape: str
    dtype: str


def stage_rows(config: VariantConfig) -> tuple[StageRow, ...]:
    """Stages in their order."""
    return tuple(_stage(stage) for stage in config.schedule.stages)


def feed_rows(config: VariantConfig) -> tuple[FeedRow, ...]:
    """All feeds of the schedule."""
    return tuple(
        FeedRow(name=feed.name, shape="x".join(map(str, feed.shape)), dtype=feed.dtype)
        for feed in config.schedule.feeds
    )


def _stage(stage: Stage) -> StageRow:
    feeds = [b.feed for call in stage.calls for b in call.inputs if b.feed is not None]
    alike = groupby(stage.calls, key=lambda call: (call.program, call.component, call.branches))
    return StageRow(
        name=stage.name,
        calls=len(stage.calls),
        runs=tuple(_run(list(calls)) for _, calls in alike),
        feeds=tuple(dict.fromkeys(feeds)),
        results=tuple(f"{result.value} of {holders(result)}" for result in stage.results),
    )


def _run(calls: list[Call]) -> Run:
    first = calls[0]
    return Run(
        program=first.program,
        component=first.component,
        calls=len(calls),
        layers=spans(layer for call in calls for layer in call.layers),
        branches=spans(first.branches),
    )

"""A page on a bundle: what it shows, worked out of the opened bundle. Knows no HTML.

Input is untrusted: what cannot be worked out of it is left out, and the page says so.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from wanc.bundle.config import FORMAT_VERSION, VariantConfig
from wanc.bundle.described import DONE
from wanc.bundle.reports import read_reports
from wanc.bundle.sharing import BlobUses, Sharing, blob_uses, sharing_of
from wanc.bundle.store import Bundle, BundleVariant, config_blobs
from wanc.page.bars import MemoryBar, Times, memory_bar, memory_scale, memory_tones, times_of
from wanc.page.facts import facts_of
from wanc.page.predicted import Predicted, predicted
from wanc.page.programs import ProgramRow, SharedRow, program_rows, shared_rows
from wanc.page.provenance import Provenance, ReportRow, provenance_of, report_rows
from wanc.page.ranks import RankMap, rank_map
from wanc.page.schedule import FeedRow, StageRow, feed_rows, stage_rows
from wanc.page.tiles import TileMap, tile_map

MOST_VARIANTS = 100
"""Shown on one page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantView:
    """One variant, as the page shows it."""

    number: int
    """In the bundle, from 1."""
    config: VariantConfig
    done: str
    blobs: int
    bytes: int
    """Of its blobs, each once."""
    facts: tuple[tuple[str, str], ...]
    predicted: Predicted
    memory: MemoryBar | None
    """On a scale of its own."""
    memory_among: MemoryBar | None
    """On one scale with all others of the page."""
    times: Times | None
    ranks: RankMap | None
    tiles: TileMap | None
    programs: tuple[ProgramRow, ...]
    stages: tuple[StageRow, ...]
    feeds: tuple[FeedRow, ...]
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All of a page."""

    name: str
    """Of the bundle's folder."""
    digest: str
    format_version: int
    sharing: Sharing
    """Of the whole bundle, whichever variants are shown."""
    in_bundle: int
    """Variants of the bundle."""
    variants: tuple[VariantView, ...]
    shared: tuple[SharedRow, ...]
    reports: tuple[ReportRow, ...]


def page_of(bundle: Bundle, number: int | None = None) -> Page:
    """A page on all variants of a bundle, or on one; raises BundleError for damaged reports."""
    configs = [entry.config for entry in bundle.variants]
    uses = blob_uses(configs)
    numbered = list(enumerate(bundle.variants, start=1))
    chosen = numbered[:MOST_VARIANTS] if number is None else [numbered[number - 1]]
    return Page(
        name=os.path.basename(os.path.abspath(bundle.path)),
        digest=bundle.digest,
        format_version=FORMAT_VERSION,
        sharing=sharing_of(configs),
        in_bundle=len(configs),
        variants=_views(chosen, uses),
        shared=shared_rows(configs, uses) if number is None else (),
        reports=report_rows(read_reports(bundle), configs),
    )


def _views(
    chosen: Sequence[tuple[int, BundleVariant]], uses: dict[str, BlobUses]
) -> tuple[VariantView, ...]:
    """Variants, their parts of memory in one set of colours."""
    known = {number: predicted(entry.config) for number, entry in chosen}
    plans = [each.plan for each in known.values() if each.plan]
    most, tones = memory_scale(plans), memory_tones(plans)

    def view(number: int, entry: BundleVariant) -> VariantView:
        config, plan = entry.config, known[number].plan
        blobs = config_blobs(config)
        return VariantView(
            number=number,
            config=config,
            done=DONE[config.stage],
            blobs=len(blobs),
            bytes=sum(blob.size_bytes for blob in blobs),
            facts=facts_of(config),
            predicted=known[number],
            memory=memory_bar(plan, memory_scale([plan]), tones) if plan else None,
            memory_among=memory_bar(plan, most, tones) if plan else None,
            times=times_of(plan.cost) if plan and plan.cost else None,
            ranks=rank_map(config),
            tiles=tile_map(config),
            programs=program_rows(config, uses),
            stages=stage_rows(config),
            feeds=feed_rows(config),
            provenance=provenance_of(config, entry.manifest.digest),
        )

    return tuple(view(number, entry) for number, entry in chosen)

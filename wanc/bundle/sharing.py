"""What the programs of a bundle share, beside what compiling each use of them would make.

Knows configs only.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from wanc.bundle.config import VariantConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Blobs of some variants, and what they would be without sharing."""

    blobs: int
    """Distinct StableHLO artifacts and executables."""
    bytes: int
    programs: int
    """Distinct programs, for each target: what is compiled."""
    uses: int
    """Programs by rank, expert and layer group of every variant: what a compiler run for each of
    them would be."""
    uses_bytes: int
    """Bytes of an artifact and an executable for each use."""


def sharing_of(configs: Iterable[VariantConfig]) -> Sharing:
    """Count blobs and uses."""
    blobs: dict[str, int] = {}
    programs: set[tuple[str, str]] = set()
    uses = uses_bytes = 0
    for config in configs:
        count = uses_by_program(config)
        for record in config.programs:
            size = sum(blob.size_bytes for blob in record.blobs)
            blobs.update((blob.digest, blob.size_bytes) for blob in record.blobs)
            programs.update((config.variant.target, blob.digest) for blob in record.blobs[:1])
            uses += count[record.program.name]
            uses_bytes += count[record.program.name] * size
    return Sharing(
        blobs=len(blobs),
        bytes=sum(blobs.values()),
        programs=len(programs),
        uses=uses,
        uses_bytes=uses_bytes,
    )


def uses_by_program(config: VariantConfig) -> dict[str, int]:
    """How many (rank, component, layer group) each program of a variant serves."""
    served: dict[str, set[tuple[str, tuple[int, ...]]]] = {}
    for stage in config.schedule.stages:
        for call in stage.calls:
            served.setdefault(call.program, set()).add((call.component, call.layers))
    tile_ranks = len(set(config.tiles.ranks))
    return {
        record.program.name: len(served.get(record.program.name, ()))
        * (record.program.replica_count if record.program.ranks == "all" else tile_ranks)
        for record in config.programs
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobUses:
    """A blob of a bundle, and what it serves."""

    digest: str
    size_bytes: int
    by_variant: dict[int, int]
    """Variant's number, from 1 -> uses there."""

    @property
    def uses(self) -> int:
        """In all variants."""
        return sum(self.by_variant.values())


def blob_uses(configs: Iterable[VariantConfig]) -> dict[str, BlobUses]:
    """Uses of every blob, by digest."""
    found: dict[str, BlobUses] = {}
    for number, config in enumerate(configs, start=1):
        count = uses_by_program(config)
        for record in config.programs:
            for blob in record.blobs:
                served = found.setdefault(
                    blob.digest,
                    BlobUses(digest=blob.digest, size_bytes=blob.size_bytes, by_variant={}),
                ).by_variant
                served[number] = served.get(number, 0) + count[record.program.name]
    return found

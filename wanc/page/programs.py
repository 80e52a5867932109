"""A variant's programs for a page: blobs and whom they serve, calls, collectives."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wanc.bundle.config import Blob, VariantConfig
from wanc.bundle.described import calls_of_programs
from wanc.bundle.sharing import BlobUses, uses_by_program


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRow:
    """One program of a variant."""

    name: str
    replica_count: int
    uses: int
    """By rank, component and layer group of this variant."""
    calls: str
    stablehlo: BlobUses | None
    executable: BlobUses | None
    collectives: str
    """Of one call; empty where the program is not lowered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRow:
    """One program of a bundle, by its StableHLO."""

    names: tuple[str, ...]
    """What its variants call it."""
    blob: BlobUses


def program_rows(config: VariantConfig, uses: Mapping[str, BlobUses]) -> tuple[ProgramRow, ...]:
    """Programs in the order of the config."""
    calls, here = calls_of_programs(config), uses_by_program(config)

    def served(blob: Blob | None) -> BlobUses | None:
        return uses[blob.digest] if blob else None

    return tuple(
        ProgramRow(
            name=record.program.name,
            replica_count=record.program.replica_count,
            uses=here[record.program.name],
            calls=calls.get(record.program.name, "never called"),
            stablehlo=served(record.stablehlo),
            executable=served(record.executable),
            collectives=_collectives(record.collectives) if record.stablehlo else "",
        )
        for record in config.programs
    )


def _collectives(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def shared_rows(
    configs: Iterable[VariantConfig], uses: Mapping[str, BlobUses]
) -> tuple[SharedRow, ...]:
    """Distinct programs, those of a name beside each other."""
    names: dict[str, dict[str, None]] = {}
    order: dict[str, int] = {}
    for config in configs:
        for record in config.programs:
            if record.stablehlo:
                name = record.program.name
                names.setdefault(record.stablehlo.digest, {})[name] = None
                order.setdefault(name, len(order))
    rows = [SharedRow(names=tuple(found), blob=uses[digest]) for digest, found in names.items()]
    return tuple(sorted(rows, key=lambda row: order[row.names[0]]))

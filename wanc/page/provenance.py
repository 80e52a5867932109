"""What a variant's executables were made by, and what they need of a machine, for a page."""

from collections.abc import Iterable
from dataclasses import dataclass

from wanc.bundle.config import VariantConfig
from wanc.bundle.described import key_text
from wanc.bundle.reports import Attached
from wanc.errors import BundleError
from wanc.run.environment import environment

Rows = tuple[tuple[str, str], ...]
"""(name, value), in the order of the bundle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramKey:
    """Identity of one program, and the entries of its compile key that others have otherwise."""

    name: str
    stablehlo: str
    """Digest; empty where the program is not lowered."""
    executable: str
    entries: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Of one variant."""

    manifest: str
    common: Rows
    """Entries that every program's compile key has, with one value."""
    programs: tuple[ProgramKey, ...]
    requires: Rows
    environment: Rows
    """Variables that a run sets for its runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """A report that is attached to the bundle."""

    digest: str
    covers: tuple[tuple[str, str], ...]
    """(name, StableHLO digest) of the programs that it tells of."""


def provenance_of(config: VariantConfig, manifest: str) -> Provenance:
    """Compile keys, requirements and environment of a variant."""
    keys = {
        record.program.name: {entry: key_text(v) for entry, v in record.compile_key.items()}
        for record in config.programs
    }
    common = _common([key for key in keys.values() if key])
    return Provenance(
        manifest=manifest,
        common=tuple(common.items()),
        programs=tuple(
            ProgramKey(
                name=record.program.name,
                stablehlo=record.stablehlo.digest if record.stablehlo else "",
                executable=record.executable.digest if record.executable else "",
                entries=tuple(
                    (entry, value)
                    for entry, value in keys[record.program.name].items()
                    if entry not in common and entry != "stablehlo"
                ),
            )
            for record in config.programs
        ),
        requires=tuple((name, key_text(value)) for name, value in config.requires.items()),
        environment=_environment(config),
    )


def _common(keys: list[dict[str, str]]) -> dict[str, str]:
    first, *others = keys or [{}]
    return {
        entry: value
        for entry, value in first.items()
        if all(other.get(entry) == value for other in others)
    }


def _environment(config: VariantConfig) -> Rows:
    try:
        return tuple(environment(config).items())
    except BundleError as error:
        return (("cannot be said", str(error)),)


def report_rows(
    reports: Iterable[Attached], configs: Iterable[VariantConfig]
) -> tuple[ReportRow, ...]:
    """Reports, with the names of the programs that they cover."""
    names = {
        record.stablehlo.digest: record.program.name
        for config in configs
        for record in config.programs
        if record.stablehlo
    }
    return tuple(
        ReportRow(
            digest=report.digest,
            covers=tuple((names.get(digest, "not here"), digest) for digest in report.covers),
        )
        for report in reports
    )

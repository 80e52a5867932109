"""A variant's config: all that the run side knows of how a model was cut. Canonical JSON.

Holds no time, host or path. Records come from spec and plan; decoding checks every field's type.
"""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from wanc.digest import canonical_json
from wanc.errors import BundleError
from wanc.plan.abi import Program
from wanc.plan.geometry import Geometry, TokenSplit
from wanc.plan.mesh import Mesh
from wanc.plan.schedule import Schedule
from wanc.plan.tiles import TilePlan
from wanc.spec.model import Model
from wanc.spec.variant import Options, Until, Variant

if TYPE_CHECKING:
    from wanc.plan.plan import Plan

_COMPONENT = re.compile(r"[a-z0-9_]+")
"""Folder names of a checkpoint: no path leads out of it."""

FORMAT_VERSION = 4
"""Version of the bundle format; bundles/FORMAT.md has a dated line for every change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A blob of the bundle."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """A program, its identity and its realisation."""

    program: Program
    collectives: dict[str, int] = field(default_factory=dict)
    """How often each collective stands in the program."""
    stablehlo: Blob | None = None
    """None where compiling stopped before lowering."""
    executable: Blob | None = None
    """None where compiling stopped before it."""
    compile_key: dict[str, Any] = field(default_factory=dict)
    """All that determines the executable, entry by entry."""

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The blobs that there are, StableHLO before executable."""
        return tuple(blob for blob in (self.stablehlo, self.executable) if blob)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantConfig:
    """One variant of a bundle."""

    format_version: int
    variant: Variant
    model: Model
    options: Options
    geometry: Geometry
    tokens: TokenSplit
    mesh: Mesh
    tiles: TilePlan
    programs: tuple[ProgramRecord, ...]
    schedule: Schedule
    requires: dict[str, Any]
    """What a machine must have to run it: target, versions, instruction set."""

    @property
    def stage(self) -> Until:
        """How far the variant was compiled."""
        if all(record.executable for record in self.programs):
            return "compile"
        return "lower" if all(record.stablehlo for record in self.programs) else "plan"

    @property
    def latents_shape(self) -> tuple[int, ...]:
        """Shape of the latents that a run denoises, one video's."""
        grid = self.geometry
        size = (grid.latent_frames, grid.latent_rows, grid.latent_columns)
        return (1, self.model.transformer.out_channels, *size)

    def program(self, name: str) -> ProgramRecord:
        """A program by name; raises BundleError."""
        for record in self.programs:
            if record.program.name == name:
                return record
        names = ", ".join(record.program.name for record in self.programs)
        raise BundleError(f"variant {self.variant} has no program {name!r}; it has {names}")


def config_of(plan: "Plan") -> VariantConfig:
    """What a bundle holds of a plan before anything is lowered."""
    return VariantConfig(
        format_version=FORMAT_VERSION,
        variant=plan.variant,
        model=plan.model,
        options=plan.options,
        geometry=plan.geometry,
        tokens=plan.tokens,
        mesh=plan.mesh,
        tiles=plan.tiles,
        programs=tuple(ProgramRecord(program=program) for program in plan.programs),
        schedule=plan.schedule,
        requires={"target": plan.variant.target},
    )


def encode_config(config: VariantConfig) -> bytes:
    """The config's one spelling."""
    return canonical_json(msgspec.to_builtins(config))


def decode_config(data: bytes, where: str) -> VariantConfig:
    """Read a config, its format version before anything else; raises BundleError."""
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BundleError(f"{where}: the config is not JSON: {error}") from error
    check_format_version(raw.get("format_version") if isinstance(raw, dict) else None, where)
    try:
        config = msgspec.convert(raw, VariantConfig)
    except msgspec.ValidationError as error:
        raise BundleError(f"{where}: the config is damaged: {error}") from error
    problems = inconsistencies(config)
    if problems:
        raise BundleError(f"{where}: the config is damaged:\n  " + "\n  ".join(problems))
    return config


def inconsistencies(config: VariantConfig) -> list[str]:
    """What a schedule names that is not there: programs, feeds, components, ranks, arities."""
    programs = {record.program.name: record.program for record in config.programs}
    feeds = {feed.name for feed in config.schedule.feeds}
    found = []
    for stage in config.schedule.stages:
        for call in stage.calls:
            program = programs.get(call.program)
            if program is None:
                found.append(f"stage {stage.name} calls {call.program}, which is not there")
                continue
            if (len(call.inputs), len(call.outputs)) != (len(program.inputs), len(program.outputs)):
                found.append(f"stage {stage.name}: {call.program} has another number of tensors")
            if not _COMPONENT.fullmatch(call.component):
                found.append(f"stage {stage.name}: component {call.component!r} is not a folder")
            unknown = [b.feed for b in call.inputs if b.feed is not None and b.feed not in feeds]
            found += [f"stage {stage.name}: no feed {name}" for name in unknown]
    ranks = len(config.mesh.coordinates)
    results = [result for stage in config.schedule.stages for result in stage.results]
    named = [*config.tiles.ranks, *(rank for result in results for rank in result.ranks)]
    if any(not 0 <= rank < ranks for rank in named):
        found.append(f"a result or a tile is on a rank beyond the {ranks} of the mesh")
    return found


def check_format_version(seen: Any, where: str) -> None:
    """Raise BundleError where this version of wanc cannot read the bundle."""
    if type(seen) is not int:
        raise BundleError(f"{where}: no format version: this is not a wanc bundle")
    if seen != FORMAT_VERSION:
        newer = "a newer wanc reads it" if seen > FORMAT_VERSION else "compile it again"
        raise BundleError(
            f"{where}: bundle format {seen}; this wanc reads format {FORMAT_VERSION}: {newer}"
        )

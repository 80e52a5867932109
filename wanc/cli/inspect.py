"""wanc inspect: what a bundle holds, without loading any of it."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from wanc.bundle.config import Blob, ProgramRecord, VariantConfig
from wanc.bundle.reports import read_reports
from wanc.bundle.store import Bundle, BundleVariant, config_blobs, open_bundle
from wanc.cli import options
from wanc.cli.neff import print_neff
from wanc.cli.sharing import sharing_json, sharing_line
from wanc.cli.terminal import count, emit, emit_json, size, table
from wanc.errors import RequestError
from wanc.plan.abi import Tensor, Weight
from wanc.plan.mesh import Coordinates, Mesh
from wanc.plan.schedule import Result
from wanc.spec.target import TORUS, TRN2_FABRIC, Fabric
from wanc.spec.topology import AXES, Axis


def inspect_command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle, or a NEFF.")],
    variant: Annotated[
        int | None, typer.Argument(metavar="[VARIANT]", help="Its number, from 1.")
    ] = None,
    program: Annotated[str | None, typer.Argument(metavar="[PROGRAM]", help="Its name.")] = None,
    json: options.Json = False,
) -> None:
    """Show what a bundle holds.

    Its variants; with VARIANT its programs and schedule; with PROGRAM one interface."""
    if bundle.is_file() and variant is None:
        print_neff(bundle, json)
        return
    opened = open_bundle(bundle)
    entry = None if variant is None else chosen(opened, variant)
    record = None if entry is None or program is None else entry.config.program(program)
    if json:
        emit_json(selected_json(opened, entry, record))
    elif record is not None:
        print_program(record)
    elif entry is not None:
        print_variant(entry.config)
    else:
        print_bundle(opened)


def chosen(bundle: Bundle, number: int) -> BundleVariant:
    """A variant by its number, from 1."""
    if not 1 <= number <= len(bundle.variants):
        raise RequestError(f"variant {number}: the bundle has 1 to {len(bundle.variants)}")
    return bundle.variants[number - 1]


def selected_json(
    bundle: Bundle, entry: BundleVariant | None, record: ProgramRecord | None
) -> dict[str, Any]:
    """The bundle, one variant or one program, for programs."""
    if entry is None:
        return bundle_json(bundle)
    return _variant_json(entry) if record is None else _program_json(record, entry.config)


def bundle_json(bundle: Bundle) -> dict[str, Any]:
    """Everything of a bundle, for programs."""
    return {
        "bundle": str(bundle.path),
        "digest": bundle.digest,
        "sharing": sharing_json(entry.config for entry in bundle.variants),
        "variants": [_variant_json(entry) for entry in bundle.variants],
        "reports": [
            {"digest": report.digest, "covers": list(report.covers)}
            for report in read_reports(bundle)
        ],
    }


def _variant_json(entry: BundleVariant) -> dict[str, Any]:
    import msgspec

    from wanc.run.environment import environment

    config = entry.config
    return {
        **config.variant.texts(),
        "model": config.model.name,
        "manifest": entry.manifest.digest,
        "stage": config.stage,
        "requires": config.requires,
        "environment": environment(config),
        "ranks": msgspec.to_builtins(config.mesh.coordinates),
        "cores": list(config.mesh.cores),
        "tiles": msgspec.to_builtins(config.tiles),
        "schedule": msgspec.to_builtins(config.schedule),
        "programs": [_program_json(record, config) for record in config.programs],
    }


def _program_json(record: ProgramRecord, config: VariantConfig) -> dict[str, Any]:
    import msgspec

    program = record.program
    return {
        "name": program.name,
        "stablehlo": record.stablehlo.digest if record.stablehlo else None,
        "executable": record.executable.digest if record.executable else None,
        "bytes": record.executable.size_bytes if record.executable else 0,
        "replica_count": program.replica_count,
        "collectives": record.collectives,
        "calls": calls_by_stage(config).get(program.name, {}),
        "compile_key": record.compile_key,
        "weights": msgspec.to_builtins(program.weights),
        "inputs": msgspec.to_builtins(program.inputs),
        "outputs": msgspec.to_builtins(program.outputs),
        "donated": program.donated,
    }


def calls_by_stage(config: VariantConfig) -> dict[str, dict[str, int]]:
    """How often each program is called in each stage."""
    counts: dict[str, Counter[str]] = {}
    for stage in config.schedule.stages:
        for call in stage.calls:
            counts.setdefault(call.program, Counter())[stage.name] += 1
    return {name: dict(counter) for name, counter in counts.items()}


DONE = {"compile": "complete", "lower": "lowered", "plan": "planned"}
"""What a variant is that was compiled up to a stage."""


def print_bundle(bundle: Bundle) -> None:
    """Variants, and what they share."""
    emit(f"{bundle.path} {bundle.digest}\n")
    rows: dict[str, list[Sequence[str]]] = {}
    for number, entry in enumerate(bundle.variants, start=1):
        config, v = entry.config, entry.config.variant
        rows.setdefault(f"{config.model.name}, {v.task}", []).append(
            (
                *(str(number), str(v.shape), str(v.topology), v.placement, v.precision),
                *(v.target, DONE[config.stage]),
                size(sum(blob.size_bytes for blob in config_blobs(config))),
            )
        )
    for model, listed in rows.items():
        table(model, ("", "shape", "topology", "placement", "", "target", "", "size>"), listed)
    emit(sharing_line([entry.config for entry in bundle.variants]))
    for report in read_reports(bundle):
        emit(f"report {report.digest} of {count(len(report.covers), 'program')}")


def print_variant(config: VariantConfig) -> None:
    """Programs, schedule, ranks and tiles of one variant."""
    from wanc.run.environment import environment

    emit(f"{config.variant} {config.variant.placement}, model {config.model.name}")
    emit(f"{DONE[config.stage]}\n")
    table(
        "Programs",
        ("program", "ranks", "stablehlo", "executable", "size>"),
        [
            (
                record.program.name,
                f"{record.program.ranks} {record.program.replica_count}",
                _short(record.stablehlo),
                _short(record.executable),
                size(record.executable.size_bytes) if record.executable else "-",
            )
            for record in config.programs
        ],
    )
    emit("Sharing")
    for line in sharing(config):
        emit(f"  {line}")
    emit("")
    table(
        "Collectives of one call",
        ("program", "collectives"),
        [
            (
                r.program.name,
                ", ".join(f"{n} {name}" for name, n in r.collectives.items()) or "none",
            )
            for r in config.programs
        ],
    )
    table(
        "Schedule",
        ("stage", "calls>", "programs", "results"),
        [
            (
                stage.name,
                str(len(stage.calls)),
                ", ".join(dict.fromkeys(call.program for call in stage.calls)),
                ", ".join(f"{r.value} of {_holders(r)}" for r in stage.results) or "-",
            )
            for stage in config.schedule.stages
        ],
    )
    if variables := environment(config):
        table("Environment of a run", ("variable", "value"), [*variables.items()])
    _print_ranks(config)


_PER = {
    "encode_text": "generation",
    "context": "expert",
    "step": "step",
    "vae_encode_first": "tile",
    "vae_encode_rest": "later latent frame",
    "vae_decode_first": "tile",
    "vae_decode_rest": "later latent frame",
}
"""What the calls of a stage, by the start of its name, are counted for."""


def sharing(config: VariantConfig) -> list[str]:
    """How often each program's one blob is used."""
    lines = []
    for name, stages in calls_by_stage(config).items():
        record = config.program(name)
        replicas = record.program.replica_count
        stage, most = max(stages.items(), key=lambda item: item[1])
        per = next(what for start, what in _PER.items() if stage.startswith(start))
        lines.append(
            f"{name}: {'1 blob' if record.executable else 'no executable'}, "
            f"{count(most, 'call')} a {per} on {count(replicas, 'rank')}"
        )
    return lines


def _print_ranks(config: VariantConfig) -> None:
    places = [f"{rank}:({c.cfg},{c.cp},{c.tp})" for rank, c in enumerate(config.mesh.coordinates)]
    emit("Ranks, each with its (cfg, cp, tp)")
    width = max(12, *map(len, places))
    for line in lines([place.ljust(width) for place in places], 78 // (width + 1), " "):
        emit(f"  {line}")
    emit("")
    if config.variant.placement == TORUS:
        emit("Chips of the torus, and the coordinates of their ranks")
        for row in chip_rows(config.mesh, TRN2_FABRIC):
            emit(row)
        emit("")
    stride = config.model.vae.spatial_stride
    table(
        "VAE tiles",
        ("tile>", "left px>", "top px>", "size px", "rank>"),
        [
            (
                str(number),
                str(tile.column * stride),
                str(tile.row * stride),
                f"{tile.columns * stride}x{tile.rows * stride}",
                str(rank),
            )
            for number, (tile, rank) in enumerate(
                zip(config.tiles.tiles, config.tiles.ranks, strict=True), start=1
            )
        ],
    )


def chip_rows(mesh: Mesh, fabric: Fabric) -> list[str]:
    """The rectangle of chips as it lies, each with its number and its ranks' coordinates.

    Axes of degree 1 are left out, so that the usual ones fit 80 columns."""
    axes = [axis for axis in AXES[::-1] if mesh.topology.degree(axis) > 1]
    held: dict[int, list[Coordinates]] = {}
    for rank, core in enumerate(mesh.cores):
        held.setdefault(core // fabric.cores_per_chip, []).append(mesh.coordinates[rank])
    cells = [
        " ".join([f"{chip:>2}:", *(f"{axis}{span(held[chip], axis)}" for axis in axes)])
        for chip in sorted(held)
    ]
    width = max(map(len, cells))
    return lines([cell.ljust(width) for cell in cells], fabric.columns, "  ")


def lines(cells: list[str], per_line: int, between: str) -> list[str]:
    """Cells joined, so many to a line."""
    starts = range(0, len(cells), per_line)
    return [between.join(cells[start : start + per_line]).rstrip() for start in starts]


def span(places: list[Coordinates], axis: Axis) -> str:
    """First and last coordinate on an axis."""
    low, high = (find(place.on(axis) for place in places) for find in (min, max))
    return str(low) if low == high else f"{low}-{high}"


def _holders(result: Result) -> str:
    """The ranks that hold a result: one, the first of several, or whichever is chosen."""
    if not result.ranks:
        return "its rank"
    first = f"rank {result.ranks[0]}"
    return first if len(result.ranks) == 1 else f"{first} and {len(result.ranks) - 1} more"


def print_program(record: ProgramRecord) -> None:
    """A program's identity and its interface on one rank."""
    program = record.program
    emit(f"{program.name}: {count(program.replica_count, 'replica')}")
    emit(f"  stablehlo  {record.stablehlo.digest if record.stablehlo else '-'}")
    emit(f"  executable {record.executable.digest if record.executable else '-'}\n")
    if record.compile_key:
        rows = [(entry, key_text(value)) for entry, value in record.compile_key.items()]
        table("Compile key", ("entry", "value"), rows)
    table(
        "Weights",
        ("name", "shape", "dtype", "split"),
        [(*_tensor(w), f"{w.axis} on {w.dim}" if w.axis else "") for w in program.weights],
    )
    table("Inputs", ("name", "shape", "dtype"), [_tensor(t) for t in program.inputs])
    table(
        "Outputs",
        ("name", "shape", "dtype", "takes the buffer of"),
        [
            (*_tensor(t), ", ".join(k for k, v in program.donated.items() if v == t.name))
            for t in program.outputs
        ],
    )


def key_text(value: object) -> str:
    """An entry of a compile key for people: flags as a command line has them, files counted."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict) and all(str(v).startswith("sha256:") for v in value.values()):
        return count(len(value), "file")
    return " ".join(map(str, value.values())) if isinstance(value, dict) else str(value)


def _tensor(tensor: Tensor | Weight) -> tuple[str, str, str]:
    return tensor.name, "x".join(map(str, tensor.shape)), tensor.dtype


def _short(blob: Blob | None) -> str:
    return blob.digest[7:19] if blob else "-"

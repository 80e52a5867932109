"""What inspect prints for people: a bundle, one variant, one program."""

from collections.abc import Sequence

from wanc.bundle.attached import (
    KEYID_ANNOTATION,
    PROVENANCE,
    REPORT_ANNOTATION,
    SBOM,
    TEST_RESULT,
    Attachment,
    attachments,
)
from wanc.bundle.config import Blob, ProgramRecord, VariantConfig
from wanc.bundle.described import DONE, calls_of_programs, holders, key_text
from wanc.bundle.reports import read_reports
from wanc.bundle.store import Bundle, config_blobs
from wanc.cli.sharing import sharing_line
from wanc.cli.terminal import emit, plain, table
from wanc.plan.abi import Tensor, Weight
from wanc.plan.mesh import Coordinates, Mesh
from wanc.spec.target import TORUS, TRN2_FABRIC, Fabric
from wanc.spec.topology import AXES, Axis
from wanc.units import count, size

_KINDS = {PROVENANCE: "provenance", TEST_RESULT: "test result", SBOM: "sbom"}
"""What an attachment is, by its type."""


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
    for attachment in attachments(bundle.path):
        emit(plain(attachment_line(bundle, attachment)))


def attachment_line(bundle: Bundle, attachment: Attachment) -> str:
    """What an attachment says that it is; it is held against no key."""
    said = attachment.entry.annotations
    line = f"{_KINDS[attachment.artifact_type]} {attachment.blob.digest}"
    if report := said.get(REPORT_ANNOTATION):
        line += f" of report {report[7:19]}"
    if keyid := said.get(KEYID_ANNOTATION):
        line += f", signed by what says it is key {keyid[:12]}"
    is_current = attachment.subject.digest == bundle.digest
    return line if is_current else f"{line}, of another state of the bundle"


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
                ", ".join(f"{r.value} of {holders(r)}" for r in stage.results) or "-",
            )
            for stage in config.schedule.stages
        ],
    )
    if variables := environment(config):
        table("Environment of a run", ("variable", "value"), [*variables.items()])
    _print_ranks(config)


def sharing(config: VariantConfig) -> list[str]:
    """How often each program's one blob is used."""
    lines = []
    for name, calls in calls_of_programs(config).items():
        record = config.program(name)
        blob = "1 blob" if record.executable else "no executable"
        lines.append(f"{name}: {blob}, {calls} on {count(record.program.replica_count, 'rank')}")
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


def _tensor(tensor: Tensor | Weight) -> tuple[str, str, str]:
    return tensor.name, "x".join(map(str, tensor.shape)), tensor.dtype


def _short(blob: Blob | None) -> str:
    return blob.digest[7:19] if blob else "-"

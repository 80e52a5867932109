"""wanc inspect of a NEFF file: its header, its interface and what is in it."""

from collections import Counter
from pathlib import Path
from typing import Any

from wanc.bundle.neff import Neff, NeffTensor, read_neff
from wanc.cli.terminal import emit, emit_json, table
from wanc.errors import BundleError
from wanc.units import count, size

_MEMBERS_SHOWN = 12


def print_neff(path: Path, as_json: bool) -> None:
    """What any NEFF file holds, whoever compiled it; raises BundleError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
    neff = read_neff(data, str(path))
    if as_json:
        emit_json(neff_json(path, len(data), neff))
        return
    header = neff.header
    emit(f"{path}: NEFF of {size(len(data))}\n")
    table(
        "Header",
        ("field", "value"),
        [
            ("name", header.name),
            ("uuid", header.uuid),
            ("hash", header.hash),
            ("built by", header.build),
            ("version", f"{header.version[0]}.{header.version[1]}"),
            ("package", str(header.package_version)),
            ("LNC", str(header.lnc)),
            ("cores", f"{header.tpb_count} physical, {header.requested_tpb_count} requested"),
            ("feature bits", f"{header.feature_bits:#x}"),
        ],
    )
    _print_tensors("Inputs", neff.inputs)
    _print_tensors("Outputs", neff.outputs)
    _print_variables(neff)
    _print_members(neff)


def neff_json(path: Path, size_bytes: int, neff: Neff) -> dict[str, Any]:
    """The same, for programs."""
    import msgspec

    parts: dict[str, Any] = msgspec.to_builtins(neff)
    return {
        "neff": str(path),
        "bytes": size_bytes,
        "header": parts["header"],
        "inputs": msgspec.to_builtins(neff.inputs),
        "outputs": msgspec.to_builtins(neff.outputs),
        "variables": parts["variables"],
        "members": parts["members"],
    }


def _print_tensors(title: str, tensors: tuple[NeffTensor, ...]) -> None:
    rows = [(_plain(tensor.name), str(tensor.size_bytes)) for tensor in tensors]
    table(title, ("name", "bytes>"), rows)


def _print_variables(neff: Neff) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for variable in neff.variables:
        key = (variable.subgraph, _plain(variable.kind))
        counts[key] += 1
        sizes[key] += variable.size_bytes
    table(
        "Variables",
        ("subgraph", "type", "count>", "size>"),
        [(*key, str(counts[key]), size(sizes[key])) for key in sorted(counts)],
    )


def _print_members(neff: Neff) -> None:
    largest = sorted(neff.members, key=lambda member: -member.size_bytes)[:_MEMBERS_SHOWN]
    table(
        "Largest files",
        ("name", "size>"),
        [(_plain(member.name), size(member.size_bytes)) for member in largest],
    )
    total_bytes = sum(member.size_bytes for member in neff.members)
    emit(f"{count(len(neff.members), 'file')}, unpacked {size(total_bytes)}")


def _plain(text: str) -> str:
    """Text of a file that anybody may have made, for a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]

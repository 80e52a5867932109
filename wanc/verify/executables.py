"""What blobs hold against the programs that name them, read in plain Python as they go by.

Knows the containers of each target, and nothing of what programs compute.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wanc.bundle import oci
from wanc.bundle.config import VariantConfig
from wanc.bundle.neff import check_abi, neff_from
from wanc.bundle.pieces import Pieces
from wanc.bundle.xla_cpu import TRIPLE
from wanc.bundle.xla_interface import check_interface, interface_from
from wanc.errors import BundleError
from wanc.plan.abi import Program
from wanc.verify.manifests import executable_type

MAGIC = b"ML\xefR"
"""Of MLIR bytecode, in which StableHLO's portable artifacts are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a program names a blob as."""

    where: str
    media_type: str
    program: Program
    requires: dict[str, Any]
    """Of the variant."""


def uses_of(where: str, config: VariantConfig) -> Iterator[tuple[str, Use]]:
    """Digests of the StableHLO and the executables of a variant, with their uses.

    Executables of a target that is not known are none: planning tells of it.
    """
    executable = executable_type(config.variant.target)
    for record in config.programs:
        at = f"{where}, program {record.program.name}"
        for blob, media_type in (
            (record.stablehlo, oci.STABLEHLO),
            (record.executable, executable),
        ):
            if blob and media_type:
                yield (
                    blob.digest,
                    Use(
                        where=at,
                        media_type=media_type,
                        program=record.program,
                        requires=config.requires,
                    ),
                )


def misfits(
    pieces: Iterable[memoryview], size_bytes: int, uses: Sequence[Use]
) -> list[tuple[str, str]]:
    """Where a blob of so many bytes is not what it is used as, and why; takes pieces as it needs.

    One that is used as several kinds is not looked at: that is a fault of references.
    """
    types = {use.media_type for use in uses}
    if len(types) != 1:
        return []
    try:
        check = _READERS[types.pop()](pieces, size_bytes)
    except (BundleError, EOFError) as error:
        return [(use.where, str(error)) for use in uses]
    found = []
    for use in uses:
        try:
            check(use)
        except BundleError as error:
            found.append((use.where, str(error)))
    return found


def _read_stablehlo(pieces: Iterable[memoryview], size_bytes: int) -> Callable[[Use], None]:
    if Pieces(pieces).take(min(size_bytes, len(MAGIC))) != MAGIC:
        raise BundleError("its StableHLO is no MLIR bytecode")
    return lambda _: None


def _read_xla_cpu(pieces: Iterable[memoryview], size_bytes: int) -> Callable[[Use], None]:
    found = interface_from(pieces, size_bytes)
    if found.target.triple != TRIPLE:
        raise BundleError(f"its code is for {found.target.triple!r}; needs {TRIPLE}")

    def check(use: Use) -> None:
        check_interface(found, use.program)
        said = use.requires.get("features", [*found.target.features])
        known = {name for name in said if isinstance(name, str)} if isinstance(said, list) else ()
        beyond = sorted(found.target.features.difference(known))
        if beyond:
            told = f"its code is for CPUs with {', '.join(beyond)}"
            raise BundleError(f"{told}, and its config does not require that")

    return check


def _read_neff(pieces: Iterable[memoryview], size_bytes: int) -> Callable[[Use], None]:
    found = neff_from(pieces, size_bytes, "its executable")

    def check(use: Use) -> None:
        lnc = use.requires.get("lnc")
        if type(lnc) is not int:
            raise BundleError(f"what it requires has lnc {oci.quoted(lnc)}; needs a whole number")
        check_abi(found, use.program, lnc=lnc, where="its executable")

    return check


_READERS = {oci.STABLEHLO: _read_stablehlo, oci.XLA_CPU: _read_xla_cpu, oci.NEFF: _read_neff}

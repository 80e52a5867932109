"""Executables against the interfaces of their programs, read in plain Python.

Knows the containers of each target, and nothing of what programs compute.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wanc.bundle.config import Blob, ProgramRecord, VariantConfig
from wanc.bundle.neff import check_abi, read_neff
from wanc.bundle.store import read_blob
from wanc.bundle.xla_cpu import TRIPLE, target_of
from wanc.bundle.xla_interface import check_interface
from wanc.errors import BundleError, RefusedError
from wanc.spec.target import target_facts
from wanc.verify.findings import Findings

MAGIC = b"ML\xefR"
"""Of MLIR bytecode, in which StableHLO's portable artifacts are."""


def check_executables(
    path: Path, where: str, config: VariantConfig, sound: Mapping[str, int], found: Findings
) -> None:
    """Each program's StableHLO and executable, of blobs that are sound, by digest their sizes.

    A config's digests are text: what is no sound blob is not looked for, and is told of elsewhere.
    """
    for record in config.programs:
        at = f"{where}, program {record.program.name}"
        stablehlo = _read(path, record.stablehlo, sound)
        if stablehlo is not None and not stablehlo.startswith(MAGIC):
            found.fault("executable", at, "its StableHLO is no MLIR bytecode")
        data = _read(path, record.executable, sound)
        if data is None:
            continue
        try:
            _check(data, record, config, at)
        except (BundleError, RefusedError) as error:  # refused: the target is not known
            found.fault("executable", at, str(error))


def _read(path: Path, blob: Blob | None, sound: Mapping[str, int]) -> bytes | None:
    if blob is None or sound.get(blob.digest) != blob.size_bytes:
        return None
    try:
        return read_blob(path, blob.digest, blob.size_bytes)
    except BundleError:
        return None


def _check(data: bytes, record: ProgramRecord, config: VariantConfig, at: str) -> None:
    if target_facts(config.variant.target).accelerator:
        check_abi(read_neff(data, at), record.program, lnc=_lnc(config.requires), where=at)
        return
    triple = target_of(data).triple
    if triple != TRIPLE:
        raise BundleError(f"its code is for {triple!r}; needs {TRIPLE}")
    check_interface(data, record.program)


def _lnc(requires: dict[str, Any]) -> int:
    lnc = requires.get("lnc")
    if type(lnc) is not int:
        raise BundleError(f"what it requires has lnc {lnc!r}; needs a whole number")
    return lnc

"""The OCI image layout of a bundle, and what lies in its folders.

Reads no blob, and follows no link.
"""

import os
import re
import stat
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from wanc.bundle import oci
from wanc.errors import BundleError
from wanc.files import is_unfinished
from wanc.verify.files import read_small
from wanc.verify.findings import Findings
from wanc.verify.references import References

_NAME = re.compile(r"[0-9a-f]{64}")
_TOP = ("oci-layout", "index.json", "blobs")
_MOST_LAYOUT_BYTES = 4096
MOST_FILES = 1_000_000
"""Of a bundle's folders; more are not looked at."""
MOST_LISTED = 100
"""Of orphans, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """Blobs that nothing refers to, and what writes left that were ended early."""

    blobs: int = 0
    bytes: int = 0
    digests: tuple[str, ...] = ()
    """The first of those that are whole, in order."""


def check_layout(path: Path, found: Findings) -> bool:
    """Whether it is an OCI image layout, as far as references can be followed."""
    before = found.faults
    for name in (*_TOP, "blobs/sha256"):
        _check_kind(path / name, name, found, folder=name.startswith("blobs"))
    if found.faults == before:
        _check_version(path / "oci-layout", found)
    return found.faults == before


def _check_version(file: Path, found: Findings) -> None:
    try:
        said = read_small(file, _MOST_LAYOUT_BYTES)
        if oci.parse(said, file.name) != oci.parse(oci.LAYOUT, file.name):
            found.fault("layout", file.name, f"is {said[:80]!r}; needs {oci.LAYOUT.decode()}")
    except OSError as error:
        found.fault("layout", file.name, f"cannot be read: {error.strerror}")
    except BundleError as error:
        found.fault("layout", file.name, str(error))


def _check_kind(file: Path, name: str, found: Findings, *, folder: bool) -> None:
    try:
        mode = file.lstat().st_mode
    except OSError as error:
        found.fault("layout", name, f"cannot be looked at: {error.strerror}")
        return
    if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
        found.fault("layout", name, f"is no {'folder' if folder else 'regular file'}")


def check_folder(references: References) -> Orphans:
    """Whatever lies in the bundle is named by it, or is no part of it, or an orphan."""
    path, found = references.path, references.found
    strange = [name for name in _listed(path, found) if name not in _TOP]
    strange += [f"blobs/{name}" for name in _listed(path / "blobs", found) if name != "sha256"]
    for name in strange:
        if not is_unfinished(name.removeprefix("blobs/")):
            found.fault("layout", name, "is no part of a bundle")
    orphans = _orphans(path / "blobs" / "sha256", references)
    if orphans.blobs:
        seen = f"{orphans.blobs:,} of {orphans.bytes:,} bytes that nothing refers to"
        told = "what was replaced, or a write that was ended early, leaves such"
        found.notice("orphan", "blobs/sha256", f"{seen}: {told}; `wanc gc` removes them")
    return orphans


def _orphans(folder: Path, references: References) -> Orphans:
    found = references.found
    names, digests = [], []
    for name in _listed(folder, found):
        if is_unfinished(name):
            names.append(name)
        elif not _NAME.fullmatch(name):
            found.fault("layout", f"blobs/sha256/{name}", "is not the name of a blob")
        elif f"sha256:{name}" not in references.sizes:
            names.append(name)
            digests.append(f"sha256:{name}")
    return Orphans(
        blobs=len(names),
        bytes=sum(_bytes(folder / name) for name in names),
        digests=tuple(digests[:MOST_LISTED]),
    )


def _bytes(file: Path) -> int:
    try:
        return file.lstat().st_size
    except OSError:  # gone meanwhile
        return 0


def _listed(folder: Path, found: Findings) -> list[str]:
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            names += [entry.name for entry in islice(entries, MOST_FILES + 1)]
    except OSError as error:
        found.fault("layout", folder.name, f"cannot be listed: {error.strerror}")
    if len(names) > MOST_FILES:
        found.fault("layout", folder.name, f"holds more than {MOST_FILES:,} files")
    return sorted(names)

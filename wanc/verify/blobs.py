"""Files of a bundle: the layout, what lies where blobs do, and every blob's size and digest.

Streams: no blob is in memory whole. Follows no link, and opens nothing but regular files.
"""

import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from pathlib import Path

from wanc.bundle import oci
from wanc.bundle.store import blob_path
from wanc.digest import of_stream
from wanc.errors import BundleError
from wanc.files import UNFINISHED
from wanc.progress import Progress
from wanc.verify.findings import Findings
from wanc.verify.references import References

_NAME = re.compile(r"[0-9a-f]{64}")
_TOP = ("oci-layout", "index.json", "blobs")
_MOST_LAYOUT_BYTES = 4096
MOST_FILES = 1_000_000
"""Of a bundle's folders; more are not looked at."""


def check_layout(path: Path, found: Findings) -> bool:
    """Whether it is an OCI image layout, as far as references can be followed."""
    faults = len(found.all)
    for name in (*_TOP, "blobs/sha256"):
        _check_kind(path / name, name, found, folder=name.startswith("blobs"))
    if len(found.all) == faults:
        _check_version(path / "oci-layout", found)
    return len(found.all) == faults


def _check_version(file: Path, found: Findings) -> None:
    try:
        with file.open("rb") as stream:
            said = stream.read(_MOST_LAYOUT_BYTES)
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


def check_folder(path: Path, references: References, found: Findings) -> None:
    """Whatever lies in the bundle is named by it; what is not is told."""
    strange = [n for n in _listed(path, found) if n not in _TOP and not n.startswith(UNFINISHED)]
    strange += [f"blobs/{name}" for name in _listed(path / "blobs", found) if name != "sha256"]
    for name in strange:
        found.fault("layout", name, "is no part of a bundle")
    loose = 0
    for name in _listed(path / "blobs" / "sha256", found):
        if name.startswith(UNFINISHED):
            loose += 1
        elif not _NAME.fullmatch(name):
            found.fault("layout", f"blobs/sha256/{name}", "is not the name of a blob")
        elif f"sha256:{name}" not in references.sizes:
            loose += 1
    if loose:
        told = "nothing refers to: what was replaced, or a write that was ended early, leaves such"
        found.notice("orphan", "blobs/sha256", f"{loose} that {told}")


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


def check_blobs(
    path: Path, references: References, found: Findings, jobs: int, progress: Progress
) -> dict[str, int]:
    """Read every blob that is named, in so many threads; sizes of those that are sound."""
    sound: dict[str, int] = {}
    with (
        progress.task("verify blobs", len(references.sizes)) as task,
        ThreadPoolExecutor(max_workers=jobs) as threads,
    ):
        reading = {
            threads.submit(_check_blob, path, digest, sizes): digest
            for digest, sizes in references.sizes.items()
        }
        faults = []
        for future in as_completed(reading):
            size_bytes, fault = future.result()
            if fault is None:
                sound[reading[future]] = size_bytes
            else:
                faults.append((reading[future], fault))
            task.advance(reading[future][7:19])
    for digest, fault in sorted(faults):
        found.fault("blob", digest, fault)
    return sound


def _check_blob(path: Path, digest: str, sizes: dict[int, str]) -> tuple[int, str | None]:
    """The blob's size, and what is wrong with it."""
    try:
        descriptor = os.open(blob_path(path, digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        named = ", ".join(sorted(set(sizes.values())))
        return 0, f"is missing, or a link: {error.strerror}; named by {named}"
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):  # of a folder there is no stream to be made
            return 0, "is no regular file"
        for size_bytes, where in sizes.items():
            if size_bytes != status.st_size:
                return 0, f"has {status.st_size} bytes; {where} says {size_bytes}"
        with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as stream:
            seen = of_stream(stream)
    except OSError as error:
        return 0, f"cannot be read: {error.strerror}"
    finally:
        os.close(descriptor)
    return status.st_size, None if seen == digest else f"its bytes are {seen}"

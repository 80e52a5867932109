"""Every blob that a bundle names, read once: its size, its digest, and what it holds.

In memory is a piece of a blob for each thread, and what is kept of an executable's interface.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from wanc.bundle.store import blob_path
from wanc.digest import Reading
from wanc.progress import Progress
from wanc.verify.executables import Use, misfits
from wanc.verify.files import regular_file
from wanc.verify.references import References

MOST_BLOBS = 1_000_000
"""That are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A blob that was read."""

    digest: str
    size_bytes: int = 0
    is_left: bool = False
    """Whether it was left in the registry that the bundle was pulled from."""
    fault: str = ""
    """Why the blob is not what is named; then all else is of no meaning."""
    misfits: Sequence[tuple[str, str]] = ()
    """Where it is used as what it is not, and why."""


def check_blobs(
    references: References, uses: Mapping[str, Sequence[Use]], jobs: int, progress: Progress
) -> dict[str, int]:
    """Read every blob that is named, in so many threads; sizes of those that are sound."""
    found = references.found
    named = sorted(references.sizes, key=lambda each: (-max(references.sizes[each]), each))
    if len(named) > MOST_BLOBS:
        found.fault("blob", "blobs/sha256", f"{len(named):,} are named; {MOST_BLOBS:,} are read")
    with progress.task("verify blobs", len(named[:MOST_BLOBS])) as task:
        threads = ThreadPoolExecutor(max_workers=jobs)
        try:
            reading = [
                threads.submit(_read, references, digest, uses.get(digest, ()))
                for digest in named[:MOST_BLOBS]  # the largest first, or one thread ends late
            ]
            done: dict[str, _Read] = {}
            for future in as_completed(reading):
                blob = future.result()
                done[blob.digest] = blob
                task.advance(blob.digest[7:19])
        finally:
            threads.shutdown(cancel_futures=True)
    for digest in sorted(done):
        if done[digest].fault:
            found.fault("blob", digest, done[digest].fault)
    if left := sum(blob.is_left for blob in done.values()):
        found.notice("blob", "blobs/sha256", f"{left} were left in the registry: pulled in part")
    sound = {digest: blob for digest, blob in done.items() if not (blob.fault or blob.is_left)}
    for where, what in sorted(each for blob in sound.values() for each in blob.misfits):
        found.fault("executable", where, what)
    return {digest: blob.size_bytes for digest, blob in sound.items()}


def _read(references: References, digest: str, uses: Sequence[Use]) -> _Read:
    sizes = references.sizes[digest]
    known_bytes = references.read_bytes.get(digest)
    if known_bytes is not None and not uses:  # JSON, whose digest was checked
        return _Read(digest=digest, size_bytes=known_bytes, fault=_size_fault(sizes, known_bytes))
    try:
        with regular_file(blob_path(references.path, digest)) as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
            if fault := _size_fault(sizes, size_bytes):
                return _Read(digest=digest, fault=fault)
            reading = Reading(stream)
            wrong = misfits(reading, size_bytes, uses)
            seen = reading.digest()
    except FileNotFoundError as error:
        if references.is_part and uses:
            return _Read(digest=digest, is_left=True)
        return _Read(digest=digest, fault=_unread("is missing", error, sizes))
    except OSError as error:
        return _Read(digest=digest, fault=_unread("cannot be read", error, sizes))
    fault = "" if seen == digest else f"its bytes are {seen}"
    return _Read(digest=digest, size_bytes=size_bytes, fault=fault, misfits=wrong)


def _unread(why: str, error: OSError, sizes: Mapping[int, str]) -> str:
    return f"{why}: {error.strerror}; named by {', '.join(sorted(set(sizes.values())))}"


def _size_fault(sizes: Mapping[int, str], seen_bytes: int) -> str:
    for size_bytes, where in sizes.items():
        if size_bytes != seen_bytes:
            return f"has {seen_bytes} bytes; {where} says {size_bytes}"
    return ""

"""What lies in a bundle and nothing refers to: replaced variants, and writes that were ended early.

Whoever writes a bundle holds it from its first blob on, and so does who clears it: neither meets
the other's half of the work. Input is untrusted: of a damaged bundle nothing is cleared away.
"""

import re
from pathlib import Path

from wanc.bundle import oci
from wanc.bundle.oci import Descriptor
from wanc.bundle.store import index_entries, open_bundle, read_json_blob
from wanc.clearing import Cleared, Lying, lying, removable, remove, total
from wanc.errors import BundleError, RunError
from wanc.files import is_unfinished, locked

_BLOB = re.compile(r"[0-9a-f]{64}")
_FOLDERS = (".", "blobs", "blobs/sha256")


def clear_bundle(path: Path, *, delete: bool) -> Cleared:
    """Clear away what nothing refers to, or only look for it; raises BundleError, RunError.

    Waits for a compile that writes the bundle. A run that began before a variant was replaced may
    miss the old one's programs.
    """
    open_bundle(path)
    try:
        with locked(path):
            named = referenced(path)
            files = [file for folder in _FOLDERS for file in lying(path / folder)]
            loose = [file for file in files if _is_loose(file, path, named)]
            removables = tuple(removable(file, path, _why(file)) for file in loose)
            if delete:
                remove(path, removables)
    except OSError as error:
        raise RunError(f"cannot clear the bundle {path}: {error}") from error
    return Cleared(removables=removables, removed=delete, kept_bytes=total(files) - total(loose))


def referenced(path: Path) -> set[str]:
    """Digests of all that index.json leads to; raises BundleError where that cannot be told."""
    named: set[str] = set()
    waiting = index_entries(path)
    strange = [e.media_type for e in waiting if e.media_type not in (oci.INDEX, oci.MANIFEST)]
    if strange:
        raise BundleError(
            f"{path}/index.json: names {strange[0][:80]!r}: what such refers to is not known, so "
            "nothing is cleared away"
        )
    while waiting:
        descriptor = waiting.pop()
        if descriptor.digest not in named:
            named.add(descriptor.digest)
            waiting += _parts(path, descriptor)
    return named


def _parts(path: Path, descriptor: Descriptor) -> list[Descriptor]:
    """What an index or a manifest refers to; nothing of any other blob.

    Not a manifest's subject: what is attached to a bundle does not keep it.
    """
    if descriptor.media_type not in (oci.INDEX, oci.MANIFEST):
        return []
    where = f"{path}: {descriptor.digest[:19]}"
    value = oci.parse(read_json_blob(path, descriptor), where)
    lists = [key for key in ("manifests", "layers") if key in value]
    config = [Descriptor.from_json(value["config"], where)] if "config" in value else []
    return [*config, *(part for key in lists for part in oci.descriptors(value, key, where))]


def _is_loose(file: Lying, path: Path, named: set[str]) -> bool:
    """What has no name of a blob is none of ours, and a matter of verify."""
    if is_unfinished(file.path.name):
        return True
    is_blob = file.path.parent == path / "blobs" / "sha256" and _BLOB.fullmatch(file.path.name)
    return bool(is_blob) and f"sha256:{file.path.name}" not in named


def _why(file: Lying) -> str:
    return "unfinished" if is_unfinished(file.path.name) else "nothing refers to it"

"""From a bundle's index.json down to the manifests of its variants and to reports.

Knows the indexes, and nothing of what a variant is.
"""

from collections.abc import Iterator
from pathlib import Path

from wanc.bundle import oci
from wanc.bundle.attached import is_attachment
from wanc.bundle.config import FORMAT_VERSION
from wanc.bundle.oci import Descriptor
from wanc.bundle.reports import COVERS_ANNOTATION
from wanc.bundle.store import (
    FORMAT_ANNOTATION,
    MAX_JSON_BYTES,
    PART,
    PULLED_ANNOTATION,
    STAGE_ANNOTATION,
    check_index_format,
)
from wanc.errors import BundleError
from wanc.verify.attached import check_attachment, check_report
from wanc.verify.files import read_small
from wanc.verify.findings import Findings
from wanc.verify.references import MISSPELLED, References, check_document, is_spelled

MOST_MANIFESTS = 10_000


def walk(references: References) -> list[tuple[str, Descriptor]]:
    """Follow references down to the manifests of variants; where each is named, and what it is."""
    found = references.found
    try:
        entries = _entries(references.path, found)
    except BundleError as error:
        found.fault("layout", "index.json", str(error))
        return []
    bundles = [entry for entry in entries if entry.media_type == oci.INDEX]
    if len(bundles) != 1:
        found.fault("layout", "index.json", f"names {len(bundles)} bundles; needs exactly one")
    for bundle in bundles[:1]:
        references.bundle = bundle.digest
        references.is_part = bundle.annotations.get(PULLED_ANNOTATION) == PART
    for entry in entries:
        references.add(entry, "index.json")
        if COVERS_ANNOTATION in entry.annotations:
            check_report(entry, references)
        elif is_attachment(entry):
            check_attachment(entry, references)
        elif entry.media_type != oci.INDEX:
            found.notice("reference", "index.json", f"{entry.digest} is not of wanc")
    return list(_walk_index(bundles[0], references)) if bundles else []


def _entries(path: Path, found: Findings) -> list[Descriptor]:
    """What index.json names, which other tools may have spelled; raises BundleError."""
    try:
        top = oci.parse(read_small(path / "index.json", MAX_JSON_BYTES), "index.json")
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}") from error
    check_document(top, oci.INDEX, "layout", "index.json", found)
    return oci.entries(top, "index.json")


def _walk_index(entry: Descriptor, references: References) -> Iterator[tuple[str, Descriptor]]:
    where, found = "bundle index", references.found
    try:
        data = references.read(entry)
        index = oci.parse(data, where)
        check_index_format(index, references.path)
        manifests = oci.descriptors(index, "manifests", where)
    except BundleError as error:
        found.fault("reference", where, str(error))
        return
    before = found.faults
    check_document(index, oci.INDEX, "reference", where, found)
    if not 1 <= len(manifests) <= MOST_MANIFESTS:
        found.fault("reference", where, f"{len(manifests)} variants; needs 1 to {MOST_MANIFESTS}")
    keys: dict[tuple[tuple[str, str], ...], str] = {}
    for number, manifest in enumerate(manifests[:MOST_MANIFESTS], start=1):
        at = f"variant {number}"
        references.add(manifest, where)
        taken = keys.setdefault(_key(manifest), at)
        if taken != at:
            found.fault("reference", at, f"has the annotations of {taken}")
        yield at, manifest
    annotations = {FORMAT_ANNOTATION: str(FORMAT_VERSION)}
    if found.faults == before and not is_spelled(
        data, lambda: oci.index_bytes(sorted(manifests, key=_key), annotations)
    ):
        found.fault("reference", where, MISSPELLED)


def _key(manifest: Descriptor) -> tuple[tuple[str, str], ...]:
    """What tells a variant from others."""
    said = manifest.annotations.items()
    return tuple(sorted((name, text) for name, text in said if name != STAGE_ANNOTATION))

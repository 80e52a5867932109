"""Reports that are attached to a bundle, each under the StableHLO digests that it covers.

A report lies beside the bundle's index, in ``index.json``: the bundle's digest stays what it is.
Knows nothing of what a report says. Input is untrusted, as all of a bundle.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from wanc.bundle import oci
from wanc.bundle.oci import Descriptor
from wanc.bundle.store import (
    MAX_JSON_BYTES,
    Bundle,
    index_entries,
    open_bundle,
    put_blob,
    read_json_blob,
    write_entries,
)
from wanc.errors import BundleError, RunError
from wanc.files import locked

REPORT_TYPE = "application/vnd.wanc.report.v1+json"
COVERS_ANNOTATION = "vnd.wanc.report.covers"
"""StableHLO digests, joined by commas."""

COVERS = re.compile(r"sha256:[0-9a-f]{64}(,sha256:[0-9a-f]{64})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A report of a bundle."""

    digest: str
    """Of the report's bytes."""
    covers: tuple[str, ...]
    """Digests of the StableHLO programs that it tells of."""
    data: bytes


def attach_report(path: Path, data: bytes, covers: tuple[str, ...]) -> str:
    """Attach a report to a bundle, and return its digest; raises BundleError, RunError.

    It must cover programs that the bundle has. One that is there already is not written twice.
    """
    if len(data) > MAX_JSON_BYTES:
        raise BundleError(
            f"{path}: a report of {len(data)} bytes cannot be attached: at most {MAX_JSON_BYTES} "
            "are read"
        )
    _check_covers(open_bundle(path), covers)
    report = oci.describe(REPORT_TYPE, data)
    annotations = {COVERS_ANNOTATION: ",".join(sorted(set(covers)))}
    empty = oci.describe(oci.EMPTY, oci.EMPTY_BYTES)
    manifest = oci.manifest_bytes(empty, [report], annotations, artifact_type=REPORT_TYPE)
    entry = oci.describe(oci.MANIFEST, manifest, **annotations)
    try:
        with locked(path):
            for blob in (data, oci.EMPTY_BYTES, manifest):
                put_blob(path, blob)
            there = index_entries(path)
            if entry not in there:
                others = [old for old in there if old.digest != entry.digest]
                write_entries(path, [*others, entry])
    except OSError as error:
        raise RunError(f"cannot write the bundle {path}: {error}") from error
    return report.digest


def _check_covers(bundle: Bundle, covers: tuple[str, ...]) -> None:
    records = [record for variant in bundle.variants for record in variant.config.programs]
    there = {record.stablehlo.digest for record in records if record.stablehlo}
    strange = [digest for digest in covers if digest not in there]
    if strange or not covers:
        raise BundleError(
            f"{bundle.path}: a report of {', '.join(strange) or 'no program'} cannot be attached: "
            f"it must cover some of the bundle's {len(there)} StableHLO programs, and no others"
        )


def read_reports(bundle: Bundle) -> tuple[Attached, ...]:
    """The reports of a bundle, every digest checked; raises BundleError."""
    entries = [e for e in index_entries(bundle.path) if COVERS_ANNOTATION in e.annotations]
    return tuple(_read(bundle.path, entry) for entry in entries)


def _read(path: Path, entry: Descriptor) -> Attached:
    where = f"{path}: report {entry.digest[:19]}"
    covers = entry.annotations[COVERS_ANNOTATION]
    value = oci.parse(read_json_blob(path, entry), where)
    layers = oci.descriptors(value, "layers", where)
    types = [value.get("artifactType"), *(layer.media_type for layer in layers)]
    if types != [REPORT_TYPE] * 2 or not COVERS.fullmatch(covers):
        raise BundleError(f"{where}: is no report of wanc's, or a damaged one")
    return Attached(
        digest=layers[0].digest,
        covers=tuple(covers.split(",")),
        data=read_json_blob(path, layers[0]),
    )

"""What is attached to a bundle: manifests, and that reports are JSON.

Knows nothing of what is attached, and holds no signature against a key.
"""

from typing import Any

from wanc.bundle import oci
from wanc.bundle.attached import read_attachment
from wanc.bundle.oci import Descriptor
from wanc.bundle.reports import COVERS, COVERS_ANNOTATION, REPORT_TYPE
from wanc.errors import BundleError
from wanc.verify.references import MISSPELLED, References, check_document, is_spelled


def check_attachment(entry: Descriptor, references: References) -> None:
    """An attachment's manifest, as index.json names it, and what it names."""
    at, found = f"attachment {entry.digest[7:19]}", references.found
    if entry.digest in references.read_bytes:
        found.fault("attachment", at, "is named twice")
        return
    try:
        data = references.read(entry)
        attachment = read_attachment(entry, data, "index.json")
    except BundleError as error:
        found.fault("attachment", at, str(error))
        return
    references.add(oci.describe(oci.EMPTY, oci.EMPTY_BYTES), at)
    references.add(attachment.blob, at)
    if not is_spelled(data, lambda: attachment.manifest):
        found.fault("attachment", at, MISSPELLED)
    if attachment.subject.digest != references.bundle:
        told = f"is of another state of the bundle, {attachment.subject.digest[:19]}"
        found.notice("attachment", at, f"{told}, and counts for nothing")


def check_report(entry: Descriptor, references: References) -> None:
    """A report's manifest, as index.json names it, and what it names."""
    at, found = f"report {entry.digest[7:19]}", references.found
    if entry.digest in references.read_bytes:
        found.fault("report", at, "is named twice")
        return
    try:
        data = references.read(entry)
        manifest = oci.parse(data, at)
        layers = oci.descriptors(manifest, "layers", at)
        config = Descriptor.from_json(manifest.get("config"), at)
    except BundleError as error:
        found.fault("report", at, str(error))
        return
    for descriptor in (config, *layers):
        references.add(descriptor, at)
    before = found.faults
    check_document(manifest, oci.MANIFEST, "report", at, found)
    for fault in _faults(entry, manifest, config, layers):
        found.fault("report", at, fault)
    if found.faults == before and not is_spelled(
        data,
        lambda: oci.manifest_bytes(config, layers, entry.annotations, artifact_type=REPORT_TYPE),
    ):
        found.fault("report", at, MISSPELLED)
    for layer in layers[:1]:
        _check_json(layer, at, references)


def _faults(
    entry: Descriptor, manifest: dict[str, Any], config: Descriptor, layers: list[Descriptor]
) -> list[str]:
    covers = entry.annotations[COVERS_ANNOTATION]
    types = [layer.media_type for layer in layers]
    told = {
        f"media type is {entry.media_type!r}; needs {oci.MANIFEST!r}": (
            entry.media_type != oci.MANIFEST
        ),
        f"needs artifactType {REPORT_TYPE} and one layer of that media type": (
            manifest.get("artifactType") != REPORT_TYPE or types != [REPORT_TYPE]
        ),
        "its config is not the empty one": config != oci.describe(oci.EMPTY, oci.EMPTY_BYTES),
        "a layer has annotations": any(layer.annotations for layer in layers),
        "what it covers are no digests, each once, in order and joined by commas": (
            not COVERS.fullmatch(covers) or covers != ",".join(sorted(set(covers.split(","))))
        ),
        "index.json's annotations are not those of its manifest": (
            manifest.get("annotations") != entry.annotations
        ),
    }
    return [fault for fault, is_so in told.items() if is_so]


def _check_json(layer: Descriptor, at: str, references: References) -> None:
    if layer.digest in references.read_bytes:  # of another report too
        return
    try:
        data = references.read(layer)
    except BundleError:  # told of as a blob
        return
    try:
        oci.parse(data, "what it says")
    except BundleError as error:
        references.found.fault("report", at, str(error))

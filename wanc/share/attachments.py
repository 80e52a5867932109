"""What is attached to a bundle, as a registry has it: manifests that refer to the bundle's index.

Signatures and lists of parts do so on disk too. A report does not, for it holds for programs, and
stays when a variant is replaced: in a registry its manifest gets the bundle as subject.
"""

from dataclasses import replace

from wanc.bundle import oci
from wanc.bundle.attached import MAX_BYTES, TYPES, attached, read_attachment
from wanc.bundle.oci import Descriptor
from wanc.bundle.reports import COVERS, COVERS_ANNOTATION, REPORT_TYPE
from wanc.bundle.store import Bundle, index_entries, put_blob, read_json_blob
from wanc.errors import BundleError, RegistryError
from wanc.registry.blobs import fetch_json
from wanc.registry.referrers import Referrer, list_referrers, referrer
from wanc.registry.repository import Repository

MOST = 100
"""Attachments that are taken from a registry, where anybody may have put some."""
MOST_MANIFEST_BYTES = 64 << 10
"""Of one's manifest, whose annotations go into index.json: all of them must fit there."""


def referring(bundle: Bundle) -> list[bytes]:
    """Manifests, each with the bundle's index as its subject, that are to be pushed."""
    found = [each.manifest for each in attached(bundle, *TYPES)]
    subject = replace(bundle.entry, annotations={})
    for entry in index_entries(bundle.path):
        if COVERS_ANNOTATION in entry.annotations:
            value = oci.parse(read_json_blob(bundle.path, entry), str(bundle.path))
            found.append(_report(value, entry.annotations, subject, str(bundle.path)))
    return found


def take_attached(repository: Repository, bundle: Bundle) -> list[Descriptor]:
    """Fetch what refers to a bundle, and return what index.json is to say of it.

    What is of other kinds than wanc's is left where it is. Raises RegistryError and BundleError.
    """
    listed = [
        each
        for each in list_referrers(repository, bundle.digest)
        if each.artifact_type in (*TYPES, REPORT_TYPE)
    ]
    if len(listed) > MOST:
        raise RegistryError(
            f"{repository.host}/{repository.name}: {len(listed)} attachments of {bundle.digest}; "
            f"at most {MOST} are taken"
        )
    taken = [_take(repository, each, bundle) for each in listed]
    return list({entry.digest: entry for entry in taken}.values())


def _take(repository: Repository, listed: Referrer, bundle: Bundle) -> Descriptor:
    """Nothing is written before all is as readers of the bundle need it: one would refuse it."""
    manifest = referrer(repository, listed, bundle.digest)
    where = f"{repository.host}/{repository.name}: attachment {listed.descriptor.digest[:19]}"
    if len(manifest) > MOST_MANIFEST_BYTES:
        raise RegistryError(
            f"{where}: a manifest of {len(manifest)} bytes; at most {MOST_MANIFEST_BYTES} are taken"
        )
    value = oci.parse(manifest, where)
    described = oci.describe(oci.MANIFEST, manifest).to_json()
    entry = Descriptor.from_json({**described, "annotations": value.get("annotations")}, where)
    if listed.artifact_type == REPORT_TYPE:
        manifest = _report(value, entry.annotations, None, where)
        covers = {COVERS_ANNOTATION: entry.annotations[COVERS_ANNOTATION]}
        entry = oci.describe(oci.MANIFEST, manifest, **covers)
    elif COVERS_ANNOTATION in entry.annotations:
        raise BundleError(f"{where}: is no report, and says that it is one")
    else:
        entry = replace(entry, artifact_type=listed.artifact_type or "")
        read_attachment(entry, manifest, where)
    (blob,) = oci.descriptors(value, "layers", where)
    if blob.size > MAX_BYTES:
        raise RegistryError(f"{where}: {blob.size} bytes; at most {MAX_BYTES} are taken")
    for data in (fetch_json(repository, blob), oci.EMPTY_BYTES, manifest):
        put_blob(bundle.path, data)
    return entry


def _report(
    value: dict[str, object], annotations: dict[str, str], subject: Descriptor | None, where: str
) -> bytes:
    """The manifest of a report, with a subject or without; raises BundleError."""
    layers = oci.descriptors(value, "layers", where)
    covers = annotations.get(COVERS_ANNOTATION, "")
    if [layer.media_type for layer in layers] != [REPORT_TYPE] or not COVERS.fullmatch(covers):
        raise BundleError(f"{where}: is no report of wanc's, or a damaged one")
    return oci.manifest_bytes(
        oci.describe(oci.EMPTY, oci.EMPTY_BYTES),
        layers,
        {COVERS_ANNOTATION: covers},
        artifact_type=REPORT_TYPE,
        subject=subject,
    )

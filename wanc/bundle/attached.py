"""What is attached to a bundle: signed statements, and lists of what made it.

Each is one blob under a manifest whose subject is the bundle's index, and which index.json names
beside it: the bundle's digest stays what it is. It holds for that index alone; once a variant is
added, it is stale. Knows nothing of what is attached. Input is untrusted, as all of a bundle.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from wanc.bundle import oci
from wanc.bundle.oci import Descriptor
from wanc.bundle.store import (
    Bundle,
    bundle_entry,
    index_entries,
    put_blob,
    read_json_blob,
    write_entries,
)
from wanc.errors import BundleError, RunError
from wanc.files import locked

PROVENANCE = "application/vnd.in-toto.provenance+dsse"
TEST_RESULT = "application/vnd.in-toto.test-result+dsse"
SBOM = "application/vnd.cyclonedx+json"
TYPES = (PROVENANCE, TEST_RESULT, SBOM)
"""Artifact types of wanc's own attachments, which are also the media types of their blobs."""

KEYID_ANNOTATION = "vnd.wanc.signature.keyid"
"""Which key is said to have signed. For people: nothing is decided by it."""
REPORT_ANNOTATION = "vnd.wanc.signature.report"
"""Digest of the report that a signed test result is of."""

_EMPTY = oci.describe(oci.EMPTY, oci.EMPTY_BYTES)

MAX_BYTES = 16 << 20
"""Of one attachment."""
MOST_ENTRIES = 1000
"""Attachments of one kind that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAttachment:
    """Something to be attached."""

    artifact_type: str
    data: bytes
    annotations: dict[str, str] = field(default_factory=dict)
    """They tell it from others of its type, which it does not replace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Something that is attached, to this state of the bundle or to an earlier one."""

    entry: Descriptor
    """Of its manifest, as index.json names it."""
    blob: Descriptor
    subject: Descriptor
    """The bundle's index that it is attached to."""

    @property
    def artifact_type(self) -> str:
        """What it is."""
        return self.entry.artifact_type

    @property
    def manifest(self) -> bytes:
        """Its manifest, in its one spelling."""
        return oci.manifest_bytes(
            _EMPTY,
            [self.blob],
            self.entry.annotations,
            artifact_type=self.artifact_type,
            subject=self.subject,
        )

    def read(self, path: Path) -> bytes:
        """Its bytes; raises BundleError where they are damaged, or too many."""
        if self.blob.size > MAX_BYTES:
            raise BundleError(
                f"{path}: attached {self.blob.digest} has more than {MAX_BYTES} bytes"
            )
        return read_json_blob(path, self.blob)


def attach(bundle: Bundle, new: Sequence[NewAttachment]) -> tuple[Descriptor, ...]:
    """Attach to a bundle, and return the manifests; raises BundleError, RunError.

    The bundle must still be the one that was opened. What is there of the same type gives way where
    it has the same annotations, is stale, or cannot be read.
    """
    for each in new:
        if len(each.data) > MAX_BYTES:
            raise BundleError(
                f"{bundle.path}: {len(each.data)} bytes of {each.artifact_type} cannot be "
                f"attached: at most {MAX_BYTES} are read"
            )
    try:
        with locked(bundle.path):
            subject = replace(bundle_entry(bundle.path), annotations={})
            if subject.digest != bundle.digest:
                raise BundleError(
                    f"{bundle.path}: has become {subject.digest} since it was opened as "
                    f"{bundle.digest}: do it again"
                )
            there = index_entries(bundle.path)
            added = [_put(bundle.path, subject, each) for each in new]
            kept = [
                entry for entry in there if entry in added or not _gives_way(bundle, entry, added)
            ]
            listed = [*kept, *(entry for entry in added if entry not in kept)]
            if listed != there:
                write_entries(bundle.path, listed)
    except OSError as error:
        raise RunError(f"cannot write the bundle {bundle.path}: {error}") from error
    return tuple(added)


def attached(bundle: Bundle, *types: str) -> tuple[Attachment, ...]:
    """What is attached to this very state of a bundle, of some types; raises BundleError."""
    found = attachments(bundle.path, types)
    return tuple(each for each in found if each.subject.digest == bundle.digest)


def attachments(path: Path, types: Collection[str] = TYPES) -> tuple[Attachment, ...]:
    """What is attached of some types, and what was to earlier states; raises BundleError."""
    entries = [entry for entry in index_entries(path) if is_attachment(entry, types)]
    if len(entries) > MOST_ENTRIES:
        raise BundleError(
            f"{path}: has {len(entries)} attachments; at most {MOST_ENTRIES} are read"
        )
    return tuple(
        read_attachment(entry, read_json_blob(path, entry), str(path)) for entry in entries
    )


def is_attachment(entry: Descriptor, types: Collection[str] = TYPES) -> bool:
    """Whether an entry of index.json names an attachment of one of the types."""
    return entry.media_type == oci.MANIFEST and entry.artifact_type in types


def read_attachment(entry: Descriptor, manifest: bytes, path: str) -> Attachment:
    """What a manifest attaches, as its entry in index.json has it; raises BundleError."""
    where = f"{path}: attachment {entry.digest[:19]}"
    value = oci.parse(manifest, where)
    layers = oci.descriptors(value, "layers", where)
    config, subject = (Descriptor.from_json(value.get(k), where) for k in ("config", "subject"))
    types = [value.get("artifactType"), *(layer.media_type for layer in layers)]
    if types != [entry.artifact_type] * 2:
        raise BundleError(f"{where}: needs artifactType and one layer of {entry.artifact_type!r}")
    if config != _EMPTY:
        raise BundleError(f"{where}: its config is not the empty one")
    if subject.media_type != oci.INDEX:
        raise BundleError(f"{where}: its subject is no index")
    if value.get("annotations", {}) != entry.annotations:
        raise BundleError(f"{where}: its annotations are not those that index.json has")
    blob, subject = (replace(each, annotations={}) for each in (layers[0], subject))
    return Attachment(entry=entry, blob=blob, subject=subject)


def _put(path: Path, subject: Descriptor, new: NewAttachment) -> Descriptor:
    """Write the blobs, and return what index.json is to say."""
    manifest = oci.manifest_bytes(
        _EMPTY,
        [oci.describe(new.artifact_type, new.data)],
        new.annotations,
        artifact_type=new.artifact_type,
        subject=subject,
    )
    for blob in (new.data, oci.EMPTY_BYTES, manifest):
        put_blob(path, blob)
    entry = oci.describe(oci.MANIFEST, manifest, **new.annotations)
    return replace(entry, artifact_type=new.artifact_type)


def _gives_way(bundle: Bundle, old: Descriptor, added: Sequence[Descriptor]) -> bool:
    same = [entry for entry in added if is_attachment(old, (entry.artifact_type,))]
    if not same:
        return False
    try:
        read = read_attachment(old, read_json_blob(bundle.path, old), str(bundle.path))
    except BundleError:
        return True
    return read.subject.digest != bundle.digest or any(
        e.annotations == old.annotations for e in same
    )

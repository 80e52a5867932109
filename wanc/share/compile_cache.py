"""A compile cache in a repository of a registry, which CI jobs share.

Each entry is a tag made of its kind and its key: a manifest whose config is the record and whose
layer is the blob. Whoever may write the repository decides what others put into their bundles.
What fails here costs a compile and is told of once; nothing is compiled less for it.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

from wanc.bundle import oci
from wanc.bundle.oci import Descriptor
from wanc.errors import BundleError, RegistryError, RunError
from wanc.progress import Progress
from wanc.registry.blobs import fetch_json
from wanc.registry.downloads import fetch_blob
from wanc.registry.manifests import find_manifest, put_manifest
from wanc.registry.referrers import MOST_BYTES
from wanc.registry.repository import Repository
from wanc.registry.uploads import push_blob
from wanc.share.contents import named_blobs

ENTRY = "application/vnd.wanc.cached.v1+json"
"""Artifact type of an entry."""
RECORD = "application/vnd.wanc.cached.record.v1+json"
BLOB = "application/vnd.wanc.cached.blob.v1"

MOST_RECORD_BYTES = 1 << 20
MOST_BLOB_BYTES = 4 << 30
"""Of one program, which is in memory whole."""


class RegistryCache:
    """Used by several threads at once. Asks no more once a registry has failed."""

    def __init__(self, repository: Repository, progress: Progress) -> None:
        """The cache of a repository; progress is told what failed."""
        self._repository, self._progress = repository, progress
        self._asks = self._offers = True
        self._lock = Lock()

    def fetch(self, kind: str, key: str) -> tuple[bytes, bytes] | None:
        """The record and the blob under a key; None where they are not to be had."""
        if not self._asks:
            return None
        where = self._repository.what(tag_of(kind, key))
        try:
            tag = tag_of(kind, key)
            found = find_manifest(self._repository, tag, [oci.MANIFEST], most_bytes=MOST_BYTES)
            if found is None:
                return None
            record, *blobs = named_blobs(found[1], where)
            if (record.media_type, [blob.media_type for blob in blobs]) != (RECORD, [BLOB]):
                raise RegistryError(f"{where}: is no entry of a compile cache")
            if record.size > MOST_RECORD_BYTES or blobs[0].size > MOST_BLOB_BYTES:
                raise RegistryError(f"{where}: is larger than any entry of a compile cache")
            return fetch_json(self._repository, record), self._fetched(blobs[0])
        except (RegistryError, BundleError, RunError, OSError) as error:  # or there is no room
            self._failed("asked", error)
        return None

    def _fetched(self, blob: Descriptor) -> bytes:
        """By way of a file, for a download that breaks goes on there."""
        with TemporaryDirectory(prefix="wanc-") as room:
            file = Path(room) / "blob"
            fetch_blob(self._repository, blob.digest, blob.size, file)
            return file.read_bytes()

    def offer(self, kind: str, key: str, record: bytes, blob: bytes) -> None:
        """Push a record and its blob; another job may have done so, with either one's bytes."""
        if not self._offers:
            return
        named = [oci.describe(RECORD, record), oci.describe(BLOB, blob)]
        manifest = oci.manifest_bytes(named[0], [named[1]], {}, artifact_type=ENTRY)
        try:
            for descriptor, data in zip(named, (record, blob), strict=True):
                push_blob(self._repository, data, descriptor.digest, descriptor.size)
            put_manifest(self._repository, manifest, oci.MANIFEST, tag_of(kind, key))
        except RegistryError as error:
            self._failed("given anything", error)

    def _failed(self, what: str, error: Exception) -> None:
        with self._lock:
            if what == "asked":
                told, self._asks = not self._asks, False
            else:
                told, self._offers = not self._offers, False
        if not told:
            self._progress.note(f"the compile cache is no longer {what}: {error}")


def tag_of(kind: str, key: str) -> str:
    """The tag of an entry."""
    return f"{kind}-{key.removeprefix('sha256:')}"

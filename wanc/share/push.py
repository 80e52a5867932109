"""The story of a push: a bundle to a repository of a registry, of which a tag is the last word.

Only what is not there moves. Whatever ends a push early leaves blobs and manifests that nothing
names yet, and the same push goes on from them.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from wanc.bundle import oci
from wanc.bundle.oci import Descriptor
from wanc.bundle.store import Bundle, blob_path, check_blob, open_bundle
from wanc.errors import BundleError, RequestError
from wanc.progress import TransferProgress
from wanc.registry.manifests import put_manifest, resolve
from wanc.registry.reference import Reference
from wanc.registry.referrers import attach
from wanc.registry.repository import OnBytes, Repository
from wanc.registry.uploads import push_blob
from wanc.share.attachments import referring
from wanc.share.contents import contents_of, named_blobs
from wanc.share.workers import Moved, move


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a push did."""

    reference: Reference
    """With the bundle's digest."""
    blobs: int
    """Of the bundle and of what is attached to it."""
    manifests: int
    """Those that were not there."""
    attached: int
    """Reports, signatures and lists of parts."""
    moved_bytes: int
    reused_bytes: int


def push_bundle(
    path: Path,
    reference: Reference,
    repository: Repository,
    *,
    mount_from: str | None = None,
    jobs: int,
    progress: TransferProgress,
) -> Pushed:
    """Push a bundle; raises BundleError, RequestError, RegistryError.

    Args:
        path: the bundle.
        reference: where to; without a tag the bundle is there under its digest alone.
        repository: that of the reference.
        mount_from: name of a repository of the same registry that may have some blobs.
        jobs: blobs on their way at once.
        progress: is told of bytes.
    """
    bundle = open_bundle(path)
    if reference.digest not in (None, bundle.digest):
        raise RequestError(f"{reference}: the bundle {path} is {bundle.digest}")
    contents, attached = contents_of(bundle), referring(bundle)
    extra = [blob for manifest in attached for blob in named_blobs(manifest, str(path))]
    blobs = list({blob.digest: blob for blob in (*contents.blobs, *extra)}.values())
    counted = _send_blobs(bundle, blobs, repository, mount_from, jobs, progress)
    manifests = sum(_put(repository, data, oci.MANIFEST) for data in contents.manifests)
    manifests += _put(repository, contents.index, oci.INDEX)
    for manifest in attached:
        attach(repository, manifest)
    if reference.tag:
        put_manifest(repository, contents.index, oci.INDEX, reference.tag)
    return Pushed(
        reference=replace(reference, digest=bundle.digest),
        blobs=len(blobs),
        manifests=manifests,
        attached=len(attached),
        moved_bytes=counted.moved_bytes,
        reused_bytes=counted.reused_bytes,
    )


def _send_blobs(
    bundle: Bundle,
    blobs: list[Descriptor],
    repository: Repository,
    mount_from: str | None,
    jobs: int,
    progress: TransferProgress,
) -> Moved:
    def send(blob: Descriptor, on_bytes: OnBytes) -> None:
        def checked() -> Path:
            if bundle.is_part and not blob_path(bundle.path, blob.digest).exists():
                raise BundleError(
                    f"{bundle.path}: was pulled in part, and {blob.digest} is neither here nor in "
                    f"{repository.host}/{repository.name}; pull all of it first"
                )
            return check_blob(bundle.path, blob.digest, blob.size)

        push_blob(
            repository, checked, blob.digest, blob.size, mount_from=mount_from, on_bytes=on_bytes
        )

    counted = Moved()
    with progress.transfer("push", sum(blob.size for blob in blobs)) as transfer:
        move(blobs, send, jobs=jobs, transfer=transfer, counted=counted)
    return counted


def _put(repository: Repository, data: bytes, media_type: str) -> bool:
    """Put a manifest under its digest, where it is not there; whether it was not."""
    descriptor = oci.describe(media_type, data)
    if resolve(repository, descriptor.digest, (media_type,)) is not None:
        return False
    put_manifest(repository, data, media_type)
    return True

"""The story of a pull: a bundle from a repository of a registry, of which index.json is the last.

Only what is not there moves, and what was cut off goes on. Everything is checked against the digest
above it, from the bundle's own down; a tag is believed once, when it is resolved.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from wanc.bundle import oci
from wanc.bundle.oci import Descriptor
from wanc.bundle.store import (
    Bundle,
    BundleVariant,
    blob_path,
    check_destination,
    check_index_format,
    entry_of,
    index_entries,
    open_bundle,
    open_variant,
    put_blob,
    read_json_blob,
    variant_keys,
    write_entries,
)
from wanc.errors import BundleError, RegistryError, RequestError, RunError
from wanc.files import locked, make_folder
from wanc.progress import TransferProgress
from wanc.registry.blobs import fetch_json
from wanc.registry.downloads import fetch_blob
from wanc.registry.manifests import get_manifest, resolve
from wanc.registry.reference import Reference
from wanc.registry.referrers import MOST_BYTES
from wanc.registry.repository import OnBytes, Repository
from wanc.share.attachments import take_attached
from wanc.share.choose import chosen_variants
from wanc.share.contents import named_blobs
from wanc.share.workers import Moved, move

MOST_VARIANTS = 1000
MOST_JSON_BYTES = 256 << 20
"""Of manifests and configs of a bundle together: they are in memory at once."""
_MOST_KEPT = 400
"""Attachments that are kept beside those of the registry: index.json must name them all."""

LATEST = "latest"
"""The tag of a reference that names neither tag nor digest, as everywhere."""


Programs = Literal["all", "executables", "none"]
"""What of the programs: with the StableHLO that they were made of, without it, or neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What a pull did."""

    bundle: Path
    reference: Reference
    """With the bundle's digest."""
    variants: tuple[str, ...]
    """Those whose programs are here, for people."""
    left: int
    """Variants whose programs were left in the registry."""
    attached: int
    moved_bytes: int
    reused_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of a bundle is to be pulled."""

    variants: tuple[str, ...] = ()
    """By words of theirs; none for all."""
    programs: Programs = "all"
    replace: bool = False
    """Whether variants may go that are at the destination, and not in the bundle."""


def pull_bundle(
    reference: Reference,
    path: Path,
    repository: Repository,
    *,
    wanted: Wanted,
    jobs: int,
    progress: TransferProgress,
) -> Pulled:
    """Pull a bundle; raises RegistryError, BundleError, RequestError, RunError.

    Args:
        reference: what; its digest counts where it has one.
        path: the bundle's folder; another bundle there is replaced, what both have is kept.
        repository: that of the reference.
        wanted: what of it.
        jobs: blobs on their way at once.
        progress: is told of bytes.
    """
    check_destination(path)
    asked_for = reference.digest or reference.tag or LATEST
    index, data = get_manifest(repository, asked_for, most_bytes=MOST_BYTES)
    _check_is_index(index, reference)
    check_index_format(oci.parse(data, str(reference)), str(reference))
    try:
        make_folder(path / "blobs" / "sha256")
        with locked(path):
            put_blob(path, data)
            variants = _take_variants(path, data, repository, str(reference))
            _check_replaced(path, variants, wanted)
            chosen = chosen_variants(variants, wanted.variants, str(reference))
            counted = _fetch_blobs(path, chosen, repository, wanted, jobs, progress)
            entry = entry_of(data, is_part=not _has(path, variants, Wanted()))
            bundle = Bundle(path=path, entry=entry, variants=tuple(variants))
            attached = take_attached(repository, bundle)
            write_entries(path, [entry, *attached, *_kept(path, bundle, attached)])
    except OSError as error:
        raise RunError(f"cannot write the bundle {path}: {error}") from error
    return Pulled(
        bundle=path,
        reference=replace(reference, digest=index.digest),
        variants=tuple(str(variant.config.variant) for variant in chosen),
        left=len(variants) - len(chosen),
        attached=len(attached),
        moved_bytes=counted.moved_bytes,
        reused_bytes=counted.reused_bytes,
    )


def pinned(reference: Reference, repository: Repository) -> Reference:
    """The reference with the digest that it means now; raises RegistryError."""
    if reference.digest:
        return reference
    tag = reference.tag or LATEST
    found = resolve(repository, tag) or get_manifest(repository, tag, most_bytes=MOST_BYTES)[0]
    _check_is_index(found, reference)
    return replace(reference, digest=found.digest)


def _check_is_index(found: Descriptor, reference: Reference) -> None:
    if found.media_type != oci.INDEX:
        raise RegistryError(f"{reference}: is no bundle, but {found.media_type}")


def is_here(path: Path, digest: str, wanted: Wanted) -> bool:
    """Whether a folder has what is wanted of a bundle. Readers check digests of blobs."""
    if not (path / "index.json").exists():
        return False
    bundle = open_bundle(path)
    chosen = chosen_variants(bundle.variants, wanted.variants, str(path))
    return bundle.digest == digest and _has(path, chosen, wanted)


def _take_variants(
    path: Path, index: bytes, repository: Repository, where: str
) -> list[BundleVariant]:
    """Manifests and configs of all variants: they are small, and without them nothing is known."""
    listed = oci.descriptors(oci.parse(index, where), "manifests", where)
    if len(listed) > MOST_VARIANTS:
        raise RegistryError(f"{where}: {len(listed)} variants; at most {MOST_VARIANTS} are taken")
    variants, json_bytes = [], 0
    for manifest in listed:
        if not _is_here(path, manifest):
            accepted = [oci.MANIFEST]
            _, data = get_manifest(repository, manifest.digest, accepted, most_bytes=MOST_BYTES)
            put_blob(path, data)
        config = named_blobs(read_json_blob(path, manifest), where)[0]
        json_bytes += manifest.size + config.size
        if json_bytes > MOST_JSON_BYTES:
            raise RegistryError(
                f"{where}: manifests and configs of more than {MOST_JSON_BYTES} bytes; no bundle "
                "of wanc's has so many"
            )
        if not _is_here(path, config):
            put_blob(path, fetch_json(repository, config))
        variants.append(open_variant(path, manifest))
    return variants


def _kept(path: Path, bundle: Bundle, taken: Sequence[Descriptor]) -> list[Descriptor]:
    """What is attached to this very bundle here, and not in the registry."""
    there = index_entries(path)
    if all(entry.digest != bundle.digest for entry in there):
        return []
    known = {bundle.digest, *(entry.digest for entry in taken)}
    return [entry for entry in there if entry.digest not in known][:_MOST_KEPT]


def _is_here(path: Path, descriptor: Descriptor) -> bool:
    try:
        read_json_blob(path, descriptor)
    except BundleError:
        return False
    return True


def _check_replaced(path: Path, variants: Sequence[BundleVariant], wanted: Wanted) -> None:
    """Raise RequestError where variants would be lost that nobody named."""
    if wanted.replace or not (path / "index.json").exists():
        return
    keys = variant_keys(variants)
    lost = [old for old in open_bundle(path).variants if not variant_keys([old]) <= keys]
    if lost:
        listed = "\n  ".join(str(old.config.variant) for old in lost)
        raise RequestError(
            f"{path} has variants that are not in what is pulled; choose another -o, or --replace "
            f"to lose them:\n  {listed}"
        )


def _fetch_blobs(
    path: Path,
    chosen: Sequence[BundleVariant],
    repository: Repository,
    wanted: Wanted,
    jobs: int,
    progress: TransferProgress,
) -> Moved:
    blobs = {blob.digest: blob for each in chosen for blob in _programs(path, each, wanted)}

    def fetch(blob: Descriptor, on_bytes: OnBytes) -> None:
        file = blob_path(path, blob.digest)
        fetch_blob(repository, blob.digest, blob.size, file, on_bytes=on_bytes)

    counted = Moved()
    ordered = sorted(blobs.values(), key=lambda blob: -blob.size)
    with progress.transfer("pull", sum(blob.size for blob in ordered)) as transfer:
        move(ordered, fetch, jobs=jobs, transfer=transfer, counted=counted)
    return counted


def _programs(path: Path, variant: BundleVariant, wanted: Wanted) -> list[Descriptor]:
    """The layers of a variant that are wanted."""
    layers = named_blobs(read_json_blob(path, variant.manifest), str(path))[1:]
    records = variant.config.programs
    executables = {record.executable.digest for record in records if record.executable}
    if wanted.programs == "none":
        return []
    return [each for each in layers if wanted.programs == "all" or each.digest in executables]


def _has(path: Path, variants: Sequence[BundleVariant], wanted: Wanted) -> bool:
    """Whether all that is wanted is there, from this pull or from earlier ones."""
    return all(
        blob_path(path, layer.digest).exists()
        for variant in variants
        for layer in _programs(path, variant, wanted)
    )

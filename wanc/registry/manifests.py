"""Manifests and indexes of a repository, by tag or by digest, every digest computed here.

Knows nothing of what they describe.
"""

from collections.abc import Collection
from dataclasses import dataclass

from wanc.bundle import oci
from wanc.bundle.oci import Descriptor
from wanc.bundle.store import MAX_JSON_BYTES
from wanc.errors import BundleError, RegistryError
from wanc.registry.answers import Answer
from wanc.registry.blobs import check_digest, wrong_digest
from wanc.registry.reference import is_digest, is_tag
from wanc.registry.repository import Repository
from wanc.registry.texts import printable

OCI_TYPES = (oci.INDEX, oci.MANIFEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """What a registry made of a manifest."""

    descriptor: Descriptor
    subject: str | None
    """Digest of the subject that the registry lists it under; None where it keeps no such list."""


def get_manifest(
    repository: Repository,
    asked_for: str,
    accepted: Collection[str] = OCI_TYPES,
    *,
    most_bytes: int = MAX_JSON_BYTES,
) -> tuple[Descriptor, bytes]:
    """A manifest by tag or digest; raises RegistryError.

    Args:
        repository: where from.
        asked_for: a tag or a digest.
        accepted: media types that will do.
        most_bytes: that are read.
    """
    found = find_manifest(repository, asked_for, accepted, most_bytes=most_bytes)
    if found is None:
        raise _absent(repository, asked_for)
    return found


def find_manifest(
    repository: Repository,
    asked_for: str,
    accepted: Collection[str] = OCI_TYPES,
    *,
    most_bytes: int = MAX_JSON_BYTES,
) -> tuple[Descriptor, bytes] | None:
    """As get_manifest, but None where the registry has none."""
    answer = _answer(repository, "GET", asked_for, accepted, most_bytes)
    if answer.status == 404:
        return None
    what = repository.what(manifest_name(asked_for))
    descriptor = oci.describe(_media_type(answer, what, accepted), answer.body)
    for needed in (asked_for, answer.headers.get("Docker-Content-Digest", "")):
        if is_digest(needed) and needed != descriptor.digest:
            raise wrong_digest(what, descriptor.digest, needed)
    stated = parsed(answer.body, what).get("mediaType", descriptor.media_type)
    if stated != descriptor.media_type:
        raise RegistryError(
            f"{what}: the registry calls it {descriptor.media_type!r}, and it calls itself "
            f"{printable(str(stated))!r}"
        )
    return descriptor, answer.body


def resolve(
    repository: Repository, tag: str, accepted: Collection[str] = OCI_TYPES
) -> Descriptor | None:
    """What a tag means now, as the registry says, or None where it has none; raises RegistryError.

    Nothing of it is checked: ``get_manifest`` of its digest does so.
    """
    answer = _answer(repository, "HEAD", tag, accepted, 0)
    if answer.status == 404:
        return None
    digest, size = (answer.headers.get(k, "") for k in ("Docker-Content-Digest", "Content-Length"))
    if not (is_digest(digest) and size.isdecimal() and len(size) < 18):
        found = find_manifest(repository, tag, accepted)
        return found and found[0]
    media_type = _media_type(answer, repository.what(manifest_name(tag)), accepted)
    return Descriptor(media_type=media_type, digest=digest, size=int(size))


def put_manifest(
    repository: Repository, data: bytes, media_type: str, tag: str | None = None
) -> Put:
    """Put a manifest under a tag, or under its digest alone; raises RegistryError.

    All that it names must be in the repository.
    """
    descriptor = oci.describe(media_type, data)
    name = tag or descriptor.digest
    _check_name(repository, name)
    asked = repository.asked(
        "PUT",
        repository.url("manifests", name),
        manifest_name(name),
        headers={"Content-Type": media_type},
        body=data,
    )
    answer = repository.transport.answer(asked, {201})
    said = answer.headers.get("Docker-Content-Digest", "")
    if is_digest(said) and said != descriptor.digest:
        raise wrong_digest(repository.what(manifest_name(name)), said, descriptor.digest)
    return Put(descriptor=descriptor, subject=answer.headers.get("OCI-Subject"))


def manifest_name(asked_for: str) -> str:
    """A manifest, for people."""
    is_named = not is_digest(asked_for)
    return f"tag {printable(asked_for)}" if is_named else f"manifest {asked_for[:19]}"


def parsed(data: bytes, what: str) -> dict[str, object]:
    """A JSON object that came from a registry; raises RegistryError."""
    try:
        return oci.parse(data, what)
    except BundleError as error:
        raise RegistryError(printable(str(error))) from error


def _answer(
    repository: Repository, method: str, asked_for: str, accepted: Collection[str], most_bytes: int
) -> Answer:
    _check_name(repository, asked_for)
    asked = repository.asked(
        method,
        repository.url("manifests", asked_for),
        manifest_name(asked_for),
        headers={"Accept": ", ".join(accepted)},
    )
    return repository.transport.answer(asked, {200, 404}, most_bytes)


def _check_name(repository: Repository, asked_for: str) -> None:
    if not is_tag(asked_for):
        check_digest(asked_for, repository.what("manifest"))


def _media_type(answer: Answer, what: str, accepted: Collection[str]) -> str:
    media_type = str(answer.headers.get("Content-Type", "")).partition(";")[0].strip()
    if media_type not in accepted:
        raise RegistryError(
            f"{what}: the registry has {printable(media_type) or 'something'!r}; needs "
            f"{' or '.join(accepted)}"
        )
    return media_type


def _absent(repository: Repository, asked_for: str) -> RegistryError:
    return RegistryError(
        f"{repository.what(manifest_name(asked_for))}: the registry has no such manifest, or no "
        f"repository {repository.name}"
    )

"""Blobs of a repository that are small, or only asked for. Knows nothing of what they hold."""

from wanc.bundle.oci import Descriptor
from wanc.bundle.store import MAX_JSON_BYTES
from wanc.digest import of_bytes
from wanc.errors import RegistryError
from wanc.registry.reference import is_digest
from wanc.registry.repository import Repository
from wanc.registry.texts import printable


def blob_name(digest: str) -> str:
    """A blob, for people."""
    return f"blob {printable(digest)[:19]}"


def check_digest(digest: str, what: str) -> None:
    """Raise RegistryError where a registry names something by what is no digest of wanc's."""
    if not is_digest(digest):
        raise RegistryError(f"{what}: {printable(digest)!r} is no sha256 digest")


def has_blob(repository: Repository, digest: str) -> bool:
    """Whether a repository has a blob, as the registry says; raises RegistryError."""
    check_digest(digest, repository.what("blob"))
    asked = repository.asked("HEAD", repository.url("blobs", digest), blob_name(digest))
    return repository.transport.answer(asked, {200, 404}).status == 200


def fetch_json(repository: Repository, descriptor: Descriptor) -> bytes:
    """The bytes of a blob that is JSON, of its digest and size; raises RegistryError."""
    what = repository.what(blob_name(descriptor.digest))
    check_digest(descriptor.digest, what)
    if descriptor.size > MAX_JSON_BYTES:
        raise RegistryError(
            f"{what}: says to be {descriptor.size} bytes of JSON; at most {MAX_JSON_BYTES} are read"
        )
    url = repository.url("blobs", descriptor.digest)
    asked = repository.asked("GET", url, blob_name(descriptor.digest))
    data = repository.transport.answer(asked, {200}, max(descriptor.size, 1)).body
    if len(data) != descriptor.size:
        raise wrong_size(what, len(data), descriptor.size)
    if of_bytes(data) != descriptor.digest:
        raise wrong_digest(what, of_bytes(data), descriptor.digest)
    return data


def wrong_size(what: str, seen: int, needed: int) -> RegistryError:
    """The registry has another number of bytes under a digest."""
    return RegistryError(f"{what}: the registry has {seen} bytes of it; needs {needed}")


def wrong_digest(what: str, seen: str, needed: str) -> RegistryError:
    """The registry has other bytes under a digest."""
    return RegistryError(
        f"{what}: the registry answers other bytes, of {printable(seen)}; needs {needed}"
    )

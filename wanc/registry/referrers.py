"""What refers to a manifest: the referrers API, or the tag that stands for it in older registries.

A list of referrers is a claim: ``referrer`` looks whether a manifest names the subject itself.
Knows nothing of what referrers are for.
"""

import re
from dataclasses import dataclass
from typing import Any

from wanc.bundle import oci
from wanc.bundle.oci import Descriptor
from wanc.bundle.store import MAX_JSON_BYTES
from wanc.digest import canonical_json
from wanc.errors import BundleError, RegistryError
from wanc.registry.blobs import check_digest
from wanc.registry.manifests import find_manifest, get_manifest, parsed, put_manifest
from wanc.registry.repository import Repository
from wanc.registry.retries import PassingError
from wanc.registry.texts import printable

MOST_BYTES = 4 << 20
"""Of a page of a list, and of a manifest in it: what every registry takes."""
MOST_PAGES = 200
_LINK = re.compile("<([^<>]*)>([^<]*)")
_IS_NEXT = re.compile(r';[ \t]*rel[ \t]*=[ \t]*(?:"next"|next\b)', re.IGNORECASE)
_NO_API = frozenset({404, 405, 501})
_MANIFEST_TYPES = frozenset(
    {
        *(oci.INDEX, oci.MANIFEST, "application/vnd.oci.artifact.manifest.v1+json"),
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Referrer:
    """An entry of a list of referrers, which may be wrong."""

    descriptor: Descriptor
    artifact_type: str | None


def list_referrers(
    repository: Repository, subject: str, artifact_type: str | None = None
) -> tuple[Referrer, ...]:
    """What a registry lists under a subject; raises RegistryError.

    Args:
        repository: of the subject.
        subject: the digest of a manifest.
        artifact_type: of those that are wanted; None for all.
    """
    check_digest(subject, repository.what("subject"))
    values = _by_api(repository, subject, artifact_type)
    if values is None:
        values = _entries(_tagged(repository, subject), repository.what(_tag(subject)))
    what = repository.what(f"referrers of {subject[:19]}")
    found = {each.descriptor.digest: each for each in (_read(value, what) for value in values)}
    return tuple(e for e in found.values() if artifact_type in (None, e.artifact_type))


def referrer(repository: Repository, listed: Referrer, subject: str) -> bytes:
    """A manifest that really refers to a subject; raises RegistryError."""
    what = repository.what(f"referrer {listed.descriptor.digest[:19]}")
    _, data = get_manifest(repository, listed.descriptor.digest, most_bytes=MOST_BYTES)
    named = _subject(parsed(data, what), what)
    if named != subject:
        raise RegistryError(f"{what}: listed under {subject}, but refers to {named or 'nothing'}")
    if _artifact_type(parsed(data, what)) != listed.artifact_type:
        raise RegistryError(f"{what}: it is no {listed.artifact_type}, as which it is listed")
    return data


def attach(repository: Repository, data: bytes, media_type: str = oci.MANIFEST) -> Descriptor:
    """Put a manifest that has a subject, and have it listed under that; raises RegistryError.

    A registry that keeps no list has it in a tag, where of two writers one may undo what the other
    did: what was written is read again, and written again where it has gone.

    Args:
        repository: of the subject, whether it is there already or not.
        data: the manifest.
        media_type: of the manifest.
    """
    what = repository.what("referrer")
    value = parsed(data, what)
    subject = _subject(value, what)
    if subject is None:
        raise RegistryError(f"{what}: the manifest names no subject to be attached to")
    put = put_manifest(repository, data, media_type)
    if put.subject is None:
        _list_in_tag(repository, subject, _entry(put.descriptor, value))
    elif put.subject != subject:
        raise RegistryError(
            f"{what}: the registry lists it under {printable(put.subject)}; it refers to {subject}"
        )
    return put.descriptor


def _by_api(repository: Repository, subject: str, artifact_type: str | None) -> list[object] | None:
    """The entries of all pages, or None where the registry has no such API."""
    what = repository.what(f"referrers of {subject[:19]}")
    url = repository.url("referrers", subject, artifactType=artifact_type)
    values: list[object] = []
    read_bytes = 0
    for _ in range(MOST_PAGES):
        asked = repository.asked(
            "GET", url, f"referrers of {subject[:19]}", headers={"Accept": oci.INDEX}
        )
        answer = repository.transport.answer(asked, {200, *_NO_API}, MOST_BYTES)
        if answer.status != 200:
            return None
        values += _entries(parsed(answer.body, what), what)
        read_bytes += len(answer.body)
        following = _next(answer.headers.getlist("Link"))
        if not following:
            return values
        if read_bytes > MAX_JSON_BYTES:
            break
        url = repository.transport.joined(answer.url, following, what)
    raise RegistryError(
        f"{what}: the registry has more than {MOST_PAGES} pages or {MAX_JSON_BYTES} bytes of them"
    )


def _next(links: list[str]) -> str | None:
    """The address of the page that follows, by RFC 8288."""
    found = (link for header in links for link in _LINK.finditer(header))
    return next((link[1] for link in found if _IS_NEXT.search(link[2])), None)


def _tag(subject: str) -> str:
    """The tag that stands for the API."""
    return subject.replace(":", "-")


def _tagged(repository: Repository, subject: str) -> dict[str, object]:
    """The index under the tag, an empty one where there is none; raises RegistryError."""
    what = repository.what(f"tag {_tag(subject)}")
    found = find_manifest(repository, _tag(subject), most_bytes=MOST_BYTES)
    if found is None:
        return {"schemaVersion": 2, "mediaType": oci.INDEX, "manifests": []}
    descriptor, data = found
    if descriptor.digest == subject or descriptor.media_type != oci.INDEX:
        raise RegistryError(
            f"{what}: it should be a list of what refers to {subject}, and is "
            f"{'that itself' if descriptor.digest == subject else descriptor.media_type}"
        )
    value = parsed(data, what)
    _entries(value, what)
    return value


def _entries(index: dict[str, object], what: str) -> list[object]:
    """The entries of an index, all of them descriptors of manifests; raises RegistryError."""
    values = index.get("manifests")
    if index.get("mediaType", oci.INDEX) != oci.INDEX or not isinstance(values, list):
        raise RegistryError(f"{what}: the registry answers no image index")
    for value in values:
        media_type = _read(value, what).descriptor.media_type
        if media_type not in _MANIFEST_TYPES:
            raise RegistryError(f"{what}: it lists {printable(media_type)!r}, which is no manifest")
    return values


def _read(value: object, what: str) -> Referrer:
    try:
        descriptor = Descriptor.from_json(value, what)
    except BundleError as error:
        raise RegistryError(printable(str(error))) from error
    artifact_type = value.get("artifactType") if isinstance(value, dict) else None
    return Referrer(
        descriptor=descriptor,
        artifact_type=artifact_type if isinstance(artifact_type, str) and artifact_type else None,
    )


def _subject(manifest: dict[str, object], what: str) -> str | None:
    value = manifest.get("subject")
    return None if value is None else _read(value, what).descriptor.digest


def _artifact_type(manifest: dict[str, object]) -> str | None:
    """Of a manifest; where it has none, its config's media type, and of an index none."""
    config = manifest.get("config")
    of_config = config.get("mediaType") if isinstance(config, dict) else None
    found = manifest.get("artifactType") or of_config
    return found if isinstance(found, str) else None


def _entry(descriptor: Descriptor, manifest: dict[str, Any]) -> dict[str, Any]:
    """What a list says of a manifest."""
    entry = descriptor.to_json()
    if artifact_type := _artifact_type(manifest):
        entry["artifactType"] = artifact_type
    if annotations := manifest.get("annotations"):
        entry["annotations"] = annotations
    return entry


def _list_in_tag(repository: Repository, subject: str, entry: dict[str, Any]) -> None:
    """Add an entry to the tag, beside all others; raises RegistryError."""
    attempts = repository.transport.attempts(repository.what(f"tag {_tag(subject)}"))
    while True:
        index = _tagged(repository, subject)
        values = index["manifests"]
        assert isinstance(values, list)  # _tagged looked
        if any(value["digest"] == entry["digest"] for value in values):
            return
        index["manifests"] = [*values, entry]
        put_manifest(repository, canonical_json(index), oci.INDEX, _tag(subject))
        now = _tagged(repository, subject)["manifests"]
        assert isinstance(now, list)
        if any(value["digest"] == entry["digest"] for value in now):
            return
        attempts.again(PassingError("another writer undid what was written"))

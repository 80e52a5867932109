"""OCI image layout: descriptors, indexes and manifests in the field order that Go tools write.

Knows the OCI image specification 1.1, and nothing of what blobs hold.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeGuard

from wanc.digest import of_bytes
from wanc.errors import BundleError

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
VARIANT_TYPE = "application/vnd.wanc.bundle.v1+json"
CONFIG = "application/vnd.wanc.variant.v1+json"
STABLEHLO = "application/vnd.wanc.program.stablehlo.v1"
XLA_CPU = "application/vnd.wanc.program.xla-cpu.v1"
NEFF = "application/vnd.wanc.program.neff.v1"
EMPTY = "application/vnd.oci.empty.v1+json"
EMPTY_BYTES = b"{}"
LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
REF_NAME = "org.opencontainers.image.ref.name"

_MOST_BYTES = 1 << 63
"""As Go tools, which have no larger numbers for it."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A typed pointer to a blob."""

    media_type: str
    digest: str
    size: int
    annotations: dict[str, str] = field(default_factory=dict)
    artifact_type: str = ""
    """Of the manifest that an index names; empty where it does not say. Read by entries alone."""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.annotations:
            value["annotations"] = dict(sorted(self.annotations.items()))
        if self.artifact_type:
            value["artifactType"] = self.artifact_type
        return value

    @classmethod
    def from_json(cls, value: Any, where: str) -> "Descriptor":
        """Read a descriptor, checking every field; raises BundleError."""
        fields = value if isinstance(value, dict) else {}
        media_type, digest, size = (fields.get(k) for k in ("mediaType", "digest", "size"))
        annotations = fields.get("annotations")
        annotations = {} if annotations is None else annotations
        if not (
            _is_text(media_type)
            and isinstance(digest, str)
            and _DIGEST.fullmatch(digest)
            and type(size) is int
            and 0 <= size < _MOST_BYTES
            and isinstance(annotations, dict)
            and all(_is_text(text) for pair in annotations.items() for text in pair)
        ):
            raise BundleError(f"{where}: a descriptor is damaged: {quoted(value)}")
        return cls(media_type=media_type, digest=digest, size=size, annotations=annotations)


def _is_text(value: Any) -> TypeGuard[str]:
    """Whether a value is text that can be written again: half a surrogate pair cannot."""
    return isinstance(value, str) and not _SURROGATE.search(value)


def describe(media_type: str, data: bytes, **annotations: str) -> Descriptor:
    """The descriptor of some bytes."""
    return Descriptor(
        media_type=media_type, digest=of_bytes(data), size=len(data), annotations=annotations
    )


def index_bytes(manifests: list[Descriptor], annotations: dict[str, str]) -> bytes:
    """An image index. No artifactType: copying tools that drop it would change the digest."""
    value: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [manifest.to_json() for manifest in manifests],
    }
    if annotations:
        value["annotations"] = dict(sorted(annotations.items()))
    return _compact(value)


def manifest_bytes(
    config: Descriptor,
    layers: list[Descriptor],
    annotations: dict[str, str],
    *,
    artifact_type: str = VARIANT_TYPE,
    subject: Descriptor | None = None,
) -> bytes:
    """An image manifest, of one variant if nothing else is said."""
    value: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": artifact_type,
        "config": config.to_json(),
        "layers": [layer.to_json() for layer in layers],
    }
    if subject:
        value["subject"] = subject.to_json()
    if annotations:
        value["annotations"] = dict(sorted(annotations.items()))
    return _compact(value)


def parse(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object in which all readers of JSON see the same; raises BundleError."""
    try:
        value = json.loads(
            str(data, "utf-8"), object_pairs_hook=_object, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BundleError(f"{where}: not a JSON object")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def quoted(value: Any) -> str:
    """The beginning of a value of JSON, for a message."""
    try:
        return repr(value)[:120]
    except RecursionError:
        return "something too deep"


def descriptors(value: dict[str, Any], key: str, where: str) -> list[Descriptor]:
    """The descriptors listed under a key; raises BundleError."""
    listed = value.get(key)
    if not isinstance(listed, list):
        raise BundleError(f"{where}: no list of {key}")
    return [Descriptor.from_json(item, where) for item in listed]


def entries(value: dict[str, Any], where: str) -> list[Descriptor]:
    """What an index names, each with its artifactType; raises BundleError."""
    named = descriptors(value, "manifests", where)
    types = [item.get("artifactType", "") for item in value["manifests"]]
    if not all(isinstance(artifact_type, str) for artifact_type in types):
        raise BundleError(f"{where}: an artifactType is no text")
    return [replace(each, artifact_type=of) for each, of in zip(named, types, strict=True)]


def _compact(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

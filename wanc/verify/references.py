"""What a bundle's JSON names, from index.json down to the blobs of its variants.

Reads JSON, and each piece once. Knows what kinds there are, and nothing of what blobs hold.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wanc.bundle import oci
from wanc.bundle.config import VariantConfig, decode_config
from wanc.bundle.oci import Descriptor
from wanc.bundle.reports import COVERS, COVERS_ANNOTATION, REPORT_TYPE
from wanc.bundle.store import (
    STAGE_ANNOTATION,
    check_index_format,
    config_blobs,
    index_entries,
    read_json_blob,
    variant_annotations,
)
from wanc.errors import BundleError
from wanc.spec.target import TARGETS
from wanc.verify.findings import Findings

_XLA_CPU = "application/vnd.wanc.program.xla-cpu.v1"
_NEFF = "application/vnd.wanc.program.neff.v1"
_LAYER_TYPES = frozenset({oci.STABLEHLO, oci.EMPTY, _XLA_CPU, _NEFF})
MOST_MANIFESTS = 10_000


@dataclass(slots=True)
class References:
    """What is named, and by whom."""

    bundle: str = ""
    """The bundle's digest."""
    sizes: dict[str, dict[int, str]] = field(default_factory=dict)
    """By digest, each size that is stated of it, and who does."""
    configs: dict[str, VariantConfig] = field(default_factory=dict)
    """Variants' configs, by where they are from."""

    def add(self, descriptor: Descriptor, where: str) -> None:
        """Note that somebody names a blob."""
        self.sizes.setdefault(descriptor.digest, {}).setdefault(descriptor.size, where)


def walk(path: Path, references: References, found: Findings) -> None:
    """Follow every reference of a bundle."""
    try:
        entries = index_entries(path)
    except BundleError as error:
        found.fault("layout", "index.json", str(error))
        return
    bundles = [entry for entry in entries if entry.media_type == oci.INDEX]
    if len(bundles) != 1:
        found.fault("layout", "index.json", f"names {len(bundles)} bundles; needs exactly one")
    for entry in entries:
        references.add(entry, "index.json")
        if COVERS_ANNOTATION in entry.annotations:
            _walk_report(path, entry, references, found)
        elif entry.media_type != oci.INDEX:
            found.notice("reference", "index.json", f"{entry.digest} is not of wanc")
    for entry in bundles[:1]:
        references.bundle = entry.digest
        _walk_index(path, entry, references, found)


def _walk_index(path: Path, entry: Descriptor, references: References, found: Findings) -> None:
    where = "bundle index"
    try:
        index = oci.parse(read_json_blob(path, entry), where)
        check_index_format(index, path)
        if index.get("mediaType") != oci.INDEX or index.get("schemaVersion") != 2:
            found.fault("reference", where, "is no OCI image index of schema version 2")
        manifests = oci.descriptors(index, "manifests", where)
    except BundleError as error:
        found.fault("reference", where, str(error))
        return
    if not 1 <= len(manifests) <= MOST_MANIFESTS:
        found.fault("reference", where, f"{len(manifests)} variants; needs 1 to {MOST_MANIFESTS}")
    keys: dict[tuple[tuple[str, str], ...], str] = {}
    for number, manifest in enumerate(manifests[:MOST_MANIFESTS], start=1):
        at = f"variant {number}"
        references.add(manifest, where)
        key = {k: v for k, v in manifest.annotations.items() if k != STAGE_ANNOTATION}
        taken = keys.setdefault(tuple(sorted(key.items())), at)
        if taken != at:
            found.fault("reference", at, f"has the annotations of {taken}")
        _walk_manifest(path, at, manifest, references, found)


def _walk_manifest(
    path: Path, at: str, entry: Descriptor, references: References, found: Findings
) -> None:
    try:
        manifest = oci.parse(read_json_blob(path, entry), at)
        layers = oci.descriptors(manifest, "layers", at)
        config = Descriptor.from_json(manifest.get("config"), at)
    except BundleError as error:
        found.fault("reference", at, str(error))
        return
    for what, seen, needed in (
        ("media type", entry.media_type, oci.MANIFEST),
        ("mediaType", manifest.get("mediaType"), oci.MANIFEST),
        ("schemaVersion", manifest.get("schemaVersion"), 2),
        ("artifactType", manifest.get("artifactType"), oci.VARIANT_TYPE),
        ("media type of the config", config.media_type, oci.CONFIG),
    ):
        if seen != needed:
            found.fault("reference", at, f"{what} is {seen!r}; needs {needed!r}")
    for descriptor in (config, *layers):
        references.add(descriptor, at)
    for layer in layers:
        if layer.media_type not in _LAYER_TYPES:
            found.fault("reference", at, f"a layer's media type is {layer.media_type!r}")
    try:
        decoded = decode_config(read_json_blob(path, config), at)
    except BundleError as error:
        found.fault("config", at, str(error))
        return
    references.configs[at] = decoded
    _check_layers(at, decoded, layers, found)
    _check_annotations(at, decoded, entry, manifest, found)


def _check_layers(
    at: str, config: VariantConfig, layers: list[Descriptor], found: Findings
) -> None:
    """Every blob that the config names is a layer, of the right type, and no other is."""
    named = {blob.digest: blob for blob in config_blobs(config)}
    types = _types(config)
    listed = {layer.digest: layer for layer in layers}
    for digest, blob in named.items():
        layer = listed.get(digest)
        if layer is None or layer.size != blob.size_bytes:
            needed = f"its config names {digest}, {blob.size_bytes} bytes"
            said = "no layer does" if layer is None else f"a layer says {layer.size}"
            found.fault("reference", at, f"{needed}; {said}")
        elif layer.media_type in _LAYER_TYPES and layer.media_type not in types[digest]:
            needed = " or ".join(sorted(types[digest]))
            said = f"{digest} is a layer of type {layer.media_type!r}; needs {needed}"
            found.fault("reference", at, said)
    for digest, layer in listed.items():
        if digest not in named and layer.media_type != oci.EMPTY:
            found.fault("reference", at, f"layer {digest} is of no program")


def _types(config: VariantConfig) -> dict[str, set[str]]:
    """By digest, the media types that a layer of it may have."""
    facts = TARGETS.get(config.variant.target)
    executable = _NEFF if facts and facts.accelerator else _XLA_CPU
    types: dict[str, set[str]] = {}
    for record in config.programs:
        for blob, media_type in (
            (record.stablehlo, oci.STABLEHLO),
            (record.executable, executable),
        ):
            if blob:
                types.setdefault(blob.digest, set()).add(media_type)
    return types


def _check_annotations(
    at: str, config: VariantConfig, entry: Descriptor, manifest: dict[str, Any], found: Findings
) -> None:
    """What the index and the manifest say of a variant is what its config says."""
    needed = variant_annotations(config)
    for where, said in (("index", entry.annotations), ("manifest", manifest.get("annotations"))):
        if said != needed:
            found.fault("reference", at, f"the {where}'s annotations are not those of its config")


def _walk_report(path: Path, entry: Descriptor, references: References, found: Findings) -> None:
    """A report that is attached, and what it covers."""
    at = f"report {entry.digest[7:19]}"
    try:
        manifest = oci.parse(read_json_blob(path, entry), at)
        layers = oci.descriptors(manifest, "layers", at)
        named = [*layers, Descriptor.from_json(manifest.get("config"), at)]
    except BundleError as error:
        found.fault("report", at, str(error))
        return
    for descriptor in named:
        references.add(descriptor, at)
    if manifest.get("artifactType") != REPORT_TYPE or len(layers) != 1:
        found.fault("report", at, f"needs artifactType {REPORT_TYPE} and one layer")
    if not COVERS.fullmatch(entry.annotations[COVERS_ANNOTATION]):
        found.fault("report", at, "what it covers are no digests, joined by commas")
    if manifest.get("annotations") != entry.annotations:
        found.fault("report", at, "index.json's annotations are not those of its manifest")

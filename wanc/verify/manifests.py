"""A variant's manifest against its config, of which all of it follows.

Knows what names blobs, and nothing of what they hold.
"""

from collections.abc import Iterator
from typing import Any

from wanc.bundle import oci
from wanc.bundle.config import Blob, VariantConfig
from wanc.bundle.oci import Descriptor
from wanc.bundle.store import variant_annotations
from wanc.errors import BundleError
from wanc.spec.target import TARGETS
from wanc.verify.configs import read_config
from wanc.verify.references import MISSPELLED, References, check_document, is_spelled

_EMPTY = oci.describe(oci.EMPTY, oci.EMPTY_BYTES)


def read_variant(at: str, entry: Descriptor, references: References) -> VariantConfig | None:
    """A variant's config, from its entry in the bundle index; None where it cannot be read."""
    found = references.found
    if entry.digest in references.read_bytes:
        found.fault("reference", at, "has the manifest of something else")
        return None
    try:
        data = references.read(entry)
        manifest = oci.parse(data, at)
        layers = oci.descriptors(manifest, "layers", at)
        named = Descriptor.from_json(manifest.get("config"), at)
    except BundleError as error:
        found.fault("reference", at, str(error))
        return None
    before = found.faults
    for descriptor in (named, *layers):
        references.add(descriptor, at)
    _check_types(at, entry, manifest, named, references)
    config = read_config(at, named, references)
    if config is None:
        return None
    for fault in _annotation_faults(config, entry, manifest):
        found.fault("reference", at, fault)
    if executable_type(config.variant.target):  # else planning tells of the target
        for fault in _layer_faults(config, layers):
            found.fault("reference", at, fault)
        if found.faults == before and not is_spelled(data, lambda: _spelled(config, named)):
            found.fault("reference", at, MISSPELLED)
    return config


def executable_type(target: str) -> str | None:
    """The media type of executables; None where there is no such target."""
    facts = TARGETS.get(target)
    if facts is None:
        return None
    return oci.NEFF if facts.accelerator else oci.XLA_CPU


def _check_types(
    at: str,
    entry: Descriptor,
    manifest: dict[str, Any],
    config: Descriptor,
    references: References,
) -> None:
    check_document(manifest, oci.MANIFEST, "reference", at, references.found)
    for what, seen, needed in (
        ("media type", entry.media_type, oci.MANIFEST),
        ("artifactType", manifest.get("artifactType"), oci.VARIANT_TYPE),
        ("media type of the config", config.media_type, oci.CONFIG),
    ):
        if seen != needed:
            references.found.fault(
                "reference", at, f"{what} is {oci.quoted(seen)}; needs {needed!r}"
            )


def _blobs(config: VariantConfig) -> Iterator[tuple[Blob, str]]:
    """Every blob that a config names, in order, and the media type that it so has."""
    executable = executable_type(config.variant.target)
    for record in config.programs:
        for blob, media_type in (
            (record.stablehlo, oci.STABLEHLO),
            (record.executable, executable),
        ):
            if blob and media_type:
                yield blob, media_type


def _layer_faults(config: VariantConfig, listed: list[Descriptor]) -> Iterator[str]:
    """Every blob that the config names is a layer, once and of its type, and no other is."""
    layers = {layer.digest: layer for layer in listed}
    if len(layers) != len(listed):
        yield "a layer stands twice"
    types: dict[str, str] = {}
    for blob, media_type in _blobs(config):
        layer = layers.get(blob.digest)
        if types.setdefault(blob.digest, media_type) != media_type:
            yield f"its config has {blob.digest} as StableHLO and as an executable"
        elif layer is None or layer.size != blob.size_bytes:
            said = "no layer does" if layer is None else f"a layer says {layer.size}"
            yield f"its config names {blob.digest}, {blob.size_bytes} bytes; {said}"
        elif layer.media_type != media_type:
            said = f"is a layer of type {layer.media_type!r}"
            yield f"{blob.digest} {said}; needs {media_type}"
    for digest, layer in layers.items():
        if digest not in types and (types or layer != _EMPTY):
            yield f"layer {digest} is of no program"


def _annotation_faults(
    config: VariantConfig, entry: Descriptor, manifest: dict[str, Any]
) -> Iterator[str]:
    """What the index and the manifest say of a variant is what its config says."""
    needed = variant_annotations(config)
    for where, said in (("index", entry.annotations), ("manifest", manifest.get("annotations"))):
        if said != needed:
            yield f"the {where}'s annotations are not those of its config"


def _spelled(config: VariantConfig, named: Descriptor) -> bytes:
    """The one manifest of a config."""
    layers = {
        blob.digest: Descriptor(media_type=media_type, digest=blob.digest, size=blob.size_bytes)
        for blob, media_type in _blobs(config)
    }
    plain = Descriptor(media_type=oci.CONFIG, digest=named.digest, size=named.size)
    listed = [*layers.values()] or [_EMPTY]
    return oci.manifest_bytes(plain, listed, variant_annotations(config))

"""What a bundle is made of, as a registry takes it: blobs first, then manifests, then its index."""

from dataclasses import dataclass

from wanc.bundle import oci
from wanc.bundle.oci import Descriptor
from wanc.bundle.store import Bundle, read_json_blob


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The parts of a bundle, each once."""

    index: bytes
    manifests: tuple[bytes, ...]
    """Of the variants."""
    blobs: tuple[Descriptor, ...]
    """Configs, StableHLO artifacts and executables, large ones first."""

    @property
    def bytes(self) -> int:
        """Of the blobs."""
        return sum(blob.size for blob in self.blobs)


def contents_of(bundle: Bundle) -> Contents:
    """Look a bundle through; raises BundleError."""
    read = [read_json_blob(bundle.path, variant.manifest) for variant in bundle.variants]
    where = str(bundle.path)
    named = {blob.digest: blob for data in read for blob in named_blobs(data, where)}
    return Contents(
        index=read_json_blob(bundle.path, bundle.entry),
        manifests=tuple(read),
        blobs=tuple(sorted(named.values(), key=lambda blob: -blob.size)),
    )


def named_blobs(manifest: bytes, where: str) -> list[Descriptor]:
    """The config and the layers of a manifest; raises BundleError."""
    value = oci.parse(manifest, where)
    config = Descriptor.from_json(value.get("config"), where)
    return [config, *oci.descriptors(value, "layers", where)]

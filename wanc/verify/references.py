"""What a bundle names: blobs, and who states which size and type of them.

Reads each piece of JSON once. Knows nothing of what it says.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wanc.bundle import oci
from wanc.bundle.oci import Descriptor
from wanc.bundle.store import read_json_blob
from wanc.errors import BundleError
from wanc.verify.findings import Findings, Kind

MOST_JSON_BYTES = 1 << 30
"""Of all manifests, configs and reports together: some of what is read is kept."""
MISSPELLED = "is not spelled as wanc does: keys, their order, spaces, or the order of what it lists"


@dataclass(slots=True)
class References:
    """What is named, and by whom."""

    path: Path
    found: Findings
    bundle: str = ""
    """The bundle's digest."""
    is_part: bool = False
    """Whether programs were left in the registry that it was pulled from."""
    sizes: dict[str, dict[int, str]] = field(default_factory=dict)
    """By digest, each size that is stated of it, and who does."""
    read_bytes: dict[str, int | None] = field(default_factory=dict)
    """Sizes of JSON that was read, by digest; None where it could not be."""
    _types: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By digest, its media type and who says so first."""
    _json_bytes: int = 0

    def add(self, descriptor: Descriptor, where: str) -> None:
        """Note that somebody names a blob."""
        self.sizes.setdefault(descriptor.digest, {}).setdefault(descriptor.size, where)
        said = descriptor.media_type
        media_type, first = self._types.setdefault(descriptor.digest, (said, where))
        if said != media_type:
            told = f"{descriptor.digest} is of type {said!r}; {first} has it as {media_type!r}"
            self.found.fault("reference", where, told)

    def read(self, descriptor: Descriptor) -> bytes:
        """JSON that was not read before, its digest checked; raises BundleError."""
        self.read_bytes[descriptor.digest] = None
        if self._json_bytes + descriptor.size > MOST_JSON_BYTES:
            raise BundleError(f"more than {MOST_JSON_BYTES:,} bytes of JSON are not read")
        data = read_json_blob(self.path, descriptor)
        self._json_bytes += len(data)
        self.read_bytes[descriptor.digest] = len(data)
        return data


def check_document(
    document: dict[str, Any], media_type: str, kind: Kind, where: str, found: Findings
) -> None:
    """An index or manifest says of itself what it is; OCI lets index.json leave the type out."""
    said = document.get("mediaType", media_type if where == "index.json" else None)
    for what, seen, needed in (
        ("mediaType", said, media_type),
        ("schemaVersion", document.get("schemaVersion"), 2),
    ):
        if seen != needed or type(seen) is not type(needed):
            found.fault(kind, where, f"{what} is {oci.quoted(seen)}; needs {needed!r}")


def is_spelled(data: bytes, spell: Callable[[], bytes]) -> bool:
    """Whether JSON is the one spelling of what was read of it."""
    try:
        return spell() == data
    except (ValueError, RecursionError):  # letters that UTF-8 lacks, or too deep
        return False

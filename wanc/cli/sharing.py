"""How the commands that make and show bundles tell what programs share."""

from collections.abc import Iterable
from typing import Any

from wanc.bundle.config import VariantConfig
from wanc.bundle.sharing import sharing_of
from wanc.units import count, size


def sharing_line(configs: Iterable[VariantConfig]) -> str:
    """What is compiled, beside what a compile for each use would be."""
    sharing = sharing_of(configs)
    return (
        f"{count(sharing.programs, 'program')} in {count(sharing.blobs, 'blob')} of "
        f"{size(sharing.bytes)}\n(one for each rank, expert and layer group: "
        f"{sharing.uses} of {size(sharing.uses_bytes)})"
    )


def sharing_json(configs: Iterable[VariantConfig]) -> dict[str, Any]:
    """The same, for programs."""
    sharing = sharing_of(configs)
    return {
        "programs": sharing.programs,
        "blobs": sharing.blobs,
        "bytes": sharing.bytes,
        "uses": sharing.uses,
        "uses_bytes": sharing.uses_bytes,
    }

"""One side of a comparison: a bundle, or a lock, which knows no more than digests of StableHLO."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wanc.bundle.config import VariantConfig
from wanc.bundle.lock import read_lock, variant_key
from wanc.bundle.store import Bundle, open_bundle
from wanc.errors import BundleError


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is compared."""

    text: str
    """The argument that names it."""
    digests: Mapping[str, Mapping[str, str | None]]
    """StableHLO digest by variant and program; None where a program was not lowered."""
    bundle: Bundle | None = None
    """None for a lock."""
    configs: dict[str, VariantConfig]
    """A bundle's variants by their keys."""


def side_of(text: str) -> Side:
    """The bundle's directory or the lock file that an argument names; raises BundleError."""
    path = Path(text)
    if path.is_dir():
        return side_of_bundle(text, open_bundle(path))
    return Side(text=text, digests=read_lock(path).variants, configs={})


def side_of_bundle(text: str, bundle: Bundle) -> Side:
    """An opened bundle; raises BundleError where it has a name twice."""
    listed = [entry.config for entry in bundle.variants]
    configs = {variant_key(config.model, config.variant): config for config in listed}
    _check_once((variant_key(config.model, config.variant) for config in listed), text)
    for key, config in configs.items():
        _check_once((record.program.name for record in config.programs), f"{text}: {key!r}")
    digests = {
        key: {r.program.name: r.stablehlo.digest if r.stablehlo else None for r in config.programs}
        for key, config in configs.items()
    }
    return Side(text=text, digests=digests, bundle=bundle, configs=configs)


def _check_once(names: Iterable[str], where: str) -> None:
    """Raise BundleError where a name stands twice: one of the two would not be compared."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BundleError(f"{where}: has {name!r} twice, and cannot be compared")
        seen.add(name)

"""What made a bundle's executables, as far as the bundle itself states it.

Knows compile keys and what variants require, and no compiler. Nothing is read of this machine but
wanc's own sources, to tell whether they are those that compiled.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from wanc import __version__
from wanc.bundle.config import VariantConfig
from wanc.digest import of_file

WANC = "wanc"
NEURON_REPOSITORY = "https://pip.repos.neuron.amazonaws.com"
"""AWS's own; PyPI's packages of the same names are empty."""

_STATED = ("jax", "jaxlib", "neuronx-cc", "nki", "torch")
"""Entries of compile keys, and of what is required, that are versions of packages."""
_FROM_AWS = ("neuronx-cc", "nki")
_SOURCE = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*\.py")
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Package:
    """A package that took part."""

    name: str
    version: str
    """Empty where it is not known."""
    runs: bool
    """Whether running the bundle needs it too."""

    @property
    def purl(self) -> str:
        """Its package URL."""
        kind = "generic" if self.name == WANC else "pypi"
        version = f"@{quote(self.version, safe='.')}" if self.version else ""
        index = f"?repository_url={NEURON_REPOSITORY}" if self.name in _FROM_AWS else ""
        return f"pkg:{kind}/{quote(self.name, safe='')}{version}{index}"


def packages_of(configs: Iterable[VariantConfig]) -> tuple[Package, ...]:
    """Packages that compiled some variants or that these require, each once, and wanc."""
    configs = [*configs]
    required = {named for config in configs for named in _stated(config.requires, _STATED)}
    used = {
        named
        for config in configs
        for record in config.programs
        for named in _stated(record.compile_key, _STATED)
    }
    compilers = {
        named
        for config in configs
        for stated in (config.requires, *(record.compile_key for record in config.programs))
        for named in _compiler(stated.get("compiler"))
    }
    found = [
        Package(name=name, version=version, runs=(name, version) in required)
        for name, version in required | used | compilers
    ]
    return tuple(sorted([*found, Package(name=WANC, version=_own(configs), runs=True)]))


def sources_of(configs: Iterable[VariantConfig]) -> tuple[tuple[str, str], ...]:
    """wanc's sources that determined executables: paths below wanc/ and digests, in order."""
    found = set()
    for config in configs:
        for record in config.programs:
            named = record.compile_key.get("sources")
            pairs = named.items() if isinstance(named, dict) else ()
            found |= {(name, str(digest)) for name, digest in pairs if _SOURCE.fullmatch(name)}
    return tuple(sorted(found))


def _own(configs: list[VariantConfig]) -> str:
    """This wanc's version where its sources are those that compiled, else empty: not known."""
    sources = sources_of(configs)
    same = all(
        (_ROOT / name).is_file() and of_file(_ROOT / name) == digest for name, digest in sources
    )
    return __version__ if sources and same else ""


def _stated(entries: dict[str, Any], names: Iterable[str]) -> Iterator[tuple[str, str]]:
    yield from ((name, entries[name]) for name in names if isinstance(entries.get(name), str))


def _compiler(stated: Any) -> Iterator[tuple[str, str]]:
    pair = (stated.get("name"), stated.get("version")) if isinstance(stated, dict) else (None, None)
    if isinstance(pair[0], str) and isinstance(pair[1], str):
        yield pair[0], pair[1]

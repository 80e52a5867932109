"""Lock files: which StableHLO each program of each variant of a shape set has.

A lock is reviewed and committed; one that changes says which programs a change makes the fleet
compile again. Canonical in content, indented for reviews. Knows no compiler.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from wanc.bundle.config import VariantConfig
from wanc.errors import BundleError, RunError
from wanc.files import write_whole
from wanc.spec.model import Model
from wanc.spec.variant import Variant

LOCK_VERSION = 1
LOCK_SUFFIX = ".lock.json"

MAX_LOCK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Digests by variant and program."""

    lock_version: int
    variants: dict[str, dict[str, str]]
    """Variant, as people read it, to program name to StableHLO digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versioned:
    """As much of a lock of any version as is read first."""

    lock_version: int


def lock_of(configs: Iterable[VariantConfig]) -> Lock:
    """The lock of some variants."""
    return Lock(
        lock_version=LOCK_VERSION,
        variants={
            variant_key(config.model, config.variant): program_digests(config) for config in configs
        },
    )


def variant_key(model: Model, variant: Variant) -> str:
    """All that tells a variant from others, for people."""
    return f"{model.name} {variant} {variant.placement}"


def program_digests(config: VariantConfig) -> dict[str, str]:
    """StableHLO digests by program name; raises BundleError where a program was not lowered."""
    found = {}
    for record in config.programs:
        if record.stablehlo is None:
            raise BundleError(
                f"{config.variant}: program {record.program.name} was not lowered: nothing to lock"
            )
        found[record.program.name] = record.stablehlo.digest
    return found


def write_lock(path: Path, lock: Lock) -> None:
    """Write a lock file; raises RunError."""
    text = json.dumps(msgspec.to_builtins(lock), indent=1, sort_keys=True) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise RunError(f"cannot write the lock {path}: {error.strerror}") from error


def read_lock(path: Path) -> Lock:
    """Read a lock file; raises BundleError."""
    try:
        if path.stat().st_size > MAX_LOCK_BYTES:
            raise BundleError(f"{path}: larger than {MAX_LOCK_BYTES} bytes: not a lock")
        lock = _decoded(path.read_bytes(), path)
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror}; needs a lock file or a bundle") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BundleError(f"{path}: not a lock file: {error}") from error
    texts = [t for key, found in lock.variants.items() for t in (key, *found, *found.values())]
    if not all(map(str.isprintable, texts)):
        raise BundleError(f"{path}: not a lock file: it has names that cannot be printed")
    return lock


def _decoded(data: bytes, path: Path) -> Lock:
    """The lock, its version before anything else; raises BundleError and what msgspec does."""
    seen = msgspec.json.decode(data, type=_Versioned).lock_version
    if seen != LOCK_VERSION:
        raise BundleError(f"{path}: lock version {seen}; this wanc reads {LOCK_VERSION}")
    return msgspec.json.decode(data, type=Lock)

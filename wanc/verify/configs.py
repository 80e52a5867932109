"""A variant's config as JSON: its one spelling, and what of it no plan determines.

Knows nothing of schedules and plans.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from wanc.bundle import oci
from wanc.bundle.config import VariantConfig, decode_config, encode_config
from wanc.bundle.oci import Descriptor
from wanc.errors import BundleError
from wanc.verify.references import MISSPELLED, References, is_spelled

MOST_LETTERS = 1_024
"""Of a text in a config: a fault may tell it for each of a hundred thousand calls."""
MOST_NUMBER = 1 << 53
"""Readers of JSON differ above."""


def read_config(at: str, named: Descriptor, references: References) -> VariantConfig | None:
    """Faults are those of its spelling too: a digest names what is read, and nothing beside it."""
    found = references.found
    if named.digest in references.read_bytes:
        found.fault("config", at, "has the config of something else")
        return None
    try:
        data = references.read(named)
        check_values(data, at)
        config = decode_config(data, at)
    except BundleError as error:
        found.fault("config", at, str(error))
        return None
    if not is_spelled(data, lambda: encode_config(config)):
        unknown = sorted(_unknown_fields(msgspec.json.decode(data), msgspec.to_builtins(config)))
        told = f"fields that no config has: {', '.join(unknown[:3])}" if unknown else MISSPELLED
        found.fault("config", at, told)
    for fault in _key_faults(config):
        found.fault("config", at, fault)
    return config


def _key_faults(config: VariantConfig) -> Iterator[str]:
    """What is required, and what determined executables, is of this variant's programs."""
    target = config.variant.target
    if (said := config.requires.get("target")) != target:
        yield f"it requires target {oci.quoted(said)}, and is for {target!r}"
    for record in config.programs:
        lowered = record.stablehlo.digest if record.stablehlo else None
        for name, needed in (("target", target), ("stablehlo", lowered)):
            if (said := record.compile_key.get(name, needed)) != needed:
                key = f"the compile key of {record.program.name}"
                yield f"{key} has {name} {oci.quoted(said)}; needs {needed!r}"


def check_values(data: bytes, where: str) -> None:
    """Raise BundleError where a text or a number is larger than any that is planned."""
    try:
        stack: list[Any] = [msgspec.json.decode(data)]
    except (msgspec.DecodeError, RecursionError):
        return  # decoding it tells more
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            if len(value) > MOST_LETTERS:
                raise BundleError(f"{where}: a text of {len(value):,} letters: {value[:40]!r}")
        elif isinstance(value, int):
            if abs(value) > MOST_NUMBER:
                raise BundleError(f"{where}: a number above {MOST_NUMBER}")
        elif isinstance(value, list):
            stack += value
        elif isinstance(value, dict):
            stack += value
            stack += value.values()


def _unknown_fields(seen: Any, known: Any) -> Iterator[str]:
    """Paths of keys that are in what was seen alone."""
    stack = [("", seen, known)]
    while stack:
        path, one, two = stack.pop()
        if isinstance(one, dict) and isinstance(two, dict):
            yield from (f"{path}{key}" for key in one.keys() - two.keys())
            stack += [(f"{path}{key}.", one[key], two[key]) for key in one.keys() & two.keys()]
        elif isinstance(one, list) and isinstance(two, list | tuple):
            pairs = enumerate(zip(one, two, strict=False))
            stack += [(f"{path}{at}.", *pair) for at, pair in pairs]

"""Spec keys: the digest of everything that determines a program's StableHLO.

The program's record, wanc's own sources that make it, and the versions of what it is made with: a
key that is known needs no trace, and an edit under model/ or lower/ always gives a new one.
"""

import functools
from importlib.metadata import version
from pathlib import Path

import msgspec

from wanc.digest import of_file, of_json
from wanc.plan.abi import Program

KEY_VERSION = 1

TOOLS = ("diffusers", "jax", "jaxlib", "numpy", "torch", "transformers")

_ROOT = Path(__file__).parent
_SOURCES = ("spec", "plan", "model", "lower", "trace.py")
"""What makes a program's text, below wanc/."""


def spec_key(program: Program) -> str:
    """The program's spec key."""
    entries = {
        "key_version": KEY_VERSION,
        "program": {k: v for k, v in msgspec.to_builtins(program).items() if k != "name"},
        "sources": source_digests(),
        "tools": {tool: version(tool) for tool in TOOLS},
    }
    return of_json(entries)


@functools.cache
def source_digests() -> dict[str, str]:
    """Digest of each source file that makes a program's text, by its path below wanc/."""
    files = [
        file
        for name in _SOURCES
        for file in ([_ROOT / name] if name.endswith(".py") else sorted((_ROOT / name).rglob("*")))
        if file.suffix == ".py"
    ]
    return {file.relative_to(_ROOT).as_posix(): of_file(file) for file in files}

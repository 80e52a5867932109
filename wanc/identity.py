"""Keys of the compile side: digests of everything that determines a result.

A spec key stands for a program's StableHLO: the program's record, wanc's own sources that make it,
and the versions of what it is made with. One that is known needs no trace, and an edit under model/
or lower/ always gives a new one.
"""

import functools
from importlib.metadata import version
from pathlib import Path

import msgspec

from wanc.digest import of_file, of_json
from wanc.plan.abi import Program
from wanc.spec.target import Accelerator

KEY_VERSION = 1

TOOLS = ("diffusers", "jax", "jaxlib", "numpy", "torch", "transformers")

_LINT = (
    *("lower/artifact.py", "lower/instructions.py", "lower/lint.py"),
    *("plan/fabric.py", "plan/instructions.py"),
)
"""What decides whether a program has findings."""

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


def lint_key(stablehlo: str, ranks: int, accelerator: Accelerator | None) -> str:
    """The key of a lint: the artifact's digest, what it was held against, and the rules."""
    entries = {
        "key_version": KEY_VERSION,
        "stablehlo": stablehlo,
        "ranks": ranks,
        "accelerator": msgspec.to_builtins(accelerator),
        "sources": {name: of_file(_ROOT / name) for name in _LINT},
        "jaxlib": version("jaxlib"),
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

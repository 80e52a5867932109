"""Imports point one way: a module may import only names in a layer above its own."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2] / "wanc"
LAYERS = [
    {
        "arrays",
        "clearing",
        "errors",
        "digest",
        "files",
        "machine",
        "progress",
        "tiny_weights",
        "units",
        "kernels",
    },
    {"spec", "cache", "processes"},
    {"plan", "tiny_tokenizer"},
    {"bundle", "model", "weights", "identity", "tiny"},
    {"trace", "runtime", "targets", "verify", "diff", "registry", "signing"},
    {"lower", "run", "share"},
    {"build", "compare", "page"},
    {"compile", "doctor", "api", "worker"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
ONLY = {  # who may import it, where the layer alone is too wide
    "kernels": {"lower"},
    "model": {"trace", "lower"},
    "processes": {"runtime", "run", "api", "compare", "worker", "cli"},
    "runtime": {"run"},
    "weights": {"run"},
    "run": {"api", "compare", "page", "worker", "cli"},
    "compare": {"cli"},
    "page": {"cli"},
    "verify": {"page", "cli"},
    "diff": {"cli"},
    "registry": {"share", "cli"},
    "share": {"cli"},
    "signing": {"run", "cli"},
    "api": set(),  # of users
    "worker": set(),  # a process of its own
    "doctor": {"cli"},
    "targets": {"build", "compile", "cli"},
    "tiny": {"cli"},
    "tiny_weights": {"tiny"},
    "tiny_tokenizer": {"tiny"},
}
NEVER = {
    side: {"model", "trace", "lower", "targets", "build", "compile"}
    for side in (
        *("run", "runtime", "bundle", "weights", "processes", "api", "worker"),
        *("compare", "page", "verify", "diff", "registry", "share", "signing"),
    )
}  # the run side knows only the bundle


def imports(path: Path) -> set[str]:
    """Names directly under wanc that the file imports, at the top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name.split(".")[1] for name in found if name.startswith("wanc.")}


def home(path: Path) -> str:
    """The name directly under wanc that a file belongs to."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def test_imports_point_one_way():
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        here = home(path)
        if here == "__init__":
            continue
        for there in sorted(imports(path) - {here, "__version__"}):
            if (
                RANK[there] >= RANK[here]
                or there in NEVER.get(here, ())
                or here not in ONLY.get(there, {here})
            ):
                wrong.append(f"{path.relative_to(ROOT)} imports wanc.{there}")
    assert not wrong, "\n".join(wrong)


def test_package_itself_imports_its_api_alone_and_late():
    assert imports(ROOT / "__init__.py") == {"api"}
    loaded = "import sys, wanc; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True)
    assert [name for name in done.stdout.split() if name.startswith("wanc")] == ["wanc"]


def test_table_names_what_is_there():
    assert sum(map(len, LAYERS)) == len(RANK), "a name stands in two layers"
    assert {*RANK} - {"kernels"} == {home(path) for path in ROOT.rglob("*.py")} - {"__init__"}
    assert {*ONLY} | set().union(*ONLY.values()) <= {*RANK}

"""House rules that no tool checks: how long wanc is, and where some things may stand."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for part in ("wanc", "kernels") for path in (ROOT / part).rglob("*.py"))
MOST_LINES = 34_000
"""Lines of wanc/ without tests. A raise is a commit that says why."""


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def named(found: list) -> str:
    return "\n".join(map(str, found))


def where(pattern: str, *, among=SOURCES) -> set[str]:
    """Files below the root in which a pattern stands."""
    return {
        str(path.relative_to(ROOT))
        for path in among
        if re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    }


@pytest.mark.xdist_group("anything")
def test_tests_of_a_group_stay_on_one_worker(request):
    """As xdist says by a suffix; without it what they share would be made once a worker."""
    in_groups = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@anything") == in_groups


def test_lines_keep_to_the_budget():
    assert (
        sum(len(lines(path)) for path in SOURCES if path.is_relative_to(ROOT / "wanc"))
        <= MOST_LINES
    )


def test_no_relative_imports():
    wrong = [
        f"{path}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not wrong, named(wrong)


def test_every_module_says_what_it_is():
    bare = [
        path
        for path in SOURCES
        if lines(path) and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert set(bare) <= {ROOT / "wanc" / "__main__.py"}, named(bare)


@pytest.mark.parametrize(
    ("pattern", "home"),
    [
        (r"\bhashlib\b", {"wanc/digest.py", "wanc/tiny_weights.py"}),  # a seed is no digest
        (r"^\s*print\(", {"wanc/cli/__init__.py", "wanc/cli/terminal.py"}),
        (r"\bsys\.exit\(", {"wanc/cli/__init__.py"}),
        (r"except WancError", {"wanc/cli/__init__.py"}),
        (r"\bos\.chdir\(", set()),
        (r"\bpickle\b", set()),
    ],
)
def test_some_things_have_one_home(pattern, home):
    assert where(pattern) <= home


def test_model_numbers_stand_in_spec_alone():
    """One place for each fact."""
    spec = {"wanc/spec/presets.py", "wanc/spec/checkpoint.py"}  # and what configs may leave out
    assert where(r"\b(13824|5120|10240|256384)\b") <= spec

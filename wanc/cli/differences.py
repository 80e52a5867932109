"""How people are told of differences: each once, then the programs and variants that have it."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from wanc.cli.terminal import plain
from wanc.diff.again import Place
from wanc.diff.changes import words_changed
from wanc.diff.compare import KINDS, Compared, Difference, Kind
from wanc.units import spans

MOST = 25
"""Differences of one kind, and programs, that are shown."""

_COLUMNS = 80
_MOST_LETTERS = 60
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_TITLES: dict[Kind, str] = {
    "not_reproducible": "not reproducible: the compile key is the same, the executable is not",
    "compile_key": "compile key",
    "stage": "compiled as far as",
    "program_added": "programs added",
    "program_removed": "programs removed",
    "graph": "what programs are",
    "abi": "interface",
    "stablehlo": "StableHLO",
}


def numbered(compared: Compared) -> dict[str, int]:
    """A number, from 1, for each variant that differs or stands on one side only."""
    differ = (place.variant for each in compared.differences for place in each.places)
    variants = sorted({*compared.added, *compared.removed, *differ})
    return {variant: number for number, variant in enumerate(variants, start=1)}


def difference_lines(compared: Compared, numbers: Mapping[str, int]) -> list[str]:
    """Every kind of difference, its cases, and where each of them is."""
    lines = []
    for kind in KINDS:
        told = folded([each for each in compared.differences if each.kind == kind])
        if told:
            lines.append(_TITLES.get(kind, kind))
        for what, places in told[:MOST]:
            lines += _wrapped(what, "  ") if what else []
            lines += _wrapped(where(places, numbers), "    ")
        if len(told) > MOST:
            lines.append(f"  and {len(told) - MOST} more, which --json names")
        lines += [""] if told else []
    return lines


def folded(differences: Sequence[Difference]) -> list[tuple[str, list[Place]]]:
    """Differences of a kind as text, and where they are.

    Digests say little: those of one program are told together. So are flags that come and go in
    several lists, and what comes, goes or is a file, where it lies in one thing."""
    groups: dict[Any, list[Difference]] = {}
    for each in differences:
        words = words_changed(each.before, each.after)
        key: Any = len(groups)
        if words is not None:
            key = each.path, *map(tuple, words)
        elif each.path and (_of_digests(each) or _one_sided(each)):
            key = each.path[:-1], each.places, None
        elif _of_digests(each):
            key = frozenset(place.program for place in each.places)
        groups.setdefault(key, []).append(each)
    return [
        (_told(group), [place for each in group for place in each.places])
        for group in groups.values()
    ]


def _of_digests(difference: Difference) -> bool:
    values = [value for value in (difference.before, difference.after) if value is not None]
    return all(isinstance(value, str) and _DIGEST.fullmatch(value) for value in values)


def _told(group: Sequence[Difference]) -> str:
    first = group[0]
    name = ".".join(first.path)
    if first.kind in ("program_added", "program_removed"):
        return ""
    words = words_changed(first.before, first.after)
    if words is not None:
        return f"{name}: {_lists(added=words[0], removed=words[1]) or 'in another order'}"
    if first.path and (group[1:] or (first.path[1:] and _of_digests(first))):
        lists = {
            "changed": [_last(each) for each in group if not _one_sided(each)],
            "added": [_last(each) for each in group if each.before is None],
            "removed": [_last(each) for each in group if each.after is None],
        }
        parent = ".".join(first.path[:-1])
        return f"{parent}{': ' if parent else ''}{_lists(**lists)}"
    more = f", and {len(group) - 1} more" if group[1:] else ""
    return f"{f'{name}: ' if name else ''}{shown(first.before)} -> {shown(first.after)}{more}"


def _lists(**named: Sequence[str]) -> str:
    """The beginnings of lists that are not empty, after their names."""
    return "; ".join(
        f"{name} {', '.join(each[:MOST])}{f' and {len(each) - MOST} more' if each[MOST:] else ''}"
        for name, each in named.items()
        if each
    )


def _one_sided(difference: Difference) -> bool:
    return difference.before is None or difference.after is None


def _last(difference: Difference) -> str:
    """The end of a path; of a call, which has a number only, with its program."""
    value = difference.before or difference.after
    program = value.get("program") if isinstance(value, dict) else None
    return f"{difference.path[-1]} {program}" if program else difference.path[-1]


def where(places: Sequence[Place], numbers: Mapping[str, int]) -> str:
    """Programs by the numbers of the variants that have them."""
    variants: dict[str | None, dict[int, None]] = {}
    for place in places:
        variants.setdefault(place.program, {})[numbers[place.variant]] = None
    programs: dict[tuple[int, ...], list[str]] = {}
    for program, found in variants.items():
        programs.setdefault(tuple(sorted(found)), []).append(program or "")
    return "; ".join(
        f"{', '.join(names)}{' ' if names[0] else ''}in {spans(found)}"
        for found, names in programs.items()
    )


def shown(value: Any) -> str:
    """A value of a bundle for people: no longer than a line, digests by their beginning."""
    if value is None:
        return "-"
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return value[7:19]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return plain(text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        plain(text),
        _COLUMNS,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
    )

"""What two JSON values have differently, path by path. Knows nothing of what they say."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from wanc.digest import canonical_json

FieldPath = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A value that is not the same."""

    path: FieldPath
    """Keys, names and indices that lead to it."""
    before: Any
    """None where it is not there."""
    after: Any


def changes(before: Any, after: Any, path: FieldPath = ()) -> Iterator[Change]:
    """Every value that differs, the smallest that can be told apart.

    Records in a list are told apart by their names, or where they have none by their order.
    """
    if same(before, after):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_objects(before, after, path)
    elif _named(before) and _named(after):
        old, new = ({each["name"]: each for each in side} for side in (before, after))
        yield from _of_objects(old, new, path)
        order = [[name for name in a if name in b] for a, b in ((old, new), (new, old))]
        if order[0] != order[1]:
            yield Change(path=(*path, "order"), before=order[0], after=order[1])
    elif _records(before) and _records(after):
        yield from _of_records(before, after, path)
    else:
        yield Change(path=path, before=before, after=after)


def same(before: Any, after: Any) -> bool:
    """Whether two values are one in JSON, where 1 is neither 1.0 nor true."""
    return canonical_json(before) == canonical_json(after)


def words_changed(before: Any, after: Any) -> tuple[list[str], list[str]] | None:
    """What came to a list of words and what left it; None of anything else.

    A word after a flag that begins with a dash is the flag's value.
    """
    if not all(isinstance(v, list) and all(isinstance(w, str) for w in v) for v in (before, after)):
        return None
    old, new = Counter(_flags(before)), Counter(_flags(after))
    return [*(new - old).elements()], [*(old - new).elements()]


def _of_objects(before: dict[str, Any], after: dict[str, Any], path: FieldPath) -> Iterator[Change]:
    for key in {**before, **after}:
        here = (*path, key)
        if key in before and key in after:
            yield from changes(before[key], after[key], here)
        else:
            yield Change(path=here, before=before.get(key), after=after.get(key))


def _of_records(before: list[Any], after: list[Any], path: FieldPath) -> Iterator[Change]:
    """By index where both have as many between what they begin and end with alike."""
    least = min(len(before), len(after))
    start = next((i for i in range(least) if not same(before[i], after[i])), least)
    rest = range(1, least - start + 1)
    end = next((i for i in rest if not same(before[-i], after[-i])), len(rest) + 1) - 1
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    if len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True), start):
            yield from changes(a, b, (*path, str(i)))
        return
    for i, each in enumerate(old, start):
        yield Change(path=(*path, str(i)), before=each, after=None)
    for i, each in enumerate(new, start):
        yield Change(path=(*path, str(i)), before=None, after=each)


def _records(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _named(value: Any) -> bool:
    if not _records(value):
        return False
    names = [each.get("name") for each in value]
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _flags(words: list[str]) -> list[str]:
    found: list[str] = []
    for word in words:
        if found and found[-1].startswith("-") and not word.startswith("-"):
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found

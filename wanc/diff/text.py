"""What two texts of MLIR have differently, where a value counts by what it is, not by its number.

Lines are aligned with the names of values left out. Then aligned lines say which values stand for
each other: one that names others than its counterpart differs, though it reads the same. Knows no
operation.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import accumulate, groupby

CONTEXT_LINES = 3

_NAME = re.compile(r"%[\w$.-]+|(?:(?<= call )|(?<= private ))@[\w$.-]+")
"""Values, and functions of the module's own, whose names are numbered too."""
_DEFINES = re.compile(r"(:\d+)? = |: ")
_PARAMETER = re.compile(r"(?<=, )(?=%|tensor<)")
_LABEL = re.compile(r'wanc\.name = "([^"]*)"')
_LABELLED = re.compile("\0[^\0]*\0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChanges:
    """How one text becomes another."""

    lines: tuple[str, ...]
    """A unified diff, whose unchanged lines are those of the second text."""
    rewired: int
    """Lines that differ in nothing but which values they name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    text: str
    shape: str
    """The text without names."""
    values: tuple[int, ...]
    """What is named, by the number of its definition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Lines of both texts that stand beside each other."""

    old: range
    new: range
    alike: bool


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Which values of two texts stand for each other."""

    ahead: dict[int, int] = field(default_factory=dict)
    back: dict[int, int] = field(default_factory=dict)

    def agree(self, old: _Line, new: _Line) -> bool:
        """Whether lines of one shape name values that may be the same; they are, from then on."""
        pairs = set(zip(old.values, new.values, strict=True))
        if not len(pairs) == len(set(old.values)) == len(set(new.values)):
            return False
        if any(self.ahead.get(a, b) != b or self.back.get(b, a) != a for a, b in pairs):
            return False
        self.ahead.update(pairs)
        self.back.update((b, a) for a, b in pairs)
        return True


def compare_texts(before: str, after: str) -> TextChanges:
    """Compare two modules as MLIR prints them; parameters of functions get lines of their own."""
    labels = [set(_LABEL.findall(text)) for text in (before, after)]
    old, new = ([*_lines(text, labels[0] & labels[1])] for text in (before, after))
    blocks = [*_joined(_agreeing(old, new))]
    rows: list[str] = []
    rewired = 0
    for block in blocks:
        if block.alike:
            rows += [f" {new[i].text}" for i in block.new]
            continue
        gone, come = [old[i] for i in block.old], [new[i] for i in block.new]
        rows += [*(f"-{line.text}" for line in gone), *(f"+{line.text}" for line in come)]
        rewired += (Counter(map(_bare, gone)) & Counter(map(_bare, come))).total()
    return TextChanges(lines=tuple(_hunks(rows)), rewired=rewired)


def _bare(line: _Line) -> str:
    return _LABELLED.sub("", line.shape)


def _lines(text: str, parameters: set[str]) -> Iterator[_Line]:
    names = _Names(parameters=parameters)
    for line in text.splitlines():
        is_signature = "func.func" in line
        for part in _PARAMETER.split(line) if is_signature else [line]:
            label = _LABEL.search(part) if is_signature else None
            yield names.line(part.rstrip(), label[1] if label else "")


@dataclass(slots=True, kw_only=True)
class _Names:
    """What names stand for in a text, up to the line that is read."""

    parameters: set[str]
    """Those of both texts: uses of one are told from uses of others before any line is aligned."""
    known: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The number of the last definition, and what tells it from others in a shape."""
    defined: int = 0

    def line(self, text: str, parameter: str) -> _Line:
        """Read a line; parameter is the ABI's name of what it defines, or empty."""
        values: list[int] = []

        def nameless(found: re.Match[str]) -> str:
            name = found[0]
            if name not in self.known or _DEFINES.match(text, found.end()):
                self.defined += 1
                label = parameter if parameter in self.parameters else ""
                if name.startswith("@"):
                    label = re.sub(r"_\d+$", "", name)
                self.known[name] = self.defined, label
            number, label = self.known[name]
            values.append(number)
            return f"\0{label}\0"  # no letter that MLIR prints

        return _Line(text=text, shape=_NAME.sub(nameless, text), values=tuple(values))


def _aligned(old: Sequence[_Line], new: Sequence[_Line]) -> Iterator[_Block]:
    """Blocks of lines of one shape, and what lies between them, in order."""
    least, pairs = min(len(old), len(new)), _Pairs()
    start = 0
    while start < least and _same(old[start], new[start]) and pairs.agree(old[start], new[start]):
        start += 1
    end = 0
    while end < least - start and _same(old[-1 - end], new[-1 - end]):
        end += 1
    a, b = len(old) - end, len(new) - end
    yield _Block(old=range(start), new=range(start), alike=True)
    before, after = ([line.shape for line in each] for each in (old[start:a], new[start:b]))
    for tag, *ends in SequenceMatcher(None, before, after).get_opcodes():
        first, last, from_, to = (start + each for each in ends)
        yield _Block(old=range(first, last), new=range(from_, to), alike=tag == "equal")
    yield _Block(old=range(a, len(old)), new=range(b, len(new)), alike=True)


def _same(old: _Line, new: _Line) -> bool:
    return old.shape == new.shape


def _agreeing(old: Sequence[_Line], new: Sequence[_Line]) -> Iterator[_Block]:
    """The blocks, each line of one shape by itself: alike where it names the same values."""
    pairs = _Pairs()
    for block in _aligned(old, new):
        if not block.alike:
            yield block
            continue
        for i, j in zip(block.old, block.new, strict=True):
            alike = pairs.agree(old[i], new[j])
            yield _Block(old=range(i, i + 1), new=range(j, j + 1), alike=alike)


def _joined(blocks: Iterable[_Block]) -> Iterator[_Block]:
    """Neighbours that are both alike, or both not, as one."""
    for alike, each in groupby(blocks, lambda block: block.alike):
        first, *rest = each
        last = rest[-1] if rest else first
        yield _Block(
            old=range(first.old.start, last.old.stop),
            new=range(first.new.start, last.new.stop),
            alike=alike,
        )


def _hunks(rows: Sequence[str]) -> Iterator[str]:
    hunks: list[range] = []
    for i in (i for i, row in enumerate(rows) if not row.startswith(" ")):
        low, high = max(0, i - CONTEXT_LINES), min(len(rows), i + CONTEXT_LINES + 1)
        if hunks and low <= hunks[-1].stop:
            low = hunks.pop().start
        hunks.append(range(low, high))
    sides = [[*accumulate((row[0] != mark for row in rows), initial=0)] for mark in "+-"]
    for hunk in hunks:
        spans = (f"{side[hunk.start] + 1},{side[hunk.stop] - side[hunk.start]}" for side in sides)
        yield "@@ -{} +{} @@".format(*spans)
        yield from rows[hunk.start : hunk.stop]

"""What a terminal shows: tables on stdout, progress and notes on stderr."""

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from rich.console import Console
from rich.table import Table

from wanc.progress import Task, Transfer
from wanc.units import count, size

_FOLDED: dict[str, Any] = {
    "subsequent_indent": "  ",
    "break_long_words": False,
    "break_on_hyphens": False,
    "replace_whitespace": False,
}

LINE_SECONDS = 30.0
"""Time between lines about one piece of work where there is no terminal."""


def emit(text: str) -> None:
    """The product, on stdout."""
    print(text)


def emit_json(value: Any) -> None:
    """The product as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """A line about the work, on stderr; a terminal has it broken between words."""
    text = plain(text.expandtabs())
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        lines = [textwrap.fill(line, width, **_FOLDED) for line in text.splitlines()]
        text = "\n".join(lines)
    print(text, file=sys.stderr, flush=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table that fits 80 columns; columns whose heads end in ``>`` are set flush right."""
    console = Console(width=None if sys.stdout.isatty() else 80, highlight=False, markup=False)
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for column in columns:
        right = column.endswith(">")
        made.add_column(column.rstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    console.print(made)
    console.print()


def plain(text: str) -> str:
    """Text of a bundle, with no letter that a terminal would obey."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text
    )


class Terminal:
    """Progress bars with time left on a terminal, plain lines elsewhere."""

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Task]:
        """One bar, or one line at the end."""
        if not sys.stderr.isatty():
            yield _Lines(name, total)
            note(f"{name}: done, {count(total, 'step')}")
            return
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        with Progress(
            TextColumn("{task.description:<11}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[done]}", table_column=Column(no_wrap=True, max_width=22)),
            console=Console(stderr=True),
        ) as progress:
            yield _Bar(progress, progress.add_task(name, total=total, done=""))

    @contextmanager
    def transfer(self, name: str, total_bytes: int) -> Iterator[Transfer]:
        """One bar of bytes, and one line at the end of what moved and what did not have to."""
        if not sys.stderr.isatty():
            yield (moving := _Moving(_Seldom(name, total_bytes).show))
        else:
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )

            with Progress(
                TextColumn("{task.description:<5}"),
                BarColumn(bar_width=20),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            ) as progress:
                bar = progress.add_task(name, total=total_bytes)
                yield (moving := _Moving(lambda done: progress.update(bar, completed=done)))
        note(f"{name}: {size(moving.moved_bytes)} moved, {size(moving.reused_bytes)} reused")

    def note(self, text: str) -> None:
        """One line on stderr."""
        note(text)


class _Moving:
    """Bytes, counted from several threads."""

    def __init__(self, show: Callable[[int], None]) -> None:
        self.moved_bytes = self.reused_bytes = 0
        self._show, self._lock = show, Lock()

    def moved(self, moved: int, reused: int) -> None:
        """So many more."""
        with self._lock:
            self.moved_bytes += moved
            self.reused_bytes += reused
            self._show(self.moved_bytes + self.reused_bytes)


class _Seldom:
    """Where there is no terminal: a line now and then of how many bytes are done."""

    def __init__(self, name: str, total_bytes: int) -> None:
        self._name, self._total = name, total_bytes
        self._said = time.monotonic()

    def show(self, done_bytes: int) -> None:
        """Say it, where the last line is a while ago."""
        if time.monotonic() - self._said > LINE_SECONDS:
            self._said = time.monotonic()
            note(f"{self._name}: {size(done_bytes)} of {size(self._total)}")


class _Lines:
    """Where there is no terminal: a line now and then, so that a log shows that work goes on."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, total
        self._done = 0
        self._said = time.monotonic()

    def advance(self, done: str = "") -> None:
        """One step on, said where the last line is a while ago."""
        self._done += 1
        self.doing(done)

    def doing(self, what: str) -> None:
        """What is under way, said where the last line is a while ago."""
        if time.monotonic() - self._said > LINE_SECONDS:
            self._said = time.monotonic()
            note(f"{self._name}: {self._done} of {self._total}, {what}")


class _Bar:
    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task = progress, task

    def advance(self, done: str = "") -> None:
        """One step on."""
        self._progress.update(self._task, advance=1, done=done)

    def doing(self, what: str) -> None:
        """What is under way."""
        self._progress.update(self._task, done=what)

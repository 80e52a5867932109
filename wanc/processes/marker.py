"""Progress of a process, told on as marks, so that a watcher sees where it is and that it lives.

Knows stages as names, and how long steps took. Knows no store and no socket.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from wanc.processes.messages import Mark
from wanc.progress import Progress, Silent, Task

BEAT_SECONDS = 1.0
"""Between signs of life."""

FLOOR_SECONDS = 60.0
"""No step is called stalled before."""
SLACK = 10.0
"""A step may take so many times what the plan predicts, or what the longest step took."""

START, OPEN, IDLE = "start", "open", "idle"

_FLOORS = {OPEN: 300.0, "load": 300.0, "write": 900.0}
"""Of stages whose steps no plan predicts: imports, cold storage, a long video on a busy core."""

_HERE = Path(__file__)
_ROOT = _HERE.parents[1]


@dataclass(slots=True, kw_only=True)
class Patience:
    """How long a step of each stage may take until it counts as stalled."""

    start_seconds: float
    """From the start of a process until it loads."""
    stall_seconds: float | None = None
    """The user's, for every step; None to judge by prediction and by steps seen."""
    predicted: dict[str, float] = field(default_factory=dict)
    """Seconds of one step, by stage."""
    longest: dict[str, float] = field(default_factory=dict)
    """Seconds of the longest step seen, by stage."""

    def allowed_seconds(self, stage: str) -> float | None:
        """For the next step of a stage."""
        if stage == IDLE:
            return None
        if stage == START:
            return self.start_seconds
        if self.stall_seconds is not None:
            return self.stall_seconds
        seconds = self.longest.get(stage, self.predicted.get(stage, 0.0))
        return max(_FLOORS.get(stage, FLOOR_SECONDS), SLACK * seconds)

    def saw(self, stage: str, seconds: float) -> None:
        """A step of a stage took so long."""
        self.longest[stage] = max(seconds, self.longest.get(stage, 0.0))


class Marker:
    """A Progress that tells marks, and reports to another one."""

    def __init__(
        self, patience: Patience, tell: Callable[[Mark], None], shown: Progress | None = None
    ) -> None:
        self._patience = patience
        self._tell = tell
        self._shown = shown or Silent()
        self._lock = threading.Lock()
        self._thread = threading.main_thread().ident
        self._count = self._beat = 0
        self._at = ("", 0, 0, "")
        self.move(START)

    def move(self, stage: str, step: int = 0, total: int = 0, text: str = "") -> None:
        """One step on."""
        with self._lock:
            self._count += 1
            self._at = (stage, step, total, text)
        self.beat()

    def beat(self) -> None:
        """Say once more where this process is."""
        self._tell(self.current())

    def current(self) -> Mark:
        """Where this process is."""
        with self._lock:
            (stage, step, total, text), count = self._at, self._count
            self._beat += 1
            beat = self._beat
        return Mark(
            beat=beat,
            count=count,
            stage=stage,
            step=step,
            total=total,
            text=text,
            where=_where(sys._current_frames().get(self._thread or 0)),
            allowed_seconds=self._patience.allowed_seconds(stage),
        )

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Task]:
        """A stage of so many steps."""
        self.move(name, 0, total)
        with self._shown.task(name, total) as shown:
            yield _Marked(self, self._patience, shown, name, total)

    def note(self, text: str) -> None:
        """A line for people."""
        self._shown.note(text)


class _Marked:
    def __init__(
        self, marker: Marker, patience: Patience, shown: Task, name: str, total: int
    ) -> None:
        self._marker, self._patience, self._shown = marker, patience, shown
        self._name, self._total, self._step = name, total, 0
        self._since = time.monotonic()

    def advance(self, done: str = "") -> None:
        """One step on."""
        self._step += 1
        now = time.monotonic()
        self._patience.saw(self._name, now - self._since)
        self._since = now
        self._marker.move(self._name, self._step, self._total, done)
        self._shown.advance(done)

    def doing(self, what: str) -> None:
        """Part of a step."""
        self._marker.move(self._name, self._step, self._total, what)
        self._shown.doing(what)


def _where(frame: FrameType | None) -> str:
    """The innermost frame of wanc's own, as ``run/session.py:91 results``."""
    while frame:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_ROOT) and path != _HERE:
            return f"{path.relative_to(_ROOT)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return ""

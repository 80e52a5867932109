"""Judges from marks which process of a run is at fault. Pure: time and marks are given to it.

Where one process hangs the others wait for it in a collective, and all stop at once. The one to
name is that which gives no sign, else that which does not wait for others.
"""

from collections.abc import Sequence

from wanc.processes.marker import BEAT_SECONDS, START
from wanc.processes.messages import Mark

SILENCE_SECONDS = 7.0
"""A process that gives no sign for so long is stopped, dead, or cut off."""

_WAITING = ("runtime/", "processes/")
"""Where in wanc a process is that waits for others."""


class Observer:
    """The last mark of every process, and since when."""

    def __init__(self, names: Sequence[str], start_seconds: float, now: float) -> None:
        self.names = list(names)
        first = Mark(
            beat=0,
            count=0,
            stage=START,
            step=0,
            total=0,
            text="",
            where="",
            allowed_seconds=start_seconds,
        )
        self._marks = [first for _ in names]
        self._moved = [now for _ in names]
        self._heard = [now for _ in names]
        self._stopped: dict[int, float] = {}
        self._looked = now

    def hear(self, process: int, mark: Mark, now: float) -> bool:
        """A process says where it is; a mark heard before, or overtaken, is no sign of life."""
        if mark.beat <= self._marks[process].beat:
            return False
        if mark.count != self._marks[process].count:
            self._moved[process] = now
        self._heard[process] = now
        self._marks[process] = mark
        return True

    def stop(self, process: int, now: float) -> None:
        """A signal stopped a process."""
        self._stopped[process] = now

    def resume(self, process: int, now: float) -> None:
        """A stopped process goes on."""
        if self._stopped.pop(process, None) is not None:
            self._heard[process] = now

    def mark(self, process: int) -> Mark:
        """The last mark of a process."""
        return self._marks[process]

    def at(self, process: int) -> str:
        """A process and where it was last, for people."""
        return f"{self.names[process]} in {self._marks[process]}"

    def fault(self, now: float) -> str | None:
        """What is wrong, in words; None where all go on. To be asked about each second."""
        return self.silence(now) or self._stall(now)

    def silence(self, now: float) -> str | None:
        """Who gives no sign, in words."""
        self._pass_over(now)
        silent = [p for p in range(len(self.names)) if self._silent(p, now) > SILENCE_SECONDS]
        if not silent:
            return None
        seconds = max(self._silent(p, now) for p in silent)
        return (
            f"{self._list(silent)} gave no sign for {seconds:.0f} s: stopped, or cut off; "
            f"last seen in {self._marks[silent[0]]}"
        )

    def _stall(self, now: float) -> str | None:
        everyone = range(len(self.names))
        overdue = [p for p in everyone if self._idle(p, now) > self._allowed(p)]
        going = [p for p in everyone if p not in overdue and self._allowed(p) < float("inf")]
        if not overdue or (going and all(map(self._waits, overdue))):
            return None  # those who wait do so for those who go on, and who are judged in turn
        guilty = self._guilty(overdue)
        mark = self._marks[guilty[0]]
        where = f" at {mark.where}" if mark.where else ""
        return (
            f"{self._list(guilty)} made no progress for {self._idle(guilty[0], now):.0f} s in "
            f"{mark}{where}; {self._allowed(guilty[0]):.0f} s are allowed"
        )

    def _guilty(self, overdue: list[int]) -> list[int]:
        busy = [p for p in overdue if not self._waits(p)]
        suspects = busy or overdue
        least = min(self._marks[p].count for p in suspects)
        return [p for p in suspects if self._marks[p].count == least]

    def _waits(self, process: int) -> bool:
        return self._marks[process].where.startswith(_WAITING)

    def _silent(self, process: int, now: float) -> float:
        """Seconds without a sign; while a process starts, imports may keep its threads from it."""
        if process in self._stopped:
            return now - self._stopped[process]
        return 0.0 if self._marks[process].stage == START else now - self._heard[process]

    def _idle(self, process: int, now: float) -> float:
        return now - self._moved[process]

    def _allowed(self, process: int) -> float:
        allowed = self._marks[process].allowed_seconds
        return float("inf") if allowed is None else allowed

    def _pass_over(self, now: float) -> None:
        """Do not count a time in which the observer itself did not run."""
        missed = now - self._looked
        self._looked = now
        if missed > 3 * BEAT_SECONDS:
            self._moved = [min(now, moved + missed) for moved in self._moved]
            self._heard = [min(now, heard + missed) for heard in self._heard]
            self._stopped = {p: min(now, since + missed) for p, since in self._stopped.items()}

    def _list(self, processes: list[int]) -> str:
        return ", ".join(self.names[p] for p in processes)

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

    def hear(self, process: int, mark: Mark, now: float) -> None:
        """A process says where it is; a mark that was heard before is no sign of life."""
        if mark.count != self._marks[process].count:
            self._moved[process] = now
        if mark.beat != self._marks[process].beat:
            self._heard[process] = now
        self._marks[process] = mark

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
        self._pass_over(now)
        everyone = range(len(self.names))
        silent = [p for p in everyone if self._silence(p, now) > SILENCE_SECONDS]
        if silent:
            seconds = max(self._silence(p, now) for p in silent)
            return (
                f"{self._list(silent)} gave no sign for {seconds:.0f} s: stopped, or cut off; "
                f"last seen in {self._marks[silent[0]]}"
            )
        overdue = [p for p in everyone if self._idle(p, now) > self._allowed(p)]
        if not overdue:
            return None
        guilty = self._guilty(overdue)
        mark = self._marks[guilty[0]]
        where = f" at {mark.where}" if mark.where else ""
        return (
            f"{self._list(guilty)} made no progress for {self._idle(guilty[0], now):.0f} s in "
            f"{mark}{where}; {self._allowed(guilty[0]):.0f} s are allowed"
        )

    def _guilty(self, overdue: list[int]) -> list[int]:
        busy = [p for p in overdue if not self._marks[p].where.startswith(_WAITING)]
        suspects = busy or overdue
        least = min(self._marks[p].count for p in suspects)
        return [p for p in suspects if self._marks[p].count == least]

    def _silence(self, process: int, now: float) -> float:
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

"""Who is at fault when processes fall silent or stand still."""

import itertools
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from wanc.processes.marker import START
from wanc.processes.messages import Mark
from wanc.processes.observer import SILENCE_SECONDS, Observer

HERE = "run/session.py:91 run"
COLLECTIVE = "runtime/cpu_runtime.py:120 wait"
EXCHANGE = "processes/store.py:60 tell"
NAMES = ["process 0 (ranks 0-1)", "process 1 (ranks 2-3)", "process 2 (ranks 4-5)"]
HOUR = 3600.0


def mark(count: int = 1, stage: str = "denoise", **fields) -> Mark:
    first = {"step": 0, "total": 0, "text": "", "where": HERE, "allowed_seconds": 60.0}
    return Mark(beat=0, count=count, stage=stage, **{**first, **fields})


class Timeline:
    """An observer that is asked each second, as a supervisor does."""

    def __init__(self, *marks: Mark, start_seconds: float = 100.0) -> None:
        self.now = 1000.0
        self.beats = itertools.count(1)
        self.observer = Observer(NAMES, start_seconds, self.now)
        self.say(*marks)

    def say(self, *marks: Mark) -> None:
        for process, each in enumerate(marks):
            self.hear(process, each)

    def hear(self, process: int, said: Mark) -> None:
        self.observer.hear(process, replace(said, beat=next(self.beats)), self.now)

    def go(self, seconds: int, beating: Iterable[int] = range(3)) -> tuple[int, str] | None:
        """After how long a fault shows, and which, while some say again where they are."""
        for second in range(1, seconds + 1):
            self.now += 1
            for process in beating:
                self.hear(process, self.observer.mark(process))
            if fault := self.observer.fault(self.now):
                return second, fault
        return None


# --- signs of life --------------------------------------------------------------------------------


def test_nothing_is_wrong_where_all_go_on():
    time = Timeline()
    for count in range(1, 20):
        time.say(*(mark(count + process) for process in range(3)))
        assert time.go(59) is None


def test_silence():
    step = mark(4, step=2, total=6, text="step 2 high_noise")
    time = Timeline(step, step, step)
    seconds, fault = time.go(60, beating=(0, 2))
    assert seconds == SILENCE_SECONDS + 1
    assert fault == (
        "process 1 (ranks 2-3) gave no sign for 8 s: stopped, or cut off; "
        "last seen in stage denoise, 2 of 6 done (step 2 high_noise)"
    )


def test_all_that_are_silent_are_named():
    _, fault = Timeline(mark(), mark(), mark()).go(60, beating=(1,))
    assert fault.startswith("process 0 (ranks 0-1), process 2 (ranks 4-5) gave no sign for 8 s")


def test_what_was_heard_before_is_no_sign():
    """A store keeps the last mark of one who is gone."""
    time = Timeline(mark(), mark(), mark())
    for _ in range(8):
        assert time.observer.fault(time.now) is None
        time.now += 1
        for process in range(2):
            time.hear(process, mark())
        time.observer.hear(2, time.observer.mark(2), time.now)
    assert time.observer.fault(time.now).startswith("process 2 (ranks 4-5) gave no sign for 8 s")


def test_silence_counts_from_the_last_sign():
    time = Timeline(mark(), mark(), mark())
    for _ in range(5):
        assert time.go(6, beating=(0, 2)) is None
        assert time.go(1) is None


def test_who_starts_may_be_silent():
    """Imports keep threads from it."""
    started = mark(1, START, allowed_seconds=100.0)
    assert Timeline(started, started, started).go(99, beating=()) is None
    assert Timeline(started, mark(), started).go(99, beating=())[0] == SILENCE_SECONDS + 1


def test_silence_is_told_before_what_follows_from_it():
    """Those who wait for the silent one are overdue, and not at fault."""
    late = mark(allowed_seconds=SILENCE_SECONDS)
    _, fault = Timeline(late, late, late).go(60, beating=(0, 1))
    assert fault.startswith("process 2 (ranks 4-5) gave no sign")


@pytest.mark.parametrize("stage", [START, "idle", "denoise"])
def test_stopped_processes(stage):
    """Also one that starts, or that waits to be asked."""
    still = mark(1, stage, allowed_seconds=None)
    time = Timeline(still, still, still)
    time.observer.stop(1, time.now)
    seconds, fault = time.go(60)
    assert seconds == SILENCE_SECONDS + 1
    assert fault == (
        "process 1 (ranks 2-3) gave no sign for 8 s: stopped, or cut off; "
        f"last seen in stage {stage}"
    )


def test_stopped_processes_that_go_on_in_time():
    time = Timeline(*[mark(allowed_seconds=None)] * 3)
    for _ in range(5):
        time.observer.stop(1, time.now)
        assert time.go(5, beating=(0, 2)) is None
        time.observer.resume(1, time.now)
        assert time.go(30) is None


def test_going_on_without_having_stopped():
    time = Timeline(mark(), mark(), mark())
    time.observer.resume(1, time.now)
    assert time.go(30) is None


# --- progress -------------------------------------------------------------------------------------


def test_overdue():
    step = mark(4, step=2, total=6, text="step 2 high_noise", where="")
    time = Timeline(step, step, step)
    time.go(30)
    time.say(mark(5), mark(4, step=2, total=6, text="step 2 high_noise"), mark(5))
    seconds, fault = time.go(60)
    assert seconds == 31
    assert fault == (
        "process 1 (ranks 2-3) made no progress for 61 s in stage denoise, 2 of 6 done "
        f"(step 2 high_noise) at {HERE}; 60 s are allowed"
    )


def test_saying_the_same_again_is_no_progress():
    assert Timeline(*[mark()] * 3).go(61)[0] == 61


def test_any_step_is_progress():
    """Also where a process began to count anew."""
    time = Timeline(*[mark(7)] * 3)
    for count in (8, 9, 1, 2):
        assert time.go(60) is None
        time.say(*[mark(count)] * 3)


def test_nothing_known_of_where():
    _, fault = Timeline(*[mark(where="")] * 3).go(61)
    assert fault.endswith("in stage denoise; 60 s are allowed")


@pytest.mark.parametrize(
    ("marks", "guilty"),
    [
        ([(5, HERE), (4, HERE), (5, HERE)], [1]),
        ([(5, COLLECTIVE), (4, COLLECTIVE), (5, COLLECTIVE)], [1]),
        ([(4, COLLECTIVE), (4, HERE), (4, COLLECTIVE)], [1]),
        ([(4, EXCHANGE), (4, COLLECTIVE), (4, HERE)], [2]),
        ([(3, COLLECTIVE), (4, HERE), (3, EXCHANGE)], [1]),  # others cannot be further without it
        ([(4, HERE), (4, HERE), (5, HERE)], [0, 1]),
        ([(4, HERE), (4, COLLECTIVE), (4, HERE)], [0, 2]),
        ([(4, COLLECTIVE), (4, EXCHANGE), (4, COLLECTIVE)], [0, 1, 2]),
        ([(4, ""), (4, COLLECTIVE), (4, COLLECTIVE)], [0]),
    ],
    ids=[
        "least",
        "least of those who wait",
        "who does not wait",
        "no one waits for the store alone",
        "who does not wait before least",
        "tie",
        "tie of those who do not wait",
        "all",
        "unknown",
    ],
)
def test_who_is_named(marks, guilty):
    time = Timeline(*(mark(count, where=where) for count, where in marks))
    _, fault = time.go(61)
    assert fault.startswith(f"{', '.join(NAMES[process] for process in guilty)} made no progress")


def test_only_who_is_overdue_is_named():
    """Others may be allowed more: decoding takes other ranks other times."""
    time = Timeline(mark(9, allowed_seconds=30.0), mark(1), mark(1))
    seconds, fault = time.go(60)
    assert seconds == 31
    assert fault.startswith("process 0 (ranks 0-1) made no progress for 31 s")
    assert fault.endswith("30 s are allowed")


def test_who_waits_to_be_asked_is_never_overdue():
    idle = mark(9, "idle", allowed_seconds=None)
    assert Timeline(idle, idle, idle).go(10_000) is None


def test_starts_have_a_deadline():
    seconds, fault = Timeline(start_seconds=20.0).go(60, beating=())
    assert seconds == 21
    assert fault == f"{', '.join(NAMES)} made no progress for 21 s in stage start; 20 s are allowed"


def test_who_did_not_start_in_time_is_named():
    time = Timeline(start_seconds=20.0)
    time.hear(0, mark())
    time.hear(2, mark())
    _, fault = time.go(60, beating=(0, 2))
    assert fault.startswith("process 1 (ranks 2-3) made no progress for 21 s in stage start")


def test_other_names():
    time = Timeline(*[mark()] * 3)
    time.observer.names = ["process 0 (rank 0)", "process 1 (rank 1)", "process 2 (rank 2)"]
    assert time.go(60, beating=(0, 1))[1].startswith("process 2 (rank 2) gave no sign")


def test_where_a_process_was_last():
    observer = Timeline(mark(), mark(3, step=1, total=6, text="step 1"), mark()).observer
    assert observer.mark(1).count == 3
    assert observer.at(1) == "process 1 (ranks 2-3) in stage denoise, 1 of 6 done (step 1)"
    assert observer.at(0) == "process 0 (ranks 0-1) in stage denoise"


# --- the observer's own pauses --------------------------------------------------------------------


@pytest.mark.parametrize("pause", [4.0, 60.0, HOUR])
def test_pauses_of_the_observer_are_passed_over(pause):
    """A laptop that slept, or Ctrl-Z: the processes had no chance, or were not heard."""
    time = Timeline(*[mark()] * 3)
    assert time.go(5, beating=()) is None
    time.now += pause
    assert time.observer.fault(time.now) is None
    assert time.go(60 - 5) is None


def test_time_before_and_after_a_pause_counts():
    time = Timeline(*[mark()] * 3)
    assert time.go(5, beating=(0, 1)) is None
    time.now += HOUR
    assert time.observer.fault(time.now) is None
    seconds, fault = time.go(60, beating=(0, 1))
    assert seconds == 3
    assert fault.startswith("process 2 (ranks 4-5) gave no sign for 8 s")


def test_stops_before_a_pause_count():
    time = Timeline(*[mark(allowed_seconds=None)] * 3)
    time.observer.stop(0, time.now)
    assert time.go(5) is None
    time.now += HOUR
    assert time.observer.fault(time.now) is None
    seconds, fault = time.go(60)
    assert seconds == 3
    assert fault.startswith("process 0 (ranks 0-1) gave no sign for 8 s")


def test_short_pauses_count():
    """A busy machine: signs are a few seconds late, and no time is given away for that."""
    time = Timeline(*[mark()] * 3)
    for _ in range(2):
        time.now += 3
        assert time.observer.fault(time.now) is None
    time.now += 3
    assert "gave no sign for 9 s" in time.observer.fault(time.now)


def test_who_waits_for_one_that_goes_on_is_not_at_fault():
    """At the end of a decode some have no tile left, and wait while others still make steps."""
    done = mark(9, "decode", step=2, total=2, where=EXCHANGE)
    time = Timeline(mark(1, "decode"), done, done)
    for count in range(2, 20):
        assert time.go(50) is None
        time.hear(0, mark(count, "decode"))
    seconds, fault = time.go(61)
    assert seconds == 61
    assert "process 0 (ranks 0-1) made no progress" in fault


def test_who_waits_with_less_patience_is_not_named_for_one_that_hangs():
    """Patience follows the steps that each process saw."""
    waits = mark(4, where=COLLECTIVE, allowed_seconds=100.0)
    hangs = mark(4, where=HERE, allowed_seconds=110.0)
    seconds, fault = Timeline(waits, hangs, waits).go(200)
    assert seconds == 111
    assert "process 1 (ranks 2-3) made no progress" in fault


def test_marks_that_were_overtaken_are_not_heard():
    time = Timeline(*[mark(5)] * 3)
    assert not time.observer.hear(0, replace(mark(4, "load"), beat=0), time.now)
    assert time.observer.mark(0).stage == "denoise"

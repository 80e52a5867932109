"""How long steps may take, and the marks that tell of them."""

import re
import socket
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from wanc.processes.marker import FLOOR_SECONDS, IDLE, SLACK, START, Marker, Patience
from wanc.processes.messages import Channel, Mark, Note


def patience(**fields) -> Patience:
    return Patience(**{"start_seconds": 300.0, **fields})


class Recorded:
    """A progress that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextmanager
    def task(self, name: str, total: int):
        self.lines.append(f"begin {name} {total}")
        try:
            yield self
        finally:
            self.lines.append(f"end {name}")

    def advance(self, done: str = "") -> None:
        self.lines.append(f"advance {done}")

    def doing(self, what: str) -> None:
        self.lines.append(f"doing {what}")

    def note(self, text: str) -> None:
        self.lines.append(f"note {text}")


def short(mark: Mark) -> tuple[int, str, int, int, str]:
    return mark.count, mark.stage, mark.step, mark.total, mark.text


# --- patience -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "stage", "allowed"),
    [
        ({}, "denoise", FLOOR_SECONDS),
        ({"predicted": {"denoise": 1.0}}, "denoise", FLOOR_SECONDS),
        ({"predicted": {"denoise": 30.0}}, "denoise", SLACK * 30),
        ({"predicted": {"denoise": 30.0}}, "decode", FLOOR_SECONDS),
        ({"longest": {"denoise": 40.0}}, "denoise", SLACK * 40),
        ({"predicted": {"denoise": 30.0}, "longest": {"denoise": 40.0}}, "denoise", SLACK * 40),
        ({"predicted": {"denoise": 40.0}, "longest": {"denoise": 30.0}}, "denoise", SLACK * 30),
        ({"predicted": {"denoise": 40.0}, "longest": {"decode": 30.0}}, "denoise", SLACK * 40),
        ({"stall_seconds": 5.0, "predicted": {"denoise": 30.0}}, "denoise", 5.0),
        ({"stall_seconds": 5.0, "longest": {"denoise": 30.0}}, "denoise", 5.0),
        ({"stall_seconds": 900.0}, "denoise", 900.0),
        ({"stall_seconds": 0.0}, "denoise", 0.0),
        ({}, START, 300.0),
        ({"stall_seconds": 5.0}, START, 300.0),
        ({"longest": {START: 90.0}}, START, 300.0),
        ({}, IDLE, None),
        ({"stall_seconds": 5.0}, IDLE, None),
    ],
)
def test_seconds_allowed(known, stage, allowed):
    assert patience(**known).allowed_seconds(stage) == allowed


def test_the_longest_step_is_kept():
    seen = patience()
    for seconds in (7.0, 20.0, 8.0):
        seen.saw("denoise", seconds)
    seen.saw("decode", 30.0)
    assert seen.longest == {"denoise": 20.0, "decode": 30.0}


def test_each_has_steps_of_its_own():
    one, other = patience(), patience()
    one.saw("denoise", 20.0)
    assert other.allowed_seconds("denoise") == FLOOR_SECONDS


# --- marks ----------------------------------------------------------------------------------------


def test_every_step_is_told_and_shown():
    told, shown = [], Recorded()
    marker = Marker(patience(), told.append, shown)
    with marker.task("denoise", 2) as task:
        task.advance("step 1 high_noise")
        task.doing("branch 1")
        task.advance()
    marker.note("seed 7")
    marker.move(IDLE)
    assert [short(mark) for mark in told] == [
        (1, START, 0, 0, ""),
        (2, "denoise", 0, 2, ""),
        (3, "denoise", 1, 2, "step 1 high_noise"),
        (4, "denoise", 1, 2, "branch 1"),
        (5, "denoise", 2, 2, ""),
        (6, IDLE, 0, 0, ""),
    ]
    assert shown.lines == [
        "begin denoise 2",
        "advance step 1 high_noise",
        "doing branch 1",
        "advance ",
        "end denoise",
        "note seed 7",
    ]


def test_nothing_need_be_shown():
    told = []
    marker = Marker(patience(), told.append)
    with marker.task("load", 1) as task:
        task.doing("weights")
        task.advance("load")
    marker.note("seed 7")
    assert [mark.count for mark in told] == [1, 2, 3, 4]


def test_signs_of_life_are_no_steps():
    told = []
    marker = Marker(patience(), told.append)
    marker.move("load", 3, 8, "denoiser")
    for _ in range(3):
        marker.beat()
    assert {short(mark) for mark in told[1:]} == {(2, "load", 3, 8, "denoiser")}
    assert [mark.beat for mark in told] == [1, 2, 3, 4, 5]
    assert short(marker.current()) == (2, "load", 3, 8, "denoiser")
    assert len(told) == 5


def test_what_is_shown_ends_where_a_stage_fails():
    shown = Recorded()
    marker = Marker(patience(), lambda mark: None, shown)
    with pytest.raises(OSError, match="disk"), marker.task("write", 1):
        raise OSError("disk")
    assert shown.lines == ["begin write 1", "end write"]
    assert marker.current().stage == "write"


def test_marks_say_how_long_the_next_step_may_take(monkeypatch):
    """The first step by the prediction, the next by the longest one: parts of steps are none."""
    clock = iter([100.0, 130.0, 140.0])
    monkeypatch.setattr(
        "wanc.processes.marker.time", SimpleNamespace(monotonic=lambda: next(clock))
    )
    told = []
    marker = Marker(patience(predicted={"denoise": 9.0}), told.append)
    with marker.task("denoise", 2) as task:
        task.doing("branch 1")
        task.advance()
        task.doing("branch 1")
        task.advance()
    marker.move(IDLE)
    assert [mark.allowed_seconds for mark in told] == [
        300.0,
        *(SLACK * 9, SLACK * 9),
        *(SLACK * 30, SLACK * 30, SLACK * 30),
        None,
    ]


def test_patience_may_learn_predictions_later():
    seen = patience()
    marker = Marker(seen, lambda mark: None)
    marker.move("denoise")
    seen.predicted = {"denoise": 100.0}
    assert marker.current().allowed_seconds == SLACK * 100


def test_threads_lose_no_step():
    marker = Marker(patience(), lambda mark: None)
    threads = [
        threading.Thread(target=lambda: [marker.move("load") for _ in range(100)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert marker.current().count == 401


def seen_from_a_thread(act) -> str:
    marker = Marker(patience(), lambda mark: None)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(act(marker)))
    thread.start()
    thread.join()
    return found[0]


def test_where_is_what_the_main_thread_does_of_wanc():
    """Here it waits in wanc's own code, and in a library's below that."""
    marker = Marker(patience(), lambda mark: None)
    ours, theirs = map(Channel, socket.socketpair())
    found = []

    def look() -> None:
        for _ in range(10_000):
            found.append(marker.current().where)
            if found[-1].startswith("processes/messages.py"):
                break
        theirs.send(Note(text="enough"))

    thread = threading.Thread(target=look)
    thread.start()
    assert ours.receive() == [Note(text="enough")]
    thread.join()
    assert re.fullmatch(r"processes/messages\.py:\d+ receive", found[-1])


def test_where_is_empty_outside_of_wanc():
    assert seen_from_a_thread(lambda marker: marker.current().where) == ""

"""Messages between a run's processes and their supervisor, over a socket pair."""

import json
import selectors
import socket
import threading

import msgspec
import pytest

from wanc.processes.messages import Answer, Ask, Channel, Failed, Mark, Note

MARK = Mark(
    beat=31,
    count=7,
    stage="denoise",
    step=2,
    total=6,
    text="step 2 high_noise",
    where="run/session.py:91 run",
    allowed_seconds=60.5,
)
MESSAGES = [
    MARK,
    Mark(beat=1, count=0, stage="idle", step=0, total=0, text="", where="", allowed_seconds=None),
    Note(text="seed 7"),
    Note(text='two\nlines, a "quote", a \0, Leuchtturm für 灯塔 🗼'),
    Failed(kind="RunError", message="denoise: latents are not finite"),
    Answer(value=None),
    Answer(value={"seconds": 1.5, "seed": (1 << 64) - 1, "stages": ["load", None, True]}),
    Ask(subject="load", value={"load": {"bundle": "b"}, "patience": {"start_seconds": 300.0}}),
]


class Ends:
    """A channel and the bare socket that it talks to."""

    def __init__(self) -> None:
        ours, self.raw = socket.socketpair()
        for end in (ours, self.raw):
            end.settimeout(10)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # long messages go in parts
        self.channel = Channel(ours)


@pytest.fixture
def ends():
    made = Ends()
    yield made
    made.channel.close()
    made.raw.close()


def line(message) -> bytes:
    return msgspec.json.encode(message) + b"\n"


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(ends, message):
    there = Channel(ends.raw)
    there.send(message)
    assert ends.channel.receive() == [message]
    ends.channel.send(message)
    assert there.receive() == [message]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_a_line_of_json_with_its_kind(ends, message):
    ends.channel.send(message)
    data = ends.raw.recv(1 << 16)
    assert data.count(b"\n") == 1
    assert data.endswith(b"\n")
    assert json.loads(data)["type"] == type(message).__name__.lower()


def test_no_limit_is_no_seconds(ends):
    """JSON has no infinity."""
    ends.channel.send(msgspec.structs.replace(MARK, allowed_seconds=float("inf")))
    assert Channel(ends.raw).receive()[0].allowed_seconds is None


# --- reads ----------------------------------------------------------------------------------------


def test_messages_that_come_byte_by_byte(ends):
    data = line(MESSAGES[3])
    for k in range(len(data) - 1):
        ends.raw.sendall(data[k : k + 1])
        assert ends.channel.receive() == []
    ends.raw.sendall(data[-1:])
    assert ends.channel.receive() == [MESSAGES[3]]


def test_messages_that_come_at_once(ends):
    ends.raw.sendall(b"".join(map(line, MESSAGES)))
    assert ends.channel.receive() == MESSAGES


def test_messages_that_come_at_once_with_a_part_of_one(ends):
    data = line(MARK) * 2
    for cut in (1, len(data) // 2, len(data) // 2 + 1, len(data) - 1):
        ends.raw.sendall(data[:cut])
        first = ends.channel.receive()
        ends.raw.sendall(data[cut:])
        assert first + ends.channel.receive() == [MARK, MARK]


def test_messages_longer_than_a_read(ends):
    note = Note(text="x" * 300_000)
    sender = threading.Thread(target=Channel(ends.raw).send, args=(note,))
    sender.start()
    found = []
    while not found:
        found = ends.channel.receive()
    sender.join()
    assert found == [note]


def test_the_end(ends):
    ends.raw.sendall(line(MARK))
    ends.raw.close()
    assert ends.channel.receive() == [MARK]
    assert ends.channel.receive() is None
    assert ends.channel.receive() is None


def test_the_end_within_a_message(ends):
    ends.raw.sendall(line(MARK) + line(MARK)[:-1])
    ends.raw.close()
    assert ends.channel.receive() == [MARK]
    assert ends.channel.receive() is None


def test_the_end_of_one_who_was_not_heard_out(ends):
    """Closing with bytes unread resets the connection."""
    ends.channel.send(MARK)
    ends.raw.close()
    assert ends.channel.receive() is None


def test_selectors_see_messages_and_the_end(ends):
    with selectors.DefaultSelector() as selector:
        selector.register(ends.channel, selectors.EVENT_READ)
        assert not selector.select(0)
        ends.raw.sendall(line(MARK))
        assert selector.select(10)
        assert ends.channel.receive() == [MARK]
        assert not selector.select(0)
        ends.raw.close()
        assert selector.select(10)


# --- sending --------------------------------------------------------------------------------------


def test_sending_to_one_who_is_gone_is_silent(ends):
    ends.raw.close()
    for _ in range(3):
        ends.channel.send(MARK)


def test_sending_to_one_who_goes_meanwhile_is_silent(ends):
    """More than the socket holds, so that the sender waits when the other end goes."""
    sender = threading.Thread(target=ends.channel.send, args=(Note(text="x" * 1_000_000),))
    sender.start()
    ends.raw.recv(1 << 16)
    ends.raw.close()
    sender.join(10)
    assert not sender.is_alive()


def test_threads_do_not_interleave(ends):
    """Their messages are longer than the socket holds."""
    count, senders = 10, "abcd"

    def send(letter: str) -> None:
        for k in range(count):
            ends.channel.send(Note(text=f"{k}{letter * 100_000}"))

    threads = [threading.Thread(target=send, args=(letter,)) for letter in senders]
    for thread in threads:
        thread.start()
    there, found = Channel(ends.raw), []
    while len(found) < count * len(senders):
        found += there.receive()
    for thread in threads:
        thread.join()
    for letter in senders:
        texts = [note.text for note in found if note.text.endswith(letter)]
        assert texts == [f"{k}{letter * 100_000}" for k in range(count)]


# --- what others may say --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"hello",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe\x00",
        b'{"type":"quit"}',
        b'{"type":7}',
        b'{"text":"of no kind"}',
        b'{"type":"note"}',
        b'{"type":"note","text":5}',
        b'{"type":"note","text":"\xff"}',
        b'{"type":"note","text":"\\ud800"}',
        b'{"type":"note","text":"a"} {"type":"note","text":"b"}',
        b'{"type":"ask","subject":"load"}',
        b'{"type":"answer","value":1e999}',
        b'{"type":"answer","value":NaN}',
        line(MARK).replace(b'"count":7', b'"count":"7"').strip(),
        line(MARK).replace(b'"count":7', b'"count":7.5').strip(),
        line(MARK).replace(b"60.5", b"[]").strip(),
        b"GET / HTTP/1.1\r",
    ],
)
def test_what_is_no_message(ends, said):
    ends.raw.sendall(said + b"\n")
    with pytest.raises(msgspec.MsgspecError):
        ends.channel.receive()


def test_fields_of_a_newer_wanc(ends):
    ends.raw.sendall(b'{"type":"note","text":"a","colour":"red"}\n')
    assert ends.channel.receive() == [Note(text="a")]


# --- for people -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "stage denoise, 2 of 6 done (step 2 high_noise)"),
        ({"text": ""}, "stage denoise, 2 of 6 done"),
        ({"step": 0}, "stage denoise, 0 of 6 done (step 2 high_noise)"),
        ({"total": 1, "step": 0, "text": ""}, "stage denoise"),
        ({"total": 0, "step": 0, "text": "prompt"}, "stage denoise (prompt)"),
    ],
)
def test_marks_for_people(fields, text):
    assert str(msgspec.structs.replace(MARK, **fields)) == text

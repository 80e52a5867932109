"""What the processes of a run and their supervisor say to each other: lines of JSON on a socket."""

import contextlib
import socket
import threading
from typing import Any

import msgspec


class Mark(msgspec.Struct, frozen=True, kw_only=True, tag="mark"):
    """Where a process is. Said at every step of its way, and each second as a sign of life."""

    beat: int
    """Of this sign of life; another with each."""
    count: int
    """Steps of its way so far."""
    stage: str
    step: int
    """Steps of the stage that are done."""
    total: int
    text: str
    """What the last step was."""
    where: str
    """File of wanc, line and function that its main thread is in."""
    allowed_seconds: float | None
    """How long it may take until the next step; None where it waits to be asked."""

    def __str__(self) -> str:
        """The stage and how far it is, for people."""
        steps = f", {self.step} of {self.total} done" if self.total > 1 else ""
        return f"stage {self.stage}{steps}{f' ({self.text})' if self.text else ''}"


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """A line for people."""

    text: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """A process ends by an error."""

    kind: str
    """Name of its class in the error tree."""
    message: str


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """What a process was asked is done."""

    value: Any


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Work for a process."""

    subject: str
    value: Any


Message = Mark | Note | Failed | Answer | Ask


class Channel:
    """One end of a socket that carries messages; any thread may send."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(Message)
        self._rest = b""

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Say something; to an end that is gone, nothing."""
        data = self._encoder.encode(message) + b"\n"
        with self._sending, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def receive(self) -> list[Message] | None:
        """Wait for messages; None once the other end is gone."""
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._decoder.decode(line) for line in lines]

    def close(self) -> None:
        """Hang up, also where a fork holds the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

"""A way to a server that breaks: connections are cut after so many bytes."""

import socket
import threading
from contextlib import suppress
from typing import Any


class Cutting:
    """Passes connections on, each one with at most so many bytes, until the lists are empty.

    A list has a number for each connection that is cut: what goes to the server in requests, what
    comes from it in answers.
    """

    def __init__(
        self, host: str, *, requests: list[int] | None = None, answers: list[int] | None = None
    ) -> None:
        name, _, port = host.partition(":")
        self._server = (name, int(port))
        self._requests, self._answers = requests or [], answers or []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> str:
        self._threads[0].start()
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def __exit__(self, *_: Any) -> None:
        for each in (self._listening, *self._open):
            _end(each)
        for thread in self._threads:
            thread.join()
        for each in (self._listening, *self._open):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self._open += [client, server]
            for source, sink, cuts in (
                (client, server, self._requests),
                (server, client, self._answers),
            ):
                most = cuts.pop(0) if cuts else None
                thread = threading.Thread(target=_pass, args=(source, sink, most))
                thread.start()
                self._threads.append(thread)


def _pass(source: socket.socket, sink: socket.socket, most: int | None) -> None:
    """Until one side ends, or so many bytes went through; then both end."""
    with suppress(OSError):
        while most != 0 and (data := source.recv(min(1 << 16, most or 1 << 16))):
            sink.sendall(data)
            most = None if most is None else most - len(data)
    _end(source)
    _end(sink)


def _end(open_socket: socket.socket) -> None:
    with suppress(OSError):
        open_socket.shutdown(socket.SHUT_RDWR)

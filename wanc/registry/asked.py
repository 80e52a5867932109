"""A request, and what it sends: part of a file or of bytes, never in memory whole.

Knows no network.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from wanc.errors import RunError

Source = Path | bytes

Scopes = tuple[str, ...]
"""What a request must be allowed, as ``repository:wan/bundle:pull,push``."""


def named(source: Source) -> str:
    """For people."""
    return str(source) if isinstance(source, Path) else "what is sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """Bytes to be sent, as often as they must be."""

    source: Source = field(repr=False)
    start: int
    size: int
    sent: Callable[[int], None] = field(repr=False)
    """Told of every block that is handed to a connection."""

    def open(self) -> "Reading":
        """From the start; raises RunError."""
        if isinstance(self.source, bytes):
            return Reading(self, io.BytesIO(self.source))
        try:
            return Reading(self, self.source.open("rb"))
        except OSError as error:
            raise RunError(f"{self.source}: cannot be read: {error.strerror}") from error


class Reading:
    """A body that is being sent."""

    def __init__(self, body: Body, stream: BinaryIO) -> None:
        self._body, self._stream, self._left = body, stream, body.size
        self._name = named(body.source)
        stream.seek(body.start)

    def read(self, most_bytes: int) -> bytes:
        """The next bytes, b"" at the end; raises RunError where the file has become shorter."""
        try:
            block = self._stream.read(min(most_bytes, self._left))
        except OSError as error:
            raise RunError(f"{self._name}: cannot be read: {error.strerror}") from error
        if self._left and not block:
            raise RunError(f"{self._name}: became shorter while it was sent")
        self._left -= len(block)
        if block:
            self._body.sent(len(block))
        return block

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request."""

    method: str
    url: str
    what: str
    """It is about, for people."""
    scopes: Scopes
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | bytes | None = field(default=None, repr=False)

    @property
    def allowed(self) -> str:
        """What an account needs, for people."""
        return ", ".join(self.scopes)

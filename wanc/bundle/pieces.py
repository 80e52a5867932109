"""Bytes that come piece by piece, taken in order. Knows nothing of what they are.

What nobody takes goes by and is not kept: a file of any size is gone through in the memory of one
piece.
"""

from collections.abc import Iterable, Iterator

from wanc.digest import PIECE_BYTES


def pieces_of(data: bytes) -> Iterator[memoryview]:
    """Bytes that are in memory, piece by piece."""
    view = memoryview(data)
    return (view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES))


class Pieces:
    """Where a reader is in them. Each piece need be there only until the next is asked for."""

    def __init__(self, source: Iterable[memoryview]) -> None:
        self._source = iter(source)
        self._piece = memoryview(b"")
        self.at = 0
        """Bytes that are gone by."""

    def take(self, size_bytes: int) -> bytes:
        """So many bytes, neither more nor fewer; raises EOFError."""
        return b"".join([bytes(part) for part in self.within(size_bytes)])

    def skip(self, size_bytes: int) -> None:
        """Go past so many bytes; raises EOFError."""
        for _ in self.within(size_bytes):
            pass

    def within(self, size_bytes: int) -> Iterator[memoryview]:
        """So many bytes, piece by piece; raises EOFError."""
        while size_bytes:
            if not self._piece:
                self._piece = next(self._source, memoryview(b""))
                if not self._piece:
                    raise EOFError("it is cut off")
            part, self._piece = self._piece[:size_bytes], self._piece[size_bytes:]
            self.at += len(part)
            size_bytes -= len(part)
            yield part

    def finish(self) -> None:
        """Go to the end."""
        self._piece = memoryview(b"")
        for _ in self._source:
            pass

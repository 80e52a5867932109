"""Blobs from a repository into files that appear whole under their names, or not at all.

What came before a connection broke, or a process was killed, lies beside the final name and is gone
on from. Knows nothing of what blobs hold.
"""

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from wanc.digest import Running, of_file
from wanc.errors import RunError
from wanc.files import UNFINISHED, give_name
from wanc.registry.answers import Reply
from wanc.registry.blobs import blob_name, check_digest, wrong_digest, wrong_size
from wanc.registry.repository import OnBytes, Repository, no_matter
from wanc.registry.retries import SOMETHING_BYTES, PassingError

PARTIAL = f"{UNFINISHED}partial-"
"""How names of files begin that a later download goes on from; the digits of a digest follow."""
_BLOCK_BYTES = 1 << 20
_CONTENT_RANGE = re.compile("bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|[*])")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    repository: Repository
    digest: str
    size: int
    on_bytes: OnBytes

    @property
    def what(self) -> str:
        return self.repository.what(blob_name(self.digest))


def fetch_blob(
    repository: Repository,
    digest: str,
    size: int,
    to: Path,
    *,
    on_bytes: OnBytes = no_matter,
) -> None:
    """Have a blob in a file; raises RegistryError, and RunError where a file is not written.

    Who else fetches the same to the same place is waited for.

    Args:
        repository: where from.
        digest: of the bytes, which are checked.
        size: in bytes.
        to: the file. One with the right bytes is left as it is, any other is replaced.
        on_bytes: told of what moves.
    """
    wanted = _Wanted(repository=repository, digest=digest, size=size, on_bytes=on_bytes)
    check_digest(digest, wanted.what)
    partial = to.with_name(PARTIAL + digest.partition(":")[2])
    try:
        with _held(partial) as file:
            if _is_there(to, wanted):
                on_bytes(0, size)
                return
            _fill(wanted, file, partial)
            give_name(partial, to)
    except OSError as error:
        raise RunError(f"cannot write {to}: {error.strerror or error}") from error


def _is_there(to: Path, wanted: _Wanted) -> bool:
    with suppress(FileNotFoundError):
        status = to.lstat()
        same_size = stat.S_ISREG(status.st_mode) and status.st_size == wanted.size
        return same_size and of_file(to) == wanted.digest
    return False


@contextmanager
def _held(partial: Path) -> Iterator[BinaryIO]:
    """A partial file for nobody else; it stays where it has bytes, whatever ends this."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with os.fdopen(os.open(partial, flags, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _has_name(file, partial):  # who held it gave it its final name
                continue
            try:
                yield file
            finally:
                if _has_name(file, partial) and not os.fstat(file.fileno()).st_size:
                    partial.unlink(missing_ok=True)
            return


def _has_name(file: BinaryIO, partial: Path) -> bool:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{partial} is no file")
    with suppress(FileNotFoundError):
        return os.path.samestat(status, partial.lstat())
    return False


def _fill(wanted: _Wanted, file: BinaryIO, partial: Path) -> None:
    """Have a partial file hold the blob; raises RegistryError.

    The bytes that an earlier process left may be wrong, after a power cut: then all come anew.
    """
    arriving = _Arriving(wanted, file)
    reused = arriving.take_up()
    arriving.receive()
    if arriving.digest != wanted.digest and reused:
        arriving.begin_anew()
        arriving.receive()
    if arriving.digest != wanted.digest:
        partial.unlink()
        raise wrong_digest(wanted.what, arriving.digest, wanted.digest)


class _Arriving:
    """A blob of which some bytes are in a file, and hashed."""

    def __init__(self, wanted: _Wanted, file: BinaryIO) -> None:
        self._wanted, self._file = wanted, file
        self._hash, self._count, self._ranges = Running(), 0, True

    @property
    def digest(self) -> str:
        """Of the bytes that are there."""
        return self._hash.digest

    def take_up(self) -> int:
        """Hash the bytes that the file has, and go on after them; returns how many they are."""
        if os.fstat(self._file.fileno()).st_size > self._wanted.size:
            self._file.truncate(0)
        while block := self._file.read(_BLOCK_BYTES):
            self._hash.add(block)
            self._count += len(block)
        self._wanted.on_bytes(0, self._count)
        return self._count

    def begin_anew(self) -> None:
        """Forget the bytes that are there."""
        self._file.seek(0)
        self._file.truncate(0)
        self._hash, self._count = Running(), 0

    def receive(self) -> None:
        """Get all that is missing, however often the connection breaks; raises RegistryError."""
        attempts = self._wanted.repository.transport.attempts(self._wanted.what)
        while self._count < self._wanted.size:
            before = self._count
            try:
                self._receive_once()
            except PassingError as cause:
                if self._count - before >= SOMETHING_BYTES:
                    attempts.brought_something()
                attempts.again(cause)
        self._file.flush()

    def _receive_once(self) -> None:
        """Get what one answer brings; raises PassingError where that is not all."""
        repository, digest = self._wanted.repository, self._wanted.digest
        ranged = self._ranges and self._count > 0
        asked = repository.asked(
            "GET",
            repository.url("blobs", digest),
            blob_name(digest),
            headers={"Range": f"bytes={self._count}-"} if ranged else {},
        )
        with repository.transport.reply(asked, {200, 206, 416} if ranged else {200}) as reply:
            if reply.status == 200:
                if self._count:  # the registry knows no ranges
                    self.begin_anew()
                self._check_size(reply.headers.get("Content-Length"))
            elif not self._goes_on(reply):
                self.begin_anew()
                self._ranges = False
                return
            self._take(reply)

    def _goes_on(self, reply: Reply) -> bool:
        """Whether an answer brings the range that was asked for."""
        found = _CONTENT_RANGE.fullmatch(reply.headers.get("Content-Range", ""))
        if reply.status != 206 or not found or int(found[1]) != self._count:
            return False
        self._check_size(found[2])
        return True

    def _check_size(self, said: str | None) -> None:
        if said and said.isdecimal() and int(said[:18]) != self._wanted.size:
            raise wrong_size(self._wanted.what, int(said[:18]), self._wanted.size)

    def _take(self, reply: Reply) -> None:
        size = self._wanted.size
        while self._count < size and (block := reply.block(size - self._count)):
            self._file.write(block)
            self._hash.add(block)
            self._count += len(block)
            self._wanted.on_bytes(len(block), 0)
        if self._count < size:
            raise PassingError(f"the registry ended after {self._count} of {size} bytes")

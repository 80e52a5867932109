"""Opens files of a bundle: regular ones only, and through no link."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path


@contextmanager
def regular_file(path: Path) -> Iterator[FileIO]:
    """A regular file, open for reading and unbuffered; raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "it is a link") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # of a folder there is no stream
            raise OSError(None, "it is no regular file")
        with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as stream:
            yield stream
    finally:
        os.close(descriptor)


def read_small(path: Path, most_bytes: int) -> bytes:
    """The bytes of a regular file that has no more than so many; raises OSError."""
    with regular_file(path) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        if size_bytes > most_bytes:
            raise OSError(None, f"it has {size_bytes:,} bytes, more than {most_bytes:,}")
        return stream.read(size_bytes)

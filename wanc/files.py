"""Files that appear whole under their names, or not at all. Knows nothing of what they hold."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

UNFINISHED = ".new-"
"""How names of unfinished files begin; a killed process may leave some."""

_unfinished: set[Path] = set()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file by an atomic rename; raises OSError and then leaves nothing behind."""
    with Reserved(path) as file:
        file.fill(lambda temporary: temporary.write_bytes(data))
        file.commit()


def check_folder(folder: Path) -> None:
    """Raise OSError where a folder takes no file."""
    with Reserved(folder / "check"):
        pass


class Reserved:
    """A temporary file beside its final name. Reserving one shows early that it can be written."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where the folder takes no file, or the name is a folder's."""
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a directory")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED, suffix=path.suffix)
        os.close(handle)
        self.path = path
        self.temporary = Path(name)
        _unfinished.add(self.temporary)

    def __enter__(self) -> "Reserved":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.temporary.unlink(missing_ok=True)
        _unfinished.discard(self.temporary)

    def fill(self, write: Callable[[Path], object]) -> None:
        """Let write fill the temporary file."""
        write(self.temporary)

    def commit(self) -> None:
        """Give the file its name, with the permissions of any new file."""
        give_name(self.temporary, self.path)


def give_name(temporary: Path, path: Path) -> None:
    """Rename a finished file, over an earlier one, with the permissions of any new file."""
    with temporary.open("rb") as written:
        os.fsync(written.fileno())  # else a power cut may leave the name and no bytes
    umask = os.umask(0)
    os.umask(umask)
    temporary.chmod(0o666 & ~umask)
    temporary.replace(path)


def discard_unfinished() -> None:
    """Remove every unfinished file of this process, which is about to end without a word."""
    for temporary in _unfinished:
        temporary.unlink(missing_ok=True)

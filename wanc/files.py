"""Files and folders that appear whole under their names, or not at all.

Knows nothing of what they hold.
"""

import fcntl
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

UNFINISHED = ".new-"
"""How names of unfinished files begin; a killed process may leave some."""

_unfinished: set[Path] = set()
_umask_lock = threading.Lock()
_TRIES = 10
"""To remove a folder that another thread may still write into: once it is gone, that fails."""


def write_whole(path: Path, data: bytes) -> None:
    """Write a file by an atomic rename; raises OSError and then leaves nothing behind."""
    with Reserved(path) as file:
        file.fill(lambda temporary: temporary.write_bytes(data))
        file.commit()


@contextmanager
def locked(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold a folder against all that lock it, or beside those that share it; raises OSError.

    The lock is the kernel's: it ends with the process, and binds processes of one host.
    """
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def sync(path: Path) -> None:
    """Have a file, or a folder's names, on the disk: a power cut may else lose them."""
    written = os.open(path, os.O_RDONLY)
    try:
        os.fsync(written)
    finally:
        os.close(written)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, on the disk; raises OSError."""
    missing = [each for each in (folder, *folder.absolute().parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync(each.absolute().parent)


def check_folder(folder: Path) -> None:
    """Raise OSError where a folder takes no file."""
    with Reserved(folder / "check"):
        pass


def is_unfinished(name: str) -> bool:
    """Whether a killed process left a file of this name, or one that writes has it under way."""
    return name.startswith(UNFINISHED)


class Reserved:
    """A temporary file beside its final name. Reserving one shows early that it can be written."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where the folder takes no file, or the name is a folder's."""
        self.path = path
        self.temporary = self._make()
        _unfinished.add(self.temporary)

    def _make(self) -> Path:
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a directory")
        handle, name = tempfile.mkstemp(
            dir=self.path.parent, prefix=UNFINISHED, suffix=self.path.suffix
        )
        os.close(handle)
        return Path(name)

    def __enter__(self) -> "Reserved":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _remove(self.temporary)
        _unfinished.discard(self.temporary)

    def fill(self, write: Callable[[Path], object]) -> None:
        """Let write fill what is temporary."""
        write(self.temporary)

    def commit(self) -> None:
        """Give the file its name, with the permissions of any new file."""
        give_name(self.temporary, self.path)


class ReservedFolder(Reserved):
    """A temporary folder beside its final name, for files without folders among them.

    An earlier folder is replaced where all that it holds are files with names of a pattern, as an
    earlier file would be; any other is left alone. The old folder is gone for a moment before the
    new one has its name: a process that is killed in between leaves it under a temporary name.
    """

    def __init__(self, path: Path, replaces: re.Pattern[str]) -> None:
        """Raises OSError where no folder can be made, or what has the name would not be replaced.

        Args:
            path: the final name.
            replaces: whole names of files that an earlier folder may hold.
        """
        self._replaces = replaces
        super().__init__(path)

    def _make(self) -> Path:
        _check_replaced(self.path, self._replaces)
        return _new_folder(self.path.parent)

    def commit(self) -> None:
        """Give the folder its name, with the permissions of any new folder.

        Raises OSError where an earlier folder has got other files meanwhile.
        """
        for file in (*self.temporary.iterdir(), self.temporary):
            sync(file)
        self.temporary.chmod(0o777 & ~_umask())
        _check_replaced(self.path, self._replaces)
        if self.path.exists():
            _exchange(self.temporary, self.path)
        else:
            self.temporary.replace(self.path)


def give_name(temporary: Path, path: Path) -> None:
    """Rename a finished file, over an earlier one, with the permissions of any new file."""
    sync(temporary)
    temporary.chmod(0o666 & ~_umask())
    temporary.replace(path)


def discard_unfinished() -> None:
    """Remove all that is unfinished of this process, which is about to end without a word."""
    for temporary in tuple(_unfinished):
        _remove(temporary)


def _umask() -> int:
    with _umask_lock:  # else a thread could take another's 0 for the umask, and leave it so
        umask = os.umask(0)
        os.umask(umask)
    return umask


def _remove(temporary: Path) -> None:
    if not temporary.is_dir():
        temporary.unlink(missing_ok=True)
        return
    for _ in range(_TRIES):
        shutil.rmtree(temporary, ignore_errors=True)
        if not temporary.exists():
            return


def _new_folder(parent: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=parent.absolute(), prefix=UNFINISHED))


def _check_replaced(path: Path, names: re.Pattern[str]) -> None:
    """Raise OSError where a folder cannot take this name, or something would be lost by it."""
    if path.name in ("", ".."):
        raise OSError("the folder needs a name of its own")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise NotADirectoryError("it is there, and no folder: name another")
    if not path.is_dir():
        return
    if path.is_mount():
        raise OSError("a file system is mounted there: name a folder in it")
    for child in path.iterdir():
        if not names.fullmatch(child.name) or child.is_symlink() or not child.is_file():
            raise FileExistsError(f"it holds {child.name!r}, which would be lost: name another")


def _exchange(new: Path, path: Path) -> None:
    """Replace a folder by another; raises OSError, and then the old one is where it was."""
    aside = _new_folder(path.parent)
    try:
        path.replace(aside)
        new.replace(path)
    finally:
        if new.exists():
            with suppress(OSError):  # it is not empty where the old one never left
                aside.replace(path)
            with suppress(OSError):
                aside.rmdir()
        else:
            shutil.rmtree(aside, ignore_errors=True)

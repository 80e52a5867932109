"""What can be cleared away of a folder, and how it is. Knows nothing of what folders hold."""

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Removable:
    """A file, or a folder with all that is in it, that nobody needs."""

    name: str
    """From the folder that is cleared."""
    bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """What was cleared away, or would be."""

    removables: tuple[Removable, ...]
    removed: bool
    """False where it was only looked for."""
    kept_bytes: int
    """Of what stays."""
    spared: int = 0
    """Files that nothing refers to, or that are too many, and that work under way may need."""

    @property
    def bytes(self) -> int:
        """Of all that is cleared away."""
        return sum(each.bytes for each in self.removables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lying:
    """A regular file that lies in a folder, or a folder as one thing."""

    path: Path
    bytes: int
    changed_ns: int


def lying(folder: Path) -> Iterator[Lying]:
    """The regular files of a folder, by name; none where it is not there. Follows no link."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            with suppress(FileNotFoundError):  # others may clear away, or finish, what was listed
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield Lying(
                        path=Path(entry), bytes=status.st_size, changed_ns=status.st_mtime_ns
                    )


def removable(file: Lying, root: Path, why: str) -> Removable:
    """A file of a folder that can be cleared away."""
    return Removable(name=str(file.path.relative_to(root)), bytes=file.bytes, why=why)


def remove(root: Path, removables: Sequence[Removable]) -> None:
    """Remove them; raises OSError. What has gone by itself is no error."""
    for each in removables:
        path = root / each.name
        with suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def total(files: Iterable[Lying]) -> int:
    """Bytes of files."""
    return sum(file.bytes for file in files)

"""A double of a disk whose power is cut: what of a program's writes is there afterwards.

It keeps to what POSIX promises and no file system's more: bytes of a file are there once the file
was synced, and names (made, renamed, removed) once their folder was. Before that each may be there
or not, whatever came before or after it; bytes may be there in part. ``recording`` notes what a
program does to one folder, and a ``Disk`` plays it back up to a moment and has its power cut.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a program did; names are from the folder that was recorded."""

    act: str
    """make, mkdir, write, rename, remove, sync."""
    name: str
    other: str = ""
    """The new name."""
    data: bytes = b""


@dataclass(slots=True)
class Recording:
    """What a program did, in order."""

    root: Path
    steps: list[Step] = field(default_factory=list)

    def note(self, act: str, path: object, other: object = "", data: bytes = b"") -> None:
        """Note a step, where it is in the folder."""
        names = [self._name(each) if each else "" for each in (path, other)]
        if names[0] is not None:
            self.steps.append(Step(act, names[0], names[1] or "", data))

    def _name(self, path: object) -> str | None:
        absolute = os.path.abspath(str(path))
        inside = absolute == str(self.root) or absolute.startswith(f"{self.root}{os.sep}")
        return os.path.relpath(absolute, self.root) if inside else None


@contextmanager
def recording(root: Path, patch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """Record what is done through the calls that wanc writes with."""
    kept = Recording(Path(os.path.abspath(root)))

    def noted(act: str, call: Callable[..., Any], *, late: bool = False) -> Callable[..., Any]:
        def wrapped(path: Any, *args: Any, **kwargs: Any) -> Any:
            was = Path(path).exists() if act == "mkdir" else False
            result = call(path, *args, **kwargs)
            if not was:
                data = args[0] if act == "write" else b""
                kept.note(act, path, args[0] if act == "rename" else "", data)
            return result

        return wrapped

    mkstemp, fsync = tempfile.mkstemp, os.fsync

    def made(*args: Any, **kwargs: Any) -> tuple[int, str]:
        handle, name = mkstemp(*args, **kwargs)
        kept.note("make", name)
        return handle, name

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        kept.note("sync", os.readlink(f"/proc/self/fd/{descriptor}"))

    with patch.context() as patched:
        patched.setattr(tempfile, "mkstemp", made)
        patched.setattr(os, "fsync", synced)
        for act, name in (
            ("write", "write_bytes"),
            ("rename", "replace"),
            ("remove", "unlink"),
            ("mkdir", "mkdir"),
        ):
            patched.setattr(Path, name, noted(act, getattr(Path, name)))
        yield kept


# --- what is there afterwards ---------------------------------------------------------------------


@dataclass(slots=True)
class _File:
    """What a name leads to."""

    data: bytes
    synced: bytes


Change = tuple[str, _File | None]
"""A name in its folder, and what it leads to from then on; None where it is gone."""


class Disk:
    """The folder as it was, and what the steps change."""

    def __init__(self, before: Path) -> None:
        found = [file for file in before.rglob("*") if file.is_file()]
        self.names = {
            str(file.relative_to(before)): _File(file.read_bytes(), file.read_bytes())
            for file in found
        }
        self.folders = {str(p.relative_to(before)) for p in before.rglob("*") if p.is_dir()} | {"."}
        self.durable = dict(self.names)
        self.durable_folders = set(self.folders)
        self.pending: list[Change] = []

    def play(self, step: Step) -> None:
        """One step of the program."""
        if step.act == "mkdir":
            self.folders.add(step.name)
        elif step.act == "make":
            self._change(step.name, _File(b"", b""))
        elif step.act == "write":
            self.names[step.name].data = step.data
        elif step.act == "rename":
            file = self.names[step.name]
            self._change(step.name, None)
            self._change(step.other, file)
        elif step.act == "remove":
            if step.name in self.names:
                self._change(step.name, None)
        elif step.name in self.folders:
            self._sync_folder(step.name)
        elif step.name in self.names:
            self.names[step.name].synced = self.names[step.name].data

    def _change(self, name: str, file: _File | None) -> None:
        self.pending.append((name, file))
        if file is None:
            del self.names[name]
        else:
            self.names[name] = file

    def _sync_folder(self, folder: str) -> None:
        self.durable_folders |= {f for f in self.folders if _parent(f) == folder}
        mine = [change for change in self.pending if _parent(change[0]) == folder]
        self.pending = [change for change in self.pending if change not in mine]
        for name, file in mine:
            _apply(self.durable, name, file)

    def cut(self, reached: Sequence[bool], share: float, folder: Path) -> Path:
        """The power goes: make a folder as the disk is afterwards.

        Args:
            reached: of each change of a name that was not synced, whether it is on the disk.
            share: how much is there of bytes that were not synced, 0 to 1; 1 has new folders too.
            folder: where, in place of whatever is there.
        """
        names = dict(self.durable)
        for (name, file), is_there in zip(self.pending, reached, strict=True):
            if is_there:
                _apply(names, name, file)
        there = self.folders if share == 1 else self.durable_folders
        shutil.rmtree(folder, ignore_errors=True)
        for inner in sorted(there):
            (folder / inner).mkdir(parents=True, exist_ok=True)
        for name, file in names.items():
            if (folder / name).parent.exists():
                whole = file.data == file.synced
                kept = file.data if whole else file.data[: int(share * len(file.data))]
                (folder / name).write_bytes(kept)
        return folder


def _apply(names: dict[str, _File], name: str, file: _File | None) -> None:
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


def _parent(name: str) -> str:
    return os.path.dirname(name) or "."

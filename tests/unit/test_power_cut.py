"""The power goes while a bundle is written: at any step, whatever of the unsynced is on the disk.

By the double of tests/doubles/disk.py, which promises no more than POSIX does.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.disk import Disk, Recording, recording
from tests.sound import verified, write_sound
from wanc.bundle import store
from wanc.bundle.attached import PROVENANCE, SBOM, NewAttachment, attach
from wanc.bundle.loose import clear_bundle
from wanc.bundle.reports import attach_report
from wanc.bundle.store import open_bundle

BUNDLE = "store/bundle"
NEAR_THE_END = 8
"""Steps about the index, which are looked at closely in each run."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A write that was recorded."""

    before: Path
    steps: Recording
    command: Callable[[Path], object]
    digests: tuple[str | None, str]
    """The bundle's, before and after."""


def written(
    tmp_path: Path, before: Callable[[Path], object], command: Callable[[Path], object]
) -> Written:
    """Do something to a bundle, and record what that does to its disk."""
    here, kept = tmp_path / "disk", tmp_path / "before"
    here.mkdir()
    before(here / BUNDLE)
    shutil.copytree(here, kept)
    old = digest_of(kept)
    with pytest.MonkeyPatch.context() as patch, recording(here, patch) as steps:
        command(here / BUNDLE)
    new = digest_of(here)
    assert new is not None
    return Written(before=kept, steps=steps, command=command, digests=(old, new))


def digest_of(disk: Path) -> str | None:
    """What is committed there, every blob read; None where nothing is."""
    if not (disk / BUNDLE / "index.json").exists():
        return None
    seen = verified(disk / BUNDLE)
    assert seen.is_sound, seen.findings
    return seen.bundle


def cuts(write: Written, folder: Path, *, closely: int) -> Iterator[tuple[bool, Path]]:
    """Whether the write had ended, and the disk after each cut of its power.

    Of so many last steps, each change alone is on the disk too, and each alone is not.
    """
    chance = random.Random(3)
    disk, steps = Disk(write.before), write.steps.steps
    for number in range(len(steps) + 1):
        if number:
            disk.play(steps[number - 1])
        many = len(disk.pending)
        patterns = [[False] * many, [True] * many]
        patterns += [[chance.random() < 0.5 for _ in range(many)]]
        if number > len(steps) - closely:
            patterns += [[k == one for k in range(many)] for one in range(many)]
            patterns += [[k != one for k in range(many)] for one in range(many)]
        for k, reached in enumerate(patterns):
            yield number == len(steps), disk.cut(reached, (0, 0.5, 1)[k % 3], folder)


def check(write: Written, tmp_path: Path, *, closely: int = NEAR_THE_END) -> int:
    """Every cut leaves what was committed, and an ended write is never lost. Counts the cuts."""
    count = 0
    for ended, disk in cuts(write, tmp_path / "cut", closely=closely):
        count += 1
        seen = digest_of(disk)
        assert seen in ((write.digests[1],) if ended else write.digests)
        if count % 25 == 0:  # and the same command then finishes
            write.command(disk / BUNDLE)
            assert digest_of(disk) == write.digests[1]
    return count


def adds(made: Any, *options: str) -> Callable[[Path], object]:
    return lambda bundle: write_sound(bundle, made(*options).config)


@pytest.mark.soak
@pytest.mark.parametrize("first", [True, False])
def test_a_write_is_there_whole_or_not_at_all(tmp_path, made, first, repetitions):
    before = (lambda bundle: None) if first else adds(made)
    write = written(tmp_path, before, adds(made, "320x320x9"))
    assert len(write.steps.steps) > 50
    assert check(write, tmp_path, closely=repetitions(NEAR_THE_END, 1000)) > 150


def test_a_report_is_there_whole_or_not_at_all(tmp_path, made):
    def attach(bundle: Path) -> None:
        stablehlo = open_bundle(bundle).variants[0].config.programs[0].stablehlo
        attach_report(bundle, b'{"verdict":"exact"}', (stablehlo.digest,))

    write = written(tmp_path, adds(made), attach)
    assert check(write, tmp_path) > 50


def test_what_is_attached_is_there_whole_or_not_at_all(tmp_path, made):
    def both(bundle: Path) -> None:
        new = [NewAttachment(artifact_type=kind, data=kind.encode()) for kind in (SBOM, PROVENANCE)]
        attach(open_bundle(bundle), new)

    write = written(tmp_path, adds(made), both)
    assert check(write, tmp_path) > 50


def test_clearing_loses_nothing(tmp_path, made):
    def replaced(bundle: Path) -> None:
        adds(made, "208x128x5", "cp2")(bundle)
        write_sound(bundle, made("208x128x5", "cp2", attention="allgather").config)

    write = written(tmp_path, replaced, lambda bundle: clear_bundle(bundle, delete=True))
    assert sum(step.act == "remove" for step in write.steps.steps) >= 4
    assert check(write, tmp_path) > 20


@pytest.mark.parametrize("forgotten", ["blobs' names", "bytes", "index.json's name"])
def test_a_write_that_does_not_sync_is_found_out(tmp_path, made, monkeypatch, forgotten):
    """The double is one that can say no."""
    sync = store.sync
    if forgotten == "bytes":
        monkeypatch.setattr("wanc.files.sync", lambda path: None)
    else:
        names = "sha256" if forgotten == "blobs' names" else "bundle"
        monkeypatch.setattr(store, "sync", lambda path: None if path.name == names else sync(path))
    write = written(tmp_path, adds(made), adds(made, "320x320x9"))
    with pytest.raises(AssertionError):
        check(write, tmp_path, closely=0)

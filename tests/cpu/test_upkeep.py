"""Bundles and the cache under kills, compiles at once, full disks and read-only ones.

What was committed verifies after each, and the same command then finishes.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.compiled import tiny_plan
from tests.cpu.test_failures import fails
from tests.cpu.test_parity import WHOLE
from tests.needs import needs
from tests.sound import verified
from wanc.build import CompiledRecord, LoweredRecord
from wanc.bundle.store import open_bundle
from wanc.cache.store import Cache
from wanc.cli import main
from wanc.compile import distinct_programs
from wanc.digest import of_json
from wanc.targets.cpu import CpuTarget

TOPOLOGIES = ("tp1", "cp2")
LOOSE = 300
"""Blobs that nothing refers to, so that clearing them away takes long enough to be killed in."""
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A bundle of one variant, and a cache that has the programs of both."""

    wanc: Any
    folder: Path

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"

    @property
    def cache(self) -> Cache:
        return Cache(self.folder / "wanc")

    def line(self, topology: str) -> list[str]:
        """A compile of one variant into the bundle."""
        model = ["--model", str(self.wanc.checkpoint), "--target", "cpu"]
        shape = ["--shape", WHOLE, "--topology", topology]
        return ["compile", *model, *shape, "--jobs", "1", "-o", str(self.bundle)]

    def start(self, line: list[str]) -> "subprocess.Popen[bytes]":
        """Start it as a process of its own group."""
        return subprocess.Popen(
            [sys.executable, "-m", "wanc", *line],
            env={**ENVIRONMENT, "XDG_CACHE_HOME": str(self.folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def finish(self, line: list[str]) -> None:
        """Run it to its end."""
        process = self.start(line)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()

    def kill(self, line: list[str], seconds: float) -> bool:
        """Run it for so long, and kill it with all that it has started; whether it still ran."""
        process = self.start(line)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return process.returncode == -signal.SIGKILL

    def forget(self, program: str) -> None:
        """Lose an executable of the cache, so that a compile has one to compile."""
        for record in (self.cache.path / "executables").iterdir():
            if program in record.read_text():
                record.unlink()

    def litter(self) -> None:
        """Add what nothing refers to, to the bundle and to the cache."""
        for number in range(LOOSE):
            self.cache.put_blob(f"loose {number}".encode())
            shutil.copy(next((self.cache.path / "blobs").iterdir()), self.loose(number))

    def loose(self, number: int) -> Path:
        return self.bundle / "blobs" / "sha256" / f"{number:064x}"

    def topologies(self) -> set[str]:
        """Of the variants of a bundle that verifies."""
        seen = verified(self.bundle)
        assert seen.is_sound, seen.findings
        return {str(v.config.variant.topology) for v in open_bundle(self.bundle).variants}


@pytest.fixture(scope="module")
def seed(wanc: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place as it is at first; copied, for it is changed."""
    place = Place(wanc=wanc, folder=tmp_path_factory.mktemp("seed"))
    for topology in TOPOLOGIES:
        wanc.bundle(WHOLE, topology)
    plans = [tiny_plan(WHOLE, topology) for topology in TOPOLOGIES]
    for key, program in distinct_programs(plans).items():
        lowered = wanc.cache.get_record("stablehlo", key, LoweredRecord)
        compiled_as = of_json(CpuTarget().compile_key(program, lowered.digest))
        compiled = wanc.cache.get_record("executables", compiled_as, CompiledRecord)
        for record in (lowered, compiled):
            place.cache.put_blob(wanc.cache.read_blob(record.digest))
        place.cache.put_record("stablehlo", key, lowered)
        place.cache.put_record("executables", compiled_as, compiled)
    for topology in reversed(TOPOLOGIES):
        shutil.rmtree(place.bundle, ignore_errors=True)
        place.finish(place.line(topology))
    return place.folder


@pytest.fixture
def place(seed: Path, wanc: Any, tmp_path: Path) -> Place:
    folder = tmp_path / "place"
    shutil.copytree(seed, folder)
    return Place(wanc=wanc, folder=folder)


# --- kills ----------------------------------------------------------------------------------------


@pytest.mark.soak
def test_kills_at_random_moments_lose_nothing(
    place: Place, seed: Path, repetitions: Callable[[int, int], int], show: Any
) -> None:
    """SIGKILL of compiles and of clearing away, in turn."""
    chance, outcomes = random.Random(6), Counter[str]()
    lines = {
        "compile": place.line("cp2"),
        "gc of the bundle": ["gc", str(place.bundle), "--delete"],
        "compile of a lost executable": place.line("cp2"),
        "gc of the cache": ["gc", "--delete"],
        "prune": ["cache", "prune", "--max-size", "0", "--delete"],
    }
    took = {what: durations(place, seed, what, line) for what, line in lines.items()}
    for number in range(repetitions(10, 100)):
        what = list(lines)[number % len(lines)]
        restore(place, seed, what)
        moment = chance.uniform(0.2, 1) * took[what]
        was_killed = place.kill(lines[what], moment)
        has = place.topologies()
        assert "tp1" in has
        outcomes[f"{what}: {'killed' if was_killed else 'had ended'}, {len(has)} variants"] += 1
        place.finish(lines[what])
        assert place.topologies() == ({"tp1", "cp2"} if "compile" in what else {"tp1"})
    show(f"{count:4} {what}" for what, count in sorted(outcomes.items()))
    assert sum(count for what, count in outcomes.items() if ": killed" in what) > 0


def restore(place: Place, seed: Path, what: str) -> None:
    """The place as it was at first, with something for the command to do."""
    shutil.rmtree(place.folder)
    shutil.copytree(seed, place.folder)
    if "compile" not in what:
        place.litter()
    if "lost" in what:
        place.forget('"program":"dit_head"')


def durations(place: Place, seed: Path, what: str, line: list[str]) -> float:
    """Seconds that a command takes when it is let be."""
    restore(place, seed, what)
    started = time.monotonic()
    place.finish(line)
    return time.monotonic() - started


# --- at once --------------------------------------------------------------------------------------


@pytest.mark.soak
def test_compiles_and_gc_at_once(
    place: Place, seed: Path, repetitions: Callable[[int, int], int]
) -> None:
    """Two variants into one bundle, of which one waits for a compiler, and both are cleared of."""
    for number in range(repetitions(3, 20)):
        restore(place, seed, "compile of a lost executable" if number % 2 else "gc")
        shutil.rmtree(place.bundle)
        lines = [place.line(topology) for topology in TOPOLOGIES]
        running = [place.start(line) for line in [*lines, ["gc", "--delete"]]]
        while any(process.poll() is None for process in running):
            if (place.bundle / "index.json").exists():
                main_quietly(["gc", str(place.bundle), "--delete"])
            time.sleep(0.01)
        for process in running:
            assert process.returncode == 0, process.communicate()[1].decode()
            process.communicate()
        assert place.topologies() == set(TOPOLOGIES)


def main_quietly(line: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line)
    assert not ended.value.code


# --- disks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A file system in memory."""

    path: Path

    def remount(self, options: str) -> None:
        """With another size, or read-only."""
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.path)], check=True)

    @property
    def free_bytes(self) -> int:
        return shutil.disk_usage(self.path).free


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)], capture_output=True
    )
    needs(mounted.returncode == 0, "leave to mount a file system (root has it)")
    yield Disk(path=path)
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_loses_nothing(
    place: Place, disk: Disk, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fuller and fuller: what fails is now a blob, now the index, now the first file of all."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.folder))
    bundle = disk.path / "bundle"
    line = [*place.line("cp2")[:-1], str(bundle)]
    shutil.copytree(place.bundle, bundle)
    before, free_bytes = verified(bundle).bundle, disk.free_bytes
    main_quietly(line)
    needed = free_bytes - disk.free_bytes
    capsys.readouterr()
    shutil.rmtree(bundle)
    shutil.copytree(place.bundle, bundle)
    for share in (0.0, 0.05, 0.3, 0.6, 0.9, 0.99):
        fill(disk, int(share * needed))
        fails(line, 6, capsys, f"cannot write the bundle {bundle}", "No space left on device")
        assert verified(bundle).bundle == before
        assert not list(bundle.rglob(".new-*"))
        (disk.path / "filler").unlink()
        main_quietly(["gc", str(bundle), "--delete"])
        capsys.readouterr()
    main_quietly(line)
    seen = verified(bundle)
    assert (seen.is_sound, seen.variants) == (True, 2)


def fill(disk: Disk, left_bytes: int) -> None:
    """Leave so much room, to a page."""
    with (disk.path / "filler").open("wb") as filler:
        filler.write(bytes(max(disk.free_bytes - left_bytes, 0)))


def test_a_full_cache_is_told_and_loses_nothing(
    place: Place, disk: Disk, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk.path))
    place.forget('"program":"dit_head"')
    shutil.copytree(place.cache.path, disk.path / "wanc")
    before = verified(place.bundle).bundle
    fill(disk, 12 << 10)
    fails(place.line("cp2"), 6, capsys, "cannot write the cache", "No space left", "cache prune")
    assert verified(place.bundle).bundle == before
    (disk.path / "filler").unlink()
    main_quietly(place.line("cp2"))
    assert place.topologies() == set(TOPOLOGIES)


def test_a_read_only_disk_is_read_and_not_written(
    place: Place, disk: Disk, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.folder))
    bundle = disk.path / "bundle"
    shutil.copytree(place.bundle, bundle)
    loose = bundle / "blobs" / "sha256" / ("a" * 64)
    loose.write_bytes(b"loose")
    disk.remount("ro")
    for command in ("verify", "inspect", "gc", "check"):
        main_quietly([command, str(bundle)])
    capsys.readouterr()
    line = [*place.line("cp2")[:-1], str(bundle)]
    fails(line, 6, capsys, f"cannot write the bundle {bundle}", "Read-only file system")
    fails(["gc", str(bundle), "--delete"], 6, capsys, "cannot clear", "Read-only file system")

    monkeypatch.setenv("XDG_CACHE_HOME", str(disk.path))  # a cache that is not there, nor can be
    fails(place.line("cp2"), 6, capsys, "cannot write the cache", "Read-only file system")
    disk.remount("rw")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.folder))
    main_quietly(line)
    assert verified(bundle).variants == 2

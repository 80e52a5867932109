"""What is cleared away of bundles and of the cache, what never is, and what happens meanwhile."""

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sound import Editor, verified, with_programs, write_sound
from wanc.build import CompiledRecord, LintRecord, LoweredRecord
from wanc.bundle.loose import clear_bundle
from wanc.bundle.reports import attach_report, read_reports
from wanc.bundle.store import NewVariant, config_blobs, open_bundle, write_bundle
from wanc.cache.store import USERS, Cache
from wanc.cache.upkeep import entries, prune
from wanc.cli import main
from wanc.cli.cache import bytes_of
from wanc.digest import of_bytes
from wanc.errors import BundleError, RequestError, RunError


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not file.is_symlink()
    }


# --- bundles --------------------------------------------------------------------------------------


@pytest.fixture
def replaced(tmp_path, made) -> Path:
    """A bundle whose one variant was compiled a second time, with other attention."""
    bundle = write_sound(tmp_path / "bundle", made(topology="cp2").config)
    return write_sound(bundle, made(topology="cp2", attention="allgather").config)


def test_what_was_replaced_is_loose_and_what_is_named_stays(replaced):
    (entry,) = open_bundle(replaced).variants
    before = files(replaced)
    looked = clear_bundle(replaced, delete=False)
    assert files(replaced) == before
    assert not looked.removed

    cleared = clear_bundle(replaced, delete=True)
    assert cleared.removables == looked.removables
    gone = before.keys() - files(replaced).keys()
    assert gone == {each.name for each in cleared.removables}
    assert {before[name] for name in gone} >= {before[each.name] for each in looked.removables}
    named = {blob.digest for blob in config_blobs(entry.config)}
    assert not {f"sha256:{Path(name).name}" for name in gone} & named
    assert cleared.bytes == sum(len(before[name]) for name in gone) > 0
    assert cleared.kept_bytes == sum(map(len, files(replaced).values()))
    seen = verified(replaced)
    assert (seen.is_sound, seen.findings) == (True, ())  # no orphan is left either
    assert clear_bundle(replaced, delete=True).removables == ()


def test_reports_stay(replaced):
    bundle = open_bundle(replaced)
    stablehlo = bundle.variants[0].config.programs[0].stablehlo
    attach_report(replaced, b'{"passed":true}', (stablehlo.digest,))
    clear_bundle(replaced, delete=True)
    assert [report.data for report in read_reports(open_bundle(replaced))] == [b'{"passed":true}']
    assert verified(replaced).findings == ()


def test_unfinished_files_go_from_every_folder(tmp_path, made):
    bundle = write_sound(tmp_path / "bundle", made().config)
    before = files(bundle)
    for folder in (bundle, bundle / "blobs", bundle / "blobs" / "sha256"):
        (folder / ".new-abc").write_bytes(b"half")
    cleared = clear_bundle(bundle, delete=True)
    assert {(each.name, each.why) for each in cleared.removables} == {
        (name, "unfinished") for name in (".new-abc", "blobs/.new-abc", "blobs/sha256/.new-abc")
    }
    assert files(bundle) == before


def test_what_is_no_blob_is_left_to_verify(tmp_path, made):
    bundle = write_sound(tmp_path / "bundle", made().config)
    blobs, outside = bundle / "blobs" / "sha256", tmp_path / "outside"
    outside.write_bytes(b"mine")
    (blobs / ("a" * 64)).symlink_to(outside)
    (blobs / ("b" * 64)).mkdir()
    (blobs / "notes.txt").write_bytes(b"mine too")
    assert clear_bundle(bundle, delete=True).removables == ()
    assert outside.read_bytes() == b"mine"
    assert {"notes.txt", "a" * 64, "b" * 64} <= set(os.listdir(blobs))


@pytest.mark.parametrize("broken", ["manifest", "config", "foreign"])
def test_nothing_goes_of_a_bundle_that_cannot_be_told(replaced, broken):
    editor = Editor(replaced)
    if broken == "foreign":
        entry = {"mediaType": "application/vnd.docker.distribution.manifest.v2+json"}
        editor.top["manifests"].append(entry | editor.put(b"{}"))
        editor.save()
    else:
        named = editor.listed if broken == "manifest" else editor.manifest["config"]
        blob = replaced / "blobs" / "sha256" / named["digest"].removeprefix("sha256:")
        blob.write_bytes(b"x" + blob.read_bytes()[1:])
    before = files(replaced)
    with pytest.raises(BundleError):
        clear_bundle(replaced, delete=True)
    assert files(replaced) == before


@pytest.mark.parametrize("what", ["nothing", "folder", "file"])
def test_what_is_no_bundle_is_refused(tmp_path, what):
    path = tmp_path / "b"
    if what == "folder":
        (path / "blobs" / "sha256").mkdir(parents=True)
        (path / "blobs" / "sha256" / ("a" * 64)).write_bytes(b"kept")
    if what == "file":
        path.write_bytes(b"kept")
    before = files(tmp_path)
    with pytest.raises(BundleError):
        clear_bundle(path, delete=True)
    assert files(tmp_path) == before


def test_a_write_under_way_loses_nothing(tmp_path, made):
    """Its blobs lie there before anything names them: who clears waits until the index does."""
    bundle = write_sound(tmp_path / "bundle", made().config)
    config, blobs = with_programs(made("320x320x9").config)
    began, cleared = threading.Event(), []

    def clear() -> None:
        began.set()
        cleared.append(clear_bundle(bundle, delete=True))

    clearing = threading.Thread(target=clear)

    def read(digest: str) -> bytes:
        if len(list((bundle / "blobs" / "sha256").iterdir())) > lying and not began.is_set():
            clearing.start()
            began.wait()
            time.sleep(0.05)  # it would be done by now, if it did not wait
            assert not cleared
        return blobs[digest]

    lying = len(list((bundle / "blobs" / "sha256").iterdir()))
    write_bundle(bundle, [NewVariant(config=config, executable_type="x")], read)
    clearing.join()
    assert began.is_set()
    seen = verified(bundle)
    assert seen.variants == 2
    assert [f for f in seen.findings if f.kind in ("blob", "orphan")] == []


# --- the cache ------------------------------------------------------------------------------------

HOUR_NS = 3_600_000_000_000


class Filled:
    """A cache with three programs, used one, two and three hours ago."""

    def __init__(self, path: Path) -> None:
        self.cache = Cache(path)
        self.digests = [self.add(k) for k in (1, 2, 3)]
        for hours, digest in enumerate(self.digests, start=1):
            self.age(digest, hours)

    def add(self, number: int) -> str:
        """An executable of 1,000 bytes."""
        digest = self.cache.put_blob(bytes([number]) * 1000)
        record = CompiledRecord(digest=digest, program="dit_blocks", target="cpu")
        self.cache.put_record("executables", of_bytes(bytes([number])), record)
        return digest

    def age(self, digest: str, hours: float) -> None:
        """Say that it was used so long ago."""
        then = time.time_ns() - int(hours * HOUR_NS)
        os.utime(self.blob(digest), ns=(then, then))

    def blob(self, digest: str) -> Path:
        return self.cache.path / "blobs" / digest.removeprefix("sha256:")

    @property
    def there(self) -> list[str]:
        """Digests that are still got, without using them."""
        return [digest for digest in self.digests if self.blob(digest).exists()]


@pytest.fixture
def filled(tmp_path) -> Filled:
    return Filled(tmp_path / "cache")


def removed(filled: Filled, **limits: Any) -> list[str]:
    """Blobs that a prune takes."""
    before = filled.there
    prune(filled.cache, delete=True, **limits)
    return [digest for digest in before if digest not in filled.there]


def test_entries_are_listed_the_last_used_first(filled):
    filled.cache.get_blob(filled.digests[2])
    listed = entries(filled.cache)
    assert [entry.name for entry in listed] == [filled.digests[k] for k in (2, 0, 1)]
    assert {(entry.kind, entry.programs) for entry in listed} == {
        ("executable", ("dit_blocks cpu",))
    }
    assert all(entry.bytes > 1000 for entry in listed)
    on_disk = sum(len(data) for data in files(filled.cache.path).values())
    assert sum(entry.bytes for entry in listed) == on_disk


@pytest.mark.parametrize(
    ("limits", "gone"),
    [
        ({}, []),
        ({"max_bytes": 10_000}, []),
        ({"max_bytes": 2500}, [2]),
        ({"max_bytes": 1500}, [1, 2]),
        ({"max_bytes": 0}, [0, 1, 2]),
        ({"unused_seconds": 2.5 * 3600}, [2]),
        ({"unused_seconds": 0.5 * 3600, "max_bytes": 10_000}, [0, 1, 2]),
    ],
)
def test_what_was_unused_longest_goes_first(filled, limits, gone):
    looked = prune(filled.cache, delete=False, **limits)
    assert len(filled.there) == 3
    assert len(looked.removables) == 2 * len(gone)  # a blob and its record
    assert removed(filled, **limits) == [filled.digests[k] for k in gone]
    assert looked.kept_bytes == sum(len(data) for data in files(filled.cache.path).values())
    records = filled.cache.path / "executables"
    assert len(list(records.iterdir())) == 3 - len(gone)


def test_what_a_pruned_compile_asks_for_is_absent_and_made_again(filled):
    removed(filled, max_bytes=0)
    key = of_bytes(bytes([1]))
    assert filled.cache.get_record("executables", key, CompiledRecord) is None
    assert filled.cache.get_blob(filled.digests[0]) is None
    filled.add(1)
    assert filled.there == filled.digests[:1]


def test_what_no_record_leads_to_goes_without_limits(filled):
    cache = filled.cache
    stray = cache.put_blob(b"of a compile that was killed before its record")
    linted = cache.put_blob(b"linted, and then its lowering was lost")
    cache.put_record("lint", "l", LintRecord(digest=linted))
    cache.put_record("stablehlo", "gone", LoweredRecord(digest="sha256:0", collectives={}))
    (cache.path / "executables" / "damaged.json").write_bytes(b'{"digest": 3')
    (cache.path / "blobs" / ".new-half").write_bytes(b"half")
    kinds = {entry.name: entry.kind for entry in entries(cache) if entry.kind != "executable"}
    assert kinds == {
        stray: "unreferenced",
        linted: "unreferenced",
        "stablehlo/gone.json": "unreferenced",
        "executables/damaged.json": "unreferenced",
        "blobs/.new-half": "unfinished",
    }
    assert removed(filled) == []
    assert {entry.kind for entry in entries(cache)} == {"executable"}
    assert not list(cache.path.rglob(".new-*"))


def test_stablehlo_and_failed_compiles_are_told_apart(filled):
    digest = filled.cache.put_blob(b"stablehlo")
    record = LoweredRecord(digest=digest, collectives={}, program="dit_head")
    filled.cache.put_record("stablehlo", "s", record)
    filled.cache.put_record("lint", "l", LintRecord(digest=digest))
    failed = filled.cache.path / "failed" / "dit_blocks-1"
    (failed / "inner").mkdir(parents=True)
    (failed / "inner" / "log.txt").write_bytes(b"x" * 50)
    found = {entry.name: entry for entry in entries(filled.cache)}
    assert (found[digest].kind, found[digest].programs) == ("stablehlo", ("dit_head",))
    assert (found["failed/dit_blocks-1"].kind, found["failed/dit_blocks-1"].bytes) == ("failed", 50)
    removed(filled, max_bytes=0)
    assert not failed.exists()


def test_a_folder_that_cannot_be_removed_is_not_said_to_be(filled, monkeypatch):
    (filled.cache.path / "failed" / "dit_blocks-1").mkdir(parents=True)
    (filled.cache.path / "failed" / "dit_blocks-1" / "log.txt").write_bytes(b"x")

    def refuses(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rmdir", refuses)
    with pytest.raises(RunError, match="Permission denied"):
        prune(filled.cache, max_bytes=0, delete=True)


def test_links_are_not_followed(filled, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_bytes(b"mine")
    (filled.cache.path / "failed").mkdir()
    (filled.cache.path / "failed" / "link").symlink_to(outside)
    (filled.cache.path / "blobs" / "link").symlink_to(outside / "mine")
    removed(filled, max_bytes=0)
    assert (outside / "mine").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["blobs", "executables", "failed", "bundles", "in-use"])
def test_a_folder_that_is_a_link_is_not_looked_through(filled, tmp_path, name):
    """What is in it has names of others, so all of it would be of no use to any compile."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_bytes(b"mine")
    if (filled.cache.path / name).exists():
        (filled.cache.path / name).rename(tmp_path / "aside")
    (filled.cache.path / name).symlink_to(outside)
    with pytest.raises(RunError, match=f"{name} is a link"):
        prune(filled.cache, max_bytes=0, delete=True)
    assert (outside / "mine").read_bytes() == b"mine"


def pulled_bundle(filled: Filled, hours: float) -> Path:
    """A bundle of 1,000 bytes that was used so long ago."""
    folder = filled.cache.path / "bundles" / f"sha256-{'b' * 64}"
    (folder / "blobs" / "sha256").mkdir(parents=True)
    (folder / "index.json").write_bytes(b"i" * 100)
    (folder / "blobs" / "sha256" / ("c" * 64)).write_bytes(b"b" * 900)
    then = time.time_ns() - int(hours * HOUR_NS)
    os.utime(folder, ns=(then, then))
    return folder


def test_pulled_bundles_are_listed_and_go_whole(filled):
    folder = pulled_bundle(filled, 2.5)
    (found,) = [entry for entry in entries(filled.cache) if entry.kind == "bundle"]
    assert (found.name, found.bytes) == (f"bundles/{folder.name}", 1000)
    assert removed(filled) == []
    assert folder.exists()
    assert removed(filled, unused_seconds=2.7 * 3600) == [filled.digests[2]]
    assert folder.exists()
    cleared = prune(filled.cache, unused_seconds=2.2 * 3600, delete=True)
    assert cleared.removables[0].name.endswith("/index.json")  # first: none that lacks something
    assert cleared.bytes == 1000
    assert not folder.exists()
    assert filled.there == filled.digests[:2]


def test_a_bundle_that_is_in_use_stays(filled):
    folder = pulled_bundle(filled, 3)
    with filled.cache.in_use():
        filled.cache.use(folder)
        cleared = prune(filled.cache, max_bytes=0, delete=True)
        assert (folder / "index.json").exists()
        assert cleared.spared == 1
    assert not filled.there
    prune(filled.cache, max_bytes=0, delete=True)
    assert not folder.exists()


def test_what_records_and_names_say_reaches_no_terminal(tmp_path, made, capsys, monkeypatch):
    """Records come from a cache that others write, and a bundle's files from anywhere."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = Cache(tmp_path / "wanc")
    digest = cache.put_blob(b"x")
    cache.put_record(
        "executables", "k", CompiledRecord(digest=digest, program="\x1b[2J", target="\x9b2J")
    )
    assert run("cache", "ls") == 0
    bundle = write_sound(tmp_path / "bundle", made(topology="cp2").config)
    (bundle / ".new-\x1b[2J").write_bytes(b"")
    assert run("gc", bundle) == 0
    assert run("inspect", tmp_path / "no\x1b[2J") == 5
    shown = capsys.readouterr()
    assert not {"\x1b", "\x9b"} & {*shown.out, *shown.err}
    assert shown.out.count("[2J") == 2
    assert "[2J" in shown.err


def test_what_work_under_way_has_used_stays_whatever_the_limits(filled):
    cache = filled.cache
    with cache.in_use():
        assert cache.get_blob(filled.digests[2])
        made = cache.put_blob(b"put, and its record is still to come")
        cleared = prune(cache, max_bytes=0, delete=True)
        assert filled.there == [filled.digests[2]]
        assert cache.read_blob(made)
        assert cleared.spared == 2
    assert prune(cache, max_bytes=0, delete=True).spared == 0
    assert not filled.there


def test_work_that_was_killed_holds_nothing(filled):
    mark = filled.cache.path / USERS / "tmpkilled"
    mark.parent.mkdir()
    mark.write_bytes(b"")
    os.utime(mark, ns=(1, 1))
    with mark.open("rb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        assert removed(filled, max_bytes=0) == []
    assert removed(filled, max_bytes=0) == filled.digests
    assert not mark.exists()


@pytest.mark.parametrize("act", ["get", "put", "begin"])
def test_nobody_uses_the_cache_while_it_is_cleared(filled, monkeypatch, act):
    """Else a blob could be got between the look at it and its removal."""
    acts: dict[str, Callable[[], object]] = {
        "get": lambda: filled.cache.get_blob(filled.digests[2]),
        "put": lambda: filled.cache.put_blob(b"new"),
        "begin": lambda: filled.cache.in_use().__enter__(),
    }
    done: list[object] = []
    other = threading.Thread(target=lambda: done.append(acts[act]()))

    def removing(*args: Any) -> None:
        other.start()
        time.sleep(0.05)
        assert not done

    monkeypatch.setattr("wanc.cache.upkeep.remove", removing)
    prune(filled.cache, max_bytes=0, delete=True)
    other.join()
    assert done


def test_cache_without_a_folder_or_a_lock(tmp_path, monkeypatch):
    with pytest.raises(RunError, match="no cache at"):
        entries(Cache(tmp_path / "none"))
    filled = Filled(tmp_path / "cache")

    def no_lock(*args: Any) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_lock)
    assert filled.cache.get_blob(filled.digests[0])  # a hit all the same
    with pytest.raises(RunError, match="No locks available"):
        prune(filled.cache, max_bytes=0, delete=True)
    assert len(filled.there) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("500", 500),
        ("20GB", 20 * 10**9),
        ("20G", 20 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("10 MiB", 10 * 2**20),
        ("3kB", 3000),
    ],
)
def test_sizes(text, expected):
    assert bytes_of(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "20XB", "1GB2"])
def test_what_is_no_size(text):
    with pytest.raises(RequestError, match="--max-size"):
        bytes_of(text)


# --- the commands ---------------------------------------------------------------------------------


def run(*line: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([*map(str, line)])
    return int(end.value.code or 0)


def test_gc_shows_first_and_removes_when_told(replaced, capsys):
    before = files(replaced)
    assert run("gc", replaced) == 0
    shown = capsys.readouterr()
    assert "nothing refers to it" in shown.out
    assert "nothing was removed; --delete removes" in shown.err
    assert files(replaced) == before
    assert all(len(line) <= 80 for line in shown.out.splitlines() if str(replaced) not in line)
    assert run("gc", replaced, "--delete") == 0
    assert "removed" in capsys.readouterr().out
    assert len(files(replaced)) < len(before)


def test_gc_in_json(replaced, capsys, monkeypatch):
    import json

    assert run("gc", replaced, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["removed"] is False
    assert sum(file["bytes"] for file in told["files"]) == told["bytes"] > 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(replaced))
    assert run("gc", "--json") == 6  # no cache there
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "RunError"


def test_the_cache_is_listed_and_pruned(tmp_path, capsys, monkeypatch):
    import json

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    filled = Filled(tmp_path / "wanc")
    assert run("cache", "ls") == 0
    shown = capsys.readouterr().out
    assert shown.count("dit_blocks cpu") == 3
    assert "3 blobs" in shown
    assert run("cache", "ls", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["entries"]
    assert [entry["name"] for entry in listed] == filled.digests
    assert run("cache", "prune") == 2
    assert "--max-size 20GB" in capsys.readouterr().err
    assert run("cache", "prune", "--max-size", "2500") == 0
    assert len(filled.there) == 3
    assert run("cache", "prune", "--max-size", "2500", "--delete") == 0
    assert filled.there == filled.digests[:2]
    assert run("gc") == 0

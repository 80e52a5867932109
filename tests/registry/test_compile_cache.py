"""A compile cache in a registry: what one job compiled, another finds."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cpu.test_upkeep import Place, main_quietly, place, seed
from tests.doubles.registry import RegistryDouble
from wanc.build import CompiledRecord
from wanc.cache.store import Cache
from wanc.digest import of_bytes
from wanc.errors import RunError
from wanc.progress import Silent
from wanc.share import compile_cache
from wanc.share.compile_cache import RegistryCache, tag_of
from wanc.targets.cpu import CpuTarget

__all__ = ["place", "seed"]  # fixtures

KIND, KEY, DATA = "executables", of_bytes(b"a compile key"), b"an executable" * 1000
RECORD = CompiledRecord(digest=of_bytes(DATA), program="dit_blocks", target="cpu")


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def job(opened: Any, tmp_path: Path, notes: Notes) -> Any:
    """job(host, "one"): the cache of a job with a disk of its own."""

    def make(host: str, name: str) -> Cache:
        return Cache(tmp_path / name, RegistryCache(opened(host, "ci/cache"), notes))

    return make


def test_what_one_job_keeps_another_finds(docker_registry, job, notes):
    one, two = job(docker_registry, "one"), job(docker_registry, "two")
    assert two.find(KIND, KEY, CompiledRecord) is None
    one.keep(KIND, KEY, RECORD, DATA)
    assert two.find(KIND, KEY, CompiledRecord) == (RECORD, DATA)
    alone = Cache(two.path)
    assert alone.find(KIND, KEY, CompiledRecord) == (RECORD, DATA)  # it is here from now on
    assert two.find(KIND, of_bytes(b"another key"), CompiledRecord) is None
    assert two.find("stablehlo", KEY, CompiledRecord) is None
    assert notes.lines == []


def test_what_is_here_asks_nobody(double, job):
    one = job(double.host, "one")
    Cache(one.path).keep(KIND, KEY, RECORD, DATA)
    assert one.find(KIND, KEY, CompiledRecord) == (RECORD, DATA)
    assert not double.seen


def test_a_registry_that_is_gone_costs_a_compile_and_one_line(job, notes, opened):
    cache = job("127.0.0.1:1", "one")
    for key in (KEY, of_bytes(b"another")):
        assert cache.find(KIND, key, CompiledRecord) is None
        cache.keep(KIND, key, RECORD, DATA)
    assert Cache(cache.path).find(KIND, KEY, CompiledRecord)
    assert len(notes.lines) == 2  # of asking, and of giving
    assert all("127.0.0.1:1" in line for line in notes.lines)


def test_a_registry_that_takes_nothing_is_still_asked(double, job, notes):
    job(double.host, "one").keep(KIND, KEY, RECORD, DATA)
    double.script("POST", "", 403, times=100)
    two = job(double.host, "two")
    other = CompiledRecord(digest=of_bytes(b"other"))
    two.keep(KIND, of_bytes(b"another"), other, b"other")
    assert two.find(KIND, KEY, CompiledRecord) == (RECORD, DATA)
    (line,) = notes.lines
    assert "no longer given anything" in line


@pytest.mark.parametrize("fault", ["blob", "record", "digest", "kind"])
def test_what_lies_is_not_found(double: RegistryDouble, job, fault):
    record = RECORD if fault != "digest" else CompiledRecord(digest=of_bytes(b"other bytes"))
    one = job(double.host, "one")
    one.upstream.offer(KIND, KEY, b'{"digest":"%s"}' % record.digest.encode(), DATA)
    tags, blobs = double.tags["ci/cache"], double.blobs["ci/cache"]
    for digest, whole in list(blobs.items()):
        if (whole == DATA) is (fault == "blob") and fault in ("blob", "record"):
            blobs[digest] = b" " * len(whole)
    if fault == "kind":
        media_type, whole = double.manifests["ci/cache"].pop(tags[tag_of(KIND, KEY)])
        changed = whole.replace(b"cached.blob", b"cached.else")
        tags[tag_of(KIND, KEY)] = of_bytes(changed)
        double.manifests["ci/cache"][of_bytes(changed)] = (media_type, changed)
    assert job(double.host, "two").find(KIND, KEY, CompiledRecord) is None


@pytest.mark.parametrize(
    "record",
    [b"[" * 100_000, b'{"x":' + b"[" * 100_000, b'{"digest":1}', b'{"digest":"\xff"}', b""],
)
def test_a_record_that_is_none_is_not_found(double: RegistryDouble, job, record):
    job(double.host, "one").upstream.offer(KIND, KEY, record, DATA)
    assert job(double.host, "two").find(KIND, KEY, CompiledRecord) is None


@pytest.mark.parametrize("most", ["MOST_RECORD_BYTES", "MOST_BLOB_BYTES"])
def test_an_entry_that_is_too_large_is_not_fetched(double, job, notes, monkeypatch, most):
    job(double.host, "one").keep(KIND, KEY, RECORD, DATA)
    monkeypatch.setattr(compile_cache, most, 10)
    assert job(double.host, "two").find(KIND, KEY, CompiledRecord) is None
    assert not double.asked("GET", "/blobs/")
    (line,) = notes.lines
    assert "larger than any entry" in line


def test_no_room_for_an_entry_costs_a_compile_and_one_line(double, job, notes, monkeypatch):
    job(double.host, "one").keep(KIND, KEY, RECORD, DATA)

    def full(*_: Any, **__: Any) -> None:
        raise RunError("cannot write: No space left on device")

    monkeypatch.setattr(compile_cache, "fetch_blob", full)
    assert job(double.host, "two").find(KIND, KEY, CompiledRecord) is None
    assert len(notes.lines) == 1


def test_a_compile_pushes_what_it_compiled_and_the_next_job_compiles_nothing(
    docker_registry: str, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.folder))
    line = [*place.line("cp2"), "--cache", f"{docker_registry}/ci/of-a-compile"]
    place.forget('"program":"dit_head"')
    main_quietly(line)
    digests = place.topologies()

    place.forget('"program":"dit_head"')
    blobs = place.cache.path / "blobs"
    shutil.rmtree(blobs)
    blobs.mkdir()  # a job that has records and nothing else but what it is given
    for file in (place.bundle / "blobs" / "sha256").iterdir():
        if b"dit_head" not in file.read_bytes():
            shutil.copy(file, blobs)
    monkeypatch.setattr(CpuTarget, "compile", lambda *_, **__: pytest.fail("compiled"))
    main_quietly(line)
    assert place.topologies() == digests
    capsys.readouterr()

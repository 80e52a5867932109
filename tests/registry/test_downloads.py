"""Blobs from a repository: what comes, what does not come twice, and what gets no name."""

import fcntl
import os
import random
import resource
import threading

import pytest

from tests.doubles.registry import sha256
from wanc.errors import RegistryError, RunError
from wanc.files import is_unfinished
from wanc.registry.downloads import PARTIAL, fetch_blob

DATA = random.Random(2).randbytes(3_000_000)
DIGEST = sha256(DATA)
SIZE = len(DATA)


@pytest.fixture
def double(double):
    double.blobs["wan/bundle"] = {DIGEST: DATA}
    return double


@pytest.fixture
def to(tmp_path):
    folder = tmp_path / "blobs"
    folder.mkdir()
    return folder / DIGEST[7:]


@pytest.fixture
def partial(to):
    return to.with_name(PARTIAL + DIGEST[7:])


def gets(double):
    """What was asked for, and how many bytes from where."""
    return [each.headers.get("Range") for each in double.asked("GET")]


def fetch(repository, to, **how):
    fetch_blob(repository, DIGEST, SIZE, to, **how)


def fails(repository, to, error=RegistryError):
    with pytest.raises(error) as caught:
        fetch(repository, to)
    assert not to.exists()
    return str(caught.value)


# --- nothing breaks -----------------------------------------------------------------------


def test_a_blob_arrives(double, opened, to, counted):
    os.umask(umask := os.umask(0))
    fetch(opened(double.host), to, on_bytes=counted)
    assert to.read_bytes() == DATA
    assert to.stat().st_mode & 0o777 == 0o666 & ~umask
    assert [*to.parent.iterdir()] == [to]
    assert (counted.moved, counted.reused) == (SIZE, 0)


def test_an_empty_blob(double, opened, to):
    fetch_blob(opened(double.host), sha256(b""), 0, to)
    assert to.read_bytes() == b""


def test_a_file_that_is_right_is_left_as_it_is(double, opened, to, counted):
    to.write_bytes(DATA)
    before = to.stat()
    fetch(opened(double.host), to, on_bytes=counted)
    assert to.stat().st_ino == before.st_ino
    assert not double.seen
    assert [*to.parent.iterdir()] == [to]
    assert (counted.moved, counted.reused) == (0, SIZE)


@pytest.mark.parametrize("wrong", [b"", DATA[:-1], DATA[:-1] + b"?", DATA + b"?"])
def test_a_file_that_is_wrong_is_replaced(wrong, double, opened, to):
    to.write_bytes(wrong)
    fetch(opened(double.host), to)
    assert to.read_bytes() == DATA


def test_a_link_is_replaced_and_not_followed(double, opened, to):
    other = to.parent / "other"
    other.write_bytes(DATA)
    to.symlink_to(other)
    fetch(opened(double.host), to)
    assert not to.is_symlink()
    assert to.read_bytes() == DATA


# --- something breaks ---------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 1_000_000, SIZE - 1])
def test_a_cut_download_goes_on_where_it_was_cut(cut, double, opened, to, counted, slept):
    double.cut_downloads = [cut]
    fetch(opened(double.host), to, on_bytes=counted)
    assert to.read_bytes() == DATA
    assert gets(double) == [None, f"bytes={cut}-"]
    assert (counted.moved, counted.reused) == (SIZE, 0)
    assert slept == [0.5]


def test_a_download_that_moves_on_may_be_cut_often(double, opened, to, counted):
    double.cut_downloads = [1_100_000, 1_100_000]
    fetch(opened(double.host, patience={"tries": 2}), to, on_bytes=counted)
    assert gets(double) == [None, "bytes=1100000-", "bytes=2200000-"]
    assert counted.moved == SIZE


def test_what_a_killed_process_left_is_gone_on_from(double, opened, to, partial, counted):
    partial.write_bytes(DATA[:1_234_567])
    assert is_unfinished(partial.name)
    fetch(opened(double.host), to, on_bytes=counted)
    assert to.read_bytes() == DATA
    assert gets(double) == ["bytes=1234567-"]
    assert (counted.moved, counted.reused) == (SIZE - 1_234_567, 1_234_567)
    assert [*to.parent.iterdir()] == [to]


def test_what_a_failed_download_has_stays_for_the_next(double, opened, to, partial, counted):
    double.cut_downloads = [700_000, 50_000]
    repository = opened(double.host, patience={"tries": 2})
    assert "given up after 2 failures" in fails(repository, to)
    assert partial.read_bytes() == DATA[:750_000]
    fetch(repository, to, on_bytes=counted)
    assert (counted.moved, counted.reused) == (SIZE - 750_000, 750_000)


def test_what_an_interrupted_download_has_stays_for_the_next(double, opened, to, partial):
    def interrupt(moved, reused):
        if moved:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(opened(double.host), to, on_bytes=interrupt)
    kept = partial.read_bytes()
    assert kept
    assert DATA.startswith(kept)
    fetch(opened(double.host), to)
    assert gets(double)[1] == f"bytes={len(kept)}-"
    assert to.read_bytes() == DATA


def test_a_download_that_was_whole_but_for_its_name_asks_for_nothing(double, opened, to, partial):
    partial.write_bytes(DATA)
    fetch(opened(double.host), to)
    assert not double.seen
    assert to.read_bytes() == DATA


@pytest.mark.parametrize("left", [DATA[:-5] + b"wrong", b"x" * 1000, DATA + b"more"])
def test_what_is_left_and_wrong_costs_one_more_download(left, double, opened, to, partial):
    partial.write_bytes(left)
    fetch(opened(double.host), to)
    assert to.read_bytes() == DATA
    assert gets(double)[-1] is None


def test_a_registry_without_ranges_sends_all_again(double, opened, to, partial, counted):
    double.has_ranges = False
    double.cut_downloads = [1_500_000]
    fetch(opened(double.host), to, on_bytes=counted)
    assert to.read_bytes() == DATA
    assert gets(double) == [None, "bytes=1500000-"]
    assert counted.moved == SIZE + 1_500_000


@pytest.mark.parametrize("lie", [-1, 1, 1000])
def test_a_registry_that_sends_another_range_is_asked_for_all(lie, double, opened, to, partial):
    double.range_lie = lie
    partial.write_bytes(DATA[:1_500_000])
    fetch(opened(double.host), to)
    assert to.read_bytes() == DATA
    assert gets(double) == ["bytes=1500000-", None]


@pytest.mark.parametrize("status", [206, 416])
def test_a_range_that_is_none_is_asked_for_all(status, double, opened, to, partial):
    double.script("GET", "/blobs/", status, DATA[1_500_000:])
    partial.write_bytes(DATA[:1_500_000])
    fetch(opened(double.host), to)
    assert to.read_bytes() == DATA


def test_a_silent_registry_is_gone_on_from(double, opened, to, counted):
    double.is_slow = True

    def wake(moved, reused):
        double.is_slow = False

    repository = opened(double.host, patience={"silence_seconds": 0.1})
    fetch(repository, to, on_bytes=lambda m, r: (wake(m, r), counted(m, r)))
    assert to.read_bytes() == DATA
    assert counted.moved == SIZE


def test_another_host_resumes_too_and_gets_no_credentials(double, storage, opened, to, partial):
    storage.blobs = {DIGEST: DATA}
    double.blobs_at = storage.base
    partial.write_bytes(DATA[:1_500_000])
    fetch(opened(double.host), to)
    assert to.read_bytes() == DATA
    assert storage.seen[0].headers["Range"] == "bytes=1500000-"


def test_two_threads_fetch_the_same_once(double, opened, to, counted):
    repository = opened(double.host)
    threads = [threading.Thread(target=fetch, args=(repository, to)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert to.read_bytes() == DATA
    assert len(double.seen) == 1
    assert [*to.parent.iterdir()] == [to]


# --- it does not work ---------------------------------------------------------------------


def test_other_bytes_get_no_name_and_do_not_stay(double, opened, to):
    double.damages = True
    text = fails(opened(double.host), to)
    assert "answers other bytes, of sha256:" in text
    assert text.endswith(f"needs {DIGEST}")
    assert not [*to.parent.iterdir()]


@pytest.mark.parametrize("lie", [-1, 1, 1 << 40])
def test_another_size_is_not_read(lie, double, opened, to):
    double.size_lie = lie
    assert f"the registry has {SIZE + lie} bytes of it; needs {SIZE}" in fails(
        opened(double.host), to
    )
    assert not [*to.parent.iterdir()]


def test_another_size_of_the_whole_is_not_read(double, opened, to, partial):
    double.script("GET", "/", 206, b"x", Content_Range=f"bytes 1500000-{SIZE}/{SIZE + 1}")
    partial.write_bytes(DATA[:1_500_000])
    assert f"the registry has {SIZE + 1} bytes of it" in fails(opened(double.host), to)


def test_an_answer_without_an_end_is_read_so_far_and_no_further(double, opened, to):
    double.is_endless = True
    fetch(opened(double.host), to)
    assert to.read_bytes() == DATA
    double.damages = True
    to.unlink()
    assert "answers other bytes" in fails(opened(double.host), to)


def test_a_short_answer_that_ends_well_is_asked_for_the_rest(double, opened, to):
    short = DATA[:1000]
    double.script("GET", "/", 200, short, Connection="close", Content_Length=[])
    fetch(opened(double.host), to)
    assert gets(double) == [None, "bytes=1000-"]
    assert to.read_bytes() == DATA


def test_a_registry_that_has_it_not(double, opened, to):
    double.blobs.clear()
    text = fails(opened(double.host), to)
    assert text == (
        f"{double.host}/wan/bundle: blob {DIGEST[:19]}: {double.host} does not have it "
        "(404 BLOB_UNKNOWN: blob_unknown)"
    )
    assert not [*to.parent.iterdir()]


def test_a_folder_that_is_not_there(double, opened, tmp_path):
    to = tmp_path / "none" / "blob"
    assert f"cannot write {to}: No such file" in fails(opened(double.host), to, RunError)
    assert not double.seen


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_partial_that_is_no_file_is_not_written(kind, double, opened, to, partial, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    partial.symlink_to(other) if kind == "link" else os.mkfifo(partial)
    assert f"cannot write {to}" in fails(opened(double.host), to, RunError)
    assert other.read_bytes() == b"mine"
    assert not double.seen


def test_a_file_system_that_takes_no_more(double, opened, to, partial):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, before[1]))
    try:
        assert f"cannot write {to}: File too large" in fails(opened(double.host), to, RunError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert DATA.startswith(partial.read_bytes())
    fetch(opened(double.host), to)
    assert to.read_bytes() == DATA


@pytest.mark.parametrize("succeeds", [True, False])
def test_who_holds_the_partial_is_waited_for(succeeds, double, opened, to, partial):
    partial.write_bytes(DATA[:1000])
    with partial.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        thread = threading.Thread(target=fetch, args=(opened(double.host), to))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert not double.seen
        if succeeds:
            partial.rename(to)
            to.write_bytes(DATA)
        else:
            partial.unlink()
    thread.join()
    assert to.read_bytes() == DATA
    assert len(double.seen) == (0 if succeeds else 1)
    assert [*to.parent.iterdir()] == [to]

"""Blobs to a repository: what is sent, and what is not sent twice, whatever breaks."""

import random

import pytest

from tests.doubles.registry import sha256
from wanc.errors import RegistryError, RunError
from wanc.registry import uploads
from wanc.registry.uploads import push_blob

DATA = random.Random(1).randbytes(100_000)
DIGEST = sha256(DATA)
CHUNK = 30_000
RANGES = ["0-29999", "30000-59999", "60000-89999", "90000-99999"]


def push(repository, data=DATA, **how):
    return push_blob(repository, data, sha256(DATA), len(DATA), **{"chunk_bytes": CHUNK, **how})


def ranges(double):
    """What chunks were sent, in order."""
    return [each.headers["Content-Range"] for each in double.asked("PATCH")]


def received(double):
    """Bytes of bodies that reached the registry."""
    return sum(each.received for each in double.seen)


def is_there(double, name="wan/bundle"):
    return double.blobs.get(name, {}).get(DIGEST) == DATA


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "blob"
    path.write_bytes(DATA)
    return path


# --- nothing breaks -----------------------------------------------------------------------


@pytest.mark.parametrize("absolute", [True, False])
def test_a_small_blob_goes_at_once(absolute, double, opened, counted):
    double.absolute = absolute
    assert push(opened(double.host), chunk_bytes=len(DATA), on_bytes=counted) == "sent"
    assert [each.method for each in double.seen] == ["HEAD", "POST", "PUT"]
    assert "Content-Range" not in double.seen[-1].headers
    assert is_there(double)
    assert (counted.moved, counted.reused) == (len(DATA), 0)


@pytest.mark.parametrize("absolute", [True, False])
def test_a_large_blob_goes_in_chunks(absolute, double, opened, counted, file):
    double.absolute = absolute
    assert push(opened(double.host), file, on_bytes=counted) == "sent"
    assert ranges(double) == RANGES
    assert double.seen[-1].method == "PUT"
    assert double.seen[-1].received == 0
    assert is_there(double)
    assert (counted.moved, counted.reused) == (len(DATA), 0)
    assert received(double) == len(DATA)


def test_an_empty_blob(double, opened):
    assert push_blob(opened(double.host), b"", sha256(b""), 0) == "sent"
    assert double.blobs["wan/bundle"] == {sha256(b""): b""}


@pytest.mark.parametrize(("least", "expected"), [(50_000, 2), (10_000, 4), (10**17, 0)])
def test_a_registry_may_ask_for_larger_chunks(least, expected, double, opened):
    double.least_chunk = least
    push(opened(double.host))
    assert len(ranges(double)) == expected
    assert is_there(double)


def test_a_blob_that_is_there_is_not_sent(double, opened, counted):
    double.blobs["wan/bundle"] = {DIGEST: DATA}
    assert push(opened(double.host), on_bytes=counted, mount_from="wan/other") == "there"
    assert len(double.seen) == 1
    assert (counted.moved, counted.reused) == (0, len(DATA))


def test_a_blob_of_another_repository_is_mounted(double, opened, counted):
    double.blobs["wan/other"] = {DIGEST: DATA}
    assert push(opened(double.host), on_bytes=counted, mount_from="wan/other") == "mounted"
    assert is_there(double)
    assert double.seen[-1].query == {"mount": [DIGEST], "from": ["wan/other"]}
    assert (counted.moved, counted.reused) == (0, len(DATA))


def test_a_refused_mount_goes_on_in_the_session_that_came_for_it(double, opened, counted):
    double.blobs["wan/other"] = {DIGEST: DATA}
    double.mounts = False
    assert push(opened(double.host), on_bytes=counted, mount_from="wan/other") == "sent"
    assert len(double.asked("POST")) == 1
    assert is_there(double)
    assert (counted.moved, counted.reused) == (len(DATA), 0)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 503])
def test_a_mount_that_fails_is_done_without(status, double, opened, slept):
    double.script("POST", "/uploads/", status)
    assert push(opened(double.host), mount_from="wan/other") == "sent"
    assert len(double.asked("POST")) == 2
    assert is_there(double)
    assert not slept


def test_a_repository_is_not_mounted_from_itself(double, opened):
    push(opened(double.host), mount_from="wan/bundle")
    assert not double.asked("POST")[0].query


def test_another_host_may_take_the_bytes_and_gets_no_credentials(
    double, storage, opened, logged_in
):
    from tests.doubles.registry_tokens import Tokens

    double.tokens = Tokens("basic", "")
    double.script("POST", "/uploads/", 202, Location=f"{storage.base}/put?signature=a%2Fb")
    repository = opened(double.host, environment=logged_in(double.host))
    push(repository, chunk_bytes=len(DATA))
    assert storage.put == [DATA]
    assert storage.seen[0].query == {"signature": ["a/b"], "digest": [DIGEST]}
    assert "Authorization" not in storage.seen[0].headers


def test_a_redirect_of_an_upload_is_followed_with_its_body(double, storage, opened):
    double.script("PUT", "/uploads/", 307, Location=f"{storage.base}/put")
    push(opened(double.host), chunk_bytes=len(DATA))
    assert storage.put == [DATA]


# --- something breaks ---------------------------------------------------------------------


@pytest.mark.parametrize("cut", [2, 10_000, 29_999])
def test_a_cut_chunk_goes_on_where_it_was_cut(cut, double, opened, counted, slept, file):
    double.cut_uploads = [cut]
    push(opened(double.host), file, on_bytes=counted)
    resumed = [
        f"{start}-{min(start + CHUNK, len(DATA)) - 1}" for start in range(cut, 100_000, CHUNK)
    ]
    assert ranges(double) == [RANGES[0], *resumed]
    assert received(double) == len(DATA)
    assert is_there(double)
    assert counted.moved >= len(DATA)
    assert slept == [0.5]


def test_a_later_chunk_goes_on_where_it_was_cut(double, opened):
    double.cut_uploads = [29_999]
    push(opened(double.host), chunk_bytes=29_999)  # as many as come before the cut
    assert double.cut_uploads
    double.blobs.clear()
    double.seen.clear()
    double.least_chunk = 30_000

    def cut_the_third(moved, reused):
        double.cut_uploads = [5_000] if len(double.asked("PATCH")) == 2 and not cut else []
        cut.extend(double.cut_uploads)

    cut = []
    push(opened(double.host), on_bytes=cut_the_third)
    assert is_there(double)
    assert received(double) == len(DATA)


def test_every_chunk_may_be_cut_many_times(double, opened, slept):
    double.cut_uploads = [9_000] * 9
    push(opened(double.host, patience={"tries": 10}))
    assert is_there(double)
    assert received(double) == len(DATA)


def test_what_moves_on_may_be_cut_as_often_as_it_is(double, opened, monkeypatch):
    monkeypatch.setattr(uploads, "SOMETHING_BYTES", 9_000)
    double.cut_uploads = [9_000] * 9
    push(opened(double.host, patience={"tries": 2}))
    assert is_there(double)
    assert received(double) == len(DATA)


@pytest.mark.parametrize("kept", [0, 1])
def test_nothing_and_one_byte_are_not_told_apart(kept, double, opened):
    """Registries say 0-0 of both: the chunk is sent in a session of its own."""
    double.cut_uploads, double.kept_of_cut = [10_000], kept
    push(opened(double.host))
    assert ranges(double) == [RANGES[0], *RANGES]
    assert len(double.asked("POST")) == 2
    assert is_there(double)


def test_a_chunk_whose_answer_was_lost_is_not_sent_again(double, opened):
    double.lost_answers = ["PATCH", "PATCH"]
    push(opened(double.host))
    assert ranges(double) == RANGES
    assert is_there(double)


def test_an_end_whose_answer_was_lost_is_not_sent_again(double, opened):
    double.lost_answers = ["PUT"]
    push(opened(double.host))
    assert ranges(double) == RANGES
    assert len(double.asked("PUT")) == 1
    assert is_there(double)


def test_a_small_blob_whose_answer_was_lost_is_not_sent_again(double, opened):
    double.lost_answers = ["PUT"]
    push(opened(double.host), chunk_bytes=len(DATA))
    assert [each.method for each in double.seen] == ["HEAD", "POST", "PUT", "HEAD"]


def test_a_small_blob_that_was_cut_begins_again(double, opened):
    double.cut_uploads = [50_000]
    push(opened(double.host), chunk_bytes=len(DATA))
    assert [e.method for e in double.seen] == ["HEAD", "POST", "PUT", "HEAD", "POST", "PUT"]
    assert is_there(double)


def test_a_busy_registry_is_asked_how_far_it_came(double, opened, slept):
    double.script("PATCH", "/uploads/", 503, times=2, Retry_After="3")
    push(opened(double.host))
    assert is_there(double)
    assert slept == [3, 3]


def test_a_session_that_is_lost_begins_again(double, opened):
    double.lose_after, double.loses = 2, 1
    push(opened(double.host))
    assert ranges(double) == [*RANGES[:3], *RANGES]
    assert is_there(double)


def test_a_session_that_is_lost_again_and_again_goes_at_once(double, opened):
    double.lose_after, double.loses = 2, 9
    push(opened(double.host))
    assert len(ranges(double)) == 6
    assert double.seen[-1].received == len(DATA)
    assert is_there(double)


def test_a_registry_may_take_its_time_at_the_end(double, opened, monkeypatch):
    late = double.lost_answer
    monkeypatch.setattr(double, "lost_answer", lambda m: (double.ended.wait(0.3), late(m))[1])
    patience = {"silence_seconds": 0.1, "commit_seconds": 5.0}
    push(opened(double.host, patience=patience), chunk_bytes=len(DATA))
    assert len(double.asked("PUT")) == 1
    assert is_there(double)


@pytest.mark.parametrize("status", [400, 404, 405, 413, 416, 501])
def test_a_registry_that_takes_no_chunks_gets_all_at_once(status, double, opened, file):
    double.script("PATCH", "/uploads/", status, times=99)
    push(opened(double.host), file)
    assert len(double.asked("PATCH")) == 1
    assert double.asked("PUT")[0].received == len(DATA)
    assert is_there(double)


def test_a_chunk_out_of_order_is_put_right(double, opened):
    """Some registry has more than it said: it refuses with 416, and is asked."""
    double.cut_uploads = [10_000]
    session_range, told = double.range_of, []

    def lies_once(session):
        told.append(True)
        return "0-4999" if len(told) == 1 else session_range(session)

    double.range_of = lies_once
    push(opened(double.host))
    assert [each.answered for each in double.asked("PATCH")][:3] == [0, 416, 202]
    assert is_there(double)


@pytest.mark.parametrize("said", ["", "0-", "5-9", "0-x", "0-99999999", "0-" + "9" * 30])
def test_a_session_that_says_nonsense_is_left(said, double, opened):
    double.cut_uploads = [10_000]
    double.script("GET", "/uploads/", 204, Range=said)
    push(opened(double.host))
    assert len(double.asked("POST")) == 2
    assert is_there(double)


def test_a_session_that_said_too_much_is_left(double, opened):
    """Its end finds other bytes than the digest says; a new one has them right."""
    double.cut_uploads = [10_000]
    double.script("GET", "/uploads/", 204, Range="0-19999")
    push(opened(double.host))
    assert [each.answered for each in double.asked("PATCH")][:2] == [0, 416]
    assert is_there(double)


def test_a_registry_that_tells_chunks_wrongly_is_not_believed(double, opened):
    """As one large registry does: Range stays where the first chunk ended."""
    double.range_of = lambda session: "0-29999"
    push(opened(double.host))
    assert ranges(double) == RANGES
    assert is_there(double)


# --- it does not work ---------------------------------------------------------------------


def fails(repository, error=RegistryError, **how):
    with pytest.raises(error) as caught:
        push(repository, **how)
    return str(caught.value)


@pytest.mark.parametrize("chunk", [CHUNK, len(DATA)])
def test_a_damaged_blob_is_sent_once(chunk, double, opened, tmp_path, slept):
    damaged = tmp_path / "damaged"
    damaged.write_bytes(DATA[:-1] + b"?")
    text = fails(opened(double.host), data=damaged, chunk_bytes=chunk)
    assert "finds other bytes than its digest says" in text
    assert f"(400 DIGEST_INVALID: provided digest did not match); look whether {damaged}" in text
    assert received(double) == len(DATA)
    assert not double.blobs.get("wan/bundle")
    assert not slept


def test_a_file_that_is_too_short(double, opened, tmp_path):
    short = tmp_path / "short"
    short.write_bytes(DATA[:50_000])
    assert fails(opened(double.host), RunError, data=short).endswith(
        "short: became shorter while it was sent"
    )


def test_bytes_that_are_too_few_are_not_shown(double, opened):
    assert fails(opened(double.host), RunError, data=DATA[:50_000]) == (
        "what is sent: became shorter while it was sent"
    )


def test_a_file_that_is_not_there(double, opened, tmp_path):
    assert "cannot be read: No such file" in fails(
        opened(double.host), RunError, data=tmp_path / "none"
    )


def test_a_connection_that_breaks_every_time(double, opened, slept):
    double.cut_uploads, double.kept_of_cut = [100] * 99, 0
    text = fails(opened(double.host, patience={"tries": 3}))
    assert text.startswith(f"{double.host}/wan/bundle: blob {DIGEST[:19]}: the connection to ")
    assert "given up after 3 failures" in text
    assert len(double.asked("PATCH")) == 3


def test_a_registry_that_refuses_for_good(double, opened):
    double.script("PATCH", "/uploads/", 405, times=99)
    double.script("PUT", "/uploads/", 413, times=99)
    assert fails(opened(double.host)).endswith(": the registry does not take it (413)")
    assert len(double.asked("PUT")) == 1


def test_a_registry_that_forgets_all_sessions(double, opened):
    double.script("PUT", "/uploads/", 404, times=99)
    text = fails(opened(double.host), chunk_bytes=len(DATA))
    assert "the registry does not take it (404); given up after 6 failures" in text


def test_a_registry_that_does_not_say_where_to_send(double, opened):
    double.script("POST", "/uploads/", 202)
    assert "does not say where to send it" in fails(opened(double.host))


def test_a_registry_that_claims_another_digest(double, opened):
    double.digest_lie = "sha256:" + "1" * 64
    assert f"answers other bytes, of {double.digest_lie}; needs {DIGEST}" in fails(
        opened(double.host)
    )


def test_a_registry_that_forbids(double, opened):
    double.script("POST", "/uploads/", 403, b'{"errors":[{"code":"DENIED","message":"quota"}]}')
    assert "(403 DENIED: quota)" in fails(opened(double.host))

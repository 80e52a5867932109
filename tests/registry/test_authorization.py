"""Basic, Bearer and neither, against the double: what is asked, kept, and said where it fails."""

import base64
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.doubles.registry import sha256
from tests.doubles.registry_tokens import Tokens
from wanc.errors import RegistryError
from wanc.registry.blobs import has_blob
from wanc.registry.uploads import push_blob

DATA = b"some bytes"
DIGEST = sha256(DATA)
SECRET = "pass:word"


def bearer(double, **how):
    double.tokens = Tokens("bearer", f"{double.base}/token", **how)
    return double.tokens


def basic(double, **how):
    double.tokens = Tokens("basic", "", **how)
    return double.tokens


def test_nobody_is_asked_who_does_not_ask(double, opened, logged_in):
    repository = opened(double.host, environment=logged_in(double.host))
    assert not has_blob(repository, DIGEST)
    assert len(double.seen) == 1
    assert "Authorization" not in double.seen[0].headers


def test_basic(double, opened, logged_in):
    basic(double)
    repository = opened(double.host, environment=logged_in(double.host))
    assert push_blob(repository, DATA, DIGEST, len(DATA)) == "sent"
    assert [each.answered for each in double.seen] == [401, 404, 202, 201]
    assert double.blobs["wan/bundle"][DIGEST] == DATA


@pytest.mark.parametrize("key", ["token", "access_token"])
def test_bearer(key, double, opened, logged_in):
    tokens = bearer(double, key=key)
    repository = opened(double.host, environment=logged_in(double.host))
    assert push_blob(repository, DATA, DIGEST, len(DATA)) == "sent"
    assert has_blob(repository, DIGEST)
    asked = double.asked("GET", "/token")
    assert [each.query["scope"] for each in asked] == [
        ["repository:wan/bundle:pull"],
        ["repository:wan/bundle:pull,push"],
    ]
    assert {each.query["service"][0] for each in asked} == {"double"}
    assert len(tokens.given) == 2
    sent = [e.headers["Authorization"] for e in double.seen if "Authorization" in e.headers]
    assert [text.split()[0] for text in sent].count("Basic") == 2  # to the token service alone


def test_bearer_without_credentials(double, opened):
    bearer(double, anonymous_pull=True)
    assert not has_blob(opened(double.host), DIGEST)
    assert "Authorization" not in double.asked("GET", "/token")[0].headers


def test_bearer_by_an_identity_token(double, opened, logged_in):
    tokens = bearer(double, key="access_token")
    environment = logged_in(double.host, identity="identity-of-ann")
    push_blob(opened(double.host, environment=environment), DATA, DIGEST, len(DATA))
    assert not double.asked("GET", "/token")
    assert tokens.posted[1] == {
        "grant_type": ["refresh_token"],
        "service": ["double"],
        "client_id": ["wanc"],
        "scope": ["repository:wan/bundle:pull,push"],
        "refresh_token": ["identity-of-ann"],
    }


def test_a_token_is_kept_while_it_lasts(double, opened, logged_in):
    bearer(double, seconds=100)
    now = [0.0]
    repository = opened(
        double.host, environment=logged_in(double.host), patience={"clock": lambda: now[0]}
    )
    counts = []
    for now[0] in (0.0, 89.0, 91.0, 180.0, 182.0):
        has_blob(repository, DIGEST)
        counts.append(len(double.asked("GET", "/token")))
    assert counts == [1, 1, 2, 2, 3]
    assert [each.answered for each in double.asked("HEAD")].count(401) == 1


def test_a_token_of_unknown_life_lasts_a_minute(double, opened, logged_in):
    bearer(double, seconds=None)
    now = [0.0]
    repository = opened(
        double.host, environment=logged_in(double.host), patience={"clock": lambda: now[0]}
    )
    counts = []
    for now[0] in (0.0, 53.0, 55.0):
        has_blob(repository, DIGEST)
        counts.append(len(double.asked("GET", "/token")))
    assert counts == [1, 1, 2]


def test_a_token_that_the_registry_forgot_is_replaced(double, opened, logged_in):
    tokens = bearer(double)
    repository = opened(double.host, environment=logged_in(double.host))
    has_blob(repository, DIGEST)
    tokens.expire()
    has_blob(repository, DIGEST)
    assert [each.answered for each in double.asked("HEAD")] == [401, 404, 401, 404]
    assert len(double.asked("GET", "/token")) == 2


def test_a_token_that_ends_within_an_upload_is_replaced(double, opened, logged_in, tmp_path):
    tokens = bearer(double)
    repository = opened(double.host, environment=logged_in(double.host))
    data = bytes(range(256)) * 64
    ended = []

    def on_bytes(moved, reused):
        if not ended:
            ended.append(moved)
            tokens.expire()

    push_blob(repository, data, sha256(data), len(data), chunk_bytes=4096, on_bytes=on_bytes)
    assert double.blobs["wan/bundle"][sha256(data)] == data
    answered = [each.answered for each in double.asked("PATCH")]
    assert sorted(answered) == [202, 202, 202, 202, 401]


def test_a_cut_upload_is_asked_about_with_leave_to_push(double, opened, logged_in):
    bearer(double)
    double.cut_uploads = [3000]
    data = bytes(10_000)
    repository = opened(double.host, environment=logged_in(double.host))
    push_blob(repository, data, sha256(data), len(data), chunk_bytes=5000)
    assert [each.answered for each in double.asked("GET", "/uploads/")] == [204]
    assert len(double.asked("GET", "/token")) == 2


def test_threads_share_tokens(double, opened, logged_in, monkeypatch):
    tokens = bearer(double)
    repository = opened(double.host, environment=logged_in(double.host))
    has_blob(repository, DIGEST)
    give = tokens.of_get
    monkeypatch.setattr(tokens, "of_get", lambda *a: (threading.Event().wait(0.05), give(*a))[1])
    blobs = [bytes([number]) * 50_000 for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda data: push_blob(
                    repository, data, sha256(data), len(data), chunk_bytes=20_000
                ),
                blobs,
            )
        )
    assert set(double.blobs["wan/bundle"].values()) == set(blobs)
    assert len(double.asked("GET", "/token")) == 2


def test_a_mount_may_read_the_other_repository(double, opened, logged_in):
    bearer(double)
    double.blobs["wan/other"] = {DIGEST: DATA}
    repository = opened(double.host, environment=logged_in(double.host))
    assert push_blob(repository, DATA, DIGEST, len(DATA), mount_from="wan/other") == "mounted"
    assert double.asked("GET", "/token")[-1].query["scope"] == [
        "repository:wan/bundle:pull,push",
        "repository:wan/other:pull",
    ]


# --- what is said -------------------------------------------------------------------------


def refused(repository, *, push=False):
    work = (push_blob, DATA, DIGEST, len(DATA)) if push else (has_blob, DIGEST)
    with pytest.raises(RegistryError) as caught:
        work[0](repository, *work[1:])
    assert SECRET not in str(caught.value) + repr(caught.value.__cause__)
    assert base64.b64encode(f"ann:{SECRET}".encode()).decode() not in str(caught.value)
    return str(caught.value)


def test_basic_without_credentials_says_where_they_were_looked_for(double, opened, tmp_path):
    basic(double)
    text = refused(opened(double.host))
    assert text.startswith(f"{double.host}/wan/bundle: blob {DIGEST[:19]}: {double.host} wants")
    assert str(tmp_path / "home" / ".docker" / "config.json") in text
    assert f"`docker login {double.host}` stores them" in text


def test_basic_with_a_wrong_password(double, opened, logged_in, tmp_path):
    basic(double, users={"ann": "another"})
    text = refused(opened(double.host, environment=logged_in(double.host)))
    assert f"refuses it to the credentials of 'ann' from {tmp_path / 'config.json'} (401" in text
    assert len(double.seen) == 2


def test_basic_is_no_use_to_an_identity_token(double, opened, logged_in):
    basic(double)
    refused(opened(double.host, environment=logged_in(double.host, identity="x")))
    assert all("Authorization" not in each.headers for each in double.seen)


def test_a_token_service_that_refuses_a_password(double, opened, logged_in, tmp_path):
    bearer(double, users={"ann": "another"})
    text = refused(opened(double.host, environment=logged_in(double.host)))
    assert text.startswith(f"the token service 127.0.0.1 of {double.host} refuses")
    assert f"'ann' from {tmp_path / 'config.json'} (401 UNAUTHORIZED: wrong password)" in text


def test_bearer_without_credentials_for_what_needs_them(double, opened):
    bearer(double, anonymous_pull=True)
    text = refused(opened(double.host), push=True)
    assert "wants credentials (401 UNAUTHORIZED: unauthorized), and none were found in" in text


def test_a_user_who_may_only_read(double, opened, logged_in):
    basic(double, readers=("ann",))
    text = refused(opened(double.host, environment=logged_in(double.host)), push=True)
    assert "refuses it to the credentials of 'ann'" in text
    assert "(403 DENIED: denied); it needs an account with repository:wan/bundle:pull,push" in text


def test_a_scheme_that_wanc_does_not_speak(double, opened):
    basic(double, challenge="Negotiate abc=")
    assert "wants to authenticate by negotiate; wanc can do so by Basic and" in refused(
        opened(double.host)
    )


def test_no_challenge_at_all(double, opened):
    double.script("HEAD", "/blobs/", 401)
    assert "wants credentials (401)" in refused(opened(double.host))


@pytest.mark.parametrize(
    ("realm", "told"),
    [
        ("http://token.example.com/t", "names the token service http://token.example.com: cred"),
        ("ftp://127.0.0.1/t", "names no token service that could be asked"),
        ("/token", "names no token service that could be asked"),
        ("", "names no token service that could be asked"),
        ("https://127.0.0.1:x/t", "names no token service that could be asked"),
        ("http://[", "names no token service that could be asked"),
    ],
)
def test_secrets_go_to_no_other_machine_by_http(realm, told, double, opened, logged_in):
    bearer(double, challenge=f'Bearer realm="{realm}",service="double"')
    assert told in refused(opened(double.host, environment=logged_in(double.host)))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": 7}', b'{"token": "a\\nb"}', b"{"])
def test_a_token_service_that_answers_no_token(body, double, opened):
    bearer(double)
    double.script("GET", "/token", 200, body)
    assert "answers no token" in refused(opened(double.host))


def test_a_token_service_that_is_busy_is_asked_again(double, opened, slept):
    bearer(double, anonymous_pull=True)
    double.script("GET", "/token", 503, times=2, Retry_After="7")
    assert not has_blob(opened(double.host), DIGEST)
    assert slept == [7.0, 7.0]


def test_a_token_service_that_redirects_is_not_followed(double, storage, opened, logged_in):
    bearer(double)
    double.script("GET", "/token", 307, Location=f"{storage.base}/token")
    text = refused(opened(double.host, environment=logged_in(double.host)))
    assert "(307)" in text
    assert not storage.seen


def test_secrets_are_in_no_repr(double, opened, logged_in):
    bearer(double)
    repository = opened(double.host, environment=logged_in(double.host))
    has_blob(repository, DIGEST)
    (token,) = double.tokens.given
    authorization = repository.transport._authorization
    shown = repr(repository) + repr(vars(repository.transport)) + repr(vars(authorization))
    assert token not in shown
    assert SECRET not in shown

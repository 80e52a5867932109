"""What is a reference, what it means, and what is a path."""

import pytest

from wanc.errors import RequestError
from wanc.registry.reference import Reference, is_loopback, is_reference

DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("text", "host", "name", "tag", "digest"),
    [
        ("localhost/a", "localhost", "a", None, None),
        ("localhost:5000/wan/b:v1", "localhost:5000", "wan/b", "v1", None),
        ("ghcr.io/me/wan-2.2_t2v/x__y", "ghcr.io", "me/wan-2.2_t2v/x__y", None, None),
        (f"ghcr.io/me/wan@{DIGEST}", "ghcr.io", "me/wan", None, DIGEST),
        (f"ghcr.io/me/wan:v1@{DIGEST}", "ghcr.io", "me/wan", "v1", DIGEST),
        ("registry:5000/a:_A.b-c", "registry:5000", "a", "_A.b-c", None),
        ("[::1]:5000/a", "[::1]:5000", "a", None, None),
        ("docker.io/library/wan:" + "t" * 128, "docker.io", "library/wan", "t" * 128, None),
        ("a.b/" + "c" * 251, "a.b", "c" * 251, None, None),
    ],
)
def test_parts_of_a_reference(text, host, name, tag, digest):
    parsed = Reference.parse(text)
    assert parsed == Reference(host=host, name=name, tag=tag, digest=digest)
    assert str(parsed) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("wan", "the host 'wan' has no dot and no port"),
        ("wan/bundle:v1", "the host 'wan' has no dot and no port"),
        ("https://ghcr.io/me/wan", "the scheme 'https' is no part of it"),
        ("ghcr.io/", "the name ''"),
        ("ghcr.io/Me/wan", "the name 'Me/wan' needs lower-case"),
        ("ghcr.io/me//wan", "the name 'me//wan'"),
        ("ghcr.io/me/../wan", "the name 'me/../wan'"),
        ("ghcr.io/me/wan_", "the name 'me/wan_'"),
        ("ghcr.io/me/a___b", "the name 'me/a___b'"),
        ("ghcr.io/me/wan:", "the tag ''"),
        ("ghcr.io/me/wan:-v", "the tag '-v'"),
        ("ghcr.io/me/wan:" + "t" * 129, "1 to 128 letters"),
        ("ghcr.io/me/wan@", "the digest ''"),
        ("ghcr.io/me/wan@sha256:0A", "the digest 'sha256:0A'"),
        ("ghcr.io/me/wan@sha512:" + "0" * 128, "needs sha256:"),
        ("ghcr.io:70000/wan", "the host 'ghcr.io:70000'"),
        ("ghcr.io:0/wan", "the host 'ghcr.io:0'"),
        ("user@ghcr.io/wan", "the host 'user'"),
        ("-a.b/wan", "the host '-a.b'"),
        ("a.b/" + "c" * 252, "with its host is longer than 255"),
    ],
)
def test_what_is_no_reference_says_why(text, why):
    with pytest.raises(RequestError) as caught:
        Reference.parse(text)
    assert why in str(caught.value)
    assert "needs HOST[:PORT]/NAME[:TAG][@sha256:DIGEST]" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_long_text_is_not_repeated_in_full():
    for text in ("a.b/" + "C" * 100_000, "C" * 100_000, "a.b/c:" + "!" * 100_000):
        with pytest.raises(RequestError) as caught:
            Reference.parse(text)
        assert len(str(caught.value)) < 1000


def test_docker_hub_has_another_address():
    assert Reference.parse("docker.io/me/wan").address == "registry-1.docker.io"
    assert Reference.parse("index.docker.io/me/wan").address == "registry-1.docker.io"
    assert Reference.parse("ghcr.io/me/wan").address == "ghcr.io"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ghcr.io/me/wan:v1", True),
        ("localhost/wan", True),
        ("localhost:5000/wan", True),
        ("ghcr.io/Me/Wan", True),  # a wrong one: Reference.parse says so
        ("./ghcr.io/wan", False),
        ("../ghcr.io/wan", False),
        ("/ghcr.io/wan", False),
        ("~/ghcr.io/wan", False),
        ("out/bundle", False),
        ("bundle", False),
        ("bundle.v1", False),
        ("ghcr.io/", False),
        ("here.there/bundle", False),  # it exists
        ("here.there/other", True),
        ("a.b/" + "c" * 10_000, True),
        ("a\0.b/c", False),
    ],
)
def test_a_reference_is_told_from_a_path(text, expected, tmp_path, monkeypatch):
    (tmp_path / "here.there" / "bundle").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert is_reference(text) is expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST:5000", True),
        ("127.0.0.1:5000", True),
        ("127.9.9.9", True),
        ("[::1]:5000", True),
        ("[::2]", False),
        ("127.0.0.1.example.com", False),
        ("localhost.example.com", False),
        ("10.0.0.1:5000", False),
        ("", False),
    ],
)
def test_this_machine(host, expected):
    assert is_loopback(host) is expected

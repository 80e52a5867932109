"""Tries, redirects, TLS and limits of requests, and what is said where they end."""

import shutil
import socket
import ssl
import subprocess
import time
from email.utils import formatdate

import pytest

from tests.doubles.registry import RegistryDouble, sha256
from tests.doubles.registry_tokens import Tokens
from tests.needs import needs
from wanc.bundle.oci import Descriptor
from wanc.errors import RegistryError
from wanc.registry.blobs import fetch_json, has_blob
from wanc.registry.reference import Reference
from wanc.registry.repository import connect

DATA = b'{"a":"document"}'
DIGEST = sha256(DATA)
DOCUMENT = Descriptor(media_type="x/y", digest=DIGEST, size=len(DATA))


def said(repository, work=has_blob, asked=DIGEST):
    with pytest.raises(RegistryError) as caught:
        work(repository, asked)
    assert caught.value.exit_code == 7
    return str(caught.value)


# --- tries --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(status, double, opened, slept):
    double.script("HEAD", "/blobs/", status, times=5)
    assert not has_blob(opened(double.host), DIGEST)
    assert slept == [0.5, 1, 2, 4, 8]


def test_chance_makes_waits_shorter(double, opened, slept):
    double.script("HEAD", "/blobs/", 503, times=2)
    has_blob(opened(double.host, patience={"chance": lambda: 0.5}), DIGEST)
    assert slept == [0.375, 0.75]


def test_a_wait_has_a_limit(double, opened, slept):
    double.script("HEAD", "/blobs/", 503, times=9)
    has_blob(opened(double.host, patience={"tries": 10}), DIGEST)
    assert slept[-3:] == [30, 30, 30]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("7", 7), ("0", 0.5), ("9999", 120), ("9" * 5000, 0.5), ("soon", 0.5), ("-1", 0.5)],
)
def test_a_registry_may_ask_for_a_wait(asked, expected, double, opened, slept):
    double.script("HEAD", "/blobs/", 429, Retry_After=asked)
    has_blob(opened(double.host), DIGEST)
    assert slept == [expected]


def test_a_registry_may_name_the_time(double, opened, slept):
    double.script("HEAD", "/blobs/", 429, Retry_After=formatdate(time.time() + 60, usegmt=True))
    has_blob(opened(double.host), DIGEST)
    assert 50 < slept[0] <= 60


def test_what_does_not_pass_ends_with_the_time_it_took(double, opened, slept):
    now = iter(range(0, 1000, 10))
    body = b'{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}'
    double.script("GET", "/blobs/", 429, body, times=9)
    repository = opened(double.host, patience={"clock": lambda: next(now), "answer_seconds": 1e9})
    text = said(repository, fetch_json, DOCUMENT)
    assert text.startswith(
        f"{double.host}/wan/bundle: blob {DIGEST[:19]}: {double.host} answers 429"
    )
    assert "429 TOOMANYREQUESTS: slow down; given up after 6 failures in " in text
    assert len(double.seen) == 6
    assert len(slept) == 5


@pytest.mark.parametrize("status", [400, 403, 404, 405, 410, 418, 501, 505])
def test_what_does_not_pass_is_not_tried_again(status, double, opened, slept):
    double.script("GET", "/blobs/", status, times=9)
    assert str(status) in said(opened(double.host), fetch_json, DOCUMENT)
    assert len(double.seen) == 1
    assert not slept


def test_a_cut_connection_is_tried_again(double, opened, slept):
    double.blobs["wan/bundle"] = {DIGEST: DATA}
    double.cut_downloads = [0, 3]
    assert fetch_json(opened(double.host), DOCUMENT) == DATA
    assert len(slept) == 2


def test_nobody_listens(opened):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
        text = said(opened(host))
    assert text == (
        f"{host}/wan/bundle: blob {DIGEST[:19]}: 127.0.0.1 cannot be reached: Connection refused; "
        "given up after 6 failures in 0 s"
    )


@pytest.mark.parametrize(
    ("code", "told", "waits"),
    [
        (socket.EAI_NONAME, "nowhere.example.com cannot be reached: no such name", 0),
        (socket.EAI_AGAIN, "nowhere.example.com cannot be reached: its name is not resolved", 5),
    ],
)
def test_a_name_is_not_known(code, told, waits, opened, slept, monkeypatch):
    def fail(*_, **__):
        raise socket.gaierror(code, "whatever")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert told in said(opened("nowhere.example.com"))
    assert len(slept) == waits


def test_a_silent_registry(opened):
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        text = said(opened(host, patience={"silence_seconds": 0.05, "tries": 2}))
    assert "127.0.0.1 fell silent; given up after 2 failures" in text


def test_a_registry_that_stalls_within_an_answer(double, opened):
    double.blobs["wan/bundle"] = {DIGEST: DATA}
    double.is_slow = True
    repository = opened(double.host, patience={"silence_seconds": 0.05, "tries": 2})
    assert "fell silent; given up after 2" in said(repository, fetch_json, DOCUMENT)


def test_an_answer_has_a_limit_in_time(double, opened):
    double.blobs["wan/bundle"] = {DIGEST: DATA}
    now = iter(range(0, 100_000, 100))
    repository = opened(double.host, patience={"clock": lambda: next(now), "answer_seconds": 50})
    assert "takes too long to answer; given up" in said(repository, fetch_json, DOCUMENT)


def test_what_speaks_no_http(opened):
    import threading

    def answer(server):
        for _ in range(2):
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        text = said(opened(host, patience={"tries": 2}))
        thread.join()
    assert "the connection to 127.0.0.1 broke" in text


# --- redirects ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["basic", "bearer"])
def test_another_host_gets_no_credentials(kind, double, storage, opened, logged_in):
    double.tokens = Tokens(kind, f"{double.base}/token")
    double.blobs["wan/bundle"] = storage.blobs = {DIGEST: DATA}
    double.blobs_at = storage.base
    repository = opened(double.host, environment=logged_in(double.host))
    assert fetch_json(repository, DOCUMENT) == DATA
    (seen,) = storage.seen
    assert seen.query == {"signature": ["s3cret"]}
    assert "Authorization" in double.asked("GET", "/blobs/")[-1].headers
    assert "Authorization" not in seen.headers


def test_what_another_host_refuses_does_not_tell_the_address(double, storage, opened):
    double.blobs["wan/bundle"] = {DIGEST: DATA}
    double.blobs_at = storage.base
    text = said(opened(double.host), fetch_json, DOCUMENT)
    assert "127.0.0.1 answers 403" in text
    assert "s3cret" not in text


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_within_a_registry_keeps_its_credentials(
    status,
    double,
    opened,
    logged_in,
):
    double.tokens = Tokens("basic", "")
    double.blobs["wan/moved"] = {DIGEST: DATA}
    double.script("GET", "/v2/wan/bundle/", status, Location=f"../../moved/blobs/{DIGEST}#x")
    repository = opened(double.host, environment=logged_in(double.host))
    assert fetch_json(repository, DOCUMENT) == DATA


def test_five_redirects_are_followed_and_not_six(double, opened):
    double.blobs["wan/bundle"] = {DIGEST: DATA}
    path = f"/v2/wan/bundle/blobs/{DIGEST}"
    double.script("GET", "/blobs/", 307, times=5, Location=path)
    assert fetch_json(opened(double.host), DOCUMENT) == DATA
    double.script("GET", "/blobs/", 307, times=6, Location=path)
    assert "redirects more than 5 times" in said(opened(double.host), fetch_json, DOCUMENT)


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "ftp://a.b/c", "http://[", "http://a:x/"]
)
def test_a_redirect_to_nowhere(location, double, opened):
    double.script("GET", "/blobs/", 307, Location=location)
    assert "points to what is no address of HTTP" in said(opened(double.host), fetch_json, DOCUMENT)


def test_a_redirect_without_a_location(double, opened):
    double.script("GET", "/blobs/", 307)
    assert "answers 307" in said(opened(double.host), fetch_json, DOCUMENT)


# --- TLS ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of 127.0.0.1 that nobody signed, and its key, in one file."""
    needs(bool(shutil.which("openssl")), "openssl")
    folder = tmp_path_factory.mktemp("certificate")
    line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -batch"
    line += " -subj /CN=double -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    subprocess.run(line.split(), cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def tls_double(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with RegistryDouble(context) as registry:
        yield registry


def test_a_certificate_that_is_not_trusted(tls_double, opened, slept):
    text = said(opened(tls_double.host, plain_http=False))
    assert text.startswith("127.0.0.1 has a certificate that is not trusted: self-signed certi")
    assert "SSL_CERT_FILE" in text
    assert not slept


def test_a_certificate_that_is_trusted(tls_double, certificate, opened, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    tls_double.blobs["wan/bundle"] = {DIGEST: DATA}
    assert fetch_json(opened(tls_double.host, plain_http=False), DOCUMENT) == DATA


def test_a_certificate_of_another_host(tls_double, certificate, opened, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    host = tls_double.host.replace("127.0.0.1", "localhost")
    assert "localhost has a certificate that is not trusted: Hostname mismatch" in said(
        opened(host, plain_http=False)
    )


def test_https_is_not_left_for_http(tls_double, storage, certificate, opened, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    tls_double.blobs["wan/bundle"] = storage.blobs = {DIGEST: DATA}
    tls_double.blobs_at = storage.base
    text = said(opened(tls_double.host, plain_http=False), fetch_json, DOCUMENT)
    assert "points to http://127.0.0.1: what began with HTTPS does not go on by HTTP" in text
    assert not storage.seen


def test_http_may_go_on_by_https(tls_double, certificate, double, opened, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    tls_double.blobs["wan/bundle"] = double.blobs["wan/bundle"] = {DIGEST: DATA}
    double.blobs_at = f"{tls_double.base}/v2/wan/bundle/blobs"
    assert fetch_json(opened(double.host), DOCUMENT) == DATA


def test_http_goes_on_by_no_https_that_is_not_trusted(tls_double, double, opened):
    double.blobs["wan/bundle"] = {DIGEST: DATA}
    double.blobs_at = f"{tls_double.base}/v2/wan/bundle/blobs"
    assert "has a certificate that is not trusted" in said(
        opened(double.host), fetch_json, DOCUMENT
    )
    assert not tls_double.seen


def test_plain_http_that_answers_https(double, opened, slept):
    text = said(opened(double.host, plain_http=False))
    assert "127.0.0.1 answers HTTPS with what is no TLS: plain HTTP must be asked for" in text
    assert not slept


@pytest.mark.parametrize(
    ("host", "asked", "base"),
    [
        ("localhost:5000", None, "http://localhost:5000"),
        ("localhost:5000", False, "https://localhost:5000"),
        ("[::1]:5000", None, "http://[::1]:5000"),
        ("ghcr.io", None, "https://ghcr.io"),
        ("ghcr.io", True, "http://ghcr.io"),
        ("10.0.0.1:5000", None, "https://10.0.0.1:5000"),
        ("docker.io", None, "https://registry-1.docker.io"),
    ],
)
def test_plain_http_is_for_this_machine_alone(host, asked, base):
    repository = connect(Reference(host=host, name="a"), plain_http=asked, environment={})
    assert repository.transport.base == base


# --- limits -------------------------------------------------------------------------------


def test_a_large_error_is_read_in_part_and_shown_in_few_words(double, opened):
    double.script("GET", "/blobs/", 418, b"x" * (32 << 20))
    text = said(opened(double.host), fetch_json, DOCUMENT)
    assert text.endswith("answers 418 " + "x" * 300 + "...")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "418"),
        (b"<html>nginx</html>", "418"),
        (b"a\x1b[31mb\r\nc\x00\xff", "418 a\ufffd[31mb c\ufffd\ufffd"),
        ("a\u202eb".encode(), "418 a\ufffdb"),
        (b'{"errors":[]}', "418"),
        (b'{"errors":[{"code":"A"},7,{"code":"B","message":"c\\u001bd"}]}', "418 A; B: c\ufffdd"),
        (b'{"errors":[{"code":7,"message":["x"]}]}', "418"),
        (b'{"errors":' + b"[" * 60_000, '418 {"errors":' + "[" * 290 + "..."),
        (b'{"message":"m"}', '418 {"message":"m"}'),
    ],
)
def test_what_a_registry_says_is_made_fit_to_be_shown(body, told, double, opened):
    double.script("GET", "/blobs/", 418, body)
    assert said(opened(double.host), fetch_json, DOCUMENT).endswith(f"answers {told}")


def test_an_answer_longer_than_it_should_be(double, opened):
    double.script("GET", "/blobs/", 200, bytes(1 << 20))
    text = said(opened(double.host), fetch_json, DOCUMENT)
    assert text.endswith(f"answers more than the {len(DATA)} bytes that are read")


def test_an_answer_without_an_end(double, opened):
    double.blobs["wan/bundle"] = {DIGEST: DATA}
    double.is_endless = True
    assert "answers more than the 16 bytes" in said(opened(double.host), fetch_json, DOCUMENT)


def test_more_headers_than_anybody_needs(double, opened):
    double.script("GET", "/blobs/", 200, times=9, X_Many=["x"] * 200)
    repository = opened(double.host, patience={"tries": 2})
    assert "the connection to 127.0.0.1 broke" in said(repository, fetch_json, DOCUMENT)


def test_a_document_that_says_to_be_huge_is_not_asked_for(double, opened):
    huge = Descriptor(media_type="x/y", digest=DIGEST, size=(64 << 20) + 1)
    assert "at most 67108864 are read" in said(opened(double.host), fetch_json, huge)
    assert not double.seen


@pytest.mark.parametrize("digest", ["sha256:../../x", "sha512:" + "0" * 128, "", "a/b"])
def test_a_digest_that_is_none_goes_into_no_address(digest, double, opened):
    assert "is no sha256 digest" in said(opened(double.host), has_blob, digest)
    assert not double.seen


def test_documents_are_checked(double, opened):
    double.blobs["wan/bundle"] = {DIGEST: DATA}
    repository = opened(double.host)
    assert fetch_json(repository, DOCUMENT) == DATA
    short = Descriptor(media_type="x/y", digest=DIGEST, size=len(DATA) + 1)
    assert f"the registry has 16 bytes of it; needs {len(DATA) + 1}" in said(
        repository, fetch_json, short
    )
    double.damages = True
    assert "answers other bytes, of sha256:" in said(repository, fetch_json, DOCUMENT)

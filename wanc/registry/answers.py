"""What a registry answers, and what goes wrong on the way, in words. All of it is untrusted."""

import json
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InvalidHeader,
    LocationValueError,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
    SSLError,
)

from wanc.errors import RegistryError
from wanc.registry.retries import PassingError
from wanc.registry.texts import printable

MOST_ERROR_BYTES = 64 << 10
"""Of an answer that is read to see why something was refused."""
PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that may pass."""
_BLOCK_BYTES = 256 << 10
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer that is in memory."""

    status: int
    headers: urllib3.HTTPHeaderDict
    body: bytes
    url: str
    """That answered, after redirects."""


class Reply:
    """An answer whose body is still to come. Its connection is used again where all was read."""

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str, host: str) -> None:
        self.status, self.headers, self.url = response.status, response.headers, url
        self._response, self._host = response, host

    def block(self, most_bytes: int = _BLOCK_BYTES) -> bytes:
        """The next bytes, b"" at the end; raises PassingError where the connection breaks."""
        try:
            return self._response.read1(min(most_bytes, _BLOCK_BYTES)) or b""
        except HTTPError as error:
            raise failure(error, self._host) from error

    def read(self, most_bytes: int, late: Callable[[], bool]) -> bytes:
        """All that comes, to one byte more than so many; raises PassingError where it is late."""
        parts, left = [], most_bytes + 1
        while left and (part := self.block(left)):
            parts.append(part)
            left -= len(part)
            if late():
                raise PassingError(f"{self._host} takes too long to answer")
        return b"".join(parts)

    def close(self) -> None:
        """Read no more."""
        if self._response.closed:
            self._response.release_conn()
        else:
            self._response.close()


def failure(error: HTTPError, host: str) -> PassingError | RegistryError:
    """What an exception of urllib3 means: something that may pass, or that will not."""
    if isinstance(error, SSLError):
        return _tls_failure(error, host)
    if isinstance(error, LocationValueError | InvalidHeader):
        return RegistryError(f"{host} answers with an address or a header that is none")
    if isinstance(error, NameResolutionError):
        cause = error.__cause__
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
            return RegistryError(f"{host} cannot be reached: no such name; look for a misspelling")
        return PassingError(f"{host} cannot be reached: its name is not resolved")
    if isinstance(error, NewConnectionError):  # a kind of the next one, by urllib3
        return PassingError(f"{host} cannot be reached: {_reason(error.__cause__)}")
    if isinstance(error, ConnectTimeoutError):
        return PassingError(f"{host} cannot be reached: it does not answer")
    if isinstance(error, ReadTimeoutError):
        return PassingError(f"{host} fell silent")
    cause = error.args[1] if isinstance(error, ProtocolError) and len(error.args) > 1 else None
    return PassingError(f"the connection to {host} broke: {_reason(cause)}")


def _reason(cause: Any) -> str:
    """In few words, and without the addresses and objects that exceptions name."""
    told = getattr(cause, "strerror", None)
    return printable(told) if isinstance(told, str) else "it ended early"


def _tls_failure(error: SSLError, host: str) -> PassingError | RegistryError:
    cause = error.args[0] if error.args else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return RegistryError(
            f"{host} has a certificate that is not trusted: {printable(cause.verify_message)}; "
            "SSL_CERT_FILE names a file of certificates to trust"
        )
    if any(name in str(cause) for name in _NO_TLS):
        return RegistryError(
            f"{host} answers HTTPS with what is no TLS: plain HTTP must be asked for, and is so "
            "for this machine's own registry alone"
        )
    return PassingError(f"the connection to {host} broke: TLS: {printable(str(cause))}")


def asked_seconds(reply: Reply) -> float | None:
    """For which a registry wants to be left alone, where it says so."""
    said = reply.headers.get("Retry-After")
    try:
        return urllib3.Retry().parse_retry_after(said) if said else None
    except (InvalidHeader, ValueError, OverflowError):
        return None


def told(answer: Answer) -> str:
    """The status and what a registry says of it: ``404 MANIFEST_UNKNOWN: manifest unknown``."""
    return f"{answer.status} {_errors(answer.body)}".rstrip()


def _errors(body: bytes) -> str:
    text = body.decode(errors="replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "" if "<" in text[:100] else printable(text)
    listed = value.get("errors") if isinstance(value, dict) else None
    if not isinstance(listed, list):
        return printable(text)
    said = [_error(each) for each in listed[:3] if isinstance(each, dict)]
    return printable("; ".join(filter(None, said)))


def _error(entry: dict[str, Any]) -> str:
    words = [entry.get(key) for key in ("code", "message")]
    return ": ".join(word for word in words if isinstance(word, str) and word)

"""References to what lies in a registry, as ``host[:port]/name[:tag][@sha256:...]``.

The grammar is that of the OCI Distribution Specification 1.1. Knows no network.
"""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from wanc.errors import RequestError
from wanc.registry.texts import printable

DOCKER_HUB = "docker.io"
_HUB_HOSTS = (DOCKER_HUB, "index.docker.io")
_HUB_ADDRESS = "registry-1.docker.io"
MOST_CHARACTERS = 255
"""Of host and name together, as many clients limit them."""

_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:.]+\])(?::(?P<port>[0-9]{{1,5}}))?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile("[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_DIGEST = re.compile("sha256:[0-9a-f]{64}")

_FORM = "HOST[:PORT]/NAME[:TAG][@sha256:DIGEST], as localhost:5000/wan/bundle:v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A repository of a registry, and what of it."""

    host: str
    """With its port where one is given."""
    name: str
    """Of the repository."""
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a reference; raises RequestError."""
        rest, at, digest = text.partition("@")
        host, slash, rest = rest.partition("/")
        name, colon, tag = rest.partition(":")
        if "://" in text:
            raise _wrong(text, "scheme", text.partition("://")[0], "is no part of it")
        if not slash or not _is_host(host):
            raise _wrong(text, "host", host, "has no dot and no port, and is not localhost")
        if not _NAME.fullmatch(name):
            raise _wrong(text, "name", name, "needs lower-case letters, digits and . _ - /")
        if len(host) + 1 + len(name) > MOST_CHARACTERS:
            raise _wrong(text, "name", name, f"with its host is longer than {MOST_CHARACTERS}")
        if colon and not is_tag(tag):
            raise _wrong(text, "tag", tag, "needs 1 to 128 letters, digits and . _ -")
        if at and not is_digest(digest):
            raise _wrong(text, "digest", digest, "needs sha256: and 64 digits of 0-9 a-f")
        return cls(host=host, name=name, tag=tag or None, digest=digest or None)

    @property
    def address(self) -> str:
        """The host to connect to."""
        return _HUB_ADDRESS if self.is_on_docker_hub else self.host

    @property
    def is_on_docker_hub(self) -> bool:
        """Whether it is on Docker's registry, whose address is not its name."""
        return self.host in _HUB_HOSTS

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.host}/{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")


def is_reference(text: str) -> bool:
    """Whether an argument means a registry and no path: an existing path wins, and so does ./x.

    It need not be a legal one: ``Reference.parse`` says what is wrong with it.
    """
    if text.startswith(("/", ".", "~")):
        return False
    try:
        if Path(text).exists():
            return False
    except (OSError, ValueError):  # too long for a path, or with a NUL
        pass
    host, _, rest = text.partition("/")
    return bool(rest) and _is_host(host)


def is_tag(text: str) -> bool:
    """Whether a text can be a tag."""
    return bool(_TAG.fullmatch(text))


def is_digest(text: str) -> bool:
    """Whether a text is a digest of the kind that bundles have."""
    return bool(_DIGEST.fullmatch(text))


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine by its name or address."""
    bare = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return bare.lower() == "localhost"


def _is_host(host: str) -> bool:
    found = _HOST.fullmatch(host)
    if not found or (found["port"] and not 0 < int(found["port"]) < 1 << 16):
        return False
    return any(mark in host for mark in ".:") or host == "localhost"


def _wrong(text: str, part: str, seen: str, why: str) -> RequestError:
    return RequestError(
        f"{printable(text)!r} is no reference to a registry: the {part} {printable(seen)!r} {why}; "
        f"needs {_FORM}"
    )

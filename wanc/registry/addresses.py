"""Addresses that a registry points to: which of them are followed, and which are its own.

Knows no network.
"""

from urllib.parse import urljoin, urlsplit

from wanc.errors import RegistryError

_PORTS = {"http": 80, "https": 443}


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of an address; raises ValueError."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def host_of(url: str) -> str:
    """The host of an address, for people."""
    return origin(url)[1]


def joined(base: str, location: str, who: str) -> str:
    """Where an answer of an address points to; raises RegistryError.

    Args:
        base: the address that answered.
        location: absolute, or relative to base.
        who: what it is about and who answered, for people.
    """
    try:
        url = urljoin(base, location).partition("#")[0]
        scheme, host, _ = origin(url)
    except ValueError:
        scheme, host = "", ""
    if scheme not in _PORTS or not host:
        raise RegistryError(f"{who} points to what is no address of HTTP")
    if scheme == "http" and base.startswith("https:"):
        raise RegistryError(
            f"{who} points to http://{host}: what began with HTTPS does not go on by HTTP; behind "
            "a proxy, a registry must be told that it is HTTPS"
        )
    return url

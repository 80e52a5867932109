"""What a registry wants to know of a client: WWW-Authenticate, by RFC 9110, section 11.

Knows no network and no credentials.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf'({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))')
_TOKEN68 = re.compile(r"[A-Za-z0-9._~+/-]+=*(?=[ \t]*(?:,|$))")
_SCHEME = re.compile(_TOKEN)
_GAP = re.compile(r"[ \t,]*")
_SPACE = re.compile(r"[ \t]+")
MOST_CHARACTERS = 16 << 10
"""Of one header that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """One way to authenticate."""

    scheme: str
    """In lower case."""
    parameters: Mapping[str, str]
    """By name, in lower case."""


def parse_challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """All challenges of all headers, in order; of a header, those before what makes no sense."""
    return tuple(found for header in headers for found in _of_header(header[:MOST_CHARACTERS]))


def _of_header(header: str) -> list[Challenge]:
    found: list[Challenge] = []
    at = _after(_GAP, header, 0)
    while scheme := _SCHEME.match(header, at):
        at = _after(_SPACE, header, scheme.end())
        parameters: dict[str, str] = {}
        if at > scheme.end() and not _PARAMETER.match(header, at):
            at = _after(_TOKEN68, header, at)
        while parameter := _PARAMETER.match(header, _after(_GAP, header, at)):
            name, quoted, plain = parameter.groups()
            text = re.sub(r"\\(.)", r"\1", quoted) if plain is None else plain
            parameters.setdefault(name.lower(), text)
            at = parameter.end()
        found.append(Challenge(scheme=scheme[0].lower(), parameters=parameters))
        at = _after(_GAP, header, at)
    return found


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where a pattern that may stand there ends."""
    found = pattern.match(text, at)
    return found.end() if found else at

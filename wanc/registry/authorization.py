"""How requests to one registry are authorized: anonymously, by Basic, or by Bearer tokens.

Credentials go to the registry itself, by whoever sends what ``header`` says, and to the token
service that the registry names. Knows no request and no redirect.
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from wanc.errors import RegistryError
from wanc.registry.addresses import host_of, origin
from wanc.registry.answers import Answer, told
from wanc.registry.asked import Scopes
from wanc.registry.challenge import Challenge
from wanc.registry.credentials import Credentials
from wanc.registry.reference import is_loopback
from wanc.registry.texts import printable

_USUAL_SECONDS = 60.0
"""Life of a token that says nothing of it."""
_CLIENT = "wanc"

Fetch = Callable[[str, str, dict[str, str], bytes | None], Answer]
"""Method, URL, headers and body to an answer; of a status that may pass it raises PassingError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    header: str = field(repr=False)
    until: float
    """On the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Service:
    """Who gives tokens."""

    realm: str
    service: str | None


class Authorization:
    """What is known of one registry's wishes, with its tokens; for several threads."""

    def __init__(
        self,
        host: str,
        find: Callable[[], Credentials | None],
        fetch: Fetch,
        clock: Callable[[], float],
        *,
        over_http: bool,
        over_loopback_http: bool,
    ) -> None:
        """Nothing is looked for before a registry asks.

        Args:
            host: the registry's, for people.
            find: looks for credentials.
            fetch: asks a token service.
            clock: seconds.
            over_http: whether secrets may go to any token service by plain HTTP.
            over_loopback_http: whether they may to one on this machine.
        """
        self._host, self._find, self._fetch, self._clock = host, find, fetch, clock
        self._over_http, self._over_loopback_http = over_http, over_loopback_http
        self._lock = threading.Lock()
        self._service: _Service | None = None
        self._basic = False
        self._asked: dict[Scopes, str] = {}
        """Scopes that the registry named itself."""
        self._tokens: dict[Scopes, _Token] = {}
        self._looked = False
        self._credentials: Credentials | None = None

    def header(self, scopes: Scopes) -> str | None:
        """The value of Authorization, None before the registry asked; raises RegistryError."""
        with self._lock:
            if self._service:
                token = self._tokens.get(scopes)
                if not token or token.until <= self._clock():
                    token = self._tokens[scopes] = self._new_token(self._service, scopes)
                return token.header
            found = self._found() if self._basic else None
            return found.basic if found else None

    def learn(self, challenges: Sequence[Challenge], scopes: Scopes, refused: str | None) -> bool:
        """Take in what a registry wants in place of a header, and whether that is worth a try.

        Raises RegistryError where it wants nothing that wanc has.
        """
        by_scheme = {each.scheme: each for each in reversed(challenges)}
        with self._lock:
            if bearer := by_scheme.get("bearer"):
                self._service = self._checked(bearer)
                self._asked[scopes] = bearer.parameters.get("scope", "")
                token = self._tokens.get(scopes)
                if token and token.header == refused:
                    del self._tokens[scopes]
                return True
            if "basic" in by_scheme:
                self._service, self._basic = None, True
                found = self._found()
                return bool(found and not found.is_identity_token and found.basic != refused)
        raise RegistryError(
            f"{self._host} wants to authenticate by {printable(', '.join(by_scheme))}; "
            "wanc can do so by Basic and Bearer"
        )

    def who(self) -> Credentials | None:
        """Whose credentials are used, for people; raises RegistryError."""
        with self._lock:
            return self._found()

    def _found(self) -> Credentials | None:
        if not self._looked:
            self._credentials = self._find()
            self._looked = True
        return self._credentials

    def _checked(self, bearer: Challenge) -> _Service:
        realm = bearer.parameters.get("realm", "")
        try:
            scheme, host, _ = origin(realm)
        except ValueError:
            scheme = host = ""
        if not host or scheme not in ("https", "http"):
            raise RegistryError(f"{self._host} names no token service that could be asked")
        plain = self._over_http or (self._over_loopback_http and is_loopback(host))
        if scheme == "http" and not plain:
            raise RegistryError(
                f"{self._host} names the token service http://{host}: credentials go there by "
                "HTTPS alone"
            )
        return _Service(realm=realm, service=bearer.parameters.get("service"))

    def _new_token(self, service: _Service, scopes: Scopes) -> _Token:
        began = self._clock()
        wanted = tuple(dict.fromkeys((*scopes, *self._asked.get(scopes, "").split())))
        found = self._found()
        if found and found.is_identity_token:
            answer = self._refreshed(service, wanted, found)
        else:
            answer = self._asked_for(service, wanted, found)
        host = host_of(service.realm)
        if answer.status != 200:
            refused = f" {found}" if found else ": no credentials were found"
            raise RegistryError(
                f"the token service {host} of {self._host} refuses{refused} ({told(answer)}); "
                f"`docker login {self._host}` stores other credentials"
            )
        header, seconds = _of_answer(answer, f"the token service {host} of {self._host}")
        return _Token(header=header, until=began + seconds - min(10.0, seconds / 10))

    def _asked_for(self, service: _Service, wanted: Scopes, found: Credentials | None) -> Answer:
        fields = [("service", service.service), *(("scope", scope) for scope in wanted)]
        query = urlencode([(name, text) for name, text in fields if text])
        url = service.realm + ("&" if urlsplit(service.realm).query else "?") + query
        return self._fetch("GET", url, {"Authorization": found.basic} if found else {}, None)

    def _refreshed(self, service: _Service, wanted: Scopes, found: Credentials) -> Answer:
        form = {
            "grant_type": "refresh_token",
            "service": service.service or "",
            "client_id": _CLIENT,
            "scope": " ".join(wanted),
            "refresh_token": found.secret,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._fetch("POST", service.realm, headers, urlencode(form).encode())


def _of_answer(answer: Answer, who: str) -> tuple[str, float]:
    """The header and the seconds of a token; raises RegistryError."""
    try:
        fields = json.loads(answer.body)
        token = fields.get("token") or fields.get("access_token")
        seconds = fields.get("expires_in")
    except (ValueError, AttributeError, RecursionError):  # which hold what they read
        token = seconds = None
    if not isinstance(token, str) or not re.fullmatch("[!-~]+", token):
        raise RegistryError(f"{who} answers no token")
    lasts = isinstance(seconds, int | float) and 0 < seconds < float("inf")
    return f"Bearer {token}", float(seconds) if lasts else _USUAL_SECONDS

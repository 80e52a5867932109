"""Requests to one registry: authorized, redirected with care, and tried again where that helps.

urllib3 moves the bytes. oras-py is not used: its version 0.2.43 reads a blob whole to put it, and
has neither ranges, nor the state of an upload, nor mounts, so that nothing that is cut can go on.

Credentials go to the registry's own address alone, and to no host that it redirects to. HTTPS is
never left for HTTP. Knows no blobs and no manifests.
"""

import os
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager

import urllib3
from urllib3.exceptions import HTTPError

from wanc import __version__
from wanc.errors import RegistryError
from wanc.registry.addresses import host_of, joined, origin
from wanc.registry.answers import (
    MOST_ERROR_BYTES,
    PASSING,
    Answer,
    Reply,
    asked_seconds,
    failure,
    told,
)
from wanc.registry.asked import Asked, Body
from wanc.registry.authorization import Authorization
from wanc.registry.challenge import parse_challenges
from wanc.registry.credentials import find_credentials, places
from wanc.registry.reference import Reference, is_loopback
from wanc.registry.retries import Attempts, PassingError, Patience

MOST_REDIRECTS = 5
_ALWAYS = frozenset({307, 308})
_WITHOUT_BODY = _ALWAYS | {301, 302, 303}
"""Statuses that redirect a GET or HEAD; others would turn into one."""
_MOST_TOKEN_BYTES = 1 << 20
_SEND_BYTES = 64 << 10
_CONNECTIONS = 16
"""Of one host that are kept open."""


class Transport:
    """A registry's connections, tokens and wishes; for several threads."""

    def __init__(
        self,
        reference: Reference,
        *,
        plain_http: bool | None = None,
        patience: Patience | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Connects to nothing yet.

        Args:
            reference: names the registry, and the repository whose credentials are looked for.
            plain_http: whether HTTP is spoken; None for this machine's own registry alone.
            patience: tries and times.
            environment: variables that say where credentials are.
        """
        self.patience = patience or Patience()
        self._environment = environment
        self._host = reference.host
        own = is_loopback(reference.host)
        plain = own if plain_http is None else plain_http
        self.base = f"{'http' if plain else 'https'}://{reference.address}"
        self._home = origin(self.base)
        self._pool = urllib3.PoolManager(
            maxsize=_CONNECTIONS,
            ssl_context=None if plain else ssl.create_default_context(),  # else for each connection
            blocksize=_SEND_BYTES,
        )
        self._authorization = Authorization(
            reference.host,
            lambda: find_credentials(reference.host, reference.name, environment),
            self._token_answer,
            self.patience.clock,
            over_http=plain and plain_http is True,
            over_loopback_http=plain and own,
        )

    def close(self) -> None:
        """Close every connection."""
        self._pool.clear()

    def attempts(self, what: str) -> Attempts:
        """To be counted by who tries something again by itself."""
        return Attempts(self.patience, what)

    def answer(self, asked: Asked, expected: Collection[int], most_bytes: int = 0) -> Answer:
        """Ask until there is an answer of an expected status; raises RegistryError.

        Args:
            asked: what may be asked twice without harm.
            expected: statuses; of any other, RegistryError says what it is.
            most_bytes: of the body; where it is longer, RegistryError. 0 where it is of no use.
        """
        attempts = self.attempts(asked.what)
        while True:
            try:
                return self.answer_once(asked, expected, most_bytes)
            except PassingError as cause:
                attempts.again(cause)

    def answer_once(self, asked: Asked, expected: Collection[int], most_bytes: int = 0) -> Answer:
        """Ask once; raises PassingError too, where another try may do better."""
        with self.reply(asked, expected) as reply:
            answer = self._in_memory(reply, most_bytes or MOST_ERROR_BYTES)
        if most_bytes and answer.status < 300 and len(answer.body) > most_bytes:
            raise RegistryError(
                f"{asked.what}: {self._host} answers more than the {most_bytes} bytes that are read"
            )
        return answer

    @contextmanager
    def reply(self, asked: Asked, expected: Collection[int]) -> Iterator[Reply]:
        """Ask once, and leave the body to be read; raises as answer_once does."""
        with closing(self._followed(asked)) as reply:
            if reply.status not in expected:
                raise self._refusal(asked, reply)
            yield reply

    def joined(self, base: str, location: str, what: str) -> str:
        """Where the answer of an address points to; raises RegistryError."""
        return joined(base, location, f"{what}: {self._host}")

    def is_home(self, url: str) -> bool:
        """Whether an address is the registry's own, and no other host's or port's."""
        return origin(url) == self._home

    def _followed(self, asked: Asked) -> Reply:
        """The reply at the end of all redirects."""
        url = asked.url
        redirects = _WITHOUT_BODY if asked.method in ("GET", "HEAD") else _ALWAYS
        for _ in range(MOST_REDIRECTS + 1):
            reply = self._authorized(asked, url)
            location = reply.headers.get("Location")
            if reply.status not in redirects or not location:
                return reply
            with closing(reply):
                self._in_memory(reply, MOST_ERROR_BYTES)
            url = self.joined(url, location, asked.what)
        raise RegistryError(
            f"{asked.what}: {self._host} redirects more than {MOST_REDIRECTS} times"
        )

    def _authorized(self, asked: Asked, url: str) -> Reply:
        """The reply to one address, with credentials where it is the registry's own."""
        if not self.is_home(url):
            return self._sent(asked.method, url, asked.headers, asked.body)
        for again in (True, False):
            header = self._authorization.header(asked.scopes)
            extra = {"Authorization": header} if header else {}
            reply = self._sent(asked.method, url, {**asked.headers, **extra}, asked.body)
            if reply.status != 401 or not again:
                break
            challenges = parse_challenges(reply.headers.getlist("WWW-Authenticate"))
            if not challenges or not self._authorization.learn(challenges, asked.scopes, header):
                break
            with closing(reply):
                self._in_memory(reply, MOST_ERROR_BYTES)
        return reply

    def _sent(
        self, method: str, url: str, headers: Mapping[str, str], body: Body | bytes | None
    ) -> Reply:
        size = body.size if isinstance(body, Body) else len(body or b"")
        framing = {"Content-Length": str(size)} if method not in ("GET", "HEAD") else {}
        always = {"User-Agent": f"wanc/{__version__}", "Accept-Encoding": "identity"}
        host, patience = host_of(url), self.patience
        silence = patience.commit_seconds if method == "PUT" else patience.silence_seconds
        opened = body.open() if isinstance(body, Body) else None
        try:
            response = self._pool.urlopen(
                method,
                url,
                body=opened or body,
                headers={**always, **framing, **headers},
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                timeout=urllib3.Timeout(connect=patience.connect_seconds, read=silence),
            )
        except HTTPError as error:
            raise failure(error, host) from error
        finally:
            if opened:
                opened.close()
        return Reply(response, url, host)

    def _in_memory(self, reply: Reply, most_bytes: int) -> Answer:
        """A reply with at most one byte more of its body than so many."""
        clock, began = self.patience.clock, self.patience.clock()
        body = reply.read(most_bytes, lambda: clock() - began > self.patience.answer_seconds)
        return Answer(status=reply.status, headers=reply.headers, body=body, url=reply.url)

    def _token_answer(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None
    ) -> Answer:
        with closing(self._sent(method, url, headers, body)) as reply:
            answer = self._in_memory(reply, _MOST_TOKEN_BYTES)
        if answer.status in PASSING:
            raise PassingError(
                f"the token service {host_of(url)} answers {told(answer)}", asked_seconds(reply)
            )
        return answer

    def _refusal(self, asked: Asked, reply: Reply) -> PassingError | RegistryError:
        """What a status means that was not hoped for."""
        answer = self._in_memory(reply, MOST_ERROR_BYTES)
        host = self._host if self.is_home(reply.url) else host_of(reply.url)
        said = told(answer)
        if answer.status in PASSING:
            return PassingError(f"{host} answers {said}", asked_seconds(reply))
        if answer.status in (401, 403) and self.is_home(reply.url):
            return RegistryError(f"{asked.what}: {self._denied(asked, said)}")
        if answer.status == 404:
            return RegistryError(f"{asked.what}: {host} does not have it ({said})")
        return RegistryError(f"{asked.what}: {host} answers {said}")

    def _denied(self, asked: Asked, said: str) -> str:
        if found := self._authorization.who():
            return (
                f"{self._host} refuses it to {found} ({said}); it needs an account with "
                f"{asked.allowed}, and `docker login {self._host}` stores another"
            )
        looked = ", ".join(map(str, places(self._environment)))
        return (
            f"{self._host} wants credentials ({said}), and none were found in {looked}; "
            f"`docker login {self._host}` stores them"
        )

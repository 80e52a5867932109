"""Who may do what in the double of a registry: users, passwords and tokens."""

import base64
import json
import secrets
from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Tokens:
    """Checks Basic or Bearer, and gives tokens for what a user may."""

    kind: Literal["basic", "bearer"]
    realm: str
    users: dict[str, str] = field(default_factory=lambda: {"ann": "pass:word"})
    identities: tuple[str, ...] = ("identity-of-ann",)
    anonymous_pull: bool = False
    readers: tuple[str, ...] = ()
    """Users who may not push."""
    seconds: int | None = 300
    """What expires_in says; None leaves it out."""
    key: str = "token"
    challenge: str = ""
    """In place of the true one."""
    given: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Scopes of every token."""
    posted: list[dict[str, list[str]]] = field(default_factory=list)

    def expire(self) -> None:
        """No token that was given is good any longer."""
        self.given.clear()

    def check(self, header: str | None, wanted: str) -> tuple[int, str]:
        """Status and challenge."""
        if self.kind == "basic":
            user = self._user(header)
            status = 403 if user in self.readers and "push" in wanted else 200 if user else 401
            return status, self.challenge or 'Basic realm="double"'
        token = (header or "").removeprefix("Bearer ")
        name, actions = wanted.rsplit(":", 1)
        granted = {
            a
            for s in self.given.get(token, ())
            if s.startswith(f"{name}:")
            for a in s.rsplit(":", 1)[1].split(",")
        }
        challenge = f'Bearer realm="{self.realm}",service="double",scope="{wanted}"'
        return 200 if {*actions.split(",")} <= granted else 401, self.challenge or challenge

    def of_get(self, header: str | None, query: dict[str, list[str]]) -> tuple[int, bytes]:
        """Status and body of the token service's answer."""
        user = self._user(header)
        if header and not user:
            return 401, b'{"errors":[{"code":"UNAUTHORIZED","message":"wrong password"}]}'
        if query.get("service") != ["double"]:
            return 400, b"no service"
        return self._token(user, query.get("scope", []))

    def of_post(self, form: dict[str, list[str]]) -> tuple[int, bytes]:
        """As OAuth 2 has it."""
        self.posted.append(form)
        known = form.get("refresh_token", [""])[0] in self.identities
        if not known or form.get("grant_type") != ["refresh_token"]:
            return 401, b"no"
        return self._token("ann", form["scope"][0].split())

    def _token(self, user: str | None, scopes: list[str]) -> tuple[int, bytes]:
        may_push = user is not None and user not in self.readers
        may_pull = user is not None or self.anonymous_pull
        granted = [
            s.rsplit(":", 1)[0]
            + ":"
            + ",".join(
                a for a in s.rsplit(":", 1)[1].split(",") if (may_push if a == "push" else may_pull)
            )
            for s in scopes
        ]
        token = secrets.token_hex(8)
        self.given[token] = tuple(granted)
        answer: dict[str, object] = {self.key: token}
        if self.seconds is not None:
            answer["expires_in"] = self.seconds
        return 200, json.dumps(answer).encode()

    def _user(self, header: str | None) -> str | None:
        if not header or not header.startswith("Basic "):
            return None
        user, _, password = base64.b64decode(header[6:]).decode().partition(":")
        return user if self.users.get(user) == password else None

"""Credentials of a registry, from where Docker, podman and skopeo keep them.

Reads their configs and asks their helpers. Knows no network. A secret stands in no text for people.
"""

import base64
import binascii
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wanc.errors import RegistryError
from wanc.registry.reference import DOCKER_HUB
from wanc.registry.texts import printable

_HUB_KEY = "https://index.docker.io/v1/"
"""Docker's own name for docker.io, in configs and to helpers."""
_TOKEN_USER = "<token>"
"""What a helper calls the user where the secret is an identity token."""
_HELPER = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")
HELPER_SECONDS = 60.0
"""Some helpers ask a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a registry knows somebody by."""

    user: str
    secret: str = field(repr=False)
    is_identity_token: bool = False
    """Whether the secret buys tokens and is no password."""
    place: str
    """Where it was found, for people."""

    def __str__(self) -> str:
        return f"the credentials of {printable(self.user)!r} from {self.place}"

    @property
    def basic(self) -> str:
        """The value of an Authorization header: a secret."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


def places(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The files that may have credentials; the first that has some of a host wins."""
    home = Path(environment.get("HOME") or Path.home())
    docker = Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    named, runtime = (environment.get(name) for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"))
    return (
        *([Path(named)] if named else []),
        docker,
        *([Path(runtime) / "containers" / "auth.json"] if runtime else []),
    )


def find_credentials(
    host: str, name: str, environment: Mapping[str, str] = os.environ
) -> Credentials | None:
    """Credentials of a repository's host, or None; raises RegistryError.

    Args:
        host: as the user writes it, with its port; docker.io for Docker's own.
        name: of the repository: podman's configs may have credentials of a part of a registry.
        environment: variables that say where configs are.
    """
    for file in places(environment):
        if found := _of_config(file, _normal(host), name, environment):
            return found
    return None


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RegistryError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):  # which hold what they read
        raise RegistryError(f"{file}: not JSON; `docker login` writes such a file") from None
    if not isinstance(config, dict):
        raise RegistryError(f"{file}: not a JSON object; `docker login` writes such a file")
    return config


def _of_config(
    file: Path, host: str, name: str, environment: Mapping[str, str]
) -> Credentials | None:
    config, keys = _read(file), _keys(host, name)
    auths, helpers = (_table(config, key) for key in ("auths", "credHelpers"))
    helper = next((helpers[key] for key in keys if key in helpers), config.get("credsStore"))
    if helper and (found := _of_helper(helper, host, file, environment)):
        return found
    for key in keys:
        if found := _of_entry(auths.get(key), f"{file}"):
            return found
    return None


def _keys(host: str, name: str) -> list[str]:
    """Keys that mean the repository, the most telling first: host/a/b, host/a, host."""
    parts = [host, *name.split("/")]
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _normal(key: str) -> str:
    """A key without what some programs write around a host."""
    if "://" in key:
        key = key.partition("://")[2].partition("/")[0]
    return DOCKER_HUB if key == "index.docker.io" else key.rstrip("/")


def _table(config: dict[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return {_normal(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def _of_entry(entry: Any, place: str) -> Credentials | None:
    if not isinstance(entry, dict):
        return None
    token, auth = entry.get("identitytoken"), entry.get("auth")
    user, secret = entry.get("username"), entry.get("password")
    if isinstance(auth, str) and auth:
        try:
            text = base64.b64decode(auth, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):  # which hold what they read
            text = ""
        user, colon, secret = text.partition(":")
        secret = secret.rstrip("\0")
        if not colon:
            raise RegistryError(f"{place}: auth is not user:password in base64")
    if isinstance(token, str) and token:
        named = user if isinstance(user, str) and user else _TOKEN_USER
        return Credentials(user=named, secret=token, is_identity_token=True, place=place)
    if isinstance(user, str) and isinstance(secret, str) and user:
        return Credentials(user=user, secret=secret, place=place)
    return None


def _of_helper(
    helper: Any, host: str, file: Path, environment: Mapping[str, str]
) -> Credentials | None:
    """Ask a helper; raises RegistryError."""
    if not isinstance(helper, str) or not _HELPER.fullmatch(helper):
        raise RegistryError(f"{file}: {helper!r} is no name of a credential helper")
    program = f"docker-credential-{helper}"
    server = _HUB_KEY if host == DOCKER_HUB else host
    try:
        done = subprocess.run(
            [program, "get"],
            input=server.encode(),
            capture_output=True,
            timeout=HELPER_SECONDS,
            env={**environment},
        )
    except subprocess.TimeoutExpired:  # which holds what was printed
        late = f"{program}, which {file} names, did not answer within {HELPER_SECONDS:.0f} s"
        raise RegistryError(late) from None
    except OSError as error:
        raise RegistryError(
            f"{program}, which {file} names, cannot be started: {error.strerror}; "
            "it must be on PATH, or the config must not name it"
        ) from error
    said = done.stdout.decode(errors="replace")
    complaint = done.stderr.decode(errors="replace")
    if not done.returncode:
        return _of_answer(said, program)
    if "credentials not found" in said + complaint:  # so they say that they know no such host
        return None
    shown = complaint or (said if "{" not in said else "")
    raise RegistryError(f"{program} failed: {printable(shown) or 'without a word'}")


def _of_answer(said: str, program: str) -> Credentials | None:
    try:
        answer = json.loads(said)
        user, secret = answer["Username"], answer["Secret"]
    except (ValueError, TypeError, KeyError, RecursionError):  # which hold what they read
        raise RegistryError(f"{program} answered no JSON with Username and Secret") from None
    if not isinstance(user, str) or not isinstance(secret, str) or not secret:
        return None
    return Credentials(
        user=user, secret=secret, is_identity_token=user == _TOKEN_USER, place=program
    )

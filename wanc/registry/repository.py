"""A repository of a registry: where blobs and manifests go to and come from.

``connect`` makes one; what can be done with it is in blobs.py, uploads.py, downloads.py,
manifests.py and referrers.py. It serves several threads at once.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from wanc.registry.asked import Asked, Body
from wanc.registry.reference import Reference
from wanc.registry.retries import Patience
from wanc.registry.transport import Transport

OnBytes = Callable[[int, int], None]
"""Told of bytes as they come: moved, which is what went over the network, twice where it had to go
twice; and reused, which was there already. From whichever thread does the work."""


def no_matter(moved: int, reused: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository, and the way to it."""

    host: str
    """As in references."""
    name: str
    transport: Transport = field(repr=False, compare=False)

    def close(self) -> None:
        """Close its connections; ``contextlib.closing`` does so at the end of a block."""
        self.transport.close()

    def what(self, thing: str) -> str:
        """Something of it, for people."""
        return f"{self.host}/{self.name}: {thing}"

    def url(self, *parts: str, **query: str | None) -> str:
        """An address below it."""
        path = "/".join(quote(part, safe=":") for part in parts)
        given = urlencode({key: value for key, value in query.items() if value is not None})
        return f"{self.transport.base}/v2/{self.name}/{path}" + (f"?{given}" if given else "")

    def asked(
        self,
        method: str,
        url: str,
        thing: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | bytes | None = None,
        push: bool | None = None,
        mount_from: str | None = None,
    ) -> Asked:
        """A request about something of it.

        Args:
            method: of HTTP.
            url: an address below it, or where the registry pointed to.
            thing: for people.
            headers: beside those of every request.
            body: what is sent.
            push: whether it needs leave to push; None for whatever is no GET or HEAD.
            mount_from: another repository that is read.
        """
        needs_push = method not in ("GET", "HEAD") if push is None else push
        actions = "pull,push" if needs_push else "pull"
        scopes = [f"repository:{self.name}:{actions}"]
        if mount_from:
            scopes.append(f"repository:{mount_from}:pull")
        return Asked(
            method=method,
            url=url,
            what=self.what(thing),
            scopes=tuple(scopes),
            headers=headers or {},
            body=body,
        )


def connect(
    reference: Reference,
    *,
    plain_http: bool | None = None,
    patience: Patience | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Repository:
    """The repository of a reference. Nothing is asked before something is wanted of it.

    Args:
        reference: tag and digest do not matter.
        plain_http: whether HTTP is spoken; None for this machine's own registry alone.
        patience: tries and times.
        environment: variables that say where credentials are.
    """
    transport = Transport(
        reference, plain_http=plain_http, patience=patience, environment=environment
    )
    return Repository(host=reference.host, name=reference.name, transport=transport)

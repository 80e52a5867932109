"""Blobs to a repository: mounted, or sent in chunks that go on where a connection broke.

An upload is a session of the registry. What it has of one, it alone knows: after a failure it is
asked, and nothing is sent twice on a guess. Knows nothing of what blobs hold.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from wanc.errors import RegistryError
from wanc.registry.answers import Answer, told
from wanc.registry.asked import Body, Source, named
from wanc.registry.blobs import blob_name, check_digest, has_blob, wrong_digest
from wanc.registry.repository import OnBytes, Repository, no_matter
from wanc.registry.retries import SOMETHING_BYTES, PassingError

CHUNK_BYTES = 16 << 20
"""A blob of so many goes at once."""
_OCTETS = {"Content-Type": "application/octet-stream"}
_RANGE = re.compile("(?:bytes=)?0-([0-9]{1,18})")
_REFUSED = frozenset({400, 404, 405, 410, 411, 413, 415, 416, 501})
"""A session that does not go on like this, by what registries answer; another one may."""
_LOST = frozenset({404, 410, 416})
"""Of those, what a session answers that is no more."""
_STATES = frozenset({200, 202, 204})

Outcome = Literal["there", "mounted", "sent"]


class _SessionError(PassingError):
    """A session takes no more, or not in this way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Upload:
    repository: Repository
    source: Source = field(repr=False)
    digest: str
    size: int
    chunk_bytes: int
    on_bytes: OnBytes

    @property
    def name(self) -> str:
        return blob_name(self.digest)

    def body(self, start: int, size: int) -> Body:
        return Body(
            source=self.source, start=start, size=size, sent=lambda sent: self.on_bytes(sent, 0)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """An upload, as the registry keeps it."""

    url: str
    chunk_bytes: int
    offset: int = 0
    """Bytes that the registry has."""
    resumed: bool = False
    """Whether the registry alone says so."""


def push_blob(
    repository: Repository,
    source: Source | Callable[[], Source],
    digest: str,
    size: int,
    *,
    mount_from: str | None = None,
    on_bytes: OnBytes = no_matter,
    chunk_bytes: int = CHUNK_BYTES,
) -> Outcome:
    """Have a blob in a repository; raises RegistryError, and RunError where a file is not read.

    Args:
        repository: where to.
        source: a file that has size bytes and stays as it is, or the bytes; or what gives one of
            them, and is called where there is something to be sent.
        digest: of the bytes, which the registry checks.
        size: in bytes.
        mount_from: name of a repository of the same registry that may have the blob.
        on_bytes: told of what moves.
        chunk_bytes: what is sent at once, where the registry asks for no more.
    """
    check_digest(digest, repository.what("blob"))
    upload = _Upload(
        repository=repository,
        source=b"",
        digest=digest,
        size=size,
        chunk_bytes=chunk_bytes,
        on_bytes=on_bytes,
    )
    if has_blob(repository, digest):
        on_bytes(0, size)
        return "there"
    mounts = mount_from and mount_from != repository.name
    is_mounted, session = _mounted(upload, mount_from or "") if mounts else (False, None)
    if is_mounted:
        on_bytes(0, size)
        return "mounted"
    _send(replace(upload, source=source() if callable(source) else source), session)
    return "sent"


def _mounted(upload: _Upload, mount_from: str) -> tuple[bool, _Session | None]:
    """Whether a blob could be taken from another repository, or the session offered instead."""
    repository = upload.repository
    url = repository.url("blobs", "uploads", "", mount=upload.digest, **{"from": mount_from})
    asked = repository.asked("POST", url, upload.name, mount_from=mount_from)
    try:
        answer = repository.transport.answer_once(asked, {201, 202, *_REFUSED, 401, 403})
    except PassingError:  # as likely to pass without it
        return False, None
    return answer.status == 201, _session_of(upload, answer) if answer.status == 202 else None


def _begun(upload: _Upload) -> _Session:
    repository = upload.repository
    asked = repository.asked("POST", repository.url("blobs", "uploads", ""), upload.name)
    return _session_of(upload, repository.transport.answer(asked, {202}))


def _session_of(upload: _Upload, answer: Answer) -> _Session:
    least = answer.headers.get("OCI-Chunk-Min-Length", "")
    asked = int(least) if re.fullmatch("[0-9]{1,18}", least) else 0
    location = answer.headers.get("Location")
    if not location:
        raise RegistryError(
            f"{upload.repository.what(upload.name)}: the registry does not say where to send it"
        )
    return _Session(
        url=_joined(upload, answer, location), chunk_bytes=max(upload.chunk_bytes, asked, 1)
    )


def _joined(upload: _Upload, answer: Answer, location: str) -> str:
    what = upload.repository.what(upload.name)
    return upload.repository.transport.joined(answer.url, location, what)


def _send(upload: _Upload, session: _Session | None) -> None:
    """Send a blob, in as many sessions as it takes.

    A session that refuses its first chunk, or a second session that refuses any, is of a registry
    that takes no chunks, as there are some: the blob is then sent at once.
    """
    attempts = upload.repository.transport.attempts(upload.repository.what(upload.name))
    at_once, refusals = False, 0
    while True:
        session = session or _begun(upload)
        at_once = at_once or upload.size <= session.chunk_bytes
        try:
            while not at_once and session.offset < upload.size:
                session = _with_chunk(upload, session)
                attempts.brought_something()
            return _close(upload, session, upload.size if at_once else 0)
        except PassingError as cause:
            attempts.again(cause)
            refusals += isinstance(cause, _SessionError)
        if has_blob(upload.repository, upload.digest):  # the last answer may have been lost
            return None
        at_once = at_once or refusals > 1 or (refusals == 1 and not session.offset)
        before, session = session.offset, None if at_once else _asked_about(upload, session)
        if session and session.offset - before >= SOMETHING_BYTES:
            attempts.brought_something()


def _with_chunk(upload: _Upload, session: _Session) -> _Session:
    """Send the next chunk; raises PassingError where it is not known whether it arrived.

    What came of a chunk that was taken, some registries say wrongly: 202 alone counts.
    """
    size = min(session.chunk_bytes, upload.size - session.offset)
    end = session.offset + size
    asked = upload.repository.asked(
        "PATCH",
        session.url,
        upload.name,
        headers={**_OCTETS, "Content-Range": f"{session.offset}-{end - 1}"},
        body=upload.body(session.offset, size),
    )
    answer = upload.repository.transport.answer_once(asked, {202, *_REFUSED})
    if answer.status != 202:
        raise _refused(answer)
    location = answer.headers.get("Location")
    url = _joined(upload, answer, location) if location else session.url
    return replace(session, url=url, offset=end)


def _close(upload: _Upload, session: _Session, size: int) -> None:
    """End a session, with so many bytes or after all chunks; raises as _with_chunk does."""
    mark = "&" if "?" in session.url else "?"
    asked = upload.repository.asked(
        "PUT",
        f"{session.url}{mark}digest={upload.digest}",
        upload.name,
        headers=_OCTETS,
        body=upload.body(0, size) if size else None,
    )
    answer = upload.repository.transport.answer_once(asked, {201, *_REFUSED})
    what = upload.repository.what(upload.name)
    if answer.status == 400 and not session.resumed:
        raise RegistryError(
            f"{what}: the registry finds other bytes than its digest says ({told(answer)}); look "
            f"whether {named(upload.source)} is damaged"
        )
    if answer.status in _LOST or (answer.status != 201 and not size):
        raise _refused(answer)
    if answer.status != 201:
        raise RegistryError(f"{what}: {_refused(answer)}")
    said = answer.headers.get("Docker-Content-Digest", upload.digest)
    if said != upload.digest:
        raise wrong_digest(what, said, upload.digest)


def _asked_about(upload: _Upload, session: _Session) -> _Session | None:
    """A session as the registry has it, or None where it has none that could go on.

    Of no byte at all registries say ``0-0``, as of one.
    """
    asked = upload.repository.asked("GET", session.url, upload.name, push=True)
    answer = upload.repository.transport.answer(asked, {*_STATES, *_REFUSED})
    found = _RANGE.fullmatch(answer.headers.get("Range", ""))
    if answer.status not in _STATES or not found or not 0 < int(found[1]) < upload.size:
        return None
    location = answer.headers.get("Location")
    url = _joined(upload, answer, location) if location else session.url
    return replace(session, url=url, offset=int(found[1]) + 1, resumed=True)


def _refused(answer: Answer) -> _SessionError:
    return _SessionError(f"the registry does not take it ({told(answer)})")

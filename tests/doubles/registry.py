"""Stands for a registry: the OCI Distribution Specification 1.1, strictly, with faults on demand.

What the specification forbids a client is refused, and kept in ``wrongs`` where it is more than a
wrong guess. ``seen`` has every request. Faults are attributes, to be set before the request.
"""

import hashlib
import json
import re
import secrets
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.doubles.registry_tokens import Tokens

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
NAME = "[a-z0-9]+(?:[._/-][a-z0-9]+)*"
DIGEST = re.compile("sha256:[0-9a-f]{64}")


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass
class Seen:
    """A request as it came."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    received: int = 0
    """Bytes of the body."""
    answered: int = 0


@dataclass
class Scripted:
    """An answer that comes in place of the true one, so many times."""

    method: str
    path: str
    status: int
    headers: dict[str, str]
    body: bytes
    times: int


@dataclass
class Session:
    """An upload under way."""

    name: str
    data: bytearray = field(default_factory=bytearray)
    state: str = field(default_factory=lambda: secrets.token_urlsafe(8) + "==")
    patches: int = 0


class Server:
    """Something that answers HTTP on a port of this machine, in threads."""

    handler: ClassVar[type[BaseHTTPRequestHandler]]

    def __init__(self, context: Any = None) -> None:
        """context: of TLS, where HTTPS is spoken."""
        self.seen: list[Seen] = []
        self.wrongs: list[str] = []
        self.ended = threading.Event()
        owner = self

        class Listening(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                import sys

                error = sys.exc_info()[1]
                if not isinstance(error, OSError):  # a client that went away, or shook no hands
                    owner.wrongs.append(repr(error))

        self._listening = Listening(("127.0.0.1", 0), self.handler)
        self._listening.owner = self  # type: ignore[attr-defined]
        if context:
            self._listening.socket = context.wrap_socket(self._listening.socket, server_side=True)
        scheme = "https" if context else "http"
        self.host = f"127.0.0.1:{self._listening.server_address[1]}"
        self.base = f"{scheme}://{self.host}"
        self._thread = threading.Thread(target=self._listening.serve_forever, args=(0.02,))

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._listening.shutdown()
        self._thread.join()
        self._listening.server_close()

    def asked(self, method: str, path: str = "") -> list[Seen]:
        """The requests of a method whose path has a part."""
        return [each for each in self.seen if each.method == method and path in each.path]


class Answering(BaseHTTPRequestHandler):
    """What all servers here do with a request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def begin(self) -> Seen:
        parts = urlsplit(self.path)
        seen = Seen(self.command, parts.path, parse_qs(parts.query), dict(self.headers))
        self.owner.seen.append(seen)
        return seen

    @property
    def owner(self) -> Any:
        return self.server.owner  # type: ignore[attr-defined]

    def body(self, seen: Seen, most: int | None = None) -> bytes:
        """The body, or its first bytes."""
        size = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(size if most is None else min(size, most))
        seen.received = len(data)
        return data

    def cut(self) -> None:
        """Break the connection, with nothing more said."""
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(2)

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.seen_now.answered = status
        self.send_response(status)
        headers.setdefault("Content_Length", str(len(body)))
        for name, text in headers.items():
            for each in text if isinstance(text, list) else [text]:
                self.send_header(name.replace("_", "-"), each)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, message: str = "", **headers: str) -> None:
        body = json.dumps({"errors": [{"code": code, "message": message or code.lower()}]})
        self.answer(status, body.encode(), Content_Type="application/json", **headers)


class RegistryHandler(Answering):
    """The endpoints."""

    ENDPOINTS: ClassVar = (
        (r"/token", "token"),
        (rf"/v2/({NAME})/blobs/uploads/", "uploads"),
        (rf"/v2/({NAME})/blobs/uploads/([\w-]+)", "session"),
        (rf"/v2/({NAME})/blobs/(.+)", "blob"),
        (rf"/v2/({NAME})/manifests/(.+)", "manifest"),
        (rf"/v2/({NAME})/referrers/(.+)", "referrers"),
    )

    def handle_any(self) -> None:
        seen = self.seen_now = self.begin()
        owner: RegistryDouble = self.owner
        if not self.headers.get("User-Agent", "").startswith("wanc/"):
            owner.wrongs.append("no User-Agent")
        for scripted in owner.scripted:
            if scripted.times and scripted.method == seen.method and scripted.path in seen.path:
                scripted.times -= 1
                self.body(seen)
                return self.answer(scripted.status, scripted.body, **scripted.headers)
        for pattern, endpoint in self.ENDPOINTS:
            found = re.fullmatch(pattern, seen.path)
            if found and (endpoint == "token" or self.allowed(seen, found[1])):
                return getattr(self, f"{endpoint}_{seen.method.lower()}")(seen, *found.groups())
            if found:
                return None
        return self.answer(404, b"404 page not found")

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = handle_any

    # --- who may --------------------------------------------------------------------------

    def allowed(self, seen: Seen, name: str) -> bool:
        """Whether the request is authorized; else it has been answered."""
        owner: RegistryDouble = self.owner
        if owner.tokens is None:
            if "Authorization" in seen.headers:
                owner.wrongs.append("Authorization, though nobody asked for it")
            return True
        push = seen.method not in ("GET", "HEAD") or "/uploads/" in seen.path
        wanted = f"repository:{name}:{'pull,push' if push else 'pull'}"
        status, challenge = owner.tokens.check(seen.headers.get("Authorization"), wanted)
        if status == 200:
            return True
        self.body(seen)
        headers = {"WWW_Authenticate": challenge} if challenge else {}
        self.refuse(status, "UNAUTHORIZED" if status == 401 else "DENIED", **headers)
        return False

    def token_get(self, seen: Seen) -> None:
        self.answer(*self.owner.tokens.of_get(seen.headers.get("Authorization"), seen.query))

    def token_post(self, seen: Seen) -> None:
        self.answer(*self.owner.tokens.of_post(parse_qs(self.body(seen).decode())))

    # --- blobs ----------------------------------------------------------------------------

    def blob_head(self, seen: Seen, name: str, digest: str) -> None:
        data = self.owner.blobs.get(name, {}).get(digest)
        if data is None:
            return self.refuse(404, "BLOB_UNKNOWN")
        return self.answer(200, b"", Content_Length=str(len(data)), Docker_Content_Digest=digest)

    def blob_get(self, seen: Seen, name: str, digest: str) -> None:
        owner: RegistryDouble = self.owner
        if not DIGEST.fullmatch(digest):
            return self.refuse(400, "DIGEST_INVALID")
        data = owner.blobs.get(name, {}).get(digest)
        if data is None:
            return self.refuse(404, "BLOB_UNKNOWN")
        if owner.blobs_at:
            return self.answer(307, Location=f"{owner.blobs_at}/{digest}?signature=s3cret")
        return self.serve(owner.changed(data), digest)

    def serve(self, data: bytes, digest: str) -> None:
        """A blob, or the rest of it."""
        owner: RegistryDouble = self.owner
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(found[1]) if found and owner.has_ranges else 0
        headers = {"Docker_Content_Digest": digest}
        if start >= len(data) and start:
            return self.refuse(416, "RANGE_INVALID")
        if found and owner.has_ranges:
            begins = start + owner.range_lie
            headers["Content_Range"] = f"bytes {begins}-{len(data) - 1}/{len(data)}"
        part = data[start:]
        if owner.is_endless:
            return self.stream(206 if start else 200, part, headers)
        headers["Content_Length"] = str(len(part) + owner.size_lie)
        status = 206 if found and owner.has_ranges else 200
        if owner.cut_downloads or owner.is_slow:
            most = owner.cut_downloads.pop(0) if owner.cut_downloads else len(part) // 2
            self.answer(status, part[:most], **headers)
            if owner.is_slow:
                self.wfile.flush()
                owner.ended.wait(20)
            return self.cut()
        return self.answer(status, part, **headers)

    def stream(self, status: int, part: bytes, headers: dict[str, str]) -> None:
        """With no Content-Length, and no end."""
        self.send_response(status)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.wfile.write(part)
        while not self.owner.ended.is_set():
            self.wfile.write(bytes(1 << 16))
            self.owner.endless_bytes += 1 << 16

    # --- uploads --------------------------------------------------------------------------

    def uploads_post(self, seen: Seen, name: str) -> None:
        owner: RegistryDouble = self.owner
        if self.headers.get("Content-Length") != "0":
            owner.wrongs.append("a POST of an upload without Content-Length: 0")
        mount, origin = (seen.query.get(key, [""])[0] for key in ("mount", "from"))
        if mount and owner.mounts and mount in owner.blobs.get(origin, {}):
            owner.blobs.setdefault(name, {})[mount] = owner.blobs[origin][mount]
            return self.answer(201, Location=f"/v2/{name}/blobs/{mount}")
        identity = secrets.token_hex(8)
        owner.sessions[identity] = Session(name)
        headers = {"OCI_Chunk_Min_Length": str(owner.least_chunk)} if owner.least_chunk else {}
        return self.answer(202, Location=self.location(identity), Range="0-0", **headers)

    def location(self, identity: str) -> str:
        owner: RegistryDouble = self.owner
        session = owner.sessions[identity]
        query = urlencode({"_state": session.state})
        path = f"/v2/{session.name}/blobs/uploads/{identity}?{query}"
        return f"{owner.base}{path}" if owner.absolute else path

    def found_session(self, seen: Seen, identity: str) -> Session | None:
        session = self.owner.sessions.get(identity)
        if session and seen.query.get("_state") != [session.state]:
            self.owner.wrongs.append("an upload without the query of its location")
        if session is None:
            self.body(seen)
            self.refuse(404, "BLOB_UPLOAD_UNKNOWN")
        return session

    def session_get(self, seen: Seen, name: str, identity: str) -> None:
        if session := self.found_session(seen, identity):
            self.answer(204, Location=self.location(identity), Range=self.owner.range_of(session))

    def received(self, seen: Seen, session: Session) -> bool:
        """Take a body into a session; False where the connection was cut within it."""
        owner: RegistryDouble = self.owner
        size = int(self.headers.get("Content-Length") or 0)
        if owner.cut_uploads and size > owner.cut_uploads[0]:
            session.data += self.body(seen, owner.cut_uploads.pop(0))[: owner.kept_of_cut]
            self.cut()
            return False
        session.data += self.body(seen)
        return True

    def session_patch(self, seen: Seen, name: str, identity: str) -> None:
        owner: RegistryDouble = self.owner
        if not (session := self.found_session(seen, identity)):
            return None
        size = int(self.headers["Content-Length"])
        found = re.fullmatch("([0-9]+)-([0-9]+)", self.headers.get("Content-Range", ""))
        if not found or int(found[2]) - int(found[1]) + 1 != size or size > owner.most_chunk:
            self.body(seen)
            return self.refuse(400, "BLOB_UPLOAD_INVALID")
        if self.headers.get("Content-Type") != "application/octet-stream":
            owner.wrongs.append("a chunk of another type")
        if not owner.takes_chunks:
            self.body(seen)
            return self.refuse(405, "UNSUPPORTED")
        if int(found[1]) != len(session.data):
            self.body(seen)
            there = {"Location": self.location(identity), "Range": owner.range_of(session)}
            return self.refuse(416, "RANGE_INVALID", **there)
        if not self.received(seen, session):
            return None
        session.patches += 1
        headers = {"Location": self.location(identity), "Range": owner.range_of(session)}
        if session.patches == owner.lose_after and owner.loses:
            owner.loses -= 1
            del owner.sessions[identity]
        return self.cut() if owner.lost_answer("PATCH") else self.answer(202, **headers)

    def session_put(self, seen: Seen, name: str, identity: str) -> None:
        owner: RegistryDouble = self.owner
        if not (session := self.found_session(seen, identity)):
            return None
        if not self.received(seen, session):
            return None
        del owner.sessions[identity]
        data, digest = bytes(session.data), seen.query.get("digest", [""])[0]
        if sha256(data) != digest:
            return self.refuse(400, "DIGEST_INVALID", "provided digest did not match")
        owner.blobs.setdefault(name, {})[digest] = data
        if owner.lost_answer("PUT"):
            return self.cut()
        return self.answer(
            201,
            Location=f"/v2/{name}/blobs/{digest}",
            Docker_Content_Digest=owner.digest_lie or digest,
        )

    # --- manifests ------------------------------------------------------------------------

    def manifest_head(self, seen: Seen, name: str, asked: str) -> None:
        self.manifest_get(seen, name, asked)

    def manifest_get(self, seen: Seen, name: str, asked: str) -> None:
        owner: RegistryDouble = self.owner
        digest = owner.tags.get(name, {}).get(asked, asked)
        media_type, data = owner.manifests.get(name, {}).get(digest, ("", b""))
        if not data:
            code = "MANIFEST_UNKNOWN" if name in owner.manifests else "NAME_UNKNOWN"
            return self.refuse(404, code)
        accepted = [each.strip() for each in self.headers.get("Accept", "").split(",")]
        if media_type not in accepted and not owner.ignores_accept:
            return self.refuse(404, "MANIFEST_UNKNOWN", "accept header does not support it")
        data = owner.changed(data)
        headers = {"Content_Type": f"{media_type}; charset=utf-8"}
        headers["Content_Length"] = str(len(data))
        if owner.has_digest_header:
            headers["Docker_Content_Digest"] = owner.digest_lie or digest
        return self.answer(200, data, **headers)

    def manifest_put(self, seen: Seen, name: str, asked: str) -> None:
        owner: RegistryDouble = self.owner
        data, media_type = self.body(seen), self.headers.get("Content-Type", "")
        value = json.loads(data)
        if value.get("mediaType", media_type) != media_type:
            return self.refuse(400, "MANIFEST_INVALID", "mediaType is not the Content-Type")
        digest = sha256(data)
        if ":" in asked and asked != digest:
            return self.refuse(400, "DIGEST_INVALID")
        if not owner.has_all(name, value):
            return self.refuse(400, "MANIFEST_BLOB_UNKNOWN")
        owner.manifests.setdefault(name, {})[digest] = (media_type, data)
        if ":" not in asked:
            owner.tags.setdefault(name, {})[asked] = digest
        if owner.after_put:
            owner.after_put.pop(0)()
        headers = {"Docker_Content_Digest": owner.digest_lie or digest}
        if owner.has_referrers and "subject" in value:
            headers["OCI_Subject"] = value["subject"]["digest"]
        return self.answer(201, Location=f"/v2/{name}/manifests/{digest}", **headers)

    def referrers_get(self, seen: Seen, name: str, digest: str) -> None:
        owner: RegistryDouble = self.owner
        if not owner.has_referrers:
            return self.answer(404, b"404 page not found")
        listed = owner.listed(name, digest)
        headers = {"Content_Type": INDEX}
        if (wanted := seen.query.get("artifactType")) and owner.filters:
            listed = [each for each in listed if each.get("artifactType") == wanted[0]]
            headers["OCI_Filters_Applied"] = "artifactType"
        start = int(seen.query.get("from", ["0"])[0])
        page = listed[start : start + owner.page_size]
        if len(listed) > start + owner.page_size:
            query = {"from": start + owner.page_size, **{k: v[0] for k, v in seen.query.items()}}
            query["from"] = start + owner.page_size
            following = owner.page_at or f"/v2/{name}/referrers/{digest}?{urlencode(query)}"
            headers["Link"] = f'<{following}>; rel="next"'
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": page}
        return self.answer(200, json.dumps(index).encode(), **headers)


class RegistryDouble(Server):
    """A registry in memory."""

    handler = RegistryHandler

    def __init__(self, context: Any = None) -> None:
        super().__init__(context)
        self.blobs: dict[str, dict[str, bytes]] = {}
        self.manifests: dict[str, dict[str, tuple[str, bytes]]] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.sessions: dict[str, Session] = {}
        self.scripted: list[Scripted] = []
        self.tokens: Tokens | None = None
        self.absolute = True
        self.mounts = self.has_ranges = self.has_digest_header = self.takes_chunks = True
        self.has_referrers = self.filters = True
        self.page_size, self.page_at = 100, ""
        self.least_chunk, self.most_chunk = 0, 1 << 30
        self.blobs_at = ""
        self.cut_uploads: list[int] = []
        """Of the next requests with more: bytes after which the connection breaks."""
        self.kept_of_cut: int | None = None
        """Of those bytes, how many stay in the session; None for all."""
        self.cut_downloads: list[int] = []
        self.lost_answers: list[str] = []
        """Methods of requests that are done and not answered."""
        self.lose_after, self.loses = 0, 0
        """Chunks after which a session is forgotten, and how many sessions are."""
        self.digest_lie, self.size_lie, self.range_lie = "", 0, 0
        self.damages = self.is_endless = self.is_slow = self.ignores_accept = False
        self.endless_bytes = 0
        self.after_put: list[Any] = []
        """Called one after the other, at the end of a manifest's PUT."""

    def script(
        self, method: str, path: str, status: int, body: bytes = b"", times: int = 1, **headers: str
    ) -> None:
        self.scripted.append(Scripted(method, path, status, headers, body, times))

    def changed(self, data: bytes) -> bytes:
        return bytes([data[0] ^ 1]) + data[1:] if self.damages and data else data

    def lost_answer(self, method: str) -> bool:
        lost = method in self.lost_answers
        if lost:
            self.lost_answers.remove(method)
        return lost

    def range_of(self, session: Session) -> str:
        """As registries write it: 0-0 for nothing too."""
        return f"0-{max(0, len(session.data) - 1)}"

    def has_all(self, name: str, manifest: dict[str, Any]) -> bool:
        blobs = [*manifest.get("layers", []), *filter(None, [manifest.get("config")])]
        listed = manifest.get("manifests", [])
        return all(each["digest"] in self.blobs.get(name, {}) for each in blobs) and all(
            each["digest"] in self.manifests.get(name, {}) for each in listed
        )

    def listed(self, name: str, subject: str) -> list[dict[str, Any]]:
        found = []
        for digest, (media_type, data) in self.manifests.get(name, {}).items():
            value = json.loads(data)
            if value.get("subject", {}).get("digest") != subject:
                continue
            entry = {"mediaType": media_type, "digest": digest, "size": len(data)}
            if kind := value.get("artifactType") or value.get("config", {}).get("mediaType"):
                entry["artifactType"] = kind
            found.append(entry | {"annotations": value.get("annotations", {})})
        return found


class StorageHandler(Answering):
    """Gives what it has by digest, and takes what is put."""

    def do_GET(self) -> None:
        seen = self.seen_now = self.begin()
        data = self.owner.blobs.get(seen.path.strip("/"))
        if data is None:
            return self.answer(403, b"<Error>signature</Error>")
        start = int(re.sub(r"\D", "", self.headers.get("Range", "0")))
        more = {"Content_Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        return self.answer(206 if start else 200, data[start:], **more)

    def do_PUT(self) -> None:
        seen = self.seen_now = self.begin()
        self.owner.put.append(self.body(seen))
        self.answer(201)

    do_PATCH = do_PUT


class Storage(Server):
    """Another host, to which a registry redirects."""

    handler = StorageHandler

    def __init__(self) -> None:
        super().__init__()
        self.blobs: dict[str, bytes] = {}
        self.put: list[bytes] = []

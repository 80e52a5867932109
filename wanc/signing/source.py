"""The source revision that a bundle was made from, as its signer names it."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wanc.errors import RequestError

_DIGESTS = {
    "gitCommit": re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}"),
    "sha1": re.compile(r"[0-9a-f]{40}"),
    "sha256": re.compile(r"[0-9a-f]{64}"),
}
"""in-toto's names of algorithms, and how their values are spelled."""
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+")
_MOST_LETTERS = 2048
_GIT_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source and its revision."""

    uri: str | None
    algorithm: str
    """A key of in-toto's digest sets."""
    value: str

    def descriptor(self) -> dict[str, Any]:
        """As in-toto describes a resource."""
        uri = {"uri": self.uri} if self.uri else {}
        return {"name": "source", **uri, "digest": {self.algorithm: self.value}}


def check_uri(option: str, text: str) -> None:
    """Raise RequestError where a text is no URI with a scheme."""
    if len(text) > _MOST_LETTERS or not _URI.fullmatch(text):
        raise RequestError(f"{option} {text[:80]!r}: needs a URI, as https://ci.example/wanc")


def source_of(uri: str | None, digest: str | None, folder: Path | None) -> Source | None:
    """What was given of a source, or the commit of a folder; None for nothing. RequestError."""
    if uri is not None:
        check_uri("--source-uri", uri)
    if folder is not None and digest is not None:
        raise RequestError("give one of --source and --source-digest")
    if folder is not None:
        return Source(uri=uri, algorithm="gitCommit", value=_commit(folder))
    if digest is not None:
        algorithm, value = _parsed(digest)
        return Source(uri=uri, algorithm=algorithm, value=value)
    if uri is not None:
        raise RequestError("--source-uri: names no revision; give --source-digest, or --source")
    return None


def _parsed(digest: str) -> tuple[str, str]:
    algorithm, colon, value = digest.rpartition(":")
    algorithm = algorithm if colon else "gitCommit"
    spelled = _DIGESTS.get(algorithm)
    if spelled is None or not spelled.fullmatch(value):
        raise RequestError(
            f"--source-digest {digest[:80]!r}: needs a commit's 40 or 64 hex digits, or one of "
            "gitCommit:…, sha1:… and sha256:…"
        )
    return algorithm, value


def _commit(folder: Path) -> str:
    """The commit that a work tree stands at, without changes; raises RequestError."""
    changed = _git(folder, "status", "--porcelain")
    if changed:
        raise RequestError(
            f"--source {folder}: has changes that no commit has, as {changed.splitlines()[0]!r}: "
            "commit them, or give --source-digest"
        )
    return _git(folder, "rev-parse", "HEAD").strip()


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestError(f"--source {folder}: git cannot be run: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["git failed"]
        raise RequestError(f"--source {folder}: {said[0]}")
    return done.stdout

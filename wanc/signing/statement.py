"""in-toto statements, version 1: what is claimed of which digests.

Knows nothing of what predicates say. Input is untrusted, though somebody signed it.
https://github.com/in-toto/attestation: spec/v1/statement.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from wanc.bundle import oci
from wanc.digest import canonical_json
from wanc.errors import BundleError

STATEMENT = "https://in-toto.io/Statement/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A claim that was read."""

    subjects: frozenset[str]
    """Digests, as ``sha256:<hex>``."""
    predicate_type: str
    predicate: dict[str, Any]

    def text(self, *path: str) -> str:
        """A text in the predicate; empty where there is none."""
        value: Any = self.predicate
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, str) else ""

    def records(self, *path: str) -> list[dict[str, Any]]:
        """The records of a list in the predicate; none where there is no such list."""
        value: Any = self.predicate
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def write_statement(
    subjects: Iterable[tuple[str, str]], predicate_type: str, predicate: dict[str, Any]
) -> bytes:
    """A statement on subjects, each a name and a digest, in its one spelling.

    Raises BundleError for texts that UTF-8 lacks, which JSON from elsewhere may have.
    """
    value = {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": digest_set(digest)} for name, digest in subjects],
        "predicateType": predicate_type,
        "predicate": predicate,
    }
    try:
        return canonical_json(value)
    except UnicodeEncodeError as error:
        raise BundleError(f"{predicate_type}: cannot be stated: {error}") from None


def digest_set(digest: str) -> dict[str, str]:
    """A digest as in-toto has it."""
    return {"sha256": digest.removeprefix("sha256:")}


def read_statement(payload: bytes, where: str) -> Statement:
    """A statement whose signature holds; raises BundleError."""
    value = oci.parse(payload, where)
    if value.get("_type") != STATEMENT:
        raise BundleError(f"{where}: of type {oci.quoted(value.get('_type'))}; needs {STATEMENT!r}")
    predicate_type, predicate = value.get("predicateType"), value.get("predicate")
    if not isinstance(predicate_type, str) or not isinstance(predicate, dict):
        raise BundleError(f"{where}: has no predicate of a type")
    listed = value.get("subject")
    digests = [_sha256(each) for each in listed] if isinstance(listed, list) else []
    if not digests:
        raise BundleError(f"{where}: is about nothing")
    return Statement(
        subjects=frozenset(filter(None, digests)),
        predicate_type=predicate_type,
        predicate=predicate,
    )


def _sha256(subject: Any) -> str:
    digests = subject.get("digest") if isinstance(subject, dict) else None
    found = digests.get("sha256") if isinstance(digests, dict) else None
    return f"sha256:{found}" if isinstance(found, str) else ""

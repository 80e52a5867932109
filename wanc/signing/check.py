"""Who signed a bundle, and what they say of it: the other half of signing.

A signature counts where one of the given keys made it, of a provenance whose subject is the very
digest of the bundle that is open. All else that is read of a bundle is read by the digests below
that one. Input is untrusted: whatever does not hold is told, and counts for nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wanc.bundle.attached import PROVENANCE, SBOM, TEST_RESULT, Attachment, attached, attachments
from wanc.bundle.store import Bundle
from wanc.errors import BundleError, RequestError
from wanc.signing.envelope import named, open_envelope
from wanc.signing.keys import PublicKey, read_public
from wanc.signing.provenance import PREDICATE_TYPE as PROVENANCE_TYPE
from wanc.signing.results import PREDICATE_TYPE as RESULT_TYPE
from wanc.signing.results import program_names
from wanc.signing.statement import Statement, read_statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A statement whose signature holds."""

    key: PublicKey
    envelope: str
    """Digest of the envelope."""
    statement: Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatures:
    """What a look at a bundle's signatures found."""

    provenance: tuple[Signature, ...] = ()
    """On the bundle: with none, it is not signed by any of the keys."""
    results: tuple[Signature, ...] = ()
    """On programs of the bundle."""
    refused: tuple[str, ...] = ()
    """Why others do not count."""


def read_keys(files: Iterable[Path]) -> tuple[PublicKey, ...]:
    """Public keys, one or more; raises RequestError."""
    keys = tuple(map(read_public, files))
    if not keys:
        raise RequestError("no key to verify with")
    return keys


def require_signature(bundle: Bundle, files: Iterable[Path]) -> None:
    """Raise BundleError where none of some public keys signed the bundle."""
    keys = read_keys(files)
    found = find_signatures(bundle, keys, (PROVENANCE,))
    if not found.provenance:
        raise BundleError(unsigned(bundle, keys, found))


def unsigned(bundle: Bundle, keys: Sequence[PublicKey], found: Signatures) -> str:
    """Why no signature of a bundle counts, and what would help."""
    said = "".join(f"\n  {each}" for each in found.refused) or "\n  nobody signed it"
    return (
        f"{bundle.path} {bundle.digest} is not signed by {' or '.join(map(named, keys))}:{said}\n"
        f"who has one of the keys signs it with `wanc sign {bundle.path} --key KEY`"
    )


def find_signatures(
    bundle: Bundle, keys: Sequence[PublicKey], types: Sequence[str] = (PROVENANCE, TEST_RESULT)
) -> Signatures:
    """Hold what is attached to a bundle against keys; raises BundleError for damaged manifests."""
    provenance: list[Signature] = []
    results: list[Signature] = []
    refused: list[str] = []
    for attachment in attachments(bundle.path, types):
        at = f"envelope {attachment.blob.digest[:19]}"
        subject = attachment.subject.digest
        if subject != bundle.digest:
            refused.append(f"{at}: is of another state of the bundle, {subject[:19]}")
            continue
        try:
            found = _check(bundle, attachment, keys, at)
        except BundleError as error:
            refused.append(str(error))
        else:
            (provenance if attachment.artifact_type == PROVENANCE else results).extend(found)
    return Signatures(provenance=tuple(provenance), results=tuple(results), refused=tuple(refused))


def signed_sboms(bundle: Bundle, found: Signatures) -> dict[str, bool]:
    """Digests of the attached bills of materials, and whether a provenance names each."""
    named_digests = {
        f"sha256:{digest.get('sha256')}"
        for signature in found.provenance
        for byproduct in signature.statement.records("runDetails", "byproducts")
        if isinstance(digest := byproduct.get("digest"), dict)
    }
    attached_digests = [each.blob.digest for each in attached(bundle, SBOM)]
    return {digest: digest in named_digests for digest in attached_digests}


def _check(
    bundle: Bundle, attachment: Attachment, keys: Sequence[PublicKey], at: str
) -> tuple[Signature, ...]:
    """The signatures of one envelope that hold, one or more; raises BundleError."""
    payload, signers = open_envelope(attachment.read(bundle.path), keys, at)
    statement = read_statement(payload, at)
    is_result = attachment.artifact_type == TEST_RESULT
    needed = RESULT_TYPE if is_result else PROVENANCE_TYPE
    if statement.predicate_type != needed:
        raise BundleError(f"{at}: states {statement.predicate_type[:80]!r}; needs {needed!r}")
    subjects = program_names(bundle).keys() if is_result else {bundle.digest}
    if not subjects & statement.subjects:
        about = ", ".join(sorted(statement.subjects))[:160] or "no digest that is known"
        what = "a program" if is_result else "the digest"
        raise BundleError(f"{at}: is about {about}; needs {what} of this bundle")
    return tuple(
        Signature(key=key, envelope=attachment.blob.digest, statement=statement) for key in signers
    )

"""Signatures of a bundle as verify shows them: who signed, what they state, what does not count."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wanc.bundle.store import open_bundle
from wanc.cli.terminal import Terminal
from wanc.errors import BundleError
from wanc.signing.check import (
    Signature,
    Signatures,
    find_signatures,
    read_keys,
    signed_sboms,
    unsigned,
)
from wanc.verify.findings import Finding
from wanc.verify.verify import Verified, verify_bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A bundle's signatures, held against keys."""

    signatures: Signatures
    sboms: dict[str, bool]
    """Digests of the attached bills of materials, and whether a signature covers each."""


def verify_signed(path: Path, files: Sequence[Path], jobs: int) -> tuple[Verified, Held]:
    """Verify a bundle, and that one of the keys signed it, which is a fault where none did."""
    keys = read_keys(files)
    verified = verify_bundle(path, jobs=jobs, progress=Terminal())
    held, fault = Held(signatures=Signatures(), sboms={}), ""
    try:
        bundle = open_bundle(path)
        found = find_signatures(bundle, keys)
        held = Held(signatures=found, sboms=signed_sboms(bundle, found))
        if bundle.digest != verified.bundle:
            fault = f"the bundle became {bundle.digest} while it was verified"
        elif not found.provenance:
            fault = unsigned(bundle, keys, found)
    except BundleError as error:
        fault = str(error)
    if not fault:
        return verified, held
    finding = Finding(kind="signature", where="signatures", what=fault)
    findings = (*verified.findings, finding)
    return replace(verified, findings=findings, faults=verified.faults + 1), held


def signatures_json(held: Held) -> dict[str, Any]:
    """What programs get beside the verification."""
    found = held.signatures
    return {
        "signatures": [_json(each) for each in (*found.provenance, *found.results)],
        "signatures_refused": list(found.refused),
        "sboms": [{"digest": d, "is_signed": signed} for d, signed in held.sboms.items()],
    }


def _json(signature: Signature) -> dict[str, Any]:
    key, statement = signature.key, signature.statement
    return {
        "keyid": key.keyid,
        "algorithm": key.algorithm,
        "key": key.file,
        "envelope": signature.envelope,
        "predicate_type": statement.predicate_type,
        "subjects": sorted(statement.subjects),
        "predicate": statement.predicate,
    }


def signature_lines(held: Held) -> list[str]:
    """What people get."""
    found, lines = held.signatures, []
    for signature in found.provenance:
        lines += [f"signed by key {signature.key.keyid} ({signature.key.file})"]
        lines += [f"  {what:<8} {text}" for what, text in _stated(signature) if text]
    for signature in found.results:
        (report, *_) = [*signature.statement.records("configuration"), {}]
        digests = report.get("digest")
        digest = digests.get("sha256") if isinstance(digests, dict) else None
        result = signature.statement.text("result")
        lines += [
            f"result {result} of report {str(digest)[:12]}, by key {signature.key.keyid[:12]}"
        ]
    for digest, signed in held.sboms.items():
        lines += [f"sbom {digest}: {'covered by a signature' if signed else 'not signed'}"]
    return lines + [f"does not count: {each}" for each in found.refused if found.provenance]


def _stated(signature: Signature) -> list[tuple[str, str]]:
    """What a provenance states, as far as it does."""
    statement = signature.statement
    dependencies = statement.records("buildDefinition", "resolvedDependencies")
    texts = [(str(each.get("uri", "")), each.get("digest")) for each in dependencies]
    sources = [
        " ".join(filter(None, (uri, *(f"{name}:{text}" for name, text in digest.items()))))
        for each, (uri, digest) in zip(dependencies, texts, strict=True)
        if each.get("name") == "source" and isinstance(digest, dict)
    ]
    return [
        ("build", statement.text("buildDefinition", "buildType")),
        ("builder", statement.text("runDetails", "builder", "id")),
        ("run", statement.text("runDetails", "metadata", "invocationId")),
        ("source", ", ".join(sources)),
        ("with", ", ".join(uri for uri, _ in texts if uri.startswith("pkg:"))),
    ]

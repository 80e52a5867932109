"""Signed bundles, and what somebody without the key can change of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sound import blob_file
from wanc.bundle.attached import PROVENANCE
from wanc.bundle.store import open_bundle
from wanc.digest import of_bytes
from wanc.signing.check import Signatures, find_signatures
from wanc.signing.keys import ED25519, PrivateKey, PublicKey, read_private, read_public, write_new
from wanc.signing.provenance import About
from wanc.signing.sign import Signed, sign_bundle


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A key and the files that it is in."""

    file: Path
    private: PrivateKey

    @property
    def public(self) -> PublicKey:
        return self.private.public

    @property
    def public_file(self) -> Path:
        return self.file.with_name(f"{self.file.name}.pub")


def new_pair(file: Path, algorithm: str = ED25519, passphrase: bytes | None = None) -> Pair:
    """A new key."""
    write_new(file, algorithm, passphrase)
    return Pair(file=file, private=read_private(file, passphrase))


def sign(path: Path, pair: Pair, **about: Any) -> Signed:
    """Sign a bundle as it stands."""
    return sign_bundle(open_bundle(path), pair.private, About(**about))


def found(path: Path, *pairs: Pair) -> Signatures:
    """A bundle's signatures by these keys."""
    return find_signatures(open_bundle(path), [read_public(pair.public_file) for pair in pairs])


# --- changing a signed bundle ---------------------------------------------------------------------


def entries(path: Path) -> list[dict[str, Any]]:
    """What index.json names."""
    listed: list[dict[str, Any]] = json.loads((path / "index.json").read_bytes())["manifests"]
    return listed


def set_entries(path: Path, listed: list[dict[str, Any]]) -> None:
    """Have index.json name these."""
    top = json.loads((path / "index.json").read_bytes())
    (path / "index.json").write_text(json.dumps({**top, "manifests": listed}))


def put(path: Path, data: bytes) -> dict[str, Any]:
    """Write a blob; its digest and size."""
    blob_file(path, of_bytes(data)).write_bytes(data)
    return {"digest": of_bytes(data), "size": len(data)}


def entry_of(path: Path, kind: str = PROVENANCE) -> dict[str, Any]:
    """The one attachment of a kind, as index.json has it."""
    (entry,) = [entry for entry in entries(path) if entry.get("artifactType") == kind]
    return entry


def manifest_of(path: Path, kind: str = PROVENANCE) -> dict[str, Any]:
    """Its manifest."""
    data = blob_file(path, entry_of(path, kind)["digest"]).read_bytes()
    manifest: dict[str, Any] = json.loads(data)
    return manifest


def data_of(path: Path, kind: str = PROVENANCE) -> bytes:
    """Its bytes."""
    return blob_file(path, manifest_of(path, kind)["layers"][0]["digest"]).read_bytes()


def set_manifest(path: Path, manifest: dict[str, Any] | bytes, kind: str = PROVENANCE) -> None:
    """Have another manifest in its place, with digests that agree."""
    spelled = json.dumps(manifest, separators=(",", ":"))
    data = manifest if isinstance(manifest, bytes) else spelled.encode()
    old, new = entry_of(path, kind), put(path, data)
    set_entries(path, [{**e, **new} if e == old else e for e in entries(path)])


def set_data(path: Path, data: bytes, kind: str = PROVENANCE) -> None:
    """Have other bytes in its place, with digests that agree."""
    manifest = manifest_of(path, kind)
    manifest["layers"][0].update(put(path, data))
    set_manifest(path, manifest, kind)


def change_envelope(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the provenance's envelope, with digests that agree."""
    envelope = json.loads(data_of(path))
    change(envelope)
    set_data(path, json.dumps(envelope).encode())

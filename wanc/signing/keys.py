"""Keys that sign and verify, in PEM files: Ed25519, and ECDSA on P-256 or P-384.

A key alone decides its algorithm, never what it is held against. Knows nothing of what is signed.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from wanc.digest import of_bytes
from wanc.errors import RequestError, RunError
from wanc.files import sync

ED25519, P256, P384 = "ed25519", "ecdsa-p256", "ecdsa-p384"
ALGORITHMS = (ED25519, P256, P384)
"""The first is the default."""

PUBLIC_SUFFIX = ".pub"
MAX_KEY_BYTES = 64 << 10
"""Of a file with a key, or with a passphrase."""

_CURVES: dict[str, tuple[str, ec.EllipticCurve, hashes.HashAlgorithm]] = {
    "secp256r1": (P256, ec.SECP256R1(), hashes.SHA256()),
    "secp384r1": (P384, ec.SECP384R1(), hashes.SHA384()),
}
"""By cryptography's name: ours, the curve, and the hash that goes with it."""
_NEEDED = "needs Ed25519, or ECDSA on P-256 or P-384; `wanc key new` makes one"
_BEGIN = b"-----BEGIN "


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A key that verifies."""

    keyid: str
    """sha256 of its SubjectPublicKeyInfo in DER, as hex."""
    algorithm: str
    """One of ALGORITHMS."""
    file: str
    """Where it is from, for people."""
    _key: ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether the signature is this key's, of exactly the message; ECDSA's is in DER."""
        try:
            if isinstance(self._key, ec.EllipticCurvePublicKey):
                hashed = _CURVES[self._key.curve.name][2]
                self._key.verify(signature, message, ec.ECDSA(hashed))
            else:
                self._key.verify(signature, message)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateKey:
    """A key that signs."""

    public: PublicKey
    _key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey

    def sign(self, message: bytes) -> bytes:
        """The signature, the same each time: ECDSA's nonce follows RFC 6979."""
        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            hashed = _CURVES[self._key.curve.name][2]
            return self._key.sign(message, ec.ECDSA(hashed, deterministic_signing=True))
        return self._key.sign(message)


def read_public(file: Path) -> PublicKey:
    """A public key, SPKI in PEM; raises RequestError."""
    data = _read(file)
    if b"PRIVATE KEY" in data:
        raise RequestError(f"{file}: a private key: verifying needs the public one, as FILE.pub")
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise RequestError(f"{file}: not a public key in PEM: {error}; {_NEEDED}") from error
    return _public(key, file)


def read_private(file: Path, passphrase: bytes | None) -> PrivateKey:
    """A private key, PKCS#8 in PEM, with the passphrase that protects it; raises RequestError."""
    data = _read(file)
    try:
        key = serialization.load_pem_private_key(data, passphrase)
    except TypeError as error:
        protected = passphrase is None
        how = "is protected: give its passphrase by --passphrase-env or --passphrase-file"
        raise RequestError(
            f"{file}: {how if protected else 'is not protected: leave the passphrase out'}"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        wrong = "the passphrase is wrong, or it is " if passphrase else ""
        raise RequestError(
            f"{file}: {wrong}not a private key in PEM: {error}; {_NEEDED}"
        ) from error
    public = _public(key.public_key(), file)
    assert isinstance(key, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey)
    return PrivateKey(public=public, _key=key)


def write_new(file: Path, algorithm: str, passphrase: bytes | None) -> PublicKey:
    """Make a key: the private one in a file that its owner alone may read, the public beside it.

    Raises RequestError for an algorithm that is none, and RunError where one of the two files is
    there already, or cannot be written.
    """
    if algorithm not in ALGORITHMS:
        raise RequestError(f"algorithm {algorithm!r}: needs one of {', '.join(ALGORITHMS)}")
    curves = {ours: curve for ours, curve, _ in _CURVES.values()}
    key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey = (
        ed25519.Ed25519PrivateKey.generate()
        if algorithm == ED25519
        else ec.generate_private_key(curves[algorithm])
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(passphrase)
        if passphrase
        else serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    beside = file.with_name(file.name + PUBLIC_SUFFIX)
    _write_first(beside, public, 0o644)
    try:
        _write_first(file, private, 0o600)
    except RunError:
        beside.unlink()
        raise
    return _public(key.public_key(), beside)


def read_passphrase(variable: str | None, file: Path | None) -> bytes | None:
    """From an environment variable, or a file's first line; None for neither. RequestError."""
    if variable is not None and file is not None:
        raise RequestError("give one of --passphrase-env and --passphrase-file")
    if variable is not None:
        found = os.environb.get(os.fsencode(variable), b"")
        where = f"the environment's {variable}"
    elif file is not None:
        found, where = _read(file).partition(b"\n")[0].removesuffix(b"\r"), str(file)
    else:
        return None
    if not found:
        raise RequestError(f"{where} has no passphrase")
    return found


def _public(key: object, file: Path) -> PublicKey:
    """The key, where it is of a kind that signs here; raises RequestError."""
    if isinstance(key, ec.EllipticCurvePublicKey):
        known = _CURVES.get(key.curve.name)
        if known is None:
            raise RequestError(f"{file}: an ECDSA key on {key.curve.name}; {_NEEDED}")
        algorithm = known[0]
    elif isinstance(key, ed25519.Ed25519PublicKey):
        algorithm = ED25519
    else:
        kind = type(key).__name__.removesuffix("PublicKey").removesuffix("PrivateKey")
        raise RequestError(f"{file}: a key of kind {kind}; {_NEEDED}")
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    keyid = of_bytes(der).removeprefix("sha256:")
    return PublicKey(keyid=keyid, algorithm=algorithm, file=str(file), _key=key)


def _read(file: Path) -> bytes:
    """A small file, with one key at most; raises RequestError."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_KEY_BYTES + 1)
    except OSError as error:
        raise RequestError(f"{file}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_KEY_BYTES or data.count(_BEGIN) > 1:
        raise RequestError(f"{file}: holds more than one key, or more than {MAX_KEY_BYTES} bytes")
    return data


def _write_first(file: Path, data: bytes, mode: int) -> None:
    """Write a file that is not there yet; raises RunError, and then leaves nothing."""
    try:
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise RunError(
            f"{file} is there already, and no key is written over: name another"
        ) from error
    except OSError as error:
        raise RunError(f"cannot write {file}: {error.strerror}") from error
    try:
        with os.fdopen(opened, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        sync(file.absolute().parent)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise RunError(f"cannot write {file}: {error.strerror}") from error

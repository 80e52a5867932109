"""DSSE 1.0.2: a payload, its type, and signatures of the two together.

Verifies before anything of the payload is parsed. Knows nothing of what payloads say. Input is
untrusted. https://github.com/secure-systems-lab/dsse: protocol.md, envelope.md.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any

from wanc.bundle import oci
from wanc.digest import canonical_json
from wanc.errors import BundleError
from wanc.signing.keys import PrivateKey, PublicKey
from wanc.units import count

PAYLOAD_TYPE = "application/vnd.in-toto+json"

MOST_SIGNATURES = 16
"""In one envelope."""
_STANDARD = bytes.maketrans(b"-_", b"+/")
"""From the alphabet that is safe in URLs to the standard one."""


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """What is signed."""
    named = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(named), named, len(payload), payload)


def seal(payload: bytes, key: PrivateKey) -> bytes:
    """An envelope with one signature."""
    signature = key.sign(pre_authentication_encoding(PAYLOAD_TYPE, payload))
    return canonical_json(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [
                {"keyid": key.public.keyid, "sig": base64.b64encode(signature).decode()}
            ],
        }
    )


def open_envelope(
    data: bytes, keys: Sequence[PublicKey], where: str
) -> tuple[bytes, tuple[PublicKey, ...]]:
    """The payload, and which of the keys signed it, one or more; raises BundleError.

    What an envelope says of keys decides nothing: each key is held against each signature.
    """
    envelope = oci.parse(data, where)
    payload_type = envelope.get("payloadType")
    payload = _decoded(envelope.get("payload"), f"{where}: its payload")
    signatures = [*_signatures(envelope, where)]
    if payload_type != PAYLOAD_TYPE:
        raise BundleError(
            f"{where}: a payload of type {oci.quoted(payload_type)}; needs {PAYLOAD_TYPE!r}"
        )
    signed = pre_authentication_encoding(PAYLOAD_TYPE, payload)
    signers = [key for key in keys if any(key.verifies(each, signed) for each in signatures)]
    if not signers:
        of = " or ".join(map(named, keys))
        raise BundleError(f"{where}: {count(len(signatures), 'signature')}, none of {of}")
    return payload, tuple(signers)


def named(key: PublicKey) -> str:
    """A key for people."""
    return f"key {key.keyid[:12]} ({key.file})"


def _signatures(envelope: dict[str, Any], where: str) -> Iterator[bytes]:
    listed = envelope.get("signatures")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_SIGNATURES:
        raise BundleError(f"{where}: needs a list of 1 to {MOST_SIGNATURES} signatures")
    for each in listed:
        fields = each if isinstance(each, dict) else {}
        if not isinstance(fields.get("keyid", ""), str):
            raise BundleError(f"{where}: a keyid is no text")
        yield _decoded(fields.get("sig"), f"{where}: a signature")


def _decoded(text: Any, where: str) -> bytes:
    """Base64 of the standard alphabet or of the one that is safe in URLs, in its one spelling."""
    if not isinstance(text, str):
        raise BundleError(f"{where} is not there, or no text")
    try:
        spelled = text.encode("ascii")
        standard = spelled if b"+" in spelled or b"/" in spelled else spelled.translate(_STANDARD)
        data = base64.b64decode(standard, validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise BundleError(f"{where} is not base64: {error}") from None
    if base64.b64encode(data) != standard:
        raise BundleError(f"{where} is base64 with bits that say nothing")
    return data

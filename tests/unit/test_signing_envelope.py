"""DSSE envelopes, by the specification's own example, and with anything changed about them."""

import base64
import json
import random

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from tests.signed import new_pair
from wanc.errors import BundleError
from wanc.signing.envelope import (
    MOST_SIGNATURES,
    PAYLOAD_TYPE,
    open_envelope,
    pre_authentication_encoding,
    seal,
)
from wanc.signing.keys import P256, PrivateKey, PublicKey

PAYLOAD = json.dumps({"n": 1, "text": "a payload, with ümlauts and ÿ"}).encode()

# Of secure-systems-lab/dsse, protocol.md, version 1.0.2
SPEC_TYPE, SPEC_BODY = "http://example.com/HelloWorld", b"hello world"
SPEC_PAE = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
SPEC_D = 97358161215184420915383655311931858321456579547487070936769975997791359926199
SPEC_SIGNATURE = base64.b64decode(
    "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return new_pair(tmp_path_factory.mktemp("keys") / "one")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return new_pair(tmp_path_factory.mktemp("keys") / "two", P256)


@pytest.fixture
def envelope(pair) -> dict:
    return json.loads(seal(PAYLOAD, pair.private))


def opened(envelope, *pairs):
    data = envelope if isinstance(envelope, bytes) else json.dumps(envelope).encode()
    return open_envelope(data, [pair.public for pair in pairs], "it")


def refusal(envelope, *pairs) -> str:
    with pytest.raises(BundleError) as caught:
        opened(envelope, *pairs)
    return str(caught.value)


def test_pre_authentication_encoding_is_the_specification_s():
    assert pre_authentication_encoding(SPEC_TYPE, SPEC_BODY) == SPEC_PAE
    assert pre_authentication_encoding("ü", b"") == b"DSSEv1 2 \xc3\xbc 0 "
    assert pre_authentication_encoding("", b"a b") == b"DSSEv1 0  3 a b"


def test_the_specification_s_signature_is_ours():
    """Its example is of ECDSA with RFC 6979, as r and s one after the other."""
    key = ec.derive_private_key(SPEC_D, ec.SECP256R1())
    public = PublicKey(keyid="", algorithm=P256, file="", _key=key.public_key())
    r, s = (int.from_bytes(SPEC_SIGNATURE[k : k + 32], "big") for k in (0, 32))
    assert public.verifies(encode_dss_signature(r, s), SPEC_PAE)
    ours = PrivateKey(public=public, _key=key).sign(SPEC_PAE)
    assert decode_dss_signature(ours) == (r, s)


def test_what_is_sealed_opens(envelope, pair, other):
    assert base64.b64decode(envelope["payload"]) == PAYLOAD
    assert envelope["payloadType"] == PAYLOAD_TYPE == "application/vnd.in-toto+json"
    (signature,) = envelope["signatures"]
    assert signature["keyid"] == pair.public.keyid
    signed = pre_authentication_encoding(PAYLOAD_TYPE, PAYLOAD)
    assert pair.public.verifies(base64.b64decode(signature["sig"]), signed)
    assert opened(envelope, pair) == (PAYLOAD, (pair.public,))
    assert opened(envelope, other, pair) == (PAYLOAD, (pair.public,))


def test_another_key_opens_nothing(envelope, pair, other):
    said = refusal(envelope, other)
    assert said == f"it: 1 signature, none of key {other.public.keyid[:12]} ({other.public.file})"
    assert " or " in refusal(envelope, other, other)


def test_what_an_envelope_says_of_keys_decides_nothing(envelope, pair, other):
    (signature,) = envelope["signatures"]
    signature["keyid"] = other.public.keyid
    assert opened(envelope, pair) == (PAYLOAD, (pair.public,))
    assert "none of key" in refusal(envelope, other)
    del signature["keyid"]
    signature["cert"] = envelope["more"] = {"any": ["thing"]}
    assert opened(envelope, pair) == (PAYLOAD, (pair.public,))


def test_several_signatures(envelope, pair, other, tmp_path):
    theirs = json.loads(seal(PAYLOAD, other.private))["signatures"]
    both = {**envelope, "signatures": [*theirs, *envelope["signatures"]]}
    assert opened(both, pair, other) == (PAYLOAD, (pair.public, other.public))
    assert opened(both, other) == (PAYLOAD, (other.public,))
    assert "2 signatures, none of" in refusal(both, new_pair(tmp_path / "third"))
    most = {**envelope, "signatures": theirs * (MOST_SIGNATURES - 1) + envelope["signatures"]}
    assert opened(most, pair) == (PAYLOAD, (pair.public,))
    most["signatures"] += envelope["signatures"]
    assert f"1 to {MOST_SIGNATURES} signatures" in refusal(most, pair)


def test_a_signature_is_of_the_type_too(envelope, pair):
    for payload_type in ("application/vnd.in-toto+json ", "text/plain", "", None, 3, ["a"]):
        assert "a payload of type" in refusal({**envelope, "payloadType": payload_type}, pair)


def test_a_signature_of_another_type_does_not_count(envelope, pair):
    signed = pre_authentication_encoding("text/plain", PAYLOAD)
    signature = base64.b64encode(pair.private.sign(signed)).decode()
    assert "none of key" in refusal({**envelope, "signatures": [{"sig": signature}]}, pair)


def test_a_signature_of_the_payload_alone_does_not_count(envelope, pair):
    signature = base64.b64encode(pair.private.sign(PAYLOAD)).decode()
    assert "none of key" in refusal({**envelope, "signatures": [{"sig": signature}]}, pair)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"payload": None}, "its payload is not there, or no text"),
        ({"payload": ["eA=="]}, "its payload is not there, or no text"),
        ({"payload": "eA="}, "its payload is not base64"),
        ({"payload": "eA"}, "its payload is not base64"),
        ({"payload": "e A=="}, "its payload is not base64"),
        ({"payload": "eA==\n"}, "its payload is not base64"),
        ({"payload": "eA==eA=="}, "its payload is not base64"),
        ({"payload": "ëA=="}, "its payload is not base64"),
        ({"payload": "eB=="}, "base64 with bits that say nothing"),
        ({"payload": "-/A="}, "its payload is not base64"),
        ({"payload": ""}, "none of key"),
        ({"signatures": []}, "1 to 16 signatures"),
        ({"signatures": {}}, "1 to 16 signatures"),
        ({"signatures": None}, "1 to 16 signatures"),
        ({"signatures": [None]}, "a signature is not there"),
        ({"signatures": [{}]}, "a signature is not there"),
        ({"signatures": [{"sig": ""}]}, "none of key"),
        ({"signatures": [{"sig": 3}]}, "a signature is not there"),
        ({"signatures": [{"sig": "eA==", "keyid": 3}]}, "a keyid is no text"),
    ],
)
def test_damaged_envelopes(envelope, pair, change, said):
    assert said in refusal({**envelope, **change}, pair)


@pytest.mark.parametrize("key", ["payload", "payloadType", "signatures"])
def test_what_is_missing_is_told(envelope, pair, key):
    del envelope[key]
    refusal(envelope, pair)


def test_both_alphabets_are_taken(pair):
    """As the specification has it; one of them through a whole text."""
    payload = b"\xfb\xff\xfe" * 3
    envelope = json.loads(seal(payload, pair.private))
    assert "+" in envelope["payload"] or "/" in envelope["payload"]
    safe = base64.urlsafe_b64encode(payload).decode()
    assert opened({**envelope, "payload": safe}, pair)[0] == payload
    mixed = envelope["payload"][:-4] + safe[-4:]
    assert "is not base64" in refusal({**envelope, "payload": mixed}, pair)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b'{"payload":"eA==","payload":"eQ=="}', "stands twice in one object"),
        (b'{"signatures":[{"sig":"eA==","sig":"eQ=="}]}', "stands twice in one object"),
        (b'{"a":NaN}', "NaN is no number"),
        (b'{"a":' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"payload":"\xff"}', "not JSON"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_what_is_no_envelope(pair, data, said):
    assert said in refusal(data, pair)


def test_every_shortened_envelope_is_refused(pair):
    data = seal(PAYLOAD, pair.private)
    for length in range(len(data)):
        refusal(data[:length], pair)


def test_whatever_byte_is_changed_the_payload_and_the_signer_are_the_same_or_it_is_refused(pair):
    """Only what says nothing, such as the keyid, can be changed at all."""
    data = seal(PAYLOAD, pair.private)
    hint = range(data.index(b'"keyid"'), data.index(b',"sig"'))
    draw, taken = random.Random(0), 0
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= draw.randrange(1, 256)
        try:
            found = open_envelope(bytes(changed), [pair.public], "it")
        except BundleError:
            continue
        taken += 1
        assert found == (PAYLOAD, (pair.public,))
        assert place in hint
    assert taken


def test_whatever_byte_of_payload_or_signature_is_changed_it_is_refused(envelope, pair):
    for place in range(len(PAYLOAD)):
        changed = bytearray(PAYLOAD)
        changed[place] ^= 1
        payload = base64.b64encode(bytes(changed)).decode()
        assert "none of key" in refusal({**envelope, "payload": payload}, pair)
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    for place in range(len(signature)):
        flipped = bytearray(signature)
        flipped[place] ^= 128
        sig = base64.b64encode(bytes(flipped)).decode()
        assert "none of key" in refusal({**envelope, "signatures": [{"sig": sig}]}, pair)

"""Keys: what they sign openssl verifies and the other way round; none but three kinds are taken."""

import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, rsa, x25519

from tests.needs import needs
from tests.signed import new_pair
from wanc.cli import main
from wanc.digest import of_bytes
from wanc.errors import RequestError, RunError
from wanc.signing.keys import (
    ALGORITHMS,
    MAX_KEY_BYTES,
    read_passphrase,
    read_private,
    read_public,
    write_new,
)

MESSAGE = b"DSSEv1 4 text 5 \x00\xff\n\r "
HASHES = {"ecdsa-p256": "-sha256", "ecdsa-p384": "-sha384"}
OPENSSL_KEYS = {
    "ed25519": ["-algorithm", "ed25519"],
    "ecdsa-p256": ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
    "ecdsa-p384": ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"],
}
EACH = pytest.mark.parametrize("algorithm", ALGORITHMS)


def openssl(*words: object) -> bytes:
    try:
        done = subprocess.run(["openssl", *map(str, words)], capture_output=True)
    except FileNotFoundError:
        needs(False, "openssl")
        raise
    assert not done.returncode, done.stderr.decode()
    return done.stdout


@EACH
def test_openssl_verifies_what_is_signed(algorithm, tmp_path):
    pair = new_pair(tmp_path / "key", algorithm)
    signature, message = tmp_path / "signature", tmp_path / "message"
    signature.write_bytes(pair.private.sign(MESSAGE))
    message.write_bytes(MESSAGE)
    if algorithm == "ed25519":
        words = ["pkeyutl", "-verify", "-pubin", "-inkey", pair.public_file, "-rawin"]
        said = openssl(*words, "-in", message, "-sigfile", signature)
    else:
        words = ["dgst", HASHES[algorithm], "-verify", pair.public_file]
        said = openssl(*words, "-signature", signature, message)
    assert b"Verifi" in said


@EACH
def test_openssl_s_keys_and_signatures_are_taken(algorithm, tmp_path):
    private, public, message = (tmp_path / name for name in ("private", "public", "message"))
    openssl("genpkey", *OPENSSL_KEYS[algorithm], "-out", private)
    openssl("pkey", "-in", private, "-pubout", "-out", public)
    message.write_bytes(MESSAGE)
    if algorithm == "ed25519":
        signature = openssl("pkeyutl", "-sign", "-inkey", private, "-rawin", "-in", message)
    else:
        signature = openssl("dgst", HASHES[algorithm], "-sign", private, message)
    key = read_public(public)
    assert key.algorithm == algorithm
    assert key.verifies(signature, MESSAGE)
    assert not key.verifies(signature, MESSAGE + b"\n")
    der = openssl("pkey", "-pubin", "-in", public, "-outform", "DER")
    assert key.keyid == of_bytes(der).removeprefix("sha256:")
    assert key.verifies(read_private(private, None).sign(MESSAGE), MESSAGE)


def test_a_key_that_openssl_protected_is_taken_with_its_passphrase(tmp_path):
    key = tmp_path / "key"
    openssl("genpkey", *OPENSSL_KEYS["ed25519"], "-aes256", "-pass", "pass:word", "-out", key)
    assert read_private(key, b"word").public.algorithm == "ed25519"
    with pytest.raises(RequestError, match="the passphrase is wrong"):
        read_private(key, b"wort")
    with pytest.raises(RequestError, match="is protected: give its passphrase"):
        read_private(key, None)


@EACH
def test_a_signature_is_the_same_each_time_and_of_one_key_and_message(algorithm, tmp_path):
    pair, other = (new_pair(tmp_path / name, algorithm) for name in ("one", "two"))
    signature = pair.private.sign(MESSAGE)
    assert signature == read_private(pair.file, None).sign(MESSAGE)
    assert pair.public.verifies(signature, MESSAGE)
    assert not other.public.verifies(signature, MESSAGE)
    for place in range(len(signature)):
        flipped = bytearray(signature)
        flipped[place] ^= 1
        assert not pair.public.verifies(bytes(flipped), MESSAGE)
    for damaged in (b"", signature[:-1], signature + b"\0", bytes(len(signature)), signature * 2):
        assert not pair.public.verifies(damaged, MESSAGE)


def test_no_key_takes_a_signature_of_another_kind(tmp_path):
    pairs = [new_pair(tmp_path / algorithm, algorithm) for algorithm in ALGORITHMS]
    for signer in pairs:
        for verifier in pairs:
            is_own = signer is verifier
            assert verifier.public.verifies(signer.private.sign(MESSAGE), MESSAGE) == is_own


# --- files ----------------------------------------------------------------------------------------

STRANGE = {
    "RSA": lambda: rsa.generate_private_key(65537, 2048),
    "secp521r1": lambda: ec.generate_private_key(ec.SECP521R1()),
    "secp256k1": lambda: ec.generate_private_key(ec.SECP256K1()),
    "Ed448": ed448.Ed448PrivateKey.generate,
    "X25519": x25519.X25519PrivateKey.generate,
    "DSA": lambda: dsa.generate_private_key(1024),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_other_kinds_of_keys_are_refused(kind, tmp_path):
    key = STRANGE[kind]()
    private, public = tmp_path / "private", tmp_path / "public"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(pem, spki))
    for read in (lambda: read_private(private, None), lambda: read_public(public)):
        with pytest.raises(
            RequestError, match=f"{kind}; needs Ed25519, or ECDSA on P-256 or P-384"
        ):
            read()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a public key in PEM"),
        (b"\xff" * 100, "not a public key in PEM"),
        (b"-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----\n", "not a public key"),
        (b"-----BEGIN PUBLIC KEY-----\n" * 2, "more than one key"),
        (bytes(MAX_KEY_BYTES + 1), f"more than {MAX_KEY_BYTES} bytes"),
    ],
)
def test_what_is_no_public_key(data, said, tmp_path):
    (tmp_path / "key").write_bytes(data)
    with pytest.raises(RequestError, match=said):
        read_public(tmp_path / "key")


def test_a_file_is_one_key(tmp_path):
    """Two in one file: which of them verifies would be a guess."""
    pairs = [new_pair(tmp_path / name) for name in ("one", "two")]
    both = tmp_path / "both"
    both.write_bytes(b"".join(pair.public_file.read_bytes() for pair in pairs))
    with pytest.raises(RequestError, match="more than one key"):
        read_public(both)


def test_a_private_key_does_not_verify_nor_a_public_one_sign(tmp_path):
    pair = new_pair(tmp_path / "key")
    with pytest.raises(RequestError, match="a private key: verifying needs the public one"):
        read_public(pair.file)
    with pytest.raises(RequestError, match="not a private key in PEM"):
        read_private(pair.public_file, None)
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        read_public(tmp_path / "none")


@EACH
def test_a_new_key_is_its_owner_s_alone(algorithm, tmp_path):
    made = write_new(tmp_path / "key", algorithm, None)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert read_private(tmp_path / "key", None).public.keyid == made.keyid
    assert read_public(tmp_path / "key.pub").keyid == made.keyid
    assert made.algorithm == algorithm


@pytest.mark.parametrize("taken", ["key", "key.pub"])
def test_no_key_is_written_over(taken, tmp_path):
    (tmp_path / taken).write_text("there")
    with pytest.raises(RunError, match=f"{taken} is there already, and no key is written over"):
        write_new(tmp_path / "key", "ed25519", None)
    assert [file.name for file in tmp_path.iterdir()] == [taken]
    assert (tmp_path / taken).read_text() == "there"


def test_a_link_is_no_place_for_a_key(tmp_path):
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="is there already"):
        write_new(tmp_path / "key", "ed25519", None)
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(RunError, match="cannot write"):
        write_new(tmp_path / "none" / "key", "ed25519", None)


@EACH
def test_a_passphrase_protects(algorithm, tmp_path):
    pair = new_pair(tmp_path / "key", algorithm, b"a word")
    assert b"ENCRYPTED" in pair.file.read_bytes()
    for wrong in (b"another", None):
        with pytest.raises(RequestError):
            read_private(pair.file, wrong)
    plain = new_pair(tmp_path / "plain", algorithm)
    with pytest.raises(RequestError, match="is not protected: leave the passphrase out"):
        read_private(plain.file, b"a word")


def test_passphrases_are_from_the_environment_or_a_file(tmp_path, monkeypatch):
    file = tmp_path / "word"
    monkeypatch.setenv("WORD", "of the environment ")
    monkeypatch.setenv("EMPTY", "")
    assert read_passphrase("WORD", None) == b"of the environment "
    for content in (b"of a file", b"of a file\n", b"of a file\r\nand more"):
        file.write_bytes(content)
        assert read_passphrase(None, file) == b"of a file"
    assert read_passphrase(None, None) is None
    file.write_bytes(b"\nword")
    for variable, path in (("EMPTY", None), ("MISSING", None), (None, file)):
        with pytest.raises(RequestError, match="has no passphrase"):
            read_passphrase(variable, path)
    with pytest.raises(RequestError, match="give one of"):
        read_passphrase("WORD", Path("x"))


def test_unknown_algorithm(tmp_path):
    with pytest.raises(RequestError, match="needs one of ed25519, ecdsa-p256, ecdsa-p384"):
        write_new(tmp_path / "key", "rsa", None)


# --- wanc key -------------------------------------------------------------------------------------


def test_the_command_makes_keys_and_names_them(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORD", "a word")
    line = ["key", "new", str(tmp_path / "key"), "--algorithm", "ecdsa-p384"]
    with pytest.raises(SystemExit) as ended:
        main([*line, "--passphrase-env", "WORD"])
    assert ended.value.code == 0
    made = capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["key", "show", str(tmp_path / "key.pub")])
    assert capsys.readouterr().out == made.out
    keyid = read_private(tmp_path / "key", b"a word").public.keyid
    assert made.out == f"{keyid} ecdsa-p384 {tmp_path / 'key.pub'}\n"
    assert "keep it" in made.err
    with pytest.raises(SystemExit) as ended:
        main(line)
    assert ended.value.code == RunError.exit_code

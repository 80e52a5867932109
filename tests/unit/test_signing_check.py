"""Who signed a bundle: what counts, and everything that does not."""

import base64
import json
import random
import shutil
from pathlib import Path

import pytest

from tests.signed import (
    Pair,
    change_envelope,
    data_of,
    entries,
    entry_of,
    found,
    manifest_of,
    new_pair,
    put,
    set_data,
    set_entries,
    set_manifest,
    sign,
)
from tests.sound import blob_file, edit, verified, write_sound
from tests.unit.test_bundle_store import files
from wanc.bundle.attached import PROVENANCE, SBOM, TEST_RESULT, NewAttachment, attach, attached
from wanc.bundle.reports import attach_report
from wanc.bundle.store import open_bundle
from wanc.digest import canonical_json
from wanc.errors import BundleError, RequestError
from wanc.signing.check import find_signatures, read_keys, require_signature, signed_sboms
from wanc.signing.envelope import PAYLOAD_TYPE, pre_authentication_encoding, seal
from wanc.signing.keys import ALGORITHMS
from wanc.signing.provenance import PREDICATE_TYPE
from wanc.signing.results import PREDICATE_TYPE as RESULT_TYPE
from wanc.signing.statement import write_statement


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def pair(keys) -> Pair:
    return new_pair(keys / "one")


@pytest.fixture(scope="module")
def other(keys) -> Pair:
    return new_pair(keys / "two", "ecdsa-p256")


@pytest.fixture(scope="module")
def written(tmp_path_factory, made) -> Path:
    return write_sound(tmp_path_factory.mktemp("written") / "bundle", made().config)


@pytest.fixture(scope="module")
def written_and_signed(tmp_path_factory, written, pair) -> Path:
    path = tmp_path_factory.mktemp("signed") / "bundle"
    shutil.copytree(written, path)
    sign(path, pair)
    return path


@pytest.fixture
def bundle(tmp_path, written) -> Path:
    """A bundle of one variant."""
    return Path(shutil.copytree(written, tmp_path / "bundle"))


@pytest.fixture
def signed(tmp_path, written_and_signed) -> Path:
    """That bundle with a signature of pair."""
    return Path(shutil.copytree(written_and_signed, tmp_path / "signed"))


def require(path: Path, *pairs: Pair) -> None:
    require_signature(open_bundle(path), [pair.public_file for pair in pairs])


def refusal(path: Path, *pairs: Pair) -> str:
    with pytest.raises(BundleError) as caught:
        require(path, *pairs)
    assert caught.value.exit_code == 5
    return str(caught.value)


def attach_sealed(path: Path, pair: Pair, payload: bytes, kind: str = PROVENANCE) -> None:
    new = NewAttachment(artifact_type=kind, data=seal(payload, pair.private))
    attach(open_bundle(path), [new])


def subjects(path: Path) -> list[tuple[str, str]]:
    return [("wanc bundle", open_bundle(path).digest)]


# --- what counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_a_key_signed_is_signed_by_that_key(bundle, tmp_path, algorithm):
    pair = new_pair(tmp_path / "key", algorithm)
    digest = open_bundle(bundle).digest
    sign(bundle, pair, builder_id="https://ci.example/wanc")
    require(bundle, pair)
    ((signature,), results, refused) = (
        getattr(found(bundle, pair), name) for name in ("provenance", "results", "refused")
    )
    assert (results, refused) == ((), ())
    assert signature.key.keyid == pair.public.keyid
    assert signature.key.algorithm == algorithm
    assert signature.statement.subjects == {digest}
    assert signature.statement.text("runDetails", "builder", "id") == "https://ci.example/wanc"
    assert open_bundle(bundle).digest == digest
    assert verified(bundle).findings == ()


def test_signing_once_more_changes_nothing(signed, pair):
    before = files(signed)
    sign(signed, pair)
    assert files(signed) == before
    sign(signed, pair, invocation_id="2")  # another statement takes the earlier one's place
    assert len(attached(open_bundle(signed), PROVENANCE)) == 1
    (signature,) = found(signed, pair).provenance
    assert signature.statement.text("runDetails", "metadata", "invocationId") == "2"


def test_several_may_sign_and_any_of_the_keys_will_do(signed, pair, other, tmp_path):
    sign(signed, other)
    third = new_pair(tmp_path / "third")
    for given in ([pair], [other], [third, other], [pair, other]):
        require(signed, *given)
    keyids = [each.key.keyid for each in found(signed, other, pair).provenance]
    assert keyids == [pair.public.keyid, other.public.keyid]
    assert len(attached(open_bundle(signed), SBOM)) == 1
    refusal(signed, third)


def test_one_envelope_with_two_signatures(signed, pair, other):
    def add(envelope):
        payload = base64.b64decode(envelope["payload"])
        signature = other.private.sign(pre_authentication_encoding(PAYLOAD_TYPE, payload))
        envelope["signatures"].append({"sig": base64.b64encode(signature).decode()})

    change_envelope(signed, add)
    assert len(found(signed, pair, other).provenance) == 2
    require(signed, other)


def test_the_bill_of_materials_is_covered(signed, pair, other):
    opened = open_bundle(signed)
    (sbom,) = attached(opened, SBOM)
    assert signed_sboms(opened, found(signed, pair)) == {sbom.blob.digest: True}
    assert signed_sboms(opened, found(signed, other)) == {sbom.blob.digest: False}
    set_data(signed, b'{"bomFormat":"CycloneDX"}', SBOM)
    assert [*signed_sboms(opened, found(signed, pair)).values()] == [False]


def test_results_of_reports_are_signed_too(bundle, pair, other):
    programs = open_bundle(bundle).variants[0].config.programs
    covers = tuple(sorted({record.stablehlo.digest for record in programs[:2]}))
    digests = [attach_report(bundle, b'{"passes":%b}' % p, covers) for p in (b"true", b"false")]
    assert sign(bundle, pair).reports == 2
    results = found(bundle, pair).results
    assert [each.statement.text("result") for each in results] == ["PASSED", "FAILED"]
    for each, digest in zip(results, digests, strict=True):
        assert each.statement.subjects == set(covers)
        (report,) = each.statement.records("configuration")
        assert report["digest"] == {"sha256": digest.removeprefix("sha256:")}
    assert found(bundle, other).results == ()
    assert verified(bundle).findings == ()


def test_a_report_of_programs_that_are_gone_is_not_signed(bundle, pair, made):
    blocks = open_bundle(bundle).variants[0].config.program("dit_blocks").stablehlo
    attach_report(bundle, b'{"passes":true}', (blocks.digest,))
    write_sound(bundle, made(attention="allgather").config)
    assert open_bundle(bundle).variants[0].config.program("dit_blocks").stablehlo != blocks
    assert sign(bundle, pair).reports == 0


# --- what does not --------------------------------------------------------------------------------


def test_nobody_signed(bundle, pair):
    said = refusal(bundle, pair)
    assert f"is not signed by key {pair.public.keyid[:12]}" in said
    assert "nobody signed it" in said
    assert f"wanc sign {bundle} --key KEY" in said


def test_another_key_signed(signed, other):
    assert f"1 signature, none of key {other.public.keyid[:12]}" in refusal(signed, other)


def test_a_variant_was_added_after_signing(signed, pair, made):
    write_sound(signed, made(topology="tp2").config)
    assert "is of another state of the bundle" in refusal(signed, pair)
    sign(signed, pair)
    require(signed, pair)
    assert len(attached(open_bundle(signed), PROVENANCE)) == 1
    assert found(signed, pair).refused == ()


def test_a_signature_is_moved_to_another_bundle(signed, pair, made, tmp_path):
    """With its subject made right in the manifest: what was signed names the other digest."""
    other = write_sound(tmp_path / "other", made(topology="tp2").config)
    new = NewAttachment(artifact_type=PROVENANCE, data=data_of(signed))
    attach(open_bundle(other), [new])
    said = refusal(other, pair)
    assert f"is about {open_bundle(signed).digest}; needs the digest of this bundle" in said


def test_index_json_is_made_to_name_another_bundle(signed, pair, made, tmp_path):
    other = write_sound(tmp_path / "other", made(topology="tp2").config)
    for file in (other / "blobs" / "sha256").iterdir():
        (signed / "blobs" / "sha256" / file.name).write_bytes(file.read_bytes())
    theirs, *_ = entries(other)
    set_entries(signed, [theirs, *entries(signed)[1:]])
    assert open_bundle(signed).digest == open_bundle(other).digest
    assert "is of another state of the bundle" in refusal(signed, pair)


def test_an_executable_is_replaced_and_all_digests_above_it_are_made_right(signed, pair):
    def other_code(editor):
        record = editor.config["programs"][0]
        record["executable"] = editor.layer(b"other code")

    before = open_bundle(signed).digest
    edit(signed, other_code)
    assert open_bundle(signed).digest != before
    assert "is of another state of the bundle" in refusal(signed, pair)


def test_the_subject_in_the_manifest_decides_nothing(signed, pair, made):
    """Staleness is what it is for; the statement has the digest that counts."""
    before = manifest_of(signed)
    write_sound(signed, made(topology="tp2").config)
    current = entries(signed)[0]
    subject = {key: current[key] for key in ("mediaType", "digest", "size")}
    set_manifest(signed, {**before, "subject": subject})
    assert "is about" in refusal(signed, pair)


STATEMENTS = {
    "predicate": lambda s: write_statement(s, "https://slsa.dev/verification_summary/v1", {}),
    "an older provenance": lambda s: write_statement(s, "https://slsa.dev/provenance/v0.2", {}),
    "a result": lambda s: write_statement(s, RESULT_TYPE, {}),
    "no statement": lambda s: canonical_json({"subject": s}),
    "another subject": lambda s: write_statement([("a", "sha256:" + "0" * 64)], PREDICATE_TYPE, {}),
    "the digest without its algorithm": lambda s: write_statement(s, PREDICATE_TYPE, {}).replace(
        b'"sha256":', b'"sha512":'
    ),
    "the digest in capitals": lambda s: write_statement(
        [(name, digest.upper().replace("SHA", "sha")) for name, digest in s], PREDICATE_TYPE, {}
    ),
    "a key twice": lambda s: write_statement(s, PREDICATE_TYPE, {})[:-1] + b',"subject":[]}',
    "no JSON": lambda s: b"text",
    "nothing": lambda s: b"",
    "deep": lambda s: b"[" * 100_000,
}


@pytest.mark.parametrize("kind", STATEMENTS)
def test_the_key_signed_something_else(bundle, pair, kind):
    """Its own signature holds, and does not make a bundle of it."""
    attach_sealed(bundle, pair, STATEMENTS[kind](subjects(bundle)))
    assert "envelope sha256:" in refusal(bundle, pair)


def test_a_plain_provenance_of_any_builder_counts(bundle, pair):
    """Other tools state other things; who may sign is what the key says."""
    attach_sealed(bundle, pair, write_statement(subjects(bundle), PREDICATE_TYPE, {}))
    require(bundle, pair)
    assert signed_sboms(open_bundle(bundle), found(bundle, pair)) == {}


def test_a_provenance_is_no_result_of_a_test(bundle, pair):
    attach_sealed(bundle, pair, write_statement(subjects(bundle), PREDICATE_TYPE, {}), TEST_RESULT)
    assert "nobody signed it" in refusal(bundle, pair)
    looked = found(bundle, pair)
    assert (looked.provenance, looked.results) == ((), ())
    assert "needs 'https://in-toto.io/attestation/test-result/v0.1'" in looked.refused[0]


def test_a_result_of_another_bundle_s_programs_is_none(bundle, pair):
    strange = [("a", "sha256:" + "0" * 64)]
    attach_sealed(bundle, pair, write_statement(strange, RESULT_TYPE, {}), TEST_RESULT)
    assert "needs a program of this bundle" in found(bundle, pair).refused[0]


def test_what_does_not_count_does_not_stop_what_does(signed, pair, other):
    new = [
        NewAttachment(artifact_type=PROVENANCE, data=data, annotations={"n": str(n)})
        for n, data in enumerate((b"", b"{}", b"[", seal(b"x", pair.private)))
    ]
    attach(open_bundle(signed), new)
    sign(signed, other)
    require(signed, pair)
    looked = found(signed, pair)
    assert len(looked.provenance) == 1
    assert len(looked.refused) == 5


# --- anything that is changed ---------------------------------------------------------------------

PARTS = {
    "envelope": lambda path: manifest_of(path)["layers"][0]["digest"],
    "manifest": lambda path: entry_of(path)["digest"],
    "bundle index": lambda path: open_bundle(path).digest,
    "variant": lambda path: open_bundle(path).variants[0].manifest.digest,
}


@pytest.mark.parametrize("part", PARTS)
def test_any_byte_that_is_flipped_is_noticed(signed, pair, part):
    file = blob_file(signed, PARTS[part](signed))
    data, draw = file.read_bytes(), random.Random(0)
    places = draw.sample(range(len(data)), min(len(data), 150))
    for place in places:
        changed = bytearray(data)
        changed[place] ^= draw.randrange(1, 256)
        file.write_bytes(changed)
        with pytest.raises(BundleError):
            require(signed, pair)
    file.write_bytes(data)
    require(signed, pair)


def test_any_byte_of_the_manifest_is_the_signer_s_where_digests_are_made_right(signed, pair):
    """Whatever of it is taken leads to the envelope that was signed, or to nothing."""
    manifest = json.dumps(manifest_of(signed), separators=(",", ":")).encode()
    listed, draw = entries(signed), random.Random(1)
    at = listed.index(entry_of(signed))
    envelope = manifest_of(signed)["layers"][0]["digest"]
    refused = 0
    for place in draw.sample(range(len(manifest)), 200):
        changed = bytearray(manifest)
        changed[place] ^= draw.randrange(1, 256)
        again = [*listed]
        again[at] = {**listed[at], **put(signed, bytes(changed))}
        set_entries(signed, again)
        try:
            looked = found(signed, pair).provenance
        except BundleError:
            refused += 1
        else:
            assert [each.envelope for each in looked] in ([], [envelope])
    assert refused > 100


@pytest.mark.parametrize("length", [0, 1, 10, 100, -1])
def test_a_shortened_envelope(signed, pair, length):
    set_data(signed, data_of(signed)[:length])
    assert "not JSON" in refusal(signed, pair)


def test_an_envelope_whose_payload_is_changed(signed, pair):
    def change(envelope):
        payload = base64.b64decode(envelope["payload"]).replace(b"tiny", b"huge")
        envelope["payload"] = base64.b64encode(payload).decode()

    change_envelope(signed, change)
    assert "1 signature, none of key" in refusal(signed, pair)


def test_an_envelope_that_is_missing(signed, pair):
    blob_file(signed, manifest_of(signed)["layers"][0]["digest"]).unlink()
    assert "is missing" in refusal(signed, pair)


def test_no_keys_are_no_signature(signed):
    """Nothing is taken for signed because nobody said by whom."""
    with pytest.raises(RequestError, match="no key to verify with"):
        require(signed)
    assert find_signatures(open_bundle(signed), []).provenance == ()


def test_keys_are_told_apart_from_other_files(signed, keys):
    (keys / "text").write_text("text")
    with pytest.raises(RequestError, match="not a public key"):
        read_keys([keys / "text"])
    with pytest.raises(RequestError, match="a private key"):
        read_keys([keys / "one.pub", keys / "one"])

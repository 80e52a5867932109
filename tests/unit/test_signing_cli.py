"""wanc sign, verify --key and inspect: what they take, print and refuse."""

import json
import shutil
from pathlib import Path

import pytest

from tests.signed import Pair, data_of, entry_of, found, new_pair, set_data, sign
from tests.sound import blob_file, write_sound
from tests.unit.test_bundle_store import files
from wanc.bundle.attached import SBOM
from wanc.bundle.reports import attach_report
from wanc.bundle.store import open_bundle
from wanc.cli import main
from wanc.digest import of_bytes

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def pair(keys) -> Pair:
    return new_pair(keys / "one")


@pytest.fixture(scope="module")
def other(keys) -> Pair:
    return new_pair(keys / "two", "ecdsa-p384")


@pytest.fixture(scope="module")
def written(tmp_path_factory, made) -> Path:
    return write_sound(tmp_path_factory.mktemp("written") / "bundle", made().config)


@pytest.fixture
def bundle(tmp_path, written) -> Path:
    return Path(shutil.copytree(written, tmp_path / "bundle"))


def run(capsys, *words, code=0):
    """What a line prints, on stdout and stderr."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    printed = capsys.readouterr()
    assert ended.value.code == code, printed
    return printed


# --- sign -----------------------------------------------------------------------------------------


def test_sign_states_what_it_is_given(bundle, pair, capsys):
    about = ["--builder-id", "https://ci.example/wanc", "--invocation-id", "run 7"]
    source = ["--source-uri", "git+https://example.com/wanc", "--source-digest", COMMIT]
    times = ["--started-on", "2026-11-30T09:29:00Z", "--finished-on", "2026-11-30T09:35:00Z"]
    printed = run(capsys, "sign", bundle, "--key", pair.file, *about, *source, *times)
    assert printed.out == f"{bundle} {open_bundle(bundle).digest}\n"
    assert f"key {pair.public.keyid}" in printed.err
    ((signature,), _) = found(bundle, pair).provenance, None
    details = signature.statement.predicate["runDetails"]
    assert details["builder"]["id"] == "https://ci.example/wanc"
    assert details["metadata"] == {
        "invocationId": "run 7",
        "startedOn": "2026-11-30T09:29:00Z",
        "finishedOn": "2026-11-30T09:35:00Z",
    }
    first, *_ = signature.statement.records("buildDefinition", "resolvedDependencies")
    assert first["digest"] == {"gitCommit": COMMIT}


def test_sign_names_nothing_of_host_user_and_place(bundle, pair, capsys, monkeypatch):
    import getpass
    import socket

    run(capsys, "sign", bundle, "--key", pair.file)
    opened = open_bundle(bundle)
    ((signature,), _) = found(bundle, pair).provenance, None
    said = json.dumps(signature.statement.predicate) + data_of(bundle, SBOM).decode()
    for text in (str(bundle), str(pair.file), socket.gethostname(), f"/{getpass.getuser()}/"):
        assert text not in said
    assert "metadata" not in signature.statement.predicate["runDetails"]
    assert opened.digest in said


def test_sign_for_programs(bundle, pair, capsys):
    told = json.loads(run(capsys, "sign", bundle, "--key", pair.file, "--json").out)
    assert told["digest"] == open_bundle(bundle).digest
    assert told["keyid"] == pair.public.keyid
    assert [each["artifact_type"] for each in told["attached"]] == [
        "application/vnd.cyclonedx+json",
        "application/vnd.in-toto.provenance+dsse",
    ]
    assert told["attached"][0]["manifest"] == entry_of(bundle, SBOM)["digest"]


def test_sign_takes_a_passphrase_and_never_from_the_line(bundle, tmp_path, capsys, monkeypatch):
    protected = new_pair(tmp_path / "key", passphrase=b"a word")
    line = ["sign", bundle, "--key", protected.file]
    assert "is protected" in run(capsys, *line, code=2).err
    monkeypatch.setenv("WORD", "a word")
    run(capsys, *line, "--passphrase-env", "WORD")
    (tmp_path / "word").write_text("a word\n")
    run(capsys, *line, "--passphrase-file", tmp_path / "word")
    assert found(bundle, protected).provenance


def test_an_unsound_bundle_is_not_signed(bundle, pair, capsys):
    (variant,) = open_bundle(bundle).variants
    file = blob_file(bundle, variant.config.programs[0].executable.digest)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    before = files(bundle)
    said = run(capsys, "sign", bundle, "--key", pair.file, code=5).err
    assert f"{bundle} is not signed, for it is not sound: 1 fault" in said
    assert f"wanc verify {bundle}" in said
    assert files(bundle) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--builder-id", "ci"], "--builder-id 'ci': needs a URI"),
        (["--source-digest", "1234"], "--source-digest '1234': needs a commit's"),
        (["--source-uri", "git+https://example.com"], "names no revision"),
        (["--started-on", "today"], "--started-on 'today': needs a time in UTC"),
        (["--passphrase-env", "WANC_NO_SUCH"], "has no passphrase"),
    ],
)
def test_what_says_nothing_is_refused_before_any_work(bundle, pair, capsys, words, said):
    before = files(bundle)
    assert said in run(capsys, "sign", bundle, "--key", pair.file, *words, code=2).err
    assert files(bundle) == before


def test_a_public_key_does_not_sign(bundle, pair, capsys):
    said = run(capsys, "sign", bundle, "--key", pair.public_file, code=2).err
    assert "not a private key" in said


# --- verify ---------------------------------------------------------------------------------------


def test_verify_shows_who_signed_and_what_they_state(bundle, pair, capsys):
    digests = {
        record.stablehlo.digest for record in open_bundle(bundle).variants[0].config.programs
    }
    report = attach_report(bundle, b'{"passes":true}', tuple(digests))
    source = ["--source-uri", "git+https://example.com/wanc", "--source-digest", COMMIT]
    run(capsys, "sign", bundle, "--key", pair.file, "--builder-id", "https://ci.example", *source)
    printed = run(capsys, "verify", bundle, "--key", pair.public_file)
    lines = printed.out.splitlines()
    assert lines[0].startswith(f"{open_bundle(bundle).digest}: 1 variant")
    assert lines[1:] == [
        f"signed by key {pair.public.keyid} ({pair.public_file})",
        "  build    urn:x-wanc:build:v1",
        "  builder  https://ci.example",
        f"  source   git+https://example.com/wanc gitCommit:{COMMIT}",
        "  with     pkg:pypi/jaxlib@0, pkg:generic/wanc",
        f"result PASSED of report {report[7:19]}, by key {pair.public.keyid[:12]}",
        f"sbom {of_bytes(data_of(bundle, SBOM))}: covered by a signature",
    ]


def test_verify_for_programs(bundle, pair, other, capsys):
    sign(bundle, pair, builder_id="https://ci.example")
    line = ["verify", bundle, "--json", "--key", other.public_file, "--key", pair.public_file]
    told = json.loads(run(capsys, *line).out)
    assert told["is_sound"]
    assert told["findings"] == []
    (signature,) = told["signatures"]
    assert signature["keyid"] == pair.public.keyid
    assert signature["algorithm"] == "ed25519"
    assert signature["key"] == str(pair.public_file)
    assert signature["envelope"] == of_bytes(data_of(bundle))
    assert signature["subjects"] == [told["bundle"]]
    assert signature["predicate"]["runDetails"]["builder"]["id"] == "https://ci.example"
    assert told["sboms"] == [{"digest": of_bytes(data_of(bundle, SBOM)), "is_signed": True}]
    assert told["signatures_refused"] == []


def test_a_bundle_without_a_signature_by_the_key_is_not_sound(bundle, pair, other, capsys):
    line = ["verify", bundle, "--key", other.public_file]
    for said in ("nobody signed it", "none of key"):
        printed = run(capsys, *line, code=5)
        assert "is not sound: 1 fault" in printed.err
        assert said in " ".join(printed.out.split())
        told = json.loads(run(capsys, *line, "--json", code=5).out)
        assert not told["is_sound"]
        assert told["faults"] == 1
        (finding,) = told["findings"]
        assert (finding["kind"], finding["is_fault"]) == ("signature", True)
        assert told["signatures"] == []
        sign(bundle, pair)
    run(capsys, "verify", bundle)  # nobody asked who signed


def test_what_does_not_count_is_told_beside_what_does(bundle, pair, other, capsys):
    sign(bundle, pair)
    sign(bundle, other)
    printed = run(capsys, "verify", bundle, "--key", pair.public_file)
    assert "does not count: envelope sha256:" in printed.out
    assert printed.out.count("signed by key") == 1


def test_a_bill_that_nobody_signed_is_told(bundle, pair, capsys):
    sign(bundle, pair)
    set_data(bundle, b'{"bomFormat":"CycloneDX"}', SBOM)
    assert ": not signed" in run(capsys, "verify", bundle, "--key", pair.public_file).out


def test_a_damaged_bundle_is_not_sound_whoever_signed(bundle, pair, capsys):
    sign(bundle, pair)
    (variant,) = open_bundle(bundle).variants
    file = blob_file(bundle, variant.config.programs[0].executable.digest)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    printed = run(capsys, "verify", bundle, "--key", pair.public_file, code=5)
    assert "is not sound: 1 fault" in printed.err
    assert "signed by key" in printed.out
    blob_file(bundle, variant.manifest.digest).unlink()
    printed = run(capsys, "verify", bundle, "--key", pair.public_file, code=5)
    assert "signed by key" not in printed.out


def test_no_key_at_all(tmp_path, bundle, capsys):
    said = run(capsys, "verify", bundle, "--key", tmp_path / "none", code=2).err
    assert "cannot be read: No such file" in said


def test_what_a_signer_states_does_not_steer_a_terminal(bundle, pair, capsys, monkeypatch):
    monkeypatch.setattr("wanc.signing.provenance.BUILD_TYPE", "urn:\x1b[2Jx")
    sign(bundle, pair)
    assert "\x1b" not in run(capsys, "verify", bundle, "--key", pair.public_file).out


# --- inspect --------------------------------------------------------------------------------------


def test_inspect_shows_what_is_attached(bundle, pair, made, capsys):
    assert json.loads(run(capsys, "inspect", bundle, "--json").out)["attached"] == []
    digests = {
        record.stablehlo.digest for record in open_bundle(bundle).variants[0].config.programs
    }
    report = attach_report(bundle, b'{"passes":true}', tuple(digests))
    sign(bundle, pair)
    sbom, envelope = of_bytes(data_of(bundle, SBOM)), of_bytes(data_of(bundle))
    said = f"signed by what says it is key {pair.public.keyid[:12]}"
    lines = run(capsys, "inspect", bundle).out.splitlines()[-3:]
    assert lines[:2] == [f"sbom {sbom}", f"provenance {envelope}, {said}"]
    assert lines[2].startswith("test result sha256:")
    assert lines[2].endswith(f" of report {report[7:19]}, {said}")
    first, second, _ = json.loads(run(capsys, "inspect", bundle, "--json").out)["attached"]
    assert first == {
        "artifact_type": SBOM,
        "digest": sbom,
        "manifest": entry_of(bundle, SBOM)["digest"],
        "annotations": {},
        "is_current": True,
    }
    assert second["annotations"] == {"vnd.wanc.signature.keyid": pair.public.keyid}
    write_sound(bundle, made(topology="tp2").config)
    lines = run(capsys, "inspect", bundle).out.splitlines()[-3:]
    assert all(line.endswith(", of another state of the bundle") for line in lines)
    told = json.loads(run(capsys, "inspect", bundle, "--json").out)["attached"]
    assert [each["is_current"] for each in told] == [False] * 3

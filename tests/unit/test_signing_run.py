"""Runs that require a signature: no byte of an executable is read without one, in any process."""

import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

import wanc as library
from tests.signed import Pair, entries, new_pair, set_data, set_entries, sign
from tests.sound import edit
from tests.unit.test_bundle_store import write
from tests.unit.test_check import runnable
from wanc.bundle import store
from wanc.bundle.store import open_bundle
from wanc.cli import main
from wanc.errors import BundleError, RequestError
from wanc.processes.world import Alone
from wanc.progress import Silent
from wanc.run.load import choose
from wanc.run.pipeline import load_variant
from wanc.run.request import LoadRequest, as_plain, from_plain


class ReadError(Exception):
    """A run got as far as an executable's bytes."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def pair(keys) -> Pair:
    return new_pair(keys / "one")


@pytest.fixture(scope="module")
def other(keys) -> Pair:
    return new_pair(keys / "two")


def variant(made, *args, **kwargs):
    return runnable(made(*args, **kwargs), jaxlib=version("jaxlib"))


@pytest.fixture(scope="module")
def written(tmp_path_factory, made) -> Path:
    path = tmp_path_factory.mktemp("written") / "bundle"
    write(path, variant(made))
    return path


@pytest.fixture
def bundle(tmp_path, written) -> Path:
    return Path(shutil.copytree(written, tmp_path / "bundle"))


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """Digests of all that is read of bundles; an executable ends the test's run."""
    digests: list[str] = []
    read_blob = store.read_blob

    def noted(path, digest, size):
        digests.append(digest)
        return read_blob(path, digest, size)

    def ended(self, blob):
        digests.append(blob.digest)
        raise ReadError

    def never(*_):
        raise AssertionError("an executable was looked at")

    monkeypatch.setattr(store, "read_blob", noted)
    monkeypatch.setattr(store.Bundle, "read", ended)
    monkeypatch.setattr("wanc.runtime.cpu_runtime.CpuRuntime.check_executable", never)
    monkeypatch.setattr("wanc.runtime.cpu_runtime.CpuRuntime.engine", never)
    return digests


def asked(bundle, checkpoint, *pairs, **more) -> LoadRequest:
    signers = tuple(pair.public_file for pair in pairs)
    return LoadRequest(bundle=bundle, weights=checkpoint, signers=signers, **more)


def executables(path) -> set[str]:
    configs = [each.config for each in open_bundle(path).variants]
    return {record.executable.digest for config in configs for record in config.programs}


def test_with_a_signature_executables_are_read(bundle, pair, other, tiny_checkpoint, read):
    """What the others would do too, if nothing stopped them."""
    sign(bundle, pair)
    for signers in ([pair], [other, pair], []):
        with pytest.raises(ReadError):
            load_variant(asked(bundle, tiny_checkpoint, *signers), Alone(), Silent())
        assert read[-1] in executables(bundle)
        read.clear()


# --- bundles that are refused ---------------------------------------------------------------------


def unsigned(bundle, pair, other, made):
    pass


def signed_by_another(bundle, pair, other, made):
    sign(bundle, other)


def damaged(bundle, pair, other, made):
    sign(bundle, pair)
    set_data(bundle, b"{}")


def signed_again_by_another(bundle, pair, other, made):
    sign(bundle, pair)
    set_entries(bundle, entries(bundle)[:1])
    sign(bundle, other)


def added_to(bundle, pair, other, made):
    sign(bundle, pair)
    write(bundle, variant(made, topology="tp2"))


def replaced(bundle, pair, other, made):
    sign(bundle, pair)
    write(bundle, variant(made, attention="allgather"))


def edited(bundle, pair, other, made):
    """Code of somebody else's, with all digests above it made right."""

    def code(editor):
        editor.config["programs"][0]["executable"] = editor.layer(b"other code")

    sign(bundle, pair)
    edit(bundle, code)


def pointed_elsewhere(bundle, pair, other, made):
    sign(bundle, pair)
    elsewhere = bundle.with_name("elsewhere")
    write(elsewhere, variant(made, attention="allgather"))
    for file in (elsewhere / "blobs" / "sha256").iterdir():
        (bundle / "blobs" / "sha256" / file.name).write_bytes(file.read_bytes())
    set_entries(bundle, [entries(elsewhere)[0], *entries(bundle)[1:]])


REFUSED = {
    each.__name__: each
    for each in (
        unsigned,
        signed_by_another,
        signed_again_by_another,
        damaged,
        added_to,
        replaced,
        edited,
        pointed_elsewhere,
    )
}
EACH = pytest.mark.parametrize("how", REFUSED)


@EACH
def test_no_byte_of_an_executable_is_read(bundle, pair, other, made, tiny_checkpoint, read, how):
    REFUSED[how](bundle, pair, other, made)
    code = executables(bundle)
    read.clear()
    request = asked(bundle, tiny_checkpoint, pair, topology="tp1")
    for load in (choose, lambda r: load_variant(r, Alone(), Silent())):
        with pytest.raises(BundleError, match="is not signed by key"):
            load(request)
    assert read
    assert not code & set(read)


@EACH
def test_nor_from_python(bundle, pair, other, made, tiny_checkpoint, read, how):
    REFUSED[how](bundle, pair, other, made)
    for signers in (pair.public_file, str(pair.public_file), [pair.public_file]):
        with pytest.raises(BundleError, match="is not signed by key"):
            library.load(bundle, tiny_checkpoint, topology="tp1", require_signature=signers)


COMMANDS = {
    "run": ["--prompt", "a fox", "-o", "OUT"],
    "run --prompts": ["--prompts", "LINES", "-o", "FOLDER"],
    "decode": ["--latents", "LATENTS", "-o", "OUT"],
    "compare": ["--prompt", "a fox", "--steps", "1"],
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("how", ["unsigned", "signed_by_another", "added_to"])
def test_nor_by_a_command(
    bundle, pair, other, made, tiny_checkpoint, read, how, name, tmp_path, capsys
):
    REFUSED[how](bundle, pair, other, made)
    code = executables(bundle)
    read.clear()
    (tmp_path / "lines").write_text('{"prompt": "a fox"}\n')
    (tmp_path / "latents").write_text("none")
    places = {"OUT": "v.mp4", "LINES": "lines", "FOLDER": "videos", "LATENTS": "latents"}
    words = [str(tmp_path / places[w]) if w in places else w for w in COMMANDS[name]]
    common = ["--bundle", bundle, "--weights", tiny_checkpoint, "--topology", "tp1"]
    line = [name.split()[0], *common, *words, "--require-signature", pair.public_file]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, line)])
    assert ended.value.code == BundleError.exit_code
    assert "is not signed by key" in capsys.readouterr().err
    assert not code & set(read)


def test_both_sides_of_a_comparison_must_be_signed(
    bundle, pair, made, tiny_checkpoint, read, capsys, tmp_path
):
    sign(bundle, pair)
    beside = tmp_path / "beside"
    write(beside, variant(made))
    line = ["compare", "--bundle", bundle, "--with", beside, "--weights", tiny_checkpoint]
    more = ["--prompt", "a fox", "--require-signature", pair.public_file]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, [*line, *more])])
    assert ended.value.code == BundleError.exit_code
    assert f"{beside} sha256:" in capsys.readouterr().err
    assert not executables(bundle) & set(read)


# --- every process --------------------------------------------------------------------------------


def test_processes_get_the_requirement(bundle, pair, other, tiny_checkpoint):
    request = asked(bundle, tiny_checkpoint, pair, other)
    again = from_plain(as_plain(request), LoadRequest)
    assert again == request
    assert again.signers == (pair.public_file, other.public_file)


def test_a_process_looks_for_itself(bundle, pair, other, made, tiny_checkpoint, read):
    """Whatever the one before it saw: a bundle may change in between."""
    sign(bundle, pair)
    request = asked(bundle, tiny_checkpoint, pair, topology="tp1")
    choose(request)
    edited(bundle, pair, other, made)
    read.clear()
    with pytest.raises(BundleError, match="is not signed by key"):
        load_variant(from_plain(as_plain(request), LoadRequest), Alone(), Silent())
    assert not executables(bundle) & set(read)


def test_a_file_that_is_no_key_ends_it_too(bundle, pair, tiny_checkpoint, read, tmp_path):
    sign(bundle, pair)
    (tmp_path / "key").write_text("text")
    request = LoadRequest(bundle=bundle, weights=tiny_checkpoint, signers=(tmp_path / "key",))
    with pytest.raises(RequestError, match="not a public key"):
        load_variant(request, Alone(), Silent())
    assert not executables(bundle) & set(read)

"""Bundles pushed and pulled: by Debian's docker-registry, skopeo, and a double with faults."""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs
from tests.sound import edit, verified, write_sound
from tests.unit.conftest import variant_of
from wanc.bundle import oci
from wanc.bundle.loose import clear_bundle
from wanc.bundle.reports import attach_report, read_reports
from wanc.bundle.store import blob_path, config_blobs, open_bundle
from wanc.cli import main
from wanc.digest import of_file
from wanc.errors import BundleError, RegistryError, RequestError
from wanc.progress import Silent
from wanc.registry.manifests import get_manifest, put_manifest, resolve
from wanc.registry.reference import Reference
from wanc.registry.repository import Repository
from wanc.share import push as push_story
from wanc.share.contents import contents_of
from wanc.share.pull import Pulled, Wanted, pull_bundle
from wanc.share.push import Pushed, push_bundle

TAG = "v1"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two variants. Read only: it is shared."""
    path = tmp_path_factory.mktemp("share") / "bundle"
    return write_sound(path, *(variant_of(shape).config for shape in ("208x128x5", "320x320x9")))


@pytest.fixture
def bundle(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "bundle"))


@pytest.fixture
def place(docker_registry: str, opened: Any, request: pytest.FixtureRequest) -> Repository:
    """A repository of this test alone."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.lower()).strip("-")
    return opened(docker_registry, f"test/{'-'.join(filter(None, name.split('-')))}")


def pushed(bundle: Path, to: Repository, tag: str | None = TAG, **how: Any) -> Pushed:
    reference = Reference(host=to.host, name=to.name, tag=tag)
    return push_bundle(bundle, reference, to, jobs=3, progress=Silent(), **how)


def pulled(
    source: Repository, path: Path, *, tag: str = TAG, digest: str | None = None, **wanted: Any
) -> Pulled:
    reference = Reference(host=source.host, name=source.name, tag=tag, digest=digest)
    return pull_bundle(reference, path, source, wanted=Wanted(**wanted), jobs=3, progress=Silent())


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def blobs_bytes(bundle: Path) -> int:
    """Of configs, StableHLO and executables, each once."""
    return contents_of(open_bundle(bundle)).bytes


# --- there and back -------------------------------------------------------------------------------


def test_there_and_back_is_the_same_bundle(bundle, place, tmp_path):
    digest = open_bundle(bundle).digest
    done = pushed(bundle, place)
    assert str(done.reference) == f"{place.host}/{place.name}:{TAG}@{digest}"
    assert (done.moved_bytes, done.reused_bytes) == (blobs_bytes(bundle), 0)
    assert done.manifests == 3
    back = pulled(place, tmp_path / "back")
    assert files(tmp_path / "back") == files(bundle)
    assert verified(tmp_path / "back").findings == ()
    assert back.reference.digest == digest
    assert (len(back.variants), back.left, back.reused_bytes) == (2, 0, 0)


def test_pushing_again_moves_no_blob(bundle, place):
    pushed(bundle, place)
    again = pushed(bundle, place)
    assert (again.moved_bytes, again.manifests) == (0, 0)
    assert again.reused_bytes == blobs_bytes(bundle)
    another = pushed(bundle, place, tag="v2")
    assert another.moved_bytes == 0
    assert resolve(place, "v2").digest == open_bundle(bundle).digest


def test_after_a_change_of_one_program_only_that_moves(bundle, place, tmp_path):
    pushed(bundle, place)
    before = {blob.digest for v in open_bundle(bundle).variants for blob in config_blobs(v.config)}

    def change(editor: Any) -> None:
        record = editor.config["programs"][0]
        record["executable"] = editor.layer(b"another executable of it")

    edit(bundle, change)
    new = config_blobs(open_bundle(bundle).variants[0].config)
    programs = sum(blob.size_bytes for blob in new if blob.digest not in before)
    config = oci.parse(get_json(bundle), "manifest")["config"]["size"]
    done = pushed(bundle, place)
    assert programs == len(b"another executable of it")
    assert done.moved_bytes == programs + config
    assert done.manifests == 2  # of the variant, and the index


def get_json(bundle: Path) -> bytes:
    """The first variant's manifest."""
    return blob_path(bundle, open_bundle(bundle).variants[0].manifest.digest).read_bytes()


def test_pulling_again_moves_nothing_and_a_pinned_digest_wins(bundle, place, tmp_path):
    first = pushed(bundle, place).reference.digest
    pulled(place, tmp_path / "back")
    assert pulled(place, tmp_path / "back").moved_bytes == 0
    write_sound(bundle, variant_of("80x48x5").config)
    pushed(bundle, place)
    assert pulled(place, tmp_path / "pinned", digest=first).reference.digest == first
    later = pulled(place, tmp_path / "back")
    assert later.reference.digest == open_bundle(bundle).digest
    assert 0 < later.moved_bytes < later.reused_bytes
    clear_bundle(tmp_path / "back", delete=True)
    assert verified(tmp_path / "back").findings == ()


def test_blobs_are_mounted_from_another_repository(bundle, place, opened):
    pushed(bundle, place)
    other = opened(place.host, f"{place.name}-other")
    done = pushed(bundle, other, mount_from=place.name)
    assert (done.moved_bytes, done.reused_bytes) == (0, blobs_bytes(bundle))


def test_each_blob_is_asked_for_once(bundle, double, opened):
    pushed(bundle, opened(double.host))
    asked = [each.path for each in double.asked("HEAD") if "/blobs/" in each.path]
    assert len(asked) == len({*asked}) == len(contents_of(open_bundle(bundle)).blobs)


def test_the_tag_is_written_last(bundle, place, monkeypatch):
    pushed(bundle, place)
    old = resolve(place, TAG)
    write_sound(bundle, variant_of("80x48x5").config)

    def fails(*_: Any, **__: Any) -> None:
        raise RegistryError("cut")

    for step in ("push_blob", "_put", "put_manifest"):
        with monkeypatch.context() as patched:
            patched.setattr(push_story, step, fails)
            with pytest.raises(RegistryError, match="cut"):
                pushed(bundle, place)
        assert resolve(place, TAG) == old
    pushed(bundle, place)
    assert resolve(place, TAG).digest == open_bundle(bundle).digest


def test_reports_travel_with_it(bundle, place, tmp_path):
    covers = (open_bundle(bundle).variants[0].config.programs[0].stablehlo.digest,)
    attach_report(bundle, b'{"verdict":"exact"}', covers)
    assert pushed(bundle, place).attached == 1
    assert pulled(place, tmp_path / "back").attached == 1
    (report,) = read_reports(open_bundle(tmp_path / "back"))
    assert (report.data, report.covers) == (b'{"verdict":"exact"}', covers)
    assert files(tmp_path / "back") == files(bundle)
    assert verified(tmp_path / "back").findings == ()


# --- parts ----------------------------------------------------------------------------------------


def test_one_variant_to_run_is_all_that_moves(bundle, place, tmp_path):
    pushed(bundle, place)
    part = tmp_path / "part"
    done = pulled(place, part, variants=("320x320x9",), programs="executables")
    first, second = open_bundle(part).variants
    wanted = {r.executable.digest: r.executable.size_bytes for r in second.config.programs}
    assert done.moved_bytes == sum(wanted.values())
    assert done.variants == ("t2v 320x320x9 tp1 fp32 cpu",)
    assert done.left == 1
    there = {f"sha256:{name}" for name in os.listdir(part / "blobs" / "sha256")}
    assert {b.digest for b in config_blobs(first.config)} & there <= {*wanted}
    seen = verified(part)
    assert seen.is_sound
    assert [f.kind for f in seen.findings] == ["blob"]
    assert "pulled in part" in seen.findings[0].what

    (missing,) = [b for b in config_blobs(second.config) if b.digest in wanted][:1]
    blob_path(part, missing.digest).write_bytes(b"x" * missing.size_bytes)
    assert not verified(part).is_sound  # what is there is still looked at


def test_a_part_becomes_whole(bundle, place, tmp_path):
    pushed(bundle, place)
    part = tmp_path / "part"
    pulled(place, part, programs="none")
    assert open_bundle(part).is_part
    pulled(place, part, variants=("1",))
    assert open_bundle(part).is_part
    pulled(place, part, variants=("2",))
    assert not open_bundle(part).is_part
    assert files(part) == files(bundle)
    pulled(place, part, programs="none")
    assert not open_bundle(part).is_part


def test_a_part_is_pushed_where_the_rest_is(bundle, place, opened, tmp_path):
    pushed(bundle, place)
    pulled(place, tmp_path / "part", programs="executables")
    assert pushed(tmp_path / "part", place, tag="again").moved_bytes == 0
    with pytest.raises(BundleError, match="pulled in part"):
        pushed(tmp_path / "part", opened(place.host, f"{place.name}-empty"))


@pytest.mark.parametrize("words", ["80x48x5", "3", "320x320x9 tp2", " "])
def test_a_variant_that_is_not_there(bundle, place, tmp_path, words):
    pushed(bundle, place)
    with pytest.raises(RequestError, match="1 t2v 208x128x5 tp1 fp32 cpu\n"):
        pulled(place, tmp_path / "part", variants=(words,))
    assert not (tmp_path / "part" / "index.json").exists()


# --- where it goes --------------------------------------------------------------------------------


def test_variants_are_not_lost_unless_asked(bundle, place, tmp_path):
    pushed(bundle, place)
    write_sound(tmp_path / "mine", variant_of("80x48x5").config)
    before = files(tmp_path / "mine")
    with pytest.raises(RequestError, match="t2v 80x48x5"):
        pulled(place, tmp_path / "mine")
    assert files(tmp_path / "mine").items() >= before.items()
    assert verified(tmp_path / "mine").is_sound
    pulled(place, tmp_path / "mine", replace=True)
    assert open_bundle(tmp_path / "mine").digest == open_bundle(bundle).digest


def test_what_is_not_a_bundle_is_refused(bundle, place, tmp_path):
    with pytest.raises(RegistryError, match="no such manifest"):
        pulled(place, tmp_path / "none")
    pushed(bundle, place)
    variant = open_bundle(bundle).variants[0].manifest
    _, data = get_manifest(place, variant.digest)
    put_manifest(place, data, oci.MANIFEST, "one")
    with pytest.raises(RegistryError, match="is no bundle"):
        pulled(place, tmp_path / "one", tag="one")
    put_manifest(place, oci.index_bytes([variant], {}), oci.INDEX, "unversioned")
    with pytest.raises(BundleError, match="no format version"):
        pulled(place, tmp_path / "unversioned", tag="unversioned")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


# --- skopeo ---------------------------------------------------------------------------------------


@pytest.fixture
def skopeo() -> Callable[..., str]:
    needs(shutil.which("skopeo") is not None, "skopeo")

    def run(*line: str) -> str:
        done = subprocess.run(
            ["skopeo", "--insecure-policy", *line], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_skopeo_reads_what_is_pushed_and_keeps_the_digest(bundle, place, opened, skopeo, tmp_path):
    digest = pushed(bundle, place).reference.digest
    here = f"docker://{place.host}/{place.name}"
    raw = skopeo("inspect", "--tls-verify=false", "--raw", f"{here}:{TAG}")
    assert raw.encode() == blob_path(bundle, str(digest)).read_bytes()

    copy = ("copy", "--all", "--preserve-digests")
    other = opened(place.host, f"{place.name}-copied")
    plain = ("--src-tls-verify=false", "--dest-tls-verify=false")
    skopeo(*copy, *plain, f"{here}:{TAG}", f"docker://{other.host}/{other.name}:{TAG}")
    assert resolve(other, TAG).digest == digest
    pulled(other, tmp_path / "of-skopeo")
    assert files(tmp_path / "of-skopeo") == files(bundle)

    layout = tmp_path / "layout"
    skopeo(*copy, "--src-tls-verify=false", f"{here}:{TAG}", f"oci:{layout}:bundle")
    assert verified(layout).is_sound
    assert open_bundle(layout).digest == digest


def test_skopeo_pushes_a_bundle_as_it_lies(bundle, place, skopeo, tmp_path):
    to = f"docker://{place.host}/{place.name}:{TAG}"
    copy = ("copy", "--all", "--preserve-digests", "--dest-tls-verify=false")
    skopeo(*copy, f"oci:{bundle}:bundle", to)
    pulled(place, tmp_path / "back")
    assert open_bundle(tmp_path / "back").digest == open_bundle(bundle).digest
    assert pushed(bundle, place).moved_bytes == 0


# --- what lies ------------------------------------------------------------------------------------


def test_nothing_outside_the_bundle_is_sent(bundle, double, opened, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"a password")
    blob = config_blobs(open_bundle(bundle).variants[0].config)[0]
    blob_path(bundle, blob.digest).unlink()
    blob_path(bundle, blob.digest).symlink_to(secret)
    with pytest.raises(BundleError, match="not a file but a link"):
        pushed(bundle, opened(double.host))
    assert not double.tags


def test_a_damaged_blob_is_not_sent(bundle, double, opened):
    blob = config_blobs(open_bundle(bundle).variants[0].config)[0]
    file = blob_path(bundle, blob.digest)
    file.write_bytes(b"x" + file.read_bytes()[1:])
    with pytest.raises(BundleError, match="is damaged"):
        pushed(bundle, opened(double.host))
    assert blob.digest not in {each.path.rpartition("/")[2] for each in double.asked("PUT")}


def test_a_registry_that_lies_gives_no_bundle(bundle, double, opened, tmp_path):
    repository = opened(double.host)
    digest = pushed(bundle, repository).reference.digest
    blobs, manifests = (kept[repository.name] for kept in (double.blobs, double.manifests))
    for name, whole in list(blobs.items()):
        blobs[name] = b" " * len(whole)
        refused(repository, tmp_path / name[7:], digest)
        blobs[name] = whole
    for name, (media_type, whole) in list(manifests.items()):
        manifests[name] = (media_type, whole.replace(b"wanc", b"wand"))
        refused(repository, tmp_path / name[7:], digest)
        manifests[name] = (media_type, whole)
    pulled(repository, tmp_path / "back", digest=digest)
    assert verified(tmp_path / "back").findings == ()


def refused(repository: Repository, path: Path, digest: str | None) -> None:
    """Nothing is committed, and no blob has a name that is not its own."""
    with pytest.raises(RegistryError, match="answers other bytes"):
        pulled(repository, path, digest=digest)
    assert not (path / "index.json").exists()
    for file in (path / "blobs" / "sha256").glob("[0-9a-f]*"):
        assert of_file(file) == f"sha256:{file.name}"


def test_a_reference_to_another_digest_is_not_pushed(bundle, place):
    wrong = Reference(host=place.host, name=place.name, tag=TAG, digest=f"sha256:{'0' * 64}")
    with pytest.raises(RequestError, match=open_bundle(bundle).digest):
        push_bundle(bundle, wrong, place, jobs=1, progress=Silent())
    without = replace(wrong, tag=None, digest=None)
    done = push_bundle(bundle, without, place, jobs=1, progress=Silent())
    assert done.reference.digest == open_bundle(bundle).digest
    assert resolve(place, str(done.reference.digest)) is not None
    assert resolve(place, "latest") is None


# --- trust ----------------------------------------------------------------------------------------


def run(*line: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, line)])
    return int(ended.value.code or 0)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """Two private keys; each has its public half beside it."""
    for name in ("ours", "theirs"):
        assert run("key", "new", tmp_path / f"{name}.pem") == 0
    return tmp_path / "ours.pem", tmp_path / "theirs.pem"


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def runs(reference: object, key: Path, weights: Path, capsys: Any) -> tuple[int, str]:
    """What a run that wants a signature does; its executables have no code to be run."""
    start = ["run", "--bundle", reference, "--weights", weights, "--prompt", "p", "--steps", "1"]
    start += ["--shape", "208x128x5"]
    output = weights.with_name("never.mp4")
    code = run(*start, "--require-signature", public(key), "-o", output)
    return code, capsys.readouterr().err


def test_a_run_takes_only_what_our_key_signed(
    bundle, place, keys, tiny_checkpoint, tmp_path, capsys, monkeypatch
):
    """Unsigned, wrongly signed and re-tagged bundles are refused; a signed one gets to its code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    reference = f"{place.host}/{place.name}:{TAG}"
    ours, theirs = keys
    pushed(bundle, place)
    code, said = runs(reference, ours, tiny_checkpoint, capsys)
    assert (code, "is not signed by key" in said) == (5, True), said

    assert run("sign", bundle, "--key", theirs) == 0
    pushed(bundle, place)
    code, said = runs(reference, ours, tiny_checkpoint, capsys)
    assert (code, "is not signed by key" in said) == (5, True), said

    assert run("sign", bundle, "--key", ours) == 0
    assert pushed(bundle, place).attached >= 3  # two provenances, and a list of parts
    assert pulled(place, tmp_path / "back").attached >= 3
    assert files(tmp_path / "back") == files(bundle)
    assert run("verify", tmp_path / "back", "--key", public(ours)) == 0
    capsys.readouterr()
    code, said = runs(reference, ours, tiny_checkpoint, capsys)
    assert "is not signed by" not in said, said  # it is refused for what it needs of a machine

    write_sound(bundle, variant_of("80x48x5").config)  # what is signed is not this
    pushed(bundle, place)  # under the same tag
    code, said = runs(reference, ours, tiny_checkpoint, capsys)
    assert (code, "is not signed by key" in said) == (5, True), said


def test_a_fallback_tag_that_is_the_bundle_itself_is_refused(
    bundle, place, keys, tiny_checkpoint, tmp_path, capsys, monkeypatch
):
    """docker-registry has no list of referrers: anybody who may push may write the tag."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    digest = str(pushed(bundle, place).reference.digest)
    _, data = get_manifest(place, digest)
    put_manifest(place, data, oci.INDEX, digest.replace(":", "-"))
    code, said = runs(f"{place.host}/{place.name}:{TAG}", keys[0], tiny_checkpoint, capsys)
    assert (code, "that itself" in said) == (7, True), said


def test_a_pinned_bundle_that_was_pulled_needs_no_registry(
    sound, opened, keys, tmp_path, capsys, monkeypatch, double
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bundle = Path(shutil.copytree(sound, tmp_path / "signed"))
    assert run("sign", bundle, "--key", keys[0]) == 0
    reference = pushed(bundle, opened(double.host)).reference
    for line in (["inspect", reference], ["verify", reference, "--key", public(keys[0])]):
        assert run(*line) == 0
    double.script("GET", "", 403, times=100)
    double.script("HEAD", "", 403, times=100)
    asked = len(double.seen)
    assert run("inspect", reference) == 0
    assert run("verify", reference, "--key", public(keys[0])) == 0
    assert len(double.seen) == asked
    capsys.readouterr()
    assert run("verify", reference, "--key", public(keys[1])) == 5  # a signature may have come
    assert len(double.seen) > asked
    assert "what was pulled before is used" in capsys.readouterr().err
    assert run("inspect", f"{double.host}/wan/bundle:{TAG}") == 7

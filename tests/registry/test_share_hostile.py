"""Registries that give a pull what it must not take: nothing is written of it, nothing crashes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.registry import RegistryDouble
from tests.registry.test_share import bundle, files, pulled, pushed, sound
from tests.sound import verified, write_sound
from tests.unit.conftest import variant_of
from wanc.bundle import oci
from wanc.bundle.attached import PROVENANCE, SBOM, NewAttachment, attach, attachments
from wanc.bundle.reports import COVERS_ANNOTATION, REPORT_TYPE, attach_report, read_reports
from wanc.bundle.store import config_blobs, open_bundle
from wanc.cache.store import Cache
from wanc.cache.upkeep import prune
from wanc.cli.bundles import local_bundle
from wanc.digest import of_bytes
from wanc.errors import BundleError, RegistryError, RequestError, RunError, WancError
from wanc.registry import referrers
from wanc.registry.repository import Repository
from wanc.registry.uploads import push_blob

__all__ = ["bundle", "sound"]  # fixtures


@pytest.fixture
def repository(bundle: Path, double: RegistryDouble, opened: Any) -> Repository:
    """One that has the bundle."""
    made = opened(double.host)
    pushed(bundle, made)
    return made


# --- attachments ----------------------------------------------------------------------------------

HOSTILE: dict[str, dict[str, Any]] = {
    "annotations that are a list": {"annotations": [1]},
    "annotations that are no texts": {"annotations": {"a": {"b": "c"}}},
    "annotations that cannot be written": {"annotations": {"a": "\ud800"}},
    "annotations that fill index.json": {"annotations": {"a": "x" * (300 << 10)}},
    "annotations of a report": {"annotations": {COVERS_ANNOTATION: of_bytes(b"")}},
    "another config": {"config": oci.describe("application/x", b"cfg").to_json()},
    "two layers": {"layers": [oci.describe(PROVENANCE, b"data").to_json()] * 2},
    "no layer": {"layers": []},
    "a layer of another type": {"layers": [oci.describe("application/x", b"data").to_json()]},
    "a layer too large": {
        "layers": [{**oci.describe(PROVENANCE, b"data").to_json(), "size": 1 << 60}]
    },
    "a report of another type": {
        "artifactType": REPORT_TYPE,
        "annotations": {COVERS_ANNOTATION: of_bytes(b"")},
    },
    "a report that covers nothing": {
        "artifactType": REPORT_TYPE,
        "layers": [oci.describe(REPORT_TYPE, b"data").to_json()],
        "annotations": {COVERS_ANNOTATION: "../.."},
    },
}


def attach_hostile(repository: Repository, subject: Any, changes: dict[str, Any]) -> None:
    for data in (b"data", b"cfg", oci.EMPTY_BYTES):
        push_blob(repository, data, of_bytes(data), len(data))
    value = json.loads(
        oci.manifest_bytes(
            oci.describe(oci.EMPTY, oci.EMPTY_BYTES),
            [oci.describe(PROVENANCE, b"data")],
            {},
            artifact_type=PROVENANCE,
            subject=subject,
        )
    )
    referrers.attach(repository, json.dumps({**value, **changes}).encode())


@pytest.mark.parametrize("what", HOSTILE)
def test_attachments_that_would_break_the_bundle_are_not_taken(bundle, repository, tmp_path, what):
    """Whoever may push may attach: a bundle that was whole must stay so."""
    back = tmp_path / "back"
    pulled(repository, back)
    before = files(back)
    attach_hostile(repository, open_bundle(bundle).entry, HOSTILE[what])
    with pytest.raises((RegistryError, BundleError), match=r"attachment|referrer"):
        pulled(repository, back)
    assert files(back) == before
    assert verified(back).findings == ()


def test_a_report_with_more_annotations_is_taken_once_and_with_its_own_alone(
    bundle, repository, tmp_path
):
    covers = (open_bundle(bundle).variants[0].config.programs[0].stablehlo.digest,)
    attach_report(bundle, b'{"verdict":"exact"}', covers)
    pushed(bundle, repository)
    push_blob(repository, b'{"verdict":"exact"}', of_bytes(b'{"verdict":"exact"}'), 19)
    layer = oci.describe(REPORT_TYPE, b'{"verdict":"exact"}').to_json()
    annotations = {COVERS_ANNOTATION: covers[0], "made": "by another tool"}
    attach_hostile(
        repository,
        open_bundle(bundle).entry,
        {"artifactType": REPORT_TYPE, "layers": [layer], "annotations": annotations},
    )
    assert pulled(repository, tmp_path / "back").attached == 1
    assert files(tmp_path / "back") == files(bundle)
    assert len(read_reports(open_bundle(tmp_path / "back"))) == 1


def test_what_was_attached_here_stays_where_the_bundle_is_the_same(bundle, repository, tmp_path):
    back = tmp_path / "back"
    pulled(repository, back)
    attach(open_bundle(back), [NewAttachment(artifact_type=SBOM, data=b"mine")])
    pulled(repository, back)
    (mine,) = attachments(back)
    assert mine.read(back) == b"mine"
    write_sound(bundle, variant_of("80x48x5").config)
    pushed(bundle, repository)
    pulled(repository, back)
    assert attachments(back) == ()  # it was of another bundle
    assert open_bundle(back).digest == open_bundle(bundle).digest


# --- amounts --------------------------------------------------------------------------------------


def refused(repository: Repository, path: Path, match: str, **how: Any) -> None:
    with pytest.raises(WancError, match=match):
        pulled(repository, path, **how)
    assert not (path / "index.json").exists()


def put_index(double: RegistryDouble, repository: Repository, manifests: list[Any]) -> str:
    """An index of no real bundle; a double takes it though it names what is not there."""
    value = json.loads(oci.index_bytes([], {"vnd.wanc.format-version": "4"}))
    data = json.dumps({**value, "manifests": manifests}).encode()
    double.manifests[repository.name][of_bytes(data)] = (oci.INDEX, data)
    return of_bytes(data)


def named(bundle: Path) -> list[Any]:
    return [variant.manifest.to_json() for variant in open_bundle(bundle).variants]


def test_more_variants_than_any_bundle_has(bundle, double, repository, tmp_path):
    digest = put_index(double, repository, named(bundle) * 501)
    asked = len(double.seen)
    refused(repository, tmp_path / "back", "1002 variants", digest=digest)
    assert len(double.seen) == asked + 1


def test_more_json_than_any_bundle_has(bundle, repository, tmp_path, monkeypatch):
    monkeypatch.setattr("wanc.share.pull.MOST_JSON_BYTES", 3000)
    refused(repository, tmp_path / "back", "manifests and configs of more than 3000 bytes")


@pytest.mark.parametrize("size", [1 << 63, 10**400, -1])
def test_sizes_that_lie(bundle, double, repository, tmp_path, size):
    first, second = named(bundle)
    digest = put_index(double, repository, [first, {**second, "size": size}])
    refused(repository, tmp_path / "back", "a descriptor is damaged", digest=digest)
    digest = put_index(double, repository, [first, {**second, "size": 5}])
    refused(repository, tmp_path / "back", "needs 5", digest=digest)


# --- where it goes --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["blobs", "blobs/sha256"])
def test_a_link_in_the_destination_leads_nowhere(repository, tmp_path, name):
    outside = tmp_path / "outside"
    outside.mkdir()
    link = tmp_path / "back" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    refused(repository, tmp_path / "back", f"{name} is a link")
    assert not os.listdir(outside)


def test_a_destination_that_has_no_name(repository, tmp_path):
    with pytest.raises(RunError, match="File name too long"):
        pulled(repository, tmp_path / ("x" * 300))


def test_a_part_of_a_partial_download_that_is_a_link_is_not_followed(bundle, repository, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    blob = config_blobs(open_bundle(bundle).variants[0].config)[0]
    folder = tmp_path / "back" / "blobs" / "sha256"
    folder.mkdir(parents=True)
    (folder / f".new-partial-{blob.digest[7:]}").symlink_to(outside)
    refused(repository, tmp_path / "back", "Too many levels of symbolic links")
    assert outside.read_bytes() == b"mine"


# --- bundles in the user's cache ------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return Cache(tmp_path / "home" / "wanc")


def pinned(bundle: Path, repository: Repository) -> Path:
    return Path(f"{repository.host}/{repository.name}@{open_bundle(bundle).digest}")


def test_a_bundle_that_a_command_uses_is_not_pruned(bundle, repository, cache):
    reference = pinned(bundle, repository)
    folder = local_bundle(reference)
    os.utime(folder, ns=(1, 1))
    assert local_bundle(reference) == folder  # used again, and asks nobody
    cleared = prune(cache, max_bytes=0, delete=True)
    assert cleared.spared == 1
    assert open_bundle(folder).digest == open_bundle(bundle).digest


def test_a_cache_that_takes_no_mark_is_read(bundle, double, repository, cache, monkeypatch):
    folder = local_bundle(pinned(bundle, repository))
    asked = len(double.seen)

    def refuses(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("wanc.cache.store.tempfile.NamedTemporaryFile", refuses)
    monkeypatch.setattr("wanc.cache.store.os.utime", refuses)
    assert local_bundle(pinned(bundle, repository)) == folder
    assert len(double.seen) == asked


def test_a_folder_that_became_another_bundle_is_not_taken_for_it(bundle, repository, cache):
    reference = pinned(bundle, repository)
    folder = local_bundle(reference)
    write_sound(folder, variant_of("80x48x5").config)
    assert open_bundle(folder).digest != open_bundle(bundle).digest
    with pytest.raises(RequestError, match="80x48x5"):
        local_bundle(reference)

"""Against Debian's docker-registry: what the double promises of registries holds of a real one."""

import json
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.doubles.registry import sha256
from tests.needs import needs
from tests.registry.cutting import Cutting
from wanc.bundle import oci
from wanc.errors import RegistryError
from wanc.registry.blobs import fetch_json, has_blob
from wanc.registry.downloads import PARTIAL, fetch_blob
from wanc.registry.manifests import get_manifest, put_manifest, resolve
from wanc.registry.referrers import attach, list_referrers, referrer
from wanc.registry.uploads import push_blob

DATA = random.Random(3).randbytes(3_000_000)
DIGEST = sha256(DATA)
CONFIG = b'{"a":"config"}'


def artifact(repository, data=DATA):
    """Push a manifest with a config and one layer, under v1."""
    push_blob(repository, CONFIG, sha256(CONFIG), len(CONFIG))
    push_blob(repository, data, sha256(data), len(data), chunk_bytes=1 << 20)
    manifest = oci.manifest_bytes(
        oci.describe(oci.CONFIG, CONFIG), [oci.describe(oci.STABLEHLO, data)], {"a": "b"}
    )
    return put_manifest(repository, manifest, oci.MANIFEST, "v1").descriptor, manifest


def test_there_and_back(docker_registry, opened, tmp_path, counted):
    repository = opened(docker_registry, "test/there-and-back")
    assert not has_blob(repository, DIGEST)
    assert resolve(repository, "v1") is None
    descriptor, manifest = artifact(repository)
    assert resolve(repository, "v1") == descriptor
    assert get_manifest(repository, "v1") == (descriptor, manifest)
    assert get_manifest(repository, descriptor.digest) == (descriptor, manifest)
    assert fetch_json(repository, oci.describe(oci.CONFIG, CONFIG)) == CONFIG
    fetch_blob(repository, DIGEST, len(DATA), tmp_path / "got", on_bytes=counted)
    assert (tmp_path / "got").read_bytes() == DATA
    assert counted.moved == len(DATA)


def test_what_is_there_and_what_is_mounted_does_not_move(docker_registry, opened, counted):
    one, other = (opened(docker_registry, f"test/mount-{name}") for name in ("one", "other"))
    push = (DATA, DIGEST, len(DATA))
    assert push_blob(one, *push) == "sent"
    assert push_blob(one, *push, on_bytes=counted) == "there"
    assert push_blob(other, *push, on_bytes=counted, mount_from="test/mount-one") == "mounted"
    assert has_blob(other, DIGEST)
    assert (counted.moved, counted.reused) == (0, 2 * len(DATA))


def test_a_mount_from_where_it_is_not(docker_registry, opened):
    repository = opened(docker_registry, "test/no-mount")
    push = (DATA, DIGEST, len(DATA))
    assert push_blob(repository, *push, mount_from="test/nowhere") == "sent"
    assert has_blob(repository, DIGEST)


def test_a_download_is_resumed(docker_registry, opened, tmp_path, counted):
    repository = opened(docker_registry, "test/resume")
    push_blob(repository, DATA, DIGEST, len(DATA))
    (tmp_path / (PARTIAL + DIGEST[7:])).write_bytes(DATA[:1_000_000])
    fetch_blob(repository, DIGEST, len(DATA), tmp_path / "got", on_bytes=counted)
    assert (tmp_path / "got").read_bytes() == DATA
    assert (counted.moved, counted.reused) == (2_000_000, 1_000_000)


def test_a_cut_download_is_resumed(docker_registry, opened, tmp_path, counted):
    push_blob(opened(docker_registry, "test/cut"), DATA, DIGEST, len(DATA))
    with Cutting(docker_registry, answers=[1_000_000, 500_000]) as host:
        repository = opened(host, "test/cut")
        fetch_blob(repository, DIGEST, len(DATA), tmp_path / "got", on_bytes=counted)
    assert (tmp_path / "got").read_bytes() == DATA
    assert counted.moved == len(DATA)


def test_a_cut_upload_arrives_all_the_same(docker_registry, opened, slept):
    """This version forgets a session that was cut, so that it begins again."""
    with Cutting(docker_registry, requests=[1_500_000]) as host:
        repository = opened(host, "test/cut-upload")
        push_blob(repository, DATA, DIGEST, len(DATA), chunk_bytes=1 << 20)
    assert slept == [0.5]
    assert has_blob(opened(docker_registry, "test/cut-upload"), DIGEST)


def test_many_at_once(docker_registry, opened, tmp_path):
    repository = opened(docker_registry, "test/many")
    blobs = {sha256(data): data for data in (bytes([n]) * 300_000 for n in range(12))}
    with ThreadPoolExecutor(6) as pool:
        for digest, data in blobs.items():
            pool.submit(push_blob, repository, data, digest, len(data), chunk_bytes=1 << 17)
    with ThreadPoolExecutor(6) as pool:
        for digest, data in blobs.items():
            pool.submit(fetch_blob, repository, digest, len(data), tmp_path / digest[7:])
    assert {sha256(file.read_bytes()) for file in tmp_path.iterdir()} == {*blobs}


def test_referrers_are_listed_in_a_tag(docker_registry, opened):
    repository = opened(docker_registry, "test/referrers")
    subject, manifest = artifact(repository)
    assert list_referrers(repository, subject.digest) == ()
    reports = []
    for number in range(3):
        value = {**json.loads(manifest), "artifactType": "x/report", "subject": subject.to_json()}
        value["annotations"] = {"number": str(number)}
        reports.append(json.dumps(value).encode())
        attach(repository, reports[-1])
    found = list_referrers(repository, subject.digest, "x/report")
    assert [referrer(repository, each, subject.digest) for each in found] == reports
    assert list_referrers(repository, subject.digest, "x/signature") == ()


def test_what_it_refuses(docker_registry, opened):
    repository = opened(docker_registry, "test/refused")
    with pytest.raises(RegistryError, match="400 DIGEST_INVALID"):
        push_blob(repository, DATA[:-1] + b"?", DIGEST, len(DATA), chunk_bytes=1 << 20)
    manifest = oci.manifest_bytes(oci.describe(oci.CONFIG, b"{}"), [], {})
    with pytest.raises(RegistryError, match="400 MANIFEST_BLOB_UNKNOWN"):
        put_manifest(repository, manifest, oci.MANIFEST, "v1")


def test_skopeo_reads_what_was_pushed_and_writes_what_is_read(docker_registry, opened, tmp_path):
    needs(bool(shutil.which("skopeo")), "skopeo")
    repository = opened(docker_registry, "test/skopeo")
    descriptor, manifest = artifact(repository)
    source, copied = (f"docker://{docker_registry}/test/{n}" for n in ("skopeo:v1", "copied:v2"))
    line = ["skopeo", "copy", "--preserve-digests", "--src-tls-verify=false"]
    subprocess.run([*line, source, f"oci:{tmp_path}/layout"], check=True, capture_output=True)
    kept = tmp_path / "layout" / "blobs" / "sha256"
    assert (kept / descriptor.digest[7:]).read_bytes() == manifest
    assert (kept / DIGEST[7:]).read_bytes() == DATA
    back = [*line[:-1], "--dest-tls-verify=false", f"oci:{tmp_path}/layout", copied]
    subprocess.run(back, check=True, capture_output=True)
    assert get_manifest(opened(docker_registry, "test/copied"), "v2") == (descriptor, manifest)

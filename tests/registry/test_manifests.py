"""Manifests by tag and digest: what is checked, and what is not believed."""

import json

import pytest

from tests.doubles.registry import sha256
from wanc.bundle import oci
from wanc.bundle.oci import Descriptor
from wanc.errors import RegistryError
from wanc.registry.manifests import Put, find_manifest, get_manifest, put_manifest, resolve

EMPTY = oci.describe(oci.EMPTY, oci.EMPTY_BYTES)
DATA = oci.manifest_bytes(EMPTY, [EMPTY], {"a": "b"})
DESCRIPTOR = Descriptor(media_type=oci.MANIFEST, digest=sha256(DATA), size=len(DATA))
OTHER = "sha256:" + "1" * 64


@pytest.fixture
def repository(double, opened):
    double.blobs["wan/bundle"] = {EMPTY.digest: oci.EMPTY_BYTES}
    return opened(double.host)


@pytest.fixture
def there(double, repository):
    """A repository that has the manifest under v1."""
    put_manifest(repository, DATA, oci.MANIFEST, "v1")
    double.seen.clear()
    return repository


def fails(work, *args, **how):
    with pytest.raises(RegistryError) as caught:
        work(*args, **how)
    return str(caught.value)


@pytest.mark.parametrize("tag", ["v1", None])
def test_a_manifest_is_put_as_it_is(tag, double, repository):
    put = put_manifest(repository, DATA, oci.MANIFEST, tag)
    assert put == Put(descriptor=DESCRIPTOR, subject=None)
    assert double.manifests["wan/bundle"] == {DESCRIPTOR.digest: (oci.MANIFEST, DATA)}
    assert double.tags.get("wan/bundle", {}) == ({"v1": DESCRIPTOR.digest} if tag else {})


@pytest.mark.parametrize("asked", ["v1", DESCRIPTOR.digest])
def test_a_manifest_comes_by_tag_and_digest(asked, there):
    assert get_manifest(there, asked) == (DESCRIPTOR, DATA)
    assert find_manifest(there, asked) == (DESCRIPTOR, DATA)
    assert resolve(there, asked) == DESCRIPTOR


def test_a_tag_is_asked_for_without_the_manifest(double, there):
    resolve(there, "v1")
    assert [each.method for each in double.seen] == ["HEAD"]


@pytest.mark.parametrize("header", ["Docker_Content_Digest", "Content_Length"])
def test_a_registry_that_does_not_say_enough_is_asked_for_all(header, double, there):
    headers = {"Docker_Content_Digest": DESCRIPTOR.digest, "Content_Length": str(len(DATA))}
    double.script("HEAD", "/manifests/", 200, **{**headers, header: []}, Content_Type=oci.MANIFEST)
    assert resolve(there, "v1") == DESCRIPTOR
    assert [each.method for each in double.seen] == ["HEAD", "GET"]


@pytest.mark.parametrize("asked", ["v2", OTHER])
def test_a_manifest_that_is_not_there(asked, double, there):
    assert find_manifest(there, asked) is None
    assert resolve(there, asked) is None
    name = f"tag {asked}" if asked == "v2" else f"manifest {OTHER[:19]}"
    assert fails(get_manifest, there, asked) == (
        f"{double.host}/wan/bundle: {name}: the registry has no such manifest, or no repository "
        "wan/bundle"
    )


def test_a_name_that_is_neither_tag_nor_digest_goes_into_no_address(double, there):
    for asked in ("../x", "sha256:1", "", "a b", "a/b"):
        assert "is no sha256 digest" in fails(get_manifest, there, asked)
        assert "is no sha256 digest" in fails(resolve, there, asked)
        assert asked == "" or "is no sha256" in fails(put_manifest, there, DATA, "x/y", asked)
    assert not double.seen


def test_other_bytes_under_a_digest(double, there):
    double.damages = True
    double.has_digest_header = False
    assert fails(get_manifest, there, DESCRIPTOR.digest).endswith(
        f"answers other bytes, of {sha256(double.changed(DATA))}; needs {DESCRIPTOR.digest}"
    )


@pytest.mark.parametrize("damages", [True, False])
def test_other_bytes_than_the_registry_says(damages, double, there):
    double.damages, double.digest_lie = damages, "" if damages else OTHER
    needed = DESCRIPTOR.digest if damages else OTHER
    assert fails(get_manifest, there, "v1").endswith(f"needs {needed}")


def test_a_digest_of_another_kind_is_not_compared(double, there):
    double.digest_lie = "sha512:" + "1" * 128
    assert get_manifest(there, "v1") == (DESCRIPTOR, DATA)


@pytest.mark.parametrize(
    ("media_type", "told"),
    [
        ("text/html; charset=utf-8", "the registry has 'text/html'; needs"),
        ("", "the registry has 'something'; needs"),
        (oci.INDEX, f"calls it {oci.INDEX!r}, and it calls itself {oci.MANIFEST!r}"),
        ("x/\x1b[31m", "the registry has 'x/\ufffd[31m'"),
    ],
)
def test_another_media_type(media_type, told, double, there):
    double.script("GET", "/manifests/", 200, DATA, Content_Type=media_type)
    assert told in fails(get_manifest, there, "v1")


def test_only_what_is_accepted_is_taken(double, there):
    assert find_manifest(there, "v1", (oci.INDEX,)) is None  # as the double keeps to Accept
    double.ignores_accept = True
    assert f"the registry has {oci.MANIFEST!r}; needs {oci.INDEX}" in fails(
        get_manifest, there, "v1", (oci.INDEX,)
    )
    assert double.seen[0].headers["Accept"] == oci.INDEX


@pytest.mark.parametrize("body", [b"[]", b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_manifest(body, double, there):
    double.script("GET", "/manifests/", 200, body, Content_Type=oci.MANIFEST)
    assert ": not " in fails(get_manifest, there, "v1")


def test_a_manifest_that_is_too_large(double, there):
    assert "more than the 100 bytes that are read" in fails(
        get_manifest, there, "v1", most_bytes=100
    )


def test_a_manifest_whose_blobs_are_missing(double, repository):
    double.blobs.clear()
    assert "answers 400 MANIFEST_BLOB_UNKNOWN" in fails(
        put_manifest, repository, DATA, oci.MANIFEST, "v1"
    )


def test_a_registry_that_stored_something_else(double, repository):
    double.digest_lie = OTHER
    assert f"other bytes, of {OTHER}; needs {DESCRIPTOR.digest}" in fails(
        put_manifest, repository, DATA, oci.MANIFEST, "v1"
    )


def test_a_manifest_is_put_again_where_the_registry_is_busy(double, repository, slept):
    double.script("PUT", "/manifests/", 503)
    put_manifest(repository, DATA, oci.MANIFEST, "v1")
    assert double.manifests["wan/bundle"][DESCRIPTOR.digest][1] == DATA
    assert slept == [0.5]


def test_a_registry_says_that_it_lists_a_subject(double, repository):
    value = {**json.loads(DATA), "subject": DESCRIPTOR.to_json()}
    put = put_manifest(repository, json.dumps(value).encode(), oci.MANIFEST)
    assert put.subject == DESCRIPTOR.digest

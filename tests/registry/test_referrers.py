"""What refers to a manifest, by the API and by the tag that stands for it."""

import json

import pytest

from tests.doubles.registry import sha256
from wanc.bundle import oci
from wanc.bundle.oci import Descriptor
from wanc.errors import RegistryError
from wanc.registry import referrers
from wanc.registry.manifests import put_manifest
from wanc.registry.referrers import Referrer, attach, list_referrers, referrer

EMPTY = oci.describe(oci.EMPTY, oci.EMPTY_BYTES)
DATA = oci.manifest_bytes(EMPTY, [EMPTY], {})
SUBJECT = oci.describe(oci.MANIFEST, DATA)
TAG = SUBJECT.digest.replace(":", "-")


def refers(number, artifact_type="x/report", subject=SUBJECT):
    """The manifest of a referrer."""
    made = oci.manifest_bytes(EMPTY, [EMPTY], {"number": str(number)}, artifact_type="x")
    value = json.loads(made)
    value["artifactType"] = artifact_type
    if not artifact_type:
        del value["artifactType"]
    if subject:
        value["subject"] = subject.to_json()
    return json.dumps(value).encode()


def listed(data, artifact_type="x/report"):
    """As a list has a referrer."""
    annotations = json.loads(data)["annotations"]
    descriptor = Descriptor(
        media_type=oci.MANIFEST, digest=sha256(data), size=len(data), annotations=annotations
    )
    return Referrer(descriptor=descriptor, artifact_type=artifact_type)


@pytest.fixture
def repository(double, opened):
    double.blobs["wan/bundle"] = {EMPTY.digest: oci.EMPTY_BYTES}
    repository = opened(double.host)
    put_manifest(repository, DATA, oci.MANIFEST, "v1")
    return repository


@pytest.fixture(params=[True, False], ids=["api", "tag"])
def either(request, double, repository):
    """A repository of a registry with the API, and of one without."""
    double.has_referrers = request.param
    return repository


@pytest.fixture
def by_tag(double, repository):
    double.has_referrers = False
    return repository


def put_tag(repository, double, entries, **fields):
    """Have the tag hold an index of entries."""
    index = {"schemaVersion": 2, "mediaType": oci.INDEX, "manifests": entries, **fields}
    data = json.dumps(index).encode()
    double.manifests["wan/bundle"][sha256(data)] = (oci.INDEX, data)
    double.tags["wan/bundle"][TAG] = sha256(data)


def fails(work, *args):
    with pytest.raises(RegistryError) as caught:
        work(*args)
    return str(caught.value)


def test_nothing_refers(either):
    assert list_referrers(either, SUBJECT.digest) == ()


def test_what_was_attached_is_listed_and_checked(either, double):
    reports = [refers(number) for number in range(3)]
    for data in reports:
        assert attach(either, data).digest == sha256(data)
    found = list_referrers(either, SUBJECT.digest)
    assert {*map(str, found)} == {str(listed(data)) for data in reports}
    assert [referrer(either, each, SUBJECT.digest) for each in found] == [
        double.manifests["wan/bundle"][each.descriptor.digest][1] for each in found
    ]
    assert (TAG in double.tags["wan/bundle"]) is not double.has_referrers


def test_attached_twice_is_listed_once(either):
    attach(either, refers(1))
    attach(either, refers(1))
    assert list_referrers(either, SUBJECT.digest) == (listed(refers(1)),)


@pytest.mark.parametrize("filters", [True, False])
def test_only_some_are_wanted(filters, either, double):
    double.filters = filters
    attach(either, refers(1))
    attach(either, refers(2, "x/signature"))
    signature = listed(refers(2, "x/signature"), "x/signature")
    assert list_referrers(either, SUBJECT.digest, "x/signature") == (signature,)
    assert len(list_referrers(either, SUBJECT.digest)) == 2


def test_a_manifest_without_a_type_has_its_config_s(either):
    attach(either, refers(1, None))
    (found,) = list_referrers(either, SUBJECT.digest)
    assert found.artifact_type == oci.EMPTY
    assert referrer(either, found, SUBJECT.digest) == refers(1, None)


def test_a_subject_that_is_not_there_yet(either):
    later = oci.describe(oci.MANIFEST, b"later")
    attach(either, refers(1, subject=later))
    assert len(list_referrers(either, later.digest)) == 1


@pytest.mark.parametrize("subject", ["sha256:1", "sha512:" + "1" * 128, "v1"])
def test_a_subject_is_a_digest(subject, either, double):
    double.seen.clear()
    assert "is no sha256 digest" in fails(list_referrers, either, subject)
    assert not double.seen


def test_a_manifest_without_a_subject_is_not_attached(either, double):
    double.seen.clear()
    assert "names no subject to be attached to" in fails(attach, either, refers(1, subject=None))
    assert not double.seen


# --- what a list claims -------------------------------------------------------------------


def test_a_manifest_that_names_another_subject_is_not_believed(either, double):
    other = oci.describe(oci.MANIFEST, b"another")
    data = refers(1, subject=other)
    double.manifests["wan/bundle"][sha256(data)] = (oci.MANIFEST, data)
    assert f"listed under {SUBJECT.digest}, but refers to {other.digest}" in fails(
        referrer, either, listed(data), SUBJECT.digest
    )


def test_a_manifest_without_a_subject_is_not_believed(either, double):
    data = refers(1, subject=None)
    double.manifests["wan/bundle"][sha256(data)] = (oci.MANIFEST, data)
    assert "but refers to nothing" in fails(referrer, either, listed(data), SUBJECT.digest)


def test_a_manifest_of_another_type_is_not_believed(either, double):
    attach(either, refers(1))
    assert "it is no x/signature, as which it is listed" in fails(
        referrer, either, listed(refers(1), "x/signature"), SUBJECT.digest
    )


def test_a_manifest_that_is_not_there_is_not_believed(either):
    assert "has no such manifest" in fails(referrer, either, listed(refers(1)), SUBJECT.digest)


@pytest.mark.parametrize("subject", [7, [], {"digest": "sha256:1"}, "sha256:" + "1" * 64])
def test_a_manifest_with_a_damaged_subject(subject, either, double):
    data = json.dumps({**json.loads(refers(1)), "subject": subject}).encode()
    double.manifests["wan/bundle"][sha256(data)] = (oci.MANIFEST, data)
    assert "a descriptor is damaged" in fails(referrer, either, listed(data), SUBJECT.digest)


# --- the API ------------------------------------------------------------------------------


def test_pages_are_followed(repository, double):
    for number in range(5):
        attach(repository, refers(number))
    double.page_size = 2
    double.seen.clear()
    assert len(list_referrers(repository, SUBJECT.digest)) == 5
    assert len(double.seen) == 3


def test_pages_without_an_end(repository, double, monkeypatch):
    monkeypatch.setattr(referrers, "MOST_PAGES", 7)
    for number in range(2):
        attach(repository, refers(number))
    double.page_size, double.page_at = 1, f"/v2/wan/bundle/referrers/{SUBJECT.digest}"
    double.seen.clear()
    assert "has more than 7 pages" in fails(list_referrers, repository, SUBJECT.digest)
    assert len(double.seen) == 7


def test_a_page_elsewhere_gets_no_credentials(repository, double, storage):
    for number in range(2):
        attach(repository, refers(number))
    double.page_size, double.page_at = 1, f"{storage.base}/page"
    assert "answers 403" in fails(list_referrers, repository, SUBJECT.digest)
    assert "Authorization" not in storage.seen[0].headers


def test_pages_with_too_much(repository, double, monkeypatch):
    monkeypatch.setattr(referrers, "MAX_JSON_BYTES", 1000)
    for number in range(4):
        attach(repository, refers(number))
    double.page_size = 2
    double.seen.clear()
    double.page_at = f"/v2/wan/bundle/referrers/{SUBJECT.digest}"
    assert "or 1000 bytes of them" in fails(list_referrers, repository, SUBJECT.digest)
    assert 2 <= len(double.seen) <= 3


@pytest.mark.parametrize(
    "link",
    [
        '</v2/wan/bundle/referrers/x?n=1,2>; rel="next"',
        "</v2/wan/bundle/referrers/x?n=1,2>;rel=next",
        '<a>; rel="prev", </v2/wan/bundle/referrers/x?n=1,2>; title="t"; Rel = "next"',
    ],
)
def test_links_as_they_are_written(link):
    assert referrers._next(["<b>; rel=last", link]) == "/v2/wan/bundle/referrers/x?n=1,2"
    assert referrers._next(['<a>; rel="prev"', "", "a; rel=next", "<a>; rel=nextto"]) is None


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_registry_without_the_api_is_asked_for_the_tag(status, by_tag, double):
    attach(by_tag, refers(1))
    double.script("GET", "/referrers/", status)
    assert list_referrers(by_tag, SUBJECT.digest) == (listed(refers(1)),)


def test_a_registry_that_fails_is_not_one_without_the_api(repository, double):
    double.script("GET", "/referrers/", 403)
    assert "(403)" in fails(list_referrers, repository, SUBJECT.digest)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"<html>", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "answers no image index"),
        (b'{"manifests": {}}', "answers no image index"),
        (b'{"mediaType": "x/y", "manifests": []}', "answers no image index"),
        (b'{"manifests": [7]}', "a descriptor is damaged"),
        (b'{"manifests": [{"digest": "sha256:1"}]}', "a descriptor is damaged"),
        (bytes((4 << 20) + 1), "more than the 4194304 bytes"),
    ],
)
def test_a_list_that_is_none(body, told, repository, double):
    double.script("GET", "/referrers/", 200, body)
    assert told in fails(list_referrers, repository, SUBJECT.digest)


def test_a_registry_that_lists_it_under_another_subject(repository, double):
    other = "sha256:" + "1" * 64
    double.script("PUT", "/manifests/", 201, OCI_Subject=other)
    assert f"lists it under {other}; it refers to {SUBJECT.digest}" in fails(
        attach, repository, refers(1)
    )


# --- the tag ------------------------------------------------------------------------------


def test_the_tag_holds_an_index_as_the_api_would_answer(by_tag, double):
    attach(by_tag, refers(1))
    media_type, data = double.manifests["wan/bundle"][double.tags["wan/bundle"][TAG]]
    assert media_type == oci.INDEX
    assert json.loads(data) == {
        "schemaVersion": 2,
        "mediaType": oci.INDEX,
        "manifests": [
            {
                "mediaType": oci.MANIFEST,
                "digest": sha256(refers(1)),
                "size": len(refers(1)),
                "artifactType": "x/report",
                "annotations": {"number": "1"},
            }
        ],
    }


def test_what_others_wrote_into_the_tag_stays(by_tag, double):
    other = {
        "mediaType": oci.MANIFEST,
        "digest": SUBJECT.digest,
        "size": SUBJECT.size,
        "platform": {"os": "linux"},
    }
    put_tag(by_tag, double, [other], annotations={"by": "others"})
    attach(by_tag, refers(1))
    _, data = double.manifests["wan/bundle"][double.tags["wan/bundle"][TAG]]
    assert json.loads(data)["manifests"][0] == other
    assert json.loads(data)["annotations"] == {"by": "others"}
    assert len(json.loads(data)["manifests"]) == 2


def test_what_another_writer_undid_is_written_again(by_tag, double, slept):
    attach(by_tag, refers(1))
    alone = double.tags["wan/bundle"][TAG]
    undo = lambda: double.tags["wan/bundle"].update({TAG: alone})  # noqa: E731
    double.after_put = [lambda: None, undo, undo]
    attach(by_tag, refers(2))
    assert len(list_referrers(by_tag, SUBJECT.digest)) == 2
    assert slept == [0.5, 1]


def test_a_writer_that_undoes_all_is_told_of(by_tag, double):
    attach(by_tag, refers(1))
    alone = double.tags["wan/bundle"][TAG]
    double.after_put = [lambda: double.tags["wan/bundle"].update({TAG: alone})] * 99
    assert "another writer undid what was written; given up after 6" in fails(
        attach, by_tag, refers(2)
    )


@pytest.mark.parametrize("work", [list_referrers, attach])
def test_a_tag_that_is_the_subject_itself(work, by_tag, double):
    double.tags["wan/bundle"][TAG] = SUBJECT.digest
    asked = SUBJECT.digest if work is list_referrers else refers(1)
    assert f"a list of what refers to {SUBJECT.digest}, and is that itself" in fails(
        work, by_tag, asked
    )


def test_a_tag_that_is_the_subject_itself_where_that_is_an_index(by_tag, double):
    index = oci.index_bytes([SUBJECT], {})
    tag = sha256(index).replace(":", "-")
    put_manifest(by_tag, index, oci.INDEX, tag)
    assert "and is that itself" in fails(list_referrers, by_tag, sha256(index))
    data = refers(1, subject=oci.describe(oci.INDEX, index))
    assert "and is that itself" in fails(attach, by_tag, data)
    assert double.tags["wan/bundle"][tag] == sha256(index)


@pytest.mark.parametrize("work", [list_referrers, attach])
def test_a_tag_that_is_no_index(work, by_tag, double):
    put_manifest(by_tag, refers(7), oci.MANIFEST, TAG)
    asked = SUBJECT.digest if work is list_referrers else refers(1)
    assert f"and is {oci.MANIFEST}" in fails(work, by_tag, asked)
    assert double.tags["wan/bundle"][TAG] == sha256(refers(7))


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"mediaType": "x/blob", "digest": SUBJECT.digest, "size": 1}, "'x/blob', which is no man"),
        ({"mediaType": oci.MANIFEST, "digest": "sha256:..", "size": 1}, "a descriptor is damaged"),
        ({"mediaType": oci.MANIFEST, "digest": SUBJECT.digest, "size": -1}, "a descriptor is dam"),
        (None, "a descriptor is damaged"),
    ],
)
def test_a_tag_with_what_is_no_manifest(entry, told, by_tag, double):
    put_tag(by_tag, double, [entry])
    assert told in fails(list_referrers, by_tag, SUBJECT.digest)
    before = double.tags["wan/bundle"][TAG]
    assert told in fails(attach, by_tag, refers(1))
    assert double.tags["wan/bundle"][TAG] == before


def test_a_tag_that_is_too_large(by_tag, double):
    put_tag(by_tag, double, [], annotations={"a": "x" * (4 << 20)})
    assert "more than the 4194304 bytes" in fails(list_referrers, by_tag, SUBJECT.digest)

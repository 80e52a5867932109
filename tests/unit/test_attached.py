"""What is attached to a bundle: beside its index, for that index alone, with nothing trusted."""

import json
import shutil
import threading

import pytest

from tests.signed import (
    data_of,
    entries,
    entry_of,
    manifest_of,
    put,
    set_data,
    set_entries,
    set_manifest,
)
from tests.sound import blob_file, faults, verified, write_sound
from tests.unit.test_bundle_store import files
from wanc.bundle import attached as module
from wanc.bundle import oci
from wanc.bundle.attached import (
    MAX_BYTES,
    PROVENANCE,
    SBOM,
    TEST_RESULT,
    NewAttachment,
    attach,
    attached,
    attachments,
)
from wanc.bundle.loose import clear_bundle
from wanc.bundle.reports import attach_report, read_reports
from wanc.bundle.store import open_bundle
from wanc.digest import of_bytes
from wanc.errors import BundleError, RunError

DATA, OTHER = b'{"bomFormat":"one"}', b'{"bomFormat":"two"}'


def new(data=DATA, kind=SBOM, **annotations) -> NewAttachment:
    return NewAttachment(artifact_type=kind, data=data, annotations=annotations)


@pytest.fixture(scope="module")
def written(tmp_path_factory, made):
    return write_sound(tmp_path_factory.mktemp("written") / "bundle", made().config)


@pytest.fixture
def bundle(tmp_path, written):
    """A bundle of one variant."""
    return shutil.copytree(written, tmp_path / "bundle")


def add_variant(bundle, made):
    write_sound(bundle, made(topology="tp2").config)


def told(bundle, *types) -> list[bytes]:
    """Bytes of what is attached to the bundle as it stands."""
    opened = open_bundle(bundle)
    return [each.read(bundle) for each in attached(opened, *types or module.TYPES)]


def test_a_bundle_keeps_its_digest_and_everything_of_it(bundle):
    before, digest = files(bundle), open_bundle(bundle).digest
    attach(open_bundle(bundle), [new()])
    after = files(bundle)
    assert open_bundle(bundle).digest == digest
    assert {name for name in before if after[name] != before[name]} == {"index.json"}
    assert told(bundle) == [DATA]
    assert verified(bundle).findings == ()


def test_spelled_as_oci_has_it(bundle):
    """Fields in the order of the Go structures: registries and tools keep these bytes."""
    (written,) = attach(open_bundle(bundle), [new(kind=PROVENANCE, who="b", a="c")])
    data = blob_file(bundle, written.digest).read_bytes()
    index = blob_file(bundle, open_bundle(bundle).digest).read_bytes()
    said = {"a": "c", "who": "b"}
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": "application/vnd.in-toto.provenance+dsse",
        "config": {
            "mediaType": "application/vnd.oci.empty.v1+json",
            "digest": of_bytes(b"{}"),
            "size": 2,
        },
        "layers": [
            {
                "mediaType": "application/vnd.in-toto.provenance+dsse",
                "digest": of_bytes(DATA),
                "size": len(DATA),
            }
        ],
        "subject": {
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "digest": of_bytes(index),
            "size": len(index),
        },
        "annotations": said,
    }
    assert data.decode() == json.dumps(manifest, separators=(",", ":"))
    assert json.dumps(entry_of(bundle)) == json.dumps(
        {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": of_bytes(data),
            "size": len(data),
            "annotations": said,
            "artifactType": "application/vnd.in-toto.provenance+dsse",
        }
    )


def test_the_same_once_more_changes_nothing(bundle):
    attach(open_bundle(bundle), [new(), new(kind=PROVENANCE, key="a")])
    before = files(bundle)
    attach(open_bundle(bundle), [new(kind=PROVENANCE, key="a"), new()])
    assert files(bundle) == before


def test_one_of_the_same_type_and_annotations_gives_way_and_others_stay(bundle):
    opened = open_bundle(bundle)
    attach(opened, [new(), new(b"a", PROVENANCE, key="a"), new(b"b", PROVENANCE, key="b")])
    attach(opened, [new(OTHER), new(b"c", PROVENANCE, key="a")])
    assert told(bundle, SBOM) == [OTHER]
    assert told(bundle, PROVENANCE) == [b"b", b"c"]
    attach(opened, [new(b"a", TEST_RESULT, key="a")])
    assert told(bundle) == [b"b", OTHER, b"c", b"a"]


def test_reports_stay_and_are_none(bundle):
    (variant,) = open_bundle(bundle).variants
    attach_report(bundle, b'{"b":2}', (variant.config.programs[0].stablehlo.digest,))
    attach(open_bundle(bundle), [new()])
    attach_report(bundle, b'{"a":1}', (variant.config.programs[0].stablehlo.digest,))
    assert [report.data for report in read_reports(open_bundle(bundle))] == [
        b'{"b":2}',
        b'{"a":1}',
    ]
    assert told(bundle) == [DATA]
    assert verified(bundle).findings == ()


def test_once_a_variant_is_added_what_was_attached_counts_no_more(bundle, made):
    attach(open_bundle(bundle), [new(), new(OTHER, PROVENANCE)])
    add_variant(bundle, made)
    assert told(bundle) == []
    assert len(attachments(bundle)) == 2
    seen = verified(bundle)
    assert seen.is_sound
    assert [f.kind for f in seen.findings] == ["attachment"] * 2 + ["orphan"]


def test_stale_ones_go_when_one_of_their_type_comes(bundle, made):
    attach(open_bundle(bundle), [new(kind=PROVENANCE, key="a"), new(kind=TEST_RESULT, key="a")])
    add_variant(bundle, made)
    attach(open_bundle(bundle), [new(OTHER, PROVENANCE, key="b")])
    assert told(bundle) == [OTHER]
    kinds = [each.artifact_type for each in attachments(bundle)]
    assert kinds == [TEST_RESULT, PROVENANCE]


def test_clearing_away_keeps_what_is_attached_and_not_what_it_was_attached_to(bundle, made):
    attach(open_bundle(bundle), [new()])
    before = open_bundle(bundle).digest
    add_variant(bundle, made)
    attach(open_bundle(bundle), [new(OTHER, PROVENANCE)])
    clear_bundle(bundle, delete=True)
    assert not blob_file(bundle, before).exists()
    assert told(bundle) == [OTHER]
    assert [each.read(bundle) for each in attachments(bundle)] == [DATA, OTHER]
    assert verified(bundle).is_sound


def test_only_the_bundle_that_was_opened_is_attached_to(bundle, made):
    opened = open_bundle(bundle)
    add_variant(bundle, made)
    before = (bundle / "index.json").read_bytes()
    with pytest.raises(BundleError, match=f"has become .* since it was opened as {opened.digest}"):
        attach(opened, [new()])
    assert (bundle / "index.json").read_bytes() == before


def test_too_large_is_refused_before_anything_is_written(bundle):
    before = files(bundle)
    with pytest.raises(BundleError, match=f"at most {MAX_BYTES} are read"):
        attach(open_bundle(bundle), [new(), new(bytes(MAX_BYTES + 1))])
    assert files(bundle) == before


def test_a_folder_that_takes_no_file(bundle, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("wanc.bundle.attached.write_entries", full)
    before = (bundle / "index.json").read_bytes()
    with pytest.raises(RunError, match="No space left"):
        attach(open_bundle(bundle), [new()])
    assert (bundle / "index.json").read_bytes() == before


def test_many_at_once_all_find_room(bundle):
    threads = [
        threading.Thread(target=attach, args=(open_bundle(bundle), [new(key=str(k))]))
        for k in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = sorted(each.entry.annotations["key"] for each in attachments(bundle))
    assert said == sorted(map(str, range(8)))
    assert verified(bundle).findings == ()


def test_what_other_tools_attached_stays_as_it_is(bundle):
    written = put(bundle, b'{"of":"another"}')
    theirs = {
        "mediaType": oci.MANIFEST,
        **written,
        "annotations": {"a": "b"},
        "artifactType": "application/vnd.other",
    }
    set_entries(bundle, [*entries(bundle), theirs])
    attach(open_bundle(bundle), [new()])
    assert entries(bundle)[1] == theirs
    assert told(bundle) == [DATA]


# --- hostile attachments --------------------------------------------------------------------------

GOOD = "sha256:" + "a" * 64
WRONG = [
    ("artifactType", "other", "needs artifactType and one layer"),
    ("artifactType", None, "needs artifactType and one layer"),
    ("layers", [], "needs artifactType and one layer"),
    ("layers", None, "no list of layers"),
    ("config", None, "a descriptor is damaged"),
    ("config", {"mediaType": oci.EMPTY, "digest": GOOD, "size": 2}, "not the empty one"),
    ("subject", None, "a descriptor is damaged"),
    ("subject", {"mediaType": oci.INDEX, "digest": "../a", "size": 1}, "a descriptor is damaged"),
    ("subject", {"mediaType": oci.MANIFEST, "digest": GOOD, "size": 1}, "its subject is no index"),
    ("annotations", {"key": "b"}, "its annotations are not those that index.json has"),
    ("annotations", None, "its annotations are not those that index.json has"),
]


@pytest.mark.parametrize(("key", "value", "said"), WRONG)
def test_a_manifest_that_is_not_as_it_should_be(bundle, key, value, said):
    attach(open_bundle(bundle), [new(key="a")])
    set_manifest(bundle, {**manifest_of(bundle, SBOM), key: value}, SBOM)
    with pytest.raises(BundleError, match=said):
        attached(open_bundle(bundle), SBOM)
    ((kind, _, what),) = faults(bundle)
    assert kind == "attachment"
    assert said in what
    attach(open_bundle(bundle), [new(OTHER, key="b")])  # what cannot be read gives way
    assert told(bundle) == [OTHER]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(more=1),
        lambda m: m.update(mediaType="a/b"),
        lambda m: m["layers"][0].update(annotations={"a": "b"}),
        lambda m: m["layers"][0].update(artifactType="a/b"),
        lambda m: m["subject"].update(annotations={"a": "b"}) or m["subject"].update(x=1),
    ],
)
def test_verify_knows_one_spelling(bundle, change):
    attach(open_bundle(bundle), [new()])
    manifest = manifest_of(bundle, SBOM)
    change(manifest)
    set_manifest(bundle, manifest, SBOM)
    assert [kind for kind, _, _ in faults(bundle)] == ["attachment"]


def test_an_attachment_that_is_named_twice_is_told(bundle):
    attach(open_bundle(bundle), [new()])
    set_entries(bundle, [*entries(bundle), entry_of(bundle, SBOM)])
    assert [what for _, _, what in faults(bundle)] == ["is named twice"]


@pytest.mark.parametrize("part", ["manifest", "blob"])
@pytest.mark.parametrize("place", [0, 7, -1])
def test_flipped_bytes_are_found(bundle, part, place):
    attach(open_bundle(bundle), [new()])
    digest = entry_of(bundle, SBOM)["digest"] if part == "manifest" else of_bytes(DATA)
    file = blob_file(bundle, digest)
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(BundleError, match=f"{digest} is damaged"):
        told(bundle)
    assert not verified(bundle).is_sound


@pytest.mark.parametrize("part", ["manifest", "blob"])
def test_links_are_not_followed(bundle, part, tmp_path):
    attach(open_bundle(bundle), [new()])
    file = blob_file(
        bundle, entry_of(bundle, SBOM)["digest"] if part == "manifest" else of_bytes(DATA)
    )
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="is not a file but a link"):
        told(bundle)


def test_what_says_that_it_is_too_large_is_not_read(bundle):
    attach(open_bundle(bundle), [new()])
    manifest = manifest_of(bundle, SBOM)
    manifest["layers"][0]["size"] = MAX_BYTES + 1
    set_manifest(bundle, manifest, SBOM)
    with pytest.raises(BundleError, match=f"has more than {MAX_BYTES} bytes"):
        told(bundle)


def test_more_than_can_be_are_not_read(bundle, monkeypatch):
    monkeypatch.setattr(module, "MOST_ENTRIES", 2)
    attach(open_bundle(bundle), [new(key=str(k)) for k in range(3)])
    with pytest.raises(BundleError, match="has 3 attachments; at most 2 are read"):
        attachments(bundle)


@pytest.mark.parametrize("value", [3, ["a"], {}])
def test_an_artifact_type_is_text(bundle, value):
    set_entries(bundle, [{**entries(bundle)[0], "artifactType": value}])
    with pytest.raises(BundleError, match="an artifactType is no text"):
        open_bundle(bundle)
    assert [kind for kind, _, _ in faults(bundle)] == ["layout"]


def test_the_entry_of_another_type_is_none(bundle):
    """What index.json says is looked for, and held against the manifest."""
    attach(open_bundle(bundle), [new()])
    listed = entries(bundle)
    set_entries(
        bundle, [{**e, "artifactType": PROVENANCE} if e != listed[0] else e for e in listed]
    )
    with pytest.raises(BundleError, match=r"needs artifactType and one layer of .*provenance"):
        attached(open_bundle(bundle), PROVENANCE)


def test_other_bytes_are_another_attachment(bundle):
    attach(open_bundle(bundle), [new()])
    set_data(bundle, OTHER, SBOM)
    assert data_of(bundle, SBOM) == OTHER
    assert told(bundle) == [OTHER]

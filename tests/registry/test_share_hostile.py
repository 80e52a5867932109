"""Registries that give a pull what it must not take: nothing is written of it, nothing crashes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.registry import RegistryDouble
from tests.registry.test_share import bundle, files, pulled, pushed, sound
from tests.sound import verified
from wanc.bundle import oci
from wanc.bundle.attached import PROVENANCE
from wanc.bundle.reports import COVERS_ANNOTATION, REPORT_TYPE, attach_report, read_reports
from wanc.bundle.store import open_bundle
from wanc.digest import of_bytes
from wanc.errors import BundleError, RegistryError
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

"""The story of signing: a bundle's bill of materials, its provenance, and its reports' results.

To be called for a bundle that was verified: the signature says so to whoever trusts the key.
"""

from dataclasses import dataclass

from wanc.bundle.attached import (
    KEYID_ANNOTATION,
    PROVENANCE,
    REPORT_ANNOTATION,
    SBOM,
    TEST_RESULT,
    NewAttachment,
    attach,
)
from wanc.bundle.oci import Descriptor
from wanc.bundle.reports import read_reports
from wanc.bundle.store import Bundle
from wanc.signing.envelope import seal
from wanc.signing.keys import PrivateKey
from wanc.signing.provenance import About, provenance_of
from wanc.signing.results import program_names, result_of
from wanc.signing.sbom import write_sbom


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """What a signing attached."""

    keyid: str
    attached: tuple[Descriptor, ...]
    """Manifests, as index.json names them."""
    reports: int
    """Whose results were signed."""


def sign_bundle(bundle: Bundle, key: PrivateKey, about: About) -> Signed:
    """Sign a bundle as it was opened; raises BundleError, RunError.

    The same bundle, key and about give the same bytes. What the key signed before gives way.
    """
    by = {KEYID_ANNOTATION: key.public.keyid}
    sbom = write_sbom(bundle)
    names = program_names(bundle)
    reports = [report for report in read_reports(bundle) if names.keys() & set(report.covers)]
    new = [
        NewAttachment(artifact_type=SBOM, data=sbom),
        NewAttachment(
            artifact_type=PROVENANCE,
            data=seal(provenance_of(bundle, about, sbom), key),
            annotations=by,
        ),
        *(
            NewAttachment(
                artifact_type=TEST_RESULT,
                data=seal(result_of(report, names), key),
                annotations={**by, REPORT_ANNOTATION: report.digest},
            )
            for report in reports
        ),
    ]
    return Signed(keyid=key.public.keyid, attached=attach(bundle, new), reports=len(reports))

"""in-toto test results, version 0.1: what an attached report says of the programs that it covers.

https://github.com/in-toto/attestation: spec/predicates/test-result.md.
"""

from collections.abc import Mapping
from typing import Any

from wanc.bundle import oci
from wanc.bundle.reports import REPORT_TYPE, Attached
from wanc.bundle.store import Bundle
from wanc.signing.statement import digest_set, write_statement

PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"

RESULTS = {True: "PASSED", False: "FAILED"}
NOT_JUDGED = "WARNED"
"""Of a report that has no rule for its precisions."""


def program_names(bundle: Bundle) -> dict[str, str]:
    """Names of a bundle's programs by StableHLO digest."""
    return {
        record.stablehlo.digest: record.program.name
        for variant in bundle.variants
        for record in variant.config.programs
        if record.stablehlo
    }


def result_of(report: Attached, names: Mapping[str, str]) -> bytes:
    """The statement on the programs that a report covers; raises BundleError where it is none."""
    value = oci.parse(report.data, f"report {report.digest[:19]}")
    criteria = [each for each in _listed(value.get("criteria")) if isinstance(each, dict)]
    tests = [(_named(each), _is_met(each)) for each in criteria]
    passes = value.get("passes")
    predicate = {
        "result": RESULTS[passes] if isinstance(passes, bool) else NOT_JUDGED,
        "configuration": [
            {"name": "report", "mediaType": REPORT_TYPE, "digest": digest_set(report.digest)}
        ],
        "passedTests": [name for name, met in tests if met],
        "failedTests": [name for name, met in tests if not met],
    }
    subjects = [(f"{names.get(d, '_')} {d[7:19]}", d) for d in report.covers]
    return write_statement(subjects, PREDICATE_TYPE, predicate)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(criterion: dict[str, Any]) -> str:
    return " ".join(str(criterion.get(key)) for key in ("stage", "step", "measure"))


def _is_met(criterion: dict[str, Any]) -> bool:
    seen, limit = criterion.get("seen"), criterion.get("limit")
    return isinstance(seen, int | float) and isinstance(limit, int | float) and seen <= limit

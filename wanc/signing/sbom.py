"""A bill of materials: what made a bundle's executables, as CycloneDX 1.6 in JSON.

Says nothing of time, host or user: the same bundle gives the same bytes.
"""

import uuid
from typing import Any

from wanc import __version__
from wanc.bundle.store import Bundle
from wanc.digest import canonical_json, of_json
from wanc.signing.toolchain import WANC, Package, packages_of

SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"


def write_sbom(bundle: Bundle) -> bytes:
    """The bill, in its one spelling."""
    packages = packages_of(variant.config for variant in bundle.variants)
    value = {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": bundle.digest,
                "name": "wanc bundle",
                "version": bundle.digest,
                "hashes": [{"alg": "SHA-256", "content": bundle.digest.removeprefix("sha256:")}],
            },
            "tools": {
                "components": [{"type": "application", "name": WANC, "version": __version__}]
            },
        },
        "components": [_component(package) for package in packages],
        "dependencies": [
            {"ref": bundle.digest, "dependsOn": [package.purl for package in packages]},
            *({"ref": package.purl} for package in packages),
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, of_json(value))
    return canonical_json({**value, "serialNumber": serial.urn})


def _component(package: Package) -> dict[str, Any]:
    version = {"version": package.version} if package.version else {}
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        **version,
        "purl": package.purl,
        "scope": "required" if package.runs else "excluded",
    }

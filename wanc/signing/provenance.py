"""SLSA provenance, version 1: what a bundle was asked to be, what made it, and who says so.

Says nothing of time, host or user but what is given: the same bundle gives the same bytes.
https://github.com/slsa-framework/slsa: spec/build-provenance.md; docs/trust.md has the build type.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from wanc import __version__
from wanc.bundle.attached import SBOM
from wanc.bundle.config import FORMAT_VERSION, VariantConfig
from wanc.bundle.store import Bundle, BundleVariant
from wanc.digest import of_bytes, of_json
from wanc.errors import RequestError
from wanc.signing.source import Source, check_uri
from wanc.signing.statement import digest_set, write_statement
from wanc.signing.toolchain import WANC, packages_of, sources_of

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:x-wanc:build:v1"
UNSTATED_BUILDER = "urn:x-wanc:builder:unstated"

_ASKED = ("isa", "lnc", "input_form")
"""Entries of compile keys that users choose, and that are the same for all programs."""
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the signer says of the build, beside what the bundle says itself."""

    builder_id: str = UNSTATED_BUILDER
    """A URI: the platform that is trusted to have built it."""
    source: Source | None = None
    invocation_id: str | None = None
    """Which run of the builder it was."""
    started_on: str | None = None
    finished_on: str | None = None

    def __post_init__(self) -> None:
        check_uri("--builder-id", self.builder_id)
        if self.invocation_id is not None and not self.invocation_id.isprintable():
            raise RequestError(
                f"--invocation-id {self.invocation_id!r}: has what cannot be printed"
            )
        for option, time in (
            ("--started-on", self.started_on),
            ("--finished-on", self.finished_on),
        ):
            _check_time(option, time)


def provenance_of(bundle: Bundle, about: About, sbom: bytes) -> bytes:
    """The statement on a bundle, whose bill of materials is attached beside it."""
    metadata = {
        "invocationId": about.invocation_id,
        "startedOn": about.started_on,
        "finishedOn": about.finished_on,
    }
    given = {name: value for name, value in metadata.items() if value is not None}
    details = {
        "builder": {"id": about.builder_id, "version": {WANC: __version__}},
        **({"metadata": given} if given else {}),
        "byproducts": [
            {"name": "sbom", "mediaType": SBOM, "digest": digest_set(of_bytes(sbom))},
        ],
    }
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"variants": [_asked(v.config) for v in bundle.variants]},
            "internalParameters": {"formatVersion": FORMAT_VERSION},
            "resolvedDependencies": [*_dependencies(bundle, about)],
        },
        "runDetails": details,
        "wanc_variants": [_made(variant) for variant in bundle.variants],
    }
    return write_statement([("wanc bundle", bundle.digest)], PREDICATE_TYPE, predicate)


def _asked(config: VariantConfig) -> dict[str, Any]:
    """What was asked of a variant, as the command line has it."""
    keys = [record.compile_key for record in config.programs]
    first = keys[0] if keys else {}
    flags = {
        record.program.name: record.compile_key["flags"]
        for record in config.programs
        if record.compile_key.get("flags")
    }
    return {
        "model": config.model.name,
        **config.variant.texts(),
        "stage": config.stage,
        "attention": config.options.attention,
        "blocksPerProgram": config.options.blocks_per_program,
        "vaeTiles": config.options.vae_tiles,
        **{name: first[name] for name in _ASKED if name in first},
        **({"flags": flags} if flags else {}),
    }


def _made(variant: BundleVariant) -> dict[str, Any]:
    """What a variant holds, by digests."""
    return {
        "manifest": variant.manifest.digest,
        "programs": [
            {
                "name": record.program.name,
                "stablehlo": record.stablehlo.digest if record.stablehlo else None,
                "executable": record.executable.digest if record.executable else None,
                "compileKey": of_json(record.compile_key) if record.compile_key else None,
            }
            for record in variant.config.programs
        ],
    }


def _dependencies(bundle: Bundle, about: About) -> Iterator[dict[str, Any]]:
    """The source revision, packages, and wanc's own sources that determined executables."""
    configs = [variant.config for variant in bundle.variants]
    if about.source:
        yield about.source.descriptor()
    for package in packages_of(configs):
        yield {"name": package.name, "uri": package.purl}
    for name, digest in sources_of(configs):
        yield {"name": f"{WANC}/{name}", "digest": digest_set(digest)}


def _check_time(option: str, time: str | None) -> None:
    try:
        if time is not None and datetime.strptime(time, _TIME).strftime(_TIME) != time:
            raise ValueError("another spelling")
    except ValueError as error:
        raise RequestError(
            f"{option} {time!r}: needs a time in UTC, as 2026-11-30T09:29:00Z"
        ) from error

"""The story of a verification: everything that can be known of a bundle without running it.

Every blob's digest and size, every reference; configs against themselves and against a plan made
anew; schedules; executables against the interfaces of their programs. All findings at once. Input
is untrusted: whatever is wrong is a finding, nothing outside the bundle is read, and no link is
followed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wanc.bundle.config import VariantConfig
from wanc.progress import Progress
from wanc.verify.blobs import check_blobs, check_folder, check_layout
from wanc.verify.executables import check_executables
from wanc.verify.findings import Finding, Findings
from wanc.verify.plans import check_plan
from wanc.verify.references import References, walk
from wanc.verify.schedule import check_schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a verification saw."""

    bundle: str
    """The bundle's digest; empty where there is none to be found."""
    variants: int
    blobs: int
    bytes: int
    """Read of blobs, once each."""
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not any(finding.is_fault for finding in self.findings)


def verify_bundle(path: Path, *, jobs: int, progress: Progress) -> Verified:
    """Look at all of a bundle, in so many threads; what is wrong with it raises nothing."""
    found, references = Findings(), References()
    if check_layout(path, found):
        walk(path, references, found)
        check_folder(path, references, found)
    sizes = check_blobs(path, references, found, jobs, progress)
    with progress.task("verify variants", len(references.configs)) as task:
        for where, config in references.configs.items():
            check_variant(path, where, config, sizes, found)
            task.advance(where)
    return Verified(
        bundle=references.bundle,
        variants=len(references.configs),
        blobs=len(sizes),
        bytes=sum(sizes.values()),
        findings=tuple(dict.fromkeys(found.all)),
    )


def check_variant(
    path: Path, where: str, config: VariantConfig, sound: Mapping[str, int], found: Findings
) -> None:
    """A variant's config, and the executables of its programs, as far as their blobs are sound."""
    check_schedule(where, config, found)
    check_plan(where, config, found)
    check_executables(path, where, config, sound, found)

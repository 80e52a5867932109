"""The story of a verification: everything that can be known of a bundle without running it.

Every reference, and JSON in its one spelling; configs against themselves and against a plan made
anew; schedules; then every blob, read once: its size, its digest, and executables against the
interfaces of their programs. All findings at once. Input is untrusted: whatever is wrong is a
finding, nothing outside the bundle is read, and no link is followed.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from wanc.bundle.config import VariantConfig
from wanc.progress import Progress
from wanc.verify.blobs import check_blobs
from wanc.verify.executables import Use, uses_of
from wanc.verify.findings import Finding, Findings
from wanc.verify.layout import Orphans, check_folder, check_layout
from wanc.verify.manifests import read_variant
from wanc.verify.plans import check_plan, check_sizes
from wanc.verify.references import References
from wanc.verify.schedule import check_schedule
from wanc.verify.walk import walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a verification saw."""

    bundle: str
    """The bundle's digest; empty where there is none to be found."""
    variants: int
    blobs: int
    bytes: int
    """Read of blobs, once each."""
    orphans: Orphans
    faults: int
    """Those that are left out too."""
    findings: tuple[Finding, ...]
    findings_left_out: int

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def verify_bundle(path: Path, *, jobs: int, progress: Progress) -> Verified:
    """Look at all of a bundle, in so many threads; what is wrong with it raises nothing."""
    found = Findings()
    references = References(path, found)
    is_laid_out = check_layout(path, found)
    listed = walk(references) if is_laid_out else []
    uses: dict[str, list[Use]] = defaultdict(list)
    variants = 0
    with progress.task("verify variants", len(listed)) as task:
        for where, manifest in listed:
            config = read_variant(where, manifest, references)
            if config is not None:
                variants += 1
                for digest, use in check_variant(where, config, found):
                    uses[digest].append(use)
            task.advance(where)
    orphans = check_folder(references) if is_laid_out else Orphans()
    sizes = check_blobs(references, uses, jobs, progress)
    return Verified(
        bundle=references.bundle,
        variants=variants,
        blobs=len(sizes),
        bytes=sum(sizes.values()),
        orphans=orphans,
        faults=found.faults,
        findings=tuple(found.shown),
        findings_left_out=found.total - len(found.shown),
    )


def check_variant(where: str, config: VariantConfig, found: Findings) -> list[tuple[str, Use]]:
    """A variant's config by itself; the blobs that its programs use, where it makes sense."""
    if not check_sizes(where, config, found):
        return []
    check_schedule(where, config, found)
    check_plan(where, config, found)
    return list(uses_of(where, config))

"""The seam between loading and a target's runtime: what a machine must have, and its engine.

The one place of the run side that knows target names.
"""

from typing import Any, Protocol

from wanc.errors import BundleError
from wanc.runtime.engine import Engine


class Runtime(Protocol):
    """What the run side must know of a target's machines."""

    def check_machine(self, requires: dict[str, Any]) -> None:
        """Raise BundleError where this machine lacks what a variant requires."""

    def check_executable(self, executable: bytes, program: str) -> None:
        """Raise BundleError where this machine cannot run a verified executable."""

    def engine(self, rank_count: int) -> Engine:
        """An engine for so many ranks."""


TARGETS = ("cpu",)
"""Those that this version runs."""


def runtime_of(target: str) -> Runtime:
    """The runtime of a target; raises BundleError where this version has none."""
    if target not in TARGETS:
        raise BundleError(
            f"the variant is for target {target}; this version runs {', '.join(TARGETS)} only"
        )
    from wanc.runtime.cpu_runtime import CpuRuntime

    return CpuRuntime()

"""XLA:CPU on this machine: versions and instruction set, and ranks as virtual devices.

Knows no model. Checks come before anything is loaded: XLA itself only logs, and then crashes.
"""

from importlib.metadata import version
from typing import Any

from wanc.bundle.xla_cpu import check_features
from wanc.errors import BundleError
from wanc.runtime.engine import Engine


class CpuRuntime:
    """The runtime of target cpu."""

    def check_machine(self, requires: dict[str, Any]) -> None:
        """Raise BundleError where another jaxlib is needed than is installed."""
        needs, have = requires.get("jaxlib"), version("jaxlib")
        if needs != have:
            raise BundleError(
                f"the executables need jaxlib {needs}; this machine has {have}: "
                f"install jaxlib=={needs}, or compile again with {have}"
            )

    def check_executable(self, executable: bytes, program: str) -> None:
        """Raise BundleError where this CPU lacks features that the executable uses."""
        check_features(executable, program)

    def engine(self, rank_count: int) -> Engine:
        """One virtual device a rank, all in this process."""
        from wanc.runtime.cpu import CpuEngine

        return CpuEngine(rank_count=rank_count)

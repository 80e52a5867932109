"""The seam between the compile story and a target's compiler. Knows no target."""

from threading import Event
from typing import Any, Protocol


class Target(Protocol):
    """Turns StableHLO into executables of one kind of machine."""

    @property
    def name(self) -> str:
        """As the command line names it."""

    @property
    def executable_type(self) -> str:
        """Media type of its executables."""

    def compile_key(self, *, stablehlo: str, replica_count: int) -> dict[str, Any]:
        """All that determines an executable, entry by entry; stablehlo is the digest."""

    def compile(self, stablehlo: bytes, *, replica_count: int, stop: Event | None = None) -> bytes:
        """Compile a portable artifact, in any thread; raises ToolchainError.

        Ends soon after stop is set, with an error.
        """

    def requires(self) -> dict[str, Any]:
        """What a machine must have to run the executables."""

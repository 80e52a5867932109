"""The seam between the compile story and a target's compiler. Knows no target."""

from threading import Event
from typing import Any, Protocol

from wanc.plan.abi import Program


class Target(Protocol):
    """Turns StableHLO into executables of one kind of machine."""

    @property
    def name(self) -> str:
        """As the command line names it."""

    @property
    def executable_type(self) -> str:
        """Media type of its executables."""

    def check_toolchain(self) -> None:
        """Raise ToolchainError, before any work, where its compiler is missing or too old."""

    def compile_key(self, program: Program, stablehlo: str) -> dict[str, Any]:
        """All that determines a program's executable, entry by entry; stablehlo is the digest."""

    def compile(self, program: Program, stablehlo: bytes, *, stop: Event | None = None) -> bytes:
        """Compile a program's portable artifact, in any thread; raises ToolchainError.

        Ends soon after stop is set, with an error.
        """

    def default_jobs(self) -> tuple[int, str]:
        """How many compilers at once suit this machine, and why."""

    def requires(self) -> dict[str, Any]:
        """What a machine must have to run the executables."""

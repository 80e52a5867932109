"""The seam between loading and a target's runtime: what a machine must have, and its engine.

The one place of the run side that knows target names.
"""

from typing import Protocol

from wanc.bundle.config import VariantConfig
from wanc.errors import BundleError
from wanc.machine import Machine, this_machine
from wanc.plan.abi import Program
from wanc.processes.world import World
from wanc.runtime.engine import Engine
from wanc.runtime.requirement import Requirement


class Runtime(Protocol):
    """What the run side must know of a target's machines."""

    @property
    def in_host_memory(self) -> bool:
        """Whether ranks lie in the memory of the host, which must then hold them."""

    def processes(self, config: VariantConfig) -> int:
        """How many processes on one machine suit the variant, where nobody says otherwise."""

    def environment(self, config: VariantConfig) -> dict[str, str]:
        """Variables that engine sets, as far as they follow from the bundle; raises BundleError."""

    def check(self, config: VariantConfig) -> list[Requirement]:
        """What the variant needs of the machine: versions, devices, cores.

        Raises BundleError where what it needs cannot be told.
        """

    def check_executable(self, executable: bytes, program: Program, config: VariantConfig) -> None:
        """Raise BundleError where this machine cannot run a program's verified executable."""

    def engine(self, config: VariantConfig, world: World) -> Engine:
        """An engine of the variant's ranks that this process hosts."""


TARGETS = ("cpu", "trn2", "trn3")
"""Those that this version runs; the first on any machine."""


def runtime_of(target: str, machine: Machine | None = None) -> Runtime:
    """The runtime of a target on a machine, this one by default.

    Raises BundleError where this version has none.
    """
    if target not in TARGETS:
        raise BundleError(
            f"the variant is for target {target}; this version runs {', '.join(TARGETS)} only"
        )
    machine = machine or this_machine()
    if target == "cpu":
        from wanc.runtime.cpu_runtime import CpuRuntime

        return CpuRuntime(machine=machine)
    from wanc.runtime.neuron_runtime import NeuronRuntime

    return NeuronRuntime(machine=machine)

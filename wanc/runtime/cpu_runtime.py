"""XLA:CPU on this machine: versions and instruction set, and ranks as virtual devices.

Knows no model. Checks come before anything is loaded: XLA itself only logs, and then crashes.
"""

from dataclasses import dataclass

import msgspec

from wanc.bundle.config import VariantConfig
from wanc.bundle.x86 import machine_flags, missing_features
from wanc.bundle.xla_cpu import check_features
from wanc.errors import BundleError
from wanc.machine import Machine, cpu_limit, version_of
from wanc.plan.abi import Program
from wanc.processes.world import World
from wanc.runtime.engine import Engine
from wanc.runtime.requirement import Requirement, required


@dataclass(frozen=True, slots=True, kw_only=True)
class _Requires:
    """What a variant of target cpu states under ``requires``."""

    jaxlib: str
    isa: str
    features: tuple[str, ...]
    """LLVM's names of what a machine of the ISA has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRuntime:
    """The runtime of target cpu."""

    machine: Machine

    @property
    def in_host_memory(self) -> bool:
        """All of them, equal shards once."""
        return True

    def processes(self, config: VariantConfig) -> int:
        """One with every rank: it holds equal shards once."""
        return 1

    def environment(self, config: VariantConfig) -> dict[str, str]:
        """Nothing: what XLA reads is no business of the bundle."""
        return {}

    def check(self, config: VariantConfig) -> list[Requirement]:
        """jaxlib's version, the instruction set, and cores for the ranks; raises BundleError."""
        try:
            requires = msgspec.convert(config.requires, _Requires)
        except msgspec.ValidationError as error:
            raise BundleError(f"variant {config.variant}: requires is damaged: {error}") from error
        return [
            self._jaxlib(requires.jaxlib),
            self._instruction_set(requires),
            self._cores(config.variant.topology.ranks),
        ]

    def _jaxlib(self, needed: str) -> Requirement:
        """Only the version that wrote an executable is sure to read it."""
        package = self.machine.package("jaxlib")
        found = version_of(package) if package else "not installed"
        remedy = f"pip install jaxlib=={needed}, or compile again here"
        return required("jaxlib", needed, found, met=found == needed, remedy=remedy)

    def _instruction_set(self, requires: _Requires) -> Requirement:
        try:
            flags = machine_flags(self.machine.root / "proc/cpuinfo")
            missing = ", ".join(missing_features(requires.features, flags))
            fault = missing and f"without {missing}"
        except BundleError as error:  # no x86-64, or no Linux
            fault = str(error)
        remedy = "compile for an older ISA (--isa), or run on a newer machine"
        found = fault or "all of it"
        return required("instruction set", requires.isa, found, met=not fault, remedy=remedy)

    def _cores(self, ranks: int) -> Requirement:
        """As many as ranks, of those that a control group leaves."""
        cores = min(self.machine.cores, cpu_limit(self.machine) or self.machine.cores)
        needed, found = f"{ranks}, one a rank", f"{cores:g}"
        remedy = "use a machine with more: ranks that share a core take turns"
        return required("cores", needed, found, met=ranks <= cores, remedy=remedy, unmet="degraded")

    def check_executable(self, executable: bytes, program: Program, config: VariantConfig) -> None:
        """Raise BundleError where this CPU lacks features that the executable uses."""
        check_features(executable, program.name)

    def engine(self, config: VariantConfig, world: World) -> Engine:
        """A virtual device for each rank that this process hosts."""
        from wanc.runtime.cpu import CpuEngine

        return CpuEngine(config.variant.topology.ranks, world)

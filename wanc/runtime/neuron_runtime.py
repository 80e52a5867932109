"""Trainium on this machine: packages, chips and variables, and ranks as logical cores.

Knows no model, and does not load nrtpy to look. A rank runs on the core that the mesh names. These
are counted over one machine; where several machines share the ranks, each counts from its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from wanc.bundle.config import VariantConfig
from wanc.bundle.neff import check_abi, read_neff
from wanc.errors import BundleError
from wanc.machine import (
    NEURON_INDEX,
    NEURON_LIBRARIES,
    Machine,
    is_placeholder,
    neuron_device_name,
    neuron_devices,
    neuron_library,
    release,
    version_of,
)
from wanc.plan.abi import Program
from wanc.processes.world import World
from wanc.runtime.engine import Engine
from wanc.runtime.neuron_environment import (
    bundle_variables,
    process_variables,
    variable_requirements,
)
from wanc.runtime.requirement import Requirement, required
from wanc.spec.target import target_facts

_PACKAGE = "nrtpy"
_CHIPS = {"trn2": "Trainium2", "trn3": "Trainium3"}
"""What the driver calls a target's chips."""
_ELSEWHERE = "`wanc compile --from BUNDLE --target cpu` makes a bundle for any CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compiler:
    """What wrote the NEFFs."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Requires:
    """What a variant of targets trn2 and trn3 states under ``requires``."""

    target: str
    compiler: _Compiler
    lnc: int
    scratchpad_page_size_mb: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronRuntime:
    """The runtime of targets trn2 and trn3."""

    machine: Machine

    @property
    def in_host_memory(self) -> bool:
        """Ranks lie in the HBM of their cores, whose size plan has reckoned with."""
        return False

    def processes(self, config: VariantConfig) -> int:
        """One a rank: nrtpy then holds one core and waits for no other."""
        return config.variant.topology.ranks

    def environment(self, config: VariantConfig) -> dict[str, str]:
        """Variables of every process, as the bundle says; raises BundleError."""
        requires = _requires(config)
        return bundle_variables(
            lnc=requires.lnc, scratchpad_page_size_mb=requires.scratchpad_page_size_mb
        )

    def check(self, config: VariantConfig) -> list[Requirement]:
        """nrtpy and libnrt, chips and their cores, and the user's variables; raises BundleError."""
        requires = _requires(config)
        return [
            self._nrtpy(requires.compiler),
            self._library(),
            self._chips(requires.target),
            self._cores(config),
            *variable_requirements(self.environment(config)),
        ]

    def _nrtpy(self, compiler: _Compiler) -> Requirement:
        """Of the compiler's major version, which AWS asks for."""
        package = self.machine.package(_PACKAGE)
        found = version_of(package) if package else "not installed"
        usable = package is not None and not is_placeholder(package)
        if package and not usable:
            found = f"PyPI's placeholder {found}"
        major = release(compiler.version)[:1]
        return required(
            _PACKAGE,
            f"{'.'.join(map(str, major))}.x, as {compiler.name}",
            found,
            met=usable and release(found)[:1] == major,
            remedy=f"pip install -U {_PACKAGE} {' '.join(NEURON_INDEX)}",
        )

    def _library(self) -> Requirement:
        """AWS asks for nrtpy's own version, and does not say how closely."""
        package, version = self.machine.package(_PACKAGE), neuron_library(self.machine)
        wanted = release(version_of(package))[:2] if package else ()
        needed = f"{'.'.join(map(str, wanted))}, as {_PACKAGE}" if wanted else f"as {_PACKAGE}"
        remedy = f"apt-get install {' '.join(NEURON_LIBRARIES)}"
        if version is None:
            return required("libnrt", needed, "not installed", met=False, remedy=remedy)
        same = not wanted or release(version)[:2] == wanted
        return Requirement(
            what="libnrt",
            needed=needed,
            found=version or "of no known version",
            verdict="ok" if same else "degraded",
            remedy="" if same else f"{remedy}, of nrtpy's version: others are not tried by AWS",
        )

    def _chips(self, target: str) -> Requirement:
        """Where the driver names its chips, they must be the target's."""
        found = neuron_device_name(self.machine)
        known = found in _CHIPS.values()
        remedy = f"compile for this machine's chips (--target); {_ELSEWHERE}"
        met = not known or found == _CHIPS[target]
        return required("chips", _CHIPS[target], found or "not told", met=met, remedy=remedy)

    def _cores(self, config: VariantConfig) -> Requirement:
        """As many as ranks, which several machines may have together."""
        ranks, cores = config.variant.topology.ranks, self._core_count(config)
        needed = f"{ranks}, one a rank"
        if not cores:
            remedy = f"a Trainium instance, with aws-neuronx-dkms; {_ELSEWHERE}"
            return required("Neuron cores", needed, "none", met=False, remedy=remedy)
        return Requirement(
            what="Neuron cores",
            needed=needed,
            found=str(cores),
            verdict="ok" if ranks <= cores else "degraded",
            remedy="" if ranks <= cores else "more machines for the rest, or a smaller topology",
        )

    def _core_count(self, config: VariantConfig) -> int:
        accelerator = target_facts(config.variant.target).accelerator
        assert accelerator, "a target of Trainium"
        return len(neuron_devices(self.machine)) * accelerator.fabric.cores_per_chip

    def check_executable(self, executable: bytes, program: Program, config: VariantConfig) -> None:
        """Raise BundleError where the NEFF is none, or not of the program's interface."""
        where = f"program {program.name}"
        check_abi(read_neff(executable, where), program, lnc=_requires(config).lnc, where=where)

    def engine(self, config: VariantConfig, world: World) -> Engine:
        """A core for each rank that this process hosts; raises BundleError, RunError."""
        ranks = config.variant.topology.ranks
        if not len(set(config.mesh.cores)) == len(config.mesh.cores) == ranks:
            raise BundleError(f"variant {config.variant}: its mesh has no core for each rank")
        cores, count = local_cores(config.mesh.cores, world), self._core_count(config)
        if max(cores.values()) >= count:
            raise BundleError(
                f"ranks {min(cores)} to {max(cores)} run on cores up to {max(cores.values())}, and "
                f"this machine has {count}: spread the ranks over more machines"
            )
        here = process_variables(sorted(cores.values()), world)
        from wanc.runtime.neuron import NeuronEngine

        return NeuronEngine(
            rank_count=ranks,
            cores=cores,
            environment=self.environment(config) | here,
        )


def local_cores(cores: Sequence[int], world: World) -> dict[int, int]:
    """This machine's number of each hosted rank's core, by rank.

    Processes with one address are on one machine, and its cores begin with those of its own ranks.
    """
    ranks = len(cores)
    addresses = world.everyone("address", world.address)
    here = [p for p, address in enumerate(addresses) if address == world.address]
    first = min(cores[rank] for process in here for rank in world.hosted(ranks, process))
    return {rank: cores[rank] - first for rank in world.hosted(ranks)}


def _requires(config: VariantConfig) -> _Requires:
    """What the variant requires; raises BundleError."""
    try:
        requires = msgspec.convert(config.requires, _Requires)
    except msgspec.ValidationError as error:
        raise BundleError(f"variant {config.variant}: requires is damaged: {error}") from error
    if requires.target != config.variant.target:
        raise BundleError(f"variant {config.variant}: requires target {requires.target}")
    return requires

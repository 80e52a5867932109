"""The neuron targets, trn2 and trn3: StableHLO to NEFF by AWS's compiler, neuronx-cc.

Knows no model, and needs no Trainium: neuronx-cc compiles on any x86-64 Linux. It follows AWS's
pages and public sources and is tested with a double that does; it has met neither the compiler nor
a device.
"""

import functools
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from threading import Event
from typing import Any

from wanc.bundle import oci
from wanc.bundle.neff import check_abi, read_neff
from wanc.digest import of_bytes, of_file
from wanc.errors import RefusedError
from wanc.machine import free_memory, this_machine
from wanc.plan.abi import Program
from wanc.spec.target import NEURON_COMPILE_BYTES
from wanc.targets.neuron_command import (
    LNC,
    NAME,
    SCRATCHPAD_PAGE_SIZE_MB,
    check_flags,
    flags_of,
)
from wanc.targets.neuron_compiler import Job, compile_neff, located, release
from wanc.targets.neuron_hlo import hlo_module

KEY_VERSION = 1
TARGETS = ("trn2", "trn3")

INPUT_FORMS = {"hlo": "program.hlo", "stablehlo": "program.mlir"}
"""What the compiler may be given, and in which file. AWS documents HLO only."""

_ROOT = Path(__file__).parents[1]
_SOURCES = (
    "bundle/neff_names.py",
    "targets/neuron.py",
    "targets/neuron_command.py",
    "targets/neuron_compiler.py",
    "targets/neuron_hlo.py",
)
"""Files below wanc/ that determine what the compiler is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronTarget:
    """neuronx-cc for one generation of Trainium. Raises RequestError or RefusedError for flags."""

    name: str
    """trn2 or trn3."""
    flags: tuple[str, ...] = ()
    """The user's, which follow wanc's own."""
    input_form: str = "hlo"
    """hlo or stablehlo."""
    timeout_seconds: float
    """For one attempt at one program."""
    keep: Path
    """Where files of failed compiles are kept, a folder for each."""

    def __post_init__(self) -> None:
        if self.name not in TARGETS:
            raise RefusedError(f"target {self.name!r}: {NAME} compiles for {' or '.join(TARGETS)}")
        if self.input_form not in INPUT_FORMS:
            known = " or ".join(INPUT_FORMS)
            raise RefusedError(f"input form {self.input_form!r}: {NAME} takes {known}")
        check_flags(self.flags, self.name)

    @property
    def executable_type(self) -> str:
        """Media type of its executables."""
        return oci.NEFF

    def check_toolchain(self) -> None:
        """Raise ToolchainError where neuronx-cc is missing, or is PyPI's package without one."""
        release(located())

    def default_jobs(self) -> tuple[int, str]:
        """How many compilers at once suit this machine, and why."""
        machine = this_machine()
        free_bytes, _ = free_memory(machine)
        if free_bytes is None:
            return 1, "free memory is not known"
        jobs = max(1, min(machine.cores, free_bytes // NEURON_COMPILE_BYTES))
        free, each = (size_bytes >> 30 for size_bytes in (free_bytes, NEURON_COMPILE_BYTES))
        return jobs, f"{machine.cores} cores, and {free} GiB of memory at {each} GiB a compile"

    def compile_key(self, program: Program, stablehlo: str) -> dict[str, Any]:
        """All that determines a program's executable, entry by entry; stablehlo is the digest.

        How many replicas there are is none of it: the groups in the text say who joins whom.
        """
        return {
            "key_version": KEY_VERSION,
            "target": self.name,
            "stablehlo": stablehlo,
            "lnc": LNC,
            "compiler": _compiler(),
            "flags": list(self._flags(program)),
            "input_form": self.input_form,
            "jaxlib": version("jaxlib") if self.input_form == "hlo" else None,
            "sources": _source_digests(),
        }

    def requires(self) -> dict[str, Any]:
        """What a machine must have to run the executables."""
        return {
            "target": self.name,
            "compiler": _compiler(),
            "lnc": LNC,
            "scratchpad_page_size_mb": SCRATCHPAD_PAGE_SIZE_MB,
        }

    def compile(self, program: Program, stablehlo: bytes, *, stop: Event | None = None) -> bytes:
        """Compile a portable artifact to a NEFF that has the program's interface. Any thread may.

        Once stop is set, the compiler and all that it started are killed. Raises ToolchainError;
        what failed, and was not stopped, is kept.
        """
        digest = of_bytes(stablehlo)

        def check(output: bytes, where: str) -> None:
            check_abi(read_neff(output, where), program, lnc=LNC, where=where)

        job = Job(
            title=f"program {program.name} {digest[:19]}",
            source_name=INPUT_FORMS[self.input_form],
            source=hlo_module(stablehlo) if self.input_form == "hlo" else stablehlo,
            flags=self._flags(program),
            timeout_seconds=self.timeout_seconds,
            keep=self.keep / f"{digest[7:19]}-{program.kind}",
            check=check,
        )
        return compile_neff(located(), job, stop or Event())

    def _flags(self, program: Program) -> tuple[str, ...]:
        return flags_of(program.kind, self.name, self.flags)


def _compiler() -> dict[str, str]:
    return {"name": NAME, "version": release(located())}


@functools.cache
def _source_digests() -> dict[str, str]:
    return {name: of_file(_ROOT / name) for name in _SOURCES}

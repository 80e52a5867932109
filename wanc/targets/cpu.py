"""The cpu target: StableHLO to an executable of XLA:CPU for a stated instruction set.

Knows no model and no bundle, and imports no jaxlib: each compile is a process of its own
(cpu_worker). What comes out depends on the program, the target and jaxlib, not on the directory,
the user, the hour or the number of cores, and on the machine in one thing only. XLA:CPU tunes for
the machine that compiles, except where --xla_cpu_max_isa takes features away from it. Machines
with AVX-512 so give the same bytes for x86-64-v3, tuned for LLVM's ``haswell``; one without is
tuned for, and its executable gives another ``cpu``. No option names the CPU to tune for.
"""

import functools
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO

from wanc.bundle import oci
from wanc.bundle.x86 import ISAS, machine_flags, missing_features
from wanc.bundle.xla_cpu import THREADS, TRIPLE, canonical, object_files, target_of, with_features
from wanc.digest import of_bytes, of_file
from wanc.errors import BundleError, RefusedError, ToolchainError
from wanc.plan.abi import Program
from wanc.targets.machine_code import used_features

KEY_VERSION = 1

_MAX_ISA_FLAGS = {"x86-64-v3": "AVX2", "x86-64-v4": "AVX512"}
"""XLA's names of the ISAs. It has one for x86-64-v2, but keeps BMI on with it, and jaxlib itself
needs AVX."""
_ROOT = Path(__file__).parents[1]
_SOURCES = (
    "bundle/x86.py",
    "bundle/xla_cpu.py",
    "targets/cpu.py",
    "targets/cpu_convolutions.py",
    "targets/cpu_layout.py",
    "targets/cpu_rewrites.py",
    "targets/cpu_sums.py",
    "targets/cpu_worker.py",
)
"""Files below wanc/ that determine an executable."""
_QUOTED_CHARACTERS = 2000
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTarget:
    """XLA:CPU for machines of an ISA. Raises RefusedError for one that it cannot compile for."""

    isa: str = "x86-64-v3"
    """Level of the x86-64 psABI."""

    def __post_init__(self) -> None:
        if self.isa not in _MAX_ISA_FLAGS:
            raise RefusedError(
                f"isa {self.isa!r}: target cpu compiles for {' or '.join(_MAX_ISA_FLAGS)}"
            )

    @property
    def name(self) -> str:
        """As the command line names it."""
        return "cpu"

    @property
    def executable_type(self) -> str:
        """Media type of its executables."""
        return oci.XLA_CPU

    @property
    def flags(self) -> tuple[str, ...]:
        """XLA's flags, in order."""
        return (f"--xla_cpu_max_isa={_MAX_ISA_FLAGS[self.isa]}",)

    def check_toolchain(self) -> None:
        """Raise ToolchainError, before any work, where this machine cannot compile for the ISA."""
        self._check_machine()

    def default_jobs(self) -> tuple[int, str]:
        """How many compilers at once suit this machine, and why."""
        cores = os.cpu_count() or 1
        return cores, f"{cores} cores"

    def compile_key(self, program: Program, stablehlo: str) -> dict[str, Any]:
        """All that determines a program's executable, entry by entry; stablehlo is the digest."""
        return {
            "key_version": KEY_VERSION,
            "target": self.name,
            "stablehlo": stablehlo,
            "replica_count": program.replica_count,
            "isa": self.isa,
            "jaxlib": version("jaxlib"),
            "flags": list(self.flags),
            "threads": THREADS,
            "sources": _source_digests(),
        }

    def requires(self) -> dict[str, Any]:
        """What a machine must have to run the executables."""
        return {
            "target": self.name,
            "jaxlib": version("jaxlib"),
            "isa": self.isa,
            "features": sorted(ISAS[self.isa]),
        }

    def compile(self, program: Program, stablehlo: bytes, *, stop: Event | None = None) -> bytes:
        """Compile a portable artifact; the same call gives the same bytes. Any thread may call.

        Once stop is set, the worker is killed.

        Raises ToolchainError where XLA:CPU fails, is killed, or uses what the ISA does not have.
        """
        name = of_bytes(stablehlo)[:19]
        self._check_machine()
        raw = _compile_apart(stablehlo, program.replica_count, self.flags, name, stop or Event())
        try:
            target = target_of(raw)
            suspects = target.features - ISAS[self.isa]
            used = {
                feature for elf in object_files(raw) for feature in used_features(elf, suspects)
            }
            executable = with_features(canonical(raw), ISAS[self.isa])
        except BundleError as error:
            raise ToolchainError(
                f"program {name}: jaxlib {version('jaxlib')} writes what wanc cannot read: {error}"
            ) from error
        if target.triple != TRIPLE:
            raise ToolchainError(f"program {name} is compiled for {target.triple}, not {TRIPLE}")
        if used:
            raise ToolchainError(
                f"program {name}: XLA:CPU used {', '.join(sorted(used))} of this machine's CPU, "
                f"which {self.isa} does not have; compile on a machine without"
            )
        return executable

    def _check_machine(self) -> None:
        try:
            missing = missing_features(ISAS[self.isa], machine_flags())
        except BundleError as error:
            raise ToolchainError(str(error)) from error
        if missing:
            raise ToolchainError(
                f"XLA:CPU compiles for no more than the machine it runs on, and this one lacks "
                f"{', '.join(missing)} of {self.isa}; try another --isa or another machine"
            )


@functools.cache
def _source_digests() -> dict[str, str]:
    return {name: of_file(_ROOT / name) for name in _SOURCES}


def _compile_apart(
    stablehlo: bytes, replica_count: int, flags: tuple[str, ...], name: str, stop: Event
) -> bytes:
    """The executable as XLA serialises it, from a worker that ends however this call ends.

    The worker stays in the terminal's process group: Ctrl-C reaches it even where this thread,
    being none that Python interrupts, waits for it.
    """
    with tempfile.TemporaryDirectory(prefix="wanc-") as room, tempfile.TemporaryFile() as log:
        source, destination = Path(room, "program"), Path(room, "executable")
        source.write_bytes(stablehlo)
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "wanc.targets.cpu_worker"),
                *(source, destination, str(replica_count)),
            ],
            cwd=room,
            env=_environment(flags),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
        try:
            while worker.poll() is None and not stop.wait(_POLL_SECONDS):
                pass
            if stop.is_set():
                raise ToolchainError(f"program {name}: compiling was stopped")
            status = worker.returncode
        finally:
            worker.kill()
            worker.communicate()
        if status:
            raise ToolchainError(
                f"program {name}: XLA:CPU (jaxlib {version('jaxlib')}) {_fate(status)}: "
                f"{_tail(log)}"
            )
        return destination.read_bytes()


def _environment(flags: tuple[str, ...]) -> dict[str, str]:
    """All that the worker has of an environment; of this process's, only where modules lie."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return kept | {
        "NPROC": str(THREADS),
        "PATH": os.defpath,
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "PYTHONSAFEPATH": "1",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "XLA_FLAGS": " ".join(flags),
    }


def _fate(status: int) -> str:
    if status > 0:
        return f"failed with status {status}"
    hint = " (out of memory?)" if -status == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-status).name}{hint}"


def _tail(log: BinaryIO) -> str:
    """The end of what a process wrote."""
    log.seek(0)
    text = log.read().decode(errors="replace").strip()
    return text[-_QUOTED_CHARACTERS:] or "it wrote nothing"

"""A machine as one can look at it: files, packages, programs, control groups, a compiler's version.

Loads no framework and writes nothing. Knows no purpose: what is enough for what is doctor.py's.
"""

import operator
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath

NEURON_COMPILER = "neuronx-cc"
NEURON_INDEX = ("--extra-index-url", "https://pip.repos.neuron.amazonaws.com")
"""How pip finds AWS's Neuron packages; PyPI's of the same names are placeholders."""
NEURON_LIBRARIES = ("aws-neuronx-runtime-lib", "aws-neuronx-collectives")
"""AWS's system packages below nrtpy."""
COMMAND_SECONDS = 60
PLACEHOLDER_BYTES = 4096
"""Larger than all files of a placeholder of PyPI, and smaller than any package that works."""

_COMPARE = {"==": operator.eq, ">=": operator.ge, "<": operator.lt}
"""How wanc declares the versions that it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where to look. ``this_machine`` gives the real one."""

    root: Path
    """Above proc, sys, dev and opt."""
    cache: Path
    python: tuple[int, int, int]
    cores: int
    """Cores that this process may use."""
    packages: tuple[str, ...]
    """Folders with installed packages."""
    programs: str
    """As ``PATH``, and what lies beside the interpreter."""

    def text(self, path: str) -> str:
        """A file below the root; empty where it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def package(self, name: str) -> Distribution | None:
        """An installed package."""
        return next(iter(distributions(name=name, path=list(self.packages))), None)

    def program(self, name: str) -> str | None:
        """Absolute path of a program."""
        found = shutil.which(name, path=self.programs)
        return found and os.path.abspath(found)


def this_machine(cache: Path = Path()) -> Machine:
    """The machine that this process runs on; cache is the user's compile cache, if it matters."""
    bound = getattr(os, "sched_getaffinity", None)  # Linux has it
    return Machine(
        root=Path("/"),
        cache=cache,
        python=sys.version_info[:3],
        cores=len(bound(0)) if bound else os.cpu_count() or 1,
        packages=tuple(sys.path),
        programs=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{Path(sys.executable).parent}",
    )


def version_of(package: Distribution) -> str:
    """A package's version, also where its metadata is broken."""
    return package.version or "of no known version"


def is_placeholder(package: Distribution) -> bool:
    """Whether a package is one of PyPI's that hold a name and no code."""
    if package.files is None:  # who installed it kept no list
        return False
    own = [f for f in package.files if not f.parts[0].endswith((".dist-info", ".egg-info"))]
    return bytes_of(Path(str(package.locate_file(f))) for f in own) < PLACEHOLDER_BYTES


def requirements(package: Distribution | None) -> dict[str, str]:
    """What a package needs without extras: versions as ``>=2.13,<2.14``, by name."""
    lines = (package and package.requires) or ()
    matches = (re.fullmatch(r"([\w.-]+)([^;\[\]]*)", line.replace(" ", "")) for line in lines)
    return {match[1]: ",".join(sorted(match[2].split(","))[::-1]) for match in matches if match}


def fits(version: str, need: str) -> bool:
    """Whether a version meets every clause; local parts and pre-releases are not looked at."""
    clauses = re.findall(r"(==|>=|<)([0-9.]+)", need)
    return all(_COMPARE[how](release(version), release(want)) for how, want in clauses)


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without zeros at the end."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def free_memory(machine: Machine) -> tuple[int | None, bool]:
    """Bytes that new work can have, and whether a control group is what limits them."""
    match = re.search(r"^MemAvailable:\s*(\d+) kB$", machine.text("proc/meminfo"), re.MULTILINE)
    free = int(match[1]) * 1024 if match else None
    texts = (*limits(machine, "memory.max"), *limits(machine, "memory.limit_in_bytes"))
    limit = min((int(text) for text in texts if text.isdigit()), default=None)
    if limit is not None and (free is None or limit < free):
        return limit, True
    return free, False


def cpu_limit(machine: Machine) -> float | None:
    """Cores' worth of time that control groups leave; None for all."""
    pairs = (text.split() for text in limits(machine, "cpu.max") if text[:1].isdigit())
    return min((int(quota) / int(period) for quota, period in pairs), default=None)


def limits(machine: Machine, name: str) -> Iterator[str]:
    """A file's text in the control groups that this process is in, of version 1 or 2."""
    groups = re.findall("^[0-9]+:([^:]*):/(.*)$", machine.text("proc/self/cgroup"), re.MULTILINE)
    for controllers, path in groups:
        group = PurePosixPath("sys/fs/cgroup", controllers, path)
        yield from (machine.text(f"{folder}/{name}") for folder in (group, *group.parents))


def compiler_version(machine: Machine, compiler: str) -> tuple[str, str | None]:
    """neuronx-cc's version, empty where it does not run; and what it said, where it was found."""
    program = machine.program(compiler)
    if program is None:
        return "", None
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer in {COMMAND_SECONDS} s"
    except OSError as error:
        return "", error.strerror or "cannot be started"
    said = f"{done.stdout}\n{done.stderr}".strip()
    match = re.search(r"[Vv]ersion\s+([0-9]+(?:\.[\w+]+)+)", said)
    return (match[1] if match and not done.returncode else ""), said


def neuron_devices(machine: Machine) -> list[Path]:
    """Trainium's chips, as the kernel driver makes them."""
    return sorted((machine.root / "dev").glob("neuron[0-9]*"))


def neuron_device_name(machine: Machine) -> str:
    """What the driver calls the first chip, as Trainium2; empty where it does not say."""
    return machine.text("sys/devices/virtual/neuron_device/neuron0/info/architecture/device_name")


def neuron_library(machine: Machine) -> str | None:
    """Version of libnrt, by its file name: empty where that has none, None where it is missing."""
    paths = list((machine.root / "opt/aws/neuron/lib").glob("libnrt.so*"))
    versions = re.findall(r"\.so\.([0-9]+\.[0-9.]+)", " ".join(path.name for path in paths))
    return max(versions, key=release, default="") if paths else None


def bytes_of(paths: Iterable[Path]) -> int:
    """Size of those paths together that are files."""
    return sum(path.stat().st_size for path in paths if path.is_file())

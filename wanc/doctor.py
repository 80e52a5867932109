"""What this machine can do with wanc: what is there, what is missing, and what would help.

Judges what machine.py finds, against what compiling and running need. Knows no program and no
bundle, loads no framework and leaves nothing behind.
"""

import os
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from wanc.bundle.x86 import ISAS, machine_flags, missing_features
from wanc.errors import BundleError
from wanc.files import check_folder
from wanc.machine import (
    NEURON_COMPILER,
    NEURON_INDEX,
    NEURON_LIBRARIES,
    Machine,
    bytes_of,
    compiler_version,
    cpu_limit,
    fits,
    free_memory,
    is_placeholder,
    neuron_devices,
    neuron_library,
    release,
    requirements,
    version_of,
)
from wanc.spec.target import GIB, NEURON_COMPILE_BYTES

Usable = Literal["yes", "partly", "no"]
Goal = Literal["compile for cpu", "run on cpu", "compile for Trainium", "run on Trainium"]
GOALS: tuple[Goal, ...] = get_args(Goal)
CPU: tuple[Goal, ...] = ("compile for cpu", "run on cpu")
COMPILE: tuple[Goal, ...] = ("compile for cpu", "compile for Trainium")
RUN: tuple[Goal, ...] = ("run on cpu", "run on Trainium")
NEURON_COMPILE: tuple[Goal, ...] = ("compile for Trainium",)
NEURON_RUN: tuple[Goal, ...] = ("run on Trainium",)

COMPILE_BYTES = GIB
"""Of a full-size compile, a target's own compiler aside."""
RUN_BYTES = 69 * GIB
"""One rank of A14B at 832x480x81 in bf16, as ``wanc plan`` sums it up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    purpose: str
    found: str
    """Version or amount, and never a path."""
    usable: Usable
    """``partly`` where some of its purpose is served."""
    remedy: str
    """What to install or change; empty where nothing."""
    group: Goal
    """The first goal that it matters to, under which it is shown."""
    goals: tuple[Goal, ...]
    """Goals that cannot do without it; none where it is optional."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether this machine can do something."""

    goal: Goal
    ready: bool
    because: tuple[str, ...]
    """Why not; where it is ready, what is in short supply."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look gives a check."""

    found: str
    usable: Usable = "yes"
    remedy: str = ""


def examine(machine: Machine) -> tuple[Check, ...]:
    """Everything that wanc needs of a machine, in the order of the goals."""
    checks = []
    for name, (purpose, goals, look) in LOOKS.items():
        try:
            finding = look(machine)
        except OSError as error:  # of a disk, or of the cache's folder
            remedy = "a folder that takes files; XDG_CACHE_HOME names that of the cache"
            finding = Finding(error.strerror or "no answer", "no", remedy)
        group = goals[0] if goals else "compile for Trainium"
        checks.append(
            Check(name=name, purpose=purpose, group=group, goals=goals, **asdict(finding))
        )
    return tuple(checks)


def verdicts(checks: tuple[Check, ...]) -> tuple[Verdict, ...]:
    """For each goal, whether the machine is ready for it."""
    made = []
    for goal in GOALS:
        concerned = [check for check in checks if goal in check.goals]
        missing = [f"{c.name}: {c.found}" for c in concerned if c.usable == "no"]
        scarce = [f"{c.name}: {c.found}" for c in concerned if c.usable == "partly"]
        made.append(Verdict(goal=goal, ready=not missing, because=tuple(missing or scarce)))
    return tuple(made)


def python(machine: Machine) -> Finding:
    """The interpreter."""
    found = ".".join(map(str, machine.python))
    if machine.python[:2] == (3, 11):
        return Finding(found)
    return Finding(found, "no", "an environment of Python 3.11: wanc is for no other")


def package(name: str, machine: Machine, index: tuple[str, ...] = ()) -> Finding:
    """A package, against the versions that wanc declares; PyPI has placeholders of an index."""
    need = requirements(machine.package("wanc")).get(name, "")
    remedy = pip(f"{name}{need}", *index)
    found = machine.package(name)
    if found is None:
        return Finding("not installed", "no", remedy)
    have = version_of(found)
    if index and is_placeholder(found):
        return Finding(f"is PyPI's placeholder {have}", "no", remedy)
    if fits(have, need):
        return Finding(have)
    return Finding(f"{have}, needs {need}", "no" if "==" in need else "partly", remedy)


neuron_package = partial(package, index=NEURON_INDEX)


def other_packages(machine: Machine) -> Finding:
    """What wanc declares beyond the packages that have a line of their own."""
    names = [name for name in requirements(machine.package("wanc")) if name not in LOOKS]
    if not names:
        return Finding("wanc is not installed", "partly", pip("-e", "."))
    wrong = [f"{n} {f.found}" for n in names if (f := package(n, machine)).usable != "yes"]
    if not wrong:
        return Finding(f"{len(names)} as needed")
    return Finding("; ".join(wrong), "no", pip("-e", "."))


def cpu(machine: Machine) -> Finding:
    """The level of the x86-64 psABI."""
    try:
        flags = machine_flags(machine.root / "proc/cpuinfo")
    except BundleError:
        flags = frozenset()
    levels = [name for name, features in ISAS.items() if not missing_features(features, flags)]
    if levels:
        return Finding(levels[-1])
    return Finding("below x86-64-v3", "no", "an x86-64 machine with AVX2")


def cores(machine: Machine) -> Finding:
    """Cores, and how much of them a control group leaves."""
    limit = cpu_limit(machine)
    if limit is None or limit >= machine.cores:
        return Finding(str(machine.cores))
    found = f"{machine.cores}, limited to {limit:.3g}"
    return Finding(found, "partly", f"a higher CPU limit, or --jobs {max(1, int(limit))}")


def memory(needed_bytes: int, machine: Machine) -> Finding:
    """Whether the free memory is enough."""
    free, limited = free_memory(machine)
    if free is None:
        return Finding("not known")
    found = f"{size(free)}{', by its limit' if limited else ' free'}"
    if free >= needed_bytes:
        return Finding(found)
    return Finding(found, "partly", f"{size(needed_bytes)} of free memory, less for small models")


def disk(folder: Path) -> Finding:
    """The free space where a folder lies, or will."""
    free = shutil.disk_usage(existing(folder)).free
    if free >= GIB:
        return Finding(f"{size(free)} free")
    return Finding(f"{size(free)} free", "partly", "1 GiB of free space")


def cache(machine: Machine) -> Finding:
    """What the compile cache holds. Raises OSError where it takes no files."""
    check_folder(existing(machine.cache))
    return Finding(size(bytes_of(machine.cache.rglob("*"))))


def compiler(machine: Machine) -> Finding:
    """neuronx-cc: whether it runs."""
    version, said = compiler_version(machine, NEURON_COMPILER)
    if version:
        return Finding(version)
    installed = neuron_package(NEURON_COMPILER, machine)
    found = f"{installed.found} is not on PATH" if installed.usable == "yes" else installed.found
    if said is not None:
        last = (said or "it said nothing").splitlines()[-1]
        found = "does not run: " + re.sub(r"\S*/(?=\S)", "", last)[:60]  # without paths
    return Finding(found, "no", pip(NEURON_COMPILER, *NEURON_INDEX))


def libnrt(machine: Machine) -> Finding:
    """The runtime's library, which no pip package brings; its file name has the version."""
    version = neuron_library(machine)
    if version is None:
        return Finding("not installed", "no", f"apt-get install {' '.join(NEURON_LIBRARIES)}")
    return Finding(version or "of no known version")


def driver(machine: Machine) -> Finding:
    """The kernel driver and the devices that it made."""
    version = machine.text("sys/module/neuron/version") or "unknown"
    devices = neuron_devices(machine)
    found = f"version {version}, {len(devices)} devices" if devices else "no devices"
    if not devices:
        return Finding(found, "no", "a Trainium instance, and apt-get install aws-neuronx-dkms")
    if not all(os.access(device, os.R_OK | os.W_OK) for device in devices):
        return Finding(f"{found}, no permission", "no", "permission to read and write the devices")
    return Finding(found)


def majors(machine: Machine) -> Finding:
    """Whether compiler and runtime, where both are here, are of one major version."""
    compiled = release(neuron_package(NEURON_COMPILER, machine).found)
    runs = release(libnrt(machine).found) or release(neuron_package("nrtpy", machine).found)
    if not compiled or not runs:
        return Finding("not both here")
    if compiled[0] == runs[0]:
        return Finding(f"both {runs[0]}")
    return Finding(f"{compiled[0]} and {runs[0]}", "no", "compiler and runtime of one Neuron SDK")


LOOKS: dict[str, tuple[str, tuple[Goal, ...], Callable[[Machine], Finding]]] = {
    "Python": ("everything", GOALS, python),
    "torch": ("tracing, casting weights", GOALS, partial(package, "torch")),
    "jax": ("lowering to StableHLO", COMPILE, partial(package, "jax")),
    "jaxlib": ("StableHLO, XLA:CPU", (*CPU, *NEURON_COMPILE), partial(package, "jaxlib")),
    "diffusers": ("VAE's modules, sampler", GOALS, partial(package, "diffusers")),
    "transformers": ("text encoder, tokenizer", GOALS, partial(package, "transformers")),
    "other packages": ("everything", GOALS, other_packages),
    "CPU features": ("x86-64-v3 is needed", CPU, cpu),
    "cores": ("compilers at once, ranks", CPU, cores),
    "memory": ("any compile", COMPILE, partial(memory, COMPILE_BYTES)),
    "disk of the cache": ("compiled programs", COMPILE, lambda machine: disk(machine.cache)),
    "disk of this folder": ("bundles, videos", GOALS, lambda _: disk(Path())),
    "cache": ("compiling once", COMPILE, cache),
    "safetensors": ("reading checkpoints", RUN, partial(package, "safetensors")),
    "imageio-ffmpeg": ("writing mp4", RUN, partial(package, "imageio-ffmpeg")),
    "memory to run": ("A14B in bf16", ("run on cpu",), partial(memory, RUN_BYTES)),
    "neuronx-cc": ("needs no Trainium", NEURON_COMPILE, compiler),
    "memory, neuronx-cc": ("one at work", NEURON_COMPILE, partial(memory, NEURON_COMPILE_BYTES)),
    "nki": ("optional: kernels", (), partial(neuron_package, "nki")),
    "libneuronxla": ("optional: jax plugin", (), partial(neuron_package, "libneuronxla")),
    "nrtpy": ("loads NEFFs, without nki", NEURON_RUN, partial(neuron_package, "nrtpy")),
    "libnrt": ("runtime under nrtpy", NEURON_RUN, libnrt),
    "Neuron driver": ("a rank is a logical core", NEURON_RUN, driver),
    "major versions": ("compiler's and runtime's", NEURON_RUN, majors),
}
"""What is looked at; what for, by which goals it is needed, and how."""


def existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next((path for path in (folder, *folder.parents) if path.exists()), Path())


def size(count: int) -> str:
    """Bytes for people."""
    return f"{count / GIB:.3g} GiB" if count >= GIB // 10 else f"{count / (1 << 20):.3g} MiB"


def pip(*words: str) -> str:
    """The command that installs something."""
    return shlex.join(("pip", "install", "-U", *words))

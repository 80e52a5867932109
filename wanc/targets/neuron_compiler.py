"""Finds neuronx-cc and runs it, again where it failed for no reason of the program's.

Knows neither programs nor what a NEFF holds. A compile may take an hour and fail in ways that the
compiler does not report, so each of them is looked for, and what it takes to try again by hand is
kept. The compiler has a temporary folder, an environment and a session of its own.
"""

import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from wanc.errors import BundleError, ToolchainError
from wanc.machine import NEURON_INDEX, compiler_version, is_placeholder, this_machine, version_of
from wanc.targets.apart import run_apart
from wanc.targets.neuron_command import NAME, compile_arguments
from wanc.targets.neuron_failures import Failure, failure_of, keep_failure, tail

_OUTPUT = "program.neff"
_ATTEMPTS = 3
_INSTALL = f"pip install -U {NAME} {' '.join(NEURON_INDEX)}"
_KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH")
"""What the compiler has of this process's environment. NEURON_CC_FLAGS would add to its flags."""
_SET = {"PYTHONHASHSEED": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One compile."""

    title: str
    """How messages call the program."""
    source_name: str
    source: bytes
    flags: tuple[str, ...]
    timeout_seconds: float
    """For one attempt."""
    keep: Path
    """Where the files of a failure go."""
    check: Callable[[bytes, str], None]
    """Raises BundleError where the output, named by the text, is not what it must be."""


def located() -> str:
    """Path of neuronx-cc, on PATH or beside the interpreter; raises ToolchainError."""
    machine = this_machine()
    found = machine.program(NAME)
    if found:
        return found
    package = machine.package(NAME)
    seen = f"{NAME} is not on PATH"
    if package:
        seen = f"{NAME} {version_of(package)} is installed, but its command is not on PATH"
    if package and is_placeholder(package):
        seen = f"{NAME} {version_of(package)} is PyPI's placeholder, which holds no compiler"
    raise ToolchainError(
        f"{seen}; the compiler comes from AWS: {_INSTALL}\n"
        "(--stop-after lower -o BUNDLE needs none; --from BUNDLE ends it where there is one)"
    )


@functools.cache
def release(compiler: str) -> str:
    """Version of the compiler at a path, as it states it; raises ToolchainError."""
    stated, said = compiler_version(this_machine(), compiler)
    if not stated:
        raise ToolchainError(
            f"{compiler} --version: {said!r}, where 'NeuronX Compiler version …' belongs; "
            f"the compiler comes from AWS: {_INSTALL}"
        )
    return stated


def compile_neff(compiler: str, job: Job, stop: Event) -> bytes:
    """The output of a job; raises ToolchainError. Once stop is set, nothing is left running."""
    try:
        with tempfile.TemporaryDirectory(prefix="wanc-", ignore_cleanup_errors=True) as folder:
            return _attempts(compiler, job, Path(folder), stop)
    except OSError as error:
        raise ToolchainError(f"{job.title}: cannot run {compiler}: {error}") from error


def _attempts(compiler: str, job: Job, folder: Path, stop: Event) -> bytes:
    (folder / job.source_name).write_bytes(job.source)
    command = (compiler, *compile_arguments(job.source_name, job.flags, _OUTPUT))
    for attempt in range(1, _ATTEMPTS + 1):
        room, log = folder / str(attempt), folder / f"log-{attempt}.txt"
        room.mkdir()
        shutil.copyfile(folder / job.source_name, room / job.source_name)
        result = _attempt(command, job, room, log, stop)
        if isinstance(result, bytes):
            return result
        failure = result
        if not failure.transient:
            break
    kept = keep_failure(
        job.keep,
        command,
        (*(f'{name}="${name}"' for name in _KEPT), *(f"{k}={v}" for k, v in _SET.items())),
        [path for place in (folder, room) for path in sorted(place.iterdir()) if path.is_file()],
    )
    attempts = f", {attempt} times" if attempt > 1 else ""
    raise ToolchainError(
        f"{job.title}: {NAME} {release(compiler)} {failure.text}{attempts}; {kept}; "
        f"the log ends:\n{tail(log)}"
    )


def _attempt(
    command: tuple[str, ...], job: Job, room: Path, log: Path, stop: Event
) -> bytes | Failure:
    """Run the compiler once, in a folder that has its input."""
    ended = run_apart(
        command,
        room=room,
        log=log,
        environment=_environment(room),
        timeout_seconds=job.timeout_seconds,
        stop=stop,
    )
    if ended.by == "stopped":
        raise ToolchainError(f"{job.title}: compiling was stopped")
    return failure_of(ended, log, job.timeout_seconds) or _checked(room / _OUTPUT, job)


def _checked(output: Path, job: Job) -> bytes | Failure:
    """What a compiler that says that all went well has written."""
    data = output.read_bytes() if output.is_file() else None
    if not data:
        what = "no file" if data is None else "an empty file"
        return Failure(text=f"ended with status 0 and wrote {what}")
    try:
        job.check(data, "its output")
    except BundleError as error:
        return Failure(text=f"ended with status 0, but {error}")
    return data


def _environment(room: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | _SET | {"TMPDIR": str(room)}

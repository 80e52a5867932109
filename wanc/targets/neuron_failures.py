"""What went wrong in a compile by neuronx-cc, in words, and what is kept of it.

Knows how the compiler ends, not what it was given. That some compiles among many end with status 70
and pass when they are tried again is known from the field; so do those with an error of the
program, but these name it: AWS's list of such errors has codes that start with NCC_E.
"""

import re
import shlex
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wanc.files import write_whole
from wanc.targets.apart import Ended

_TRANSIENT_STATUS = 70
_KILLED = 128 + signal.SIGKILL
_DIAGNOSED = re.compile(r"\bNCC_E[A-Z]+\d+")
_OUT_OF_MEMORY = "[F137]"
"""What the compiler writes where a process that it started was killed."""
_READ_BYTES = 1 << 20
_QUOTED_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there is no executable."""

    text: str
    """What the compiler did, after its name, and what would work."""
    transient: bool = False


def failure_of(ended: Ended, log: Path, timeout_seconds: float) -> Failure | None:
    """What the way in which the compiler ended says; None where it says that all went well."""
    written = tail(log, _READ_BYTES)
    if ended.by == "timeout":
        return Failure(
            text=f"did not end within {timeout_seconds:g} s and was killed; give it longer "
            "(--timeout), or lower programs of fewer blocks (--blocks-per-program)"
        )
    if not ended.status:
        return None
    if ended.status in (-signal.SIGKILL, _KILLED) or _OUT_OF_MEMORY in written:
        return Failure(
            text="was killed, for want of memory most likely; run fewer compilers at once "
            "(--jobs), or on a machine with more"
        )
    if ended.status < 0:
        return Failure(text=f"was killed by {signal.Signals(-ended.status).name}")
    if ended.status == _TRANSIENT_STATUS:
        return Failure(text="failed with status 70", transient=not _DIAGNOSED.search(written))
    return Failure(text=f"failed with status {ended.status}")


def tail(log: Path, most_bytes: int = _QUOTED_CHARACTERS) -> str:
    """The end of what a process wrote."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - most_bytes))
        return file.read().decode(errors="replace").strip() or "it wrote nothing"


def keep_failure(
    folder: Path, command: Sequence[str], environment: Sequence[str], files: Sequence[Path]
) -> str:
    """Copy a failed compile's files into a folder, with its command; says where they are now.

    environment has the words that set it. A folder that takes no files hides no failure.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier failure of this program
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copyfile(file, folder / file.name)
        script = folder / "command.sh"
        write_whole(script, _script(command, environment).encode())
        script.chmod(0o755)
    except OSError as error:
        return f"its files could not be kept in {folder}: {error.strerror or error}"
    return f"command, log and input are kept in {folder}"


def _script(command: Sequence[str], environment: Sequence[str]) -> str:
    return (
        "#!/bin/sh\n"
        'cd "$(dirname "$0")" || exit 1\n'
        f"exec env -i {' '.join(environment)} \\\n  {shlex.join(command)}\n"
    )

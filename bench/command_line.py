"""How long commands take that people wait for in a terminal, and lowering at full size."""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

REPEATS = 7
TRN2 = "--target trn2 --shape 832x480x81"
LIGHT = {
    "wanc --help": "--help",
    "wanc plan": f"plan {TRN2} --topology tp4-cp8-cfg2",
    "wanc plan, topology auto": f"plan {TRN2} --topology auto --cores 64",
    "wanc plan, a set of 16": "plan shapes/wan2.2-t2v-a14b-trn2.yaml",
    "wanc inspect": "inspect {bundle}",
    "wanc doctor": "doctor",
}
LOWER = f"compile {TRN2} --topology tp4-cp8-cfg2 --stop-after lower -o {{bundle}}"


def light_rows(bundle: Path) -> dict[str, float]:
    """Median milliseconds of a process, by what it is."""
    return {
        what: statistics.median(1000 * elapsed(line, bundle) for _ in range(REPEATS))
        for what, line in LIGHT.items()
    }


def lowering(folder: Path) -> tuple[float, float]:
    """Seconds to lower the 14B model for 64 ranks from a cold cache, and the peak in GB."""
    seconds = elapsed(LOWER, folder / "lowered", {"XDG_CACHE_HOME": str(folder / "cold")})
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6


def host_step() -> dict[str, float]:
    """Milliseconds of the host's own work in a step at full size, in a process on one core."""
    command = [sys.executable, "-m", "bench.host_step"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def elapsed(line: str, bundle: Path, environment: dict[str, str] | None = None) -> float:
    """Seconds of one process."""
    command: Sequence[str] = [sys.executable, "-m", "wanc", *line.format(bundle=bundle).split()]
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=os.environ | (environment or {}))
    return time.perf_counter() - started

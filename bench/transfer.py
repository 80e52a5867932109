"""``wanc push`` and ``wanc pull`` beside ``skopeo copy`` of the same bundle, in turn.

Against docker-registry on this machine, a new one for every push and pull, for skopeo remembers
what other repositories have. Whole processes. Run as a module it prints its rows alone.
"""

import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.verify import bundle_of, for_trainium, neff_of

REPEATS = 5
BUNDLE_BYTES = 400_000_000
PROGRAMS = ("docker-registry", "skopeo")
CONFIG = """
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: 127.0.0.1:{port}}}
"""

Seconds = dict[str, dict[str, float]]
"""Medians, by what is done and by whom."""


def transfer_rows() -> Seconds | None:
    """Push and pull; None where this machine lacks one of the programs."""
    if not all(map(shutil.which, PROGRAMS)):
        return None
    with bundle_of(for_trainium(), neff_of, BUNDLE_BYTES) as bundle:
        return measured(bundle)


def measured(bundle: Path) -> Seconds:
    """Each in turn; the first of each is not counted."""
    found: Seconds = {"push": {}, "pull": {}}
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(1 + REPEATS):
        for who, (push, pull) in {
            "wanc": (wanc("push"), wanc("pull")),
            "skopeo": (skopeo_push, skopeo_pull),
        }.items():
            with tempfile.TemporaryDirectory() as room, registry(Path(room)) as host:
                reference, folder = f"{host}/bench/{who}:v1", Path(room) / "pulled"
                times.setdefault(("push", who), []).append(elapsed(push(bundle, reference)))
                times.setdefault(("pull", who), []).append(elapsed(pull(folder, reference)))
    for (what, who), took in times.items():
        found[what][who] = statistics.median(took[1:])
    return found


def wanc(command: str) -> Callable[[Path, str], list[str]]:
    """The command line of a push or a pull."""

    def line(folder: Path, reference: str) -> list[str]:
        start = [sys.executable, "-m", "wanc", command]
        return [
            *start,
            *([str(folder), reference] if command == "push" else [reference, "-o", str(folder)]),
        ]

    return line


def skopeo_push(bundle: Path, reference: str) -> list[str]:
    """All variants, digests as they are."""
    copy = ["skopeo", "--insecure-policy", "copy", "--all", "--preserve-digests"]
    return [*copy, "--dest-tls-verify=false", f"oci:{bundle}:bundle", f"docker://{reference}"]


def skopeo_pull(folder: Path, reference: str) -> list[str]:
    """Into an OCI layout."""
    copy = ["skopeo", "--insecure-policy", "copy", "--all", "--preserve-digests"]
    return [*copy, "--src-tls-verify=false", f"docker://{reference}", f"oci:{folder}:bundle"]


def elapsed(command: list[str]) -> float:
    """Seconds of a process."""
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


@contextmanager
def registry(room: Path) -> Iterator[str]:
    """Host and port of a registry of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = room / "config.yml"
    config.write_text(CONFIG.format(folder=room, port=port))
    served = subprocess.Popen(["docker-registry", "serve", str(config)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(2000):
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.01)
        yield f"127.0.0.1:{port}"
    finally:
        served.terminate()
        served.wait()


def show_transfers(rows: Seconds | None) -> None:
    """Print seconds, and wanc's as parts of skopeo's."""
    if rows is None:
        print(f"\npush and pull: not measured, for this machine lacks one of {', '.join(PROGRAMS)}")
        return
    print(f"\n{BUNDLE_BYTES / 1e9} GB, a registry on this machine, processes")
    print(f"{f'median of {REPEATS}, s':<28}{'wanc':>9}{'skopeo':>9}{'of skopeo':>11}")
    for what, row in rows.items():
        ratio = row["wanc"] / row["skopeo"]
        print(f"{what:<28}{row['wanc']:>9.2f}{row['skopeo']:>9.2f}{ratio:>10.2f}x")


if __name__ == "__main__":
    show_transfers(transfer_rows())

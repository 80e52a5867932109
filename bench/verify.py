"""``wanc verify`` beside ``openssl dgst -sha256`` over the same files, in turn, from a warm cache.

Bundles are of a real plan; their executables have its interfaces and are filled up with random
bytes, which do not compress. Run as a module, with a compiled bundle of one variant, it
prints its rows alone.
"""

import gzip
import io
import json
import os
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.model import MODEL, SHAPE
from wanc.bundle import oci
from wanc.bundle.config import Blob, VariantConfig, config_of
from wanc.bundle.neff_names import input_name, output_name
from wanc.bundle.store import NewVariant, blob_path, open_bundle, put_blob, write_bundle
from wanc.bundle.wire import record_of
from wanc.plan.abi import Program
from wanc.plan.plan import make_plan
from wanc.progress import Silent
from wanc.spec.shape import Shape
from wanc.spec.topology import Topology
from wanc.spec.variant import Options, Variant
from wanc.verify.executables import MAGIC
from wanc.verify.verify import verify_bundle

BUNDLE_BYTES = 1_200_000_000
REPEATS = 5
JOBS = (1, 2)
LNC = 2
_FILL = 15
"""A field that XLA's container does not have: readers keep it and go past."""

Rates = dict[str, float]
"""Bytes of the bundle per second, by who hashed them."""


def verify_rows(compiled: Path) -> dict[str, Rates]:
    """Of XLA:CPU executables, which a compiled bundle gives, and of NEFFs, by kind and jobs."""
    found = {}
    (variant,) = open_bundle(compiled).variants
    config = variant.config

    def of_xla(program: Program, fill: bytes) -> bytes:
        executable = config.program(program.name).executable
        if executable is None:
            raise LookupError(program.name)
        return open_bundle(compiled).read(executable) + record_of(_FILL, fill)

    for kind, planned, make in (
        ("XLA:CPU", config, of_xla),
        ("NEFF, plain tar", for_trainium(), neff_of),
        ("NEFF, gzipped", for_trainium(), lambda *both: neff_of(*both, pack=gzipped)),
    ):
        with bundle_of(planned, make) as path:
            for jobs in JOBS:
                found[f"{kind}, {jobs} core{'s' * (jobs > 1)}"] = rates(path, jobs)
    return found


# --- bundles --------------------------------------------------------------------------------------


def for_trainium() -> VariantConfig:
    """The model that is measured, planned for trn2."""
    variant = Variant(
        task="t2v",
        shape=Shape.parse(SHAPE),
        topology=Topology.parse("tp1"),
        placement="linear",
        precision="bf16",
        target="trn2",
    )
    plan = make_plan(MODEL, variant, Options())
    return replace(config_of(plan), requires={"target": "trn2", "lnc": LNC})


@contextmanager
def bundle_of(
    config: VariantConfig,
    make: Callable[[Program, bytes], bytes],
    bundle_bytes: int = BUNDLE_BYTES,
) -> Iterator[Path]:
    """A bundle whose executables are made of programs and of bytes that fill them up."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "bundle"
        (path / "blobs" / "sha256").mkdir(parents=True)

        def put(data: bytes) -> Blob:
            return Blob(digest=put_blob(path, data), size_bytes=len(data))

        fill_bytes = bundle_bytes // len(config.programs)
        records = [
            replace(
                record,
                stablehlo=put(MAGIC + record.program.name.encode()),
                executable=put(make(record.program, os.urandom(fill_bytes))),
                compile_key={},
            )
            for record in config.programs
        ]
        kind = oci.XLA_CPU if config.variant.target == "cpu" else oci.NEFF
        new = NewVariant(config=replace(config, programs=tuple(records)), executable_type=kind)
        write_bundle(path, [new], lambda digest: blob_path(path, digest).read_bytes())
        yield path


def neff_of(program: Program, fill: bytes, pack: Callable[[bytes], bytes] = bytes) -> bytes:
    """A NEFF of a program's interface."""
    variables = {
        name(position): {"type": kind, "size": tensor.bytes}
        for kind, name, tensors in (
            ("input", input_name, program.arguments),
            ("output", output_name, program.outputs),
        )
        for position, tensor in enumerate(tensors)
    }
    room = io.BytesIO()
    with tarfile.open(fileobj=room, mode="w") as archive:
        for name, data in (
            ("sg00/pe.bin", fill),
            ("sg00/def.json", json.dumps({"var": variables}).encode()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    packed = pack(room.getvalue())
    header = struct.pack("<5Q512xI468x", 2, 1024, len(packed), 2, 5, LNC)
    return header + packed


def gzipped(archive: bytes) -> bytes:
    """As fast as gzip packs."""
    return gzip.compress(archive, compresslevel=1)


# --- measuring ------------------------------------------------------------------------------------


def rates(path: Path, jobs: int) -> Rates:
    """Medians, of so many threads of wanc and processes of openssl."""
    files = sorted((path / "blobs" / "sha256").iterdir())
    read_bytes = sum(file.stat().st_size for file in files)
    large = [str(file) for file in files if file.stat().st_size > 1 << 20]
    command = [sys.executable, "-m", "wanc", "verify", str(path), "--jobs", str(jobs)]
    times: dict[str, list[float]] = {}
    for _ in range(1 + REPEATS):
        for who, run in {
            "verify": lambda: verified(path, jobs),
            "openssl": lambda: openssl(large, jobs),
            "command": lambda: subprocess.run(command, check=True, capture_output=True),
        }.items():
            started = time.perf_counter()
            run()
            times.setdefault(who, []).append(time.perf_counter() - started)
    return {who: read_bytes / statistics.median(took[1:]) for who, took in times.items()}


def verified(path: Path, jobs: int) -> None:
    """Verify in this process."""
    seen = verify_bundle(path, jobs=jobs, progress=Silent())
    if not seen.is_sound:
        raise RuntimeError(f"the bundle is not sound: {seen.findings[:3]}")


def openssl(files: list[str], jobs: int) -> None:
    """Hash files in so many processes, each with its share."""
    share = -(-len(files) // jobs)
    command = ["xargs", "-P", str(jobs), "-n", str(share), "openssl", "dgst", "-sha256"]
    subprocess.run(command, input="\n".join(files), check=True, capture_output=True, text=True)


def start_up(compiled: Path) -> float:
    """Milliseconds of a command that has next to nothing to read."""
    command = [sys.executable, "-m", "wanc", "verify", str(compiled)]
    times = []
    for _ in range(1 + REPEATS):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times[1:])


def show_verify(rows: dict[str, Rates], start_ms: float) -> None:
    """Print rates, and wanc's as parts of openssl's."""
    print(f"\nverify of {BUNDLE_BYTES / 1e9} GB; the command takes {start_ms:.0f} ms to start")
    print(f"{f'median of {REPEATS}, GB/s':<28}{'openssl':>9}{'verify':>9}{'command':>9}", end="")
    print(f"{'verify':>9}{'command':>9} of openssl")
    for what, found in rows.items():
        peer, ours, whole = (found[who] / 1e9 for who in ("openssl", "verify", "command"))
        print(f"{what:<28}{peer:>9.2f}{ours:>9.2f}{whole:>9.2f}", end="")
        print(f"{ours / peer:>8.2f}x{whole / peer:>8.2f}x")


if __name__ == "__main__":
    show_verify(verify_rows(Path(sys.argv[1])), start_up(Path(sys.argv[1])))

"""The process that compiles one program with XLA:CPU: artifact in, executable out, and it ends.

Knows no bundle and no cache. Run by wanc.targets.cpu, which gives it an environment of its own; a
fresh process for each program, for XLA numbers what it compiles and writes the numbers. Imports
neither jax nor torch, so that it starts in a tenth of a second.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any


def compile_program(stablehlo: bytes, replica_count: int) -> bytes:
    """A serialised executable for replica_count devices from a portable artifact."""
    import numpy as np
    from jaxlib import xla_client
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import chlo
    from jaxlib.mlir.dialects import stablehlo as dialect

    from wanc.targets.cpu_rewrites import rewrite
    from wanc.targets.cpu_sums import order_sums

    xla: Any = xla_client
    context = ir.Context()
    dialect.register_dialect(context)
    chlo.register_dialect(context)
    module = dialect.deserialize_portable_artifact(context, stablehlo)
    rewrite(module)
    order_sums(module)
    client = xla.make_cpu_client(num_devices=replica_count)
    devices = tuple(client.local_devices())
    options = xla.CompileOptions()
    for part in (options, options.executable_build_options):
        part.num_replicas = replica_count
        part.num_partitions = 1
    ids = np.array([[device.id] for device in devices])
    options.executable_build_options.device_assignment = xla.DeviceAssignment.create(ids)
    executable = client.compile_and_load(module, xla.DeviceList(devices), options)
    serialised: bytes = executable.serialize()
    return serialised


def _end_with_parent() -> None:
    """Exit once standard input ends: the parent holds it open for as long as it lives."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main(source: Path, destination: Path, replica_count: int) -> None:
    """Compile the artifact in a file into another file."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's would wait for XLA to return
    _end_with_parent()
    destination.write_bytes(compile_program(source.read_bytes(), replica_count))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))

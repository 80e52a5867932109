"""Lets the XLA:CPU clients of several processes meet, so that collectives reach across them.

Knows jaxlib's coordination service and gloo, whose sockets bind the world's address alone. The
service is a process of its own, a child of process 0's: where it goes away, jaxlib ends every
process that is connected, and nobody could say what happened. Run as a module, this file is it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from jaxlib import _jax

from wanc.errors import LostError, RunError
from wanc.processes.world import World

_native: Any = _jax

_SETTLE_SECONDS = 60
"""For processes to meet and to leave."""
_NEVER_SECONDS = 1 << 30
"""XLA's own heartbeats end a process without a word; the watch of processes sees deaths."""
_PORTS_TRIED = 5
_OUTLIVE_SECONDS = 12
"""After process 0 died, for the others to see that and to end by themselves."""
_LEAVE = b"leave\n"


class Coordination:
    """What XLA's clients of several processes find each other through."""

    def __init__(self, world: World, endpoint: str, service: "subprocess.Popen[bytes] | None"):
        self._world, self._service = world, service
        self._client = _native.get_distributed_runtime_client(
            endpoint,
            world.process,
            init_timeout=_SETTLE_SECONDS,
            shutdown_timeout=_SETTLE_SECONDS,
            heartbeat_timeout=_NEVER_SECONDS,
            shutdown_on_destruction=False,
            use_compression=False,
        )
        self._client.connect()

    def options(self) -> dict[str, Any]:
        """For the client of ranks."""
        return {
            "distributed_client": self._client,
            "node_id": self._world.process,
            "num_nodes": self._world.processes,
            "collectives": _native.make_gloo_tcp_collectives(
                distributed_client=self._client, hostname=self._world.address
            ),
        }

    def close(self) -> None:
        """Leave together: the service goes last."""
        with contextlib.suppress(RuntimeError):  # what was to be done is done
            self._client.shutdown()
        self._world.everyone("xla left", "")
        if self._service:
            try:
                self._service.communicate(_LEAVE, timeout=_SETTLE_SECONDS)
            except subprocess.TimeoutExpired:
                self._service.kill()


def coordinate(world: World) -> Coordination:
    """Join the other processes' XLA; process 0 has the service started. Raises RunError."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> str:
        started.append(_start_service(world))
        return _endpoint(started[0])

    endpoint = world.tell("xla", start)
    try:
        return Coordination(world, endpoint, started[0] if started else None)
    except RuntimeError as error:
        raise LostError(f"XLA's processes do not meet at {endpoint}: {error}") from error


def _start_service(world: World) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, world.address, str(world.processes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )


def _endpoint(service: "subprocess.Popen[bytes]") -> str:
    """Where a started service listens; raises RunError."""
    assert service.stdout is not None
    line = service.stdout.readline().decode().strip()
    if not line:
        raise RunError(f"XLA's coordination service ended with exit code {service.wait()}")
    return line


def _serve(address: str, processes: int) -> None:
    """Be the service, until process 0 says that all leave, or a while after it died."""
    for attempt in range(1, _PORTS_TRIED + 1):
        endpoint = f"{address}:{_free_port(address)}"
        try:
            service = _native.get_distributed_runtime_service(
                endpoint,
                processes,
                heartbeat_timeout=_NEVER_SECONDS,
                shutdown_timeout=_SETTLE_SECONDS,
            )
            break
        except RuntimeError:  # another program took the port in between
            if attempt == _PORTS_TRIED:
                raise
    sys.stdout.write(f"{endpoint}\n")
    sys.stdout.flush()
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # nobody waits for its last word
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    if sys.stdin.buffer.readline() == _LEAVE:
        service.shutdown()
    else:
        time.sleep(_OUTLIVE_SECONDS)
    os._exit(0)


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # which launchers send to whole groups
        signal.signal(number, signal.SIG_IGN)
    _serve(sys.argv[1], int(sys.argv[2]))

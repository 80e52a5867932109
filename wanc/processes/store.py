"""The processes of a launch, joined through torch's TCPStore: a table of bytes in process 0.

Knows keys and bytes. Its server binds the launch's address alone; no other socket is opened here.
"""

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from queue import Empty, Queue
from typing import Any

import ml_dtypes  # noqa: F401  names bfloat16 to numpy
import numpy as np
import torch.distributed
from torch.distributed import DistError

from wanc.errors import LostError, RunError
from wanc.processes.launch import Launch, hosted_ranks

Array = np.ndarray[Any, Any]

_torch: Any = torch.distributed

_FOREVER = timedelta(days=30)
"""How long one process waits for another: whether that goes on is for the watch to say."""
_CHUNK_BYTES = 4 << 20
"""The store refuses values above 8 MiB."""
_POLL_SECONDS = 0.05
_LEAVE_SECONDS = 10.0


class StoreWorld:
    """The processes of one launch."""

    def __init__(self, launch: Launch, store: Any) -> None:
        self._launch = launch
        self._store = store
        self._count = 0

    @property
    def process(self) -> int:
        """This process."""
        return self._launch.process

    @property
    def processes(self) -> int:
        """How many there are."""
        return self._launch.processes

    @property
    def address(self) -> str:
        """Where sockets of this process bind."""
        return self._launch.address

    def hosted(self, ranks: int, process: int | None = None) -> tuple[int, ...]:
        """The ranks, of so many, that a process hosts; raises RequestError."""
        here = self.process if process is None else process
        return hosted_ranks(ranks, here, self.processes)

    def tell(self, subject: str, say: Callable[[], str]) -> str:
        """What process 0 says of a subject, to all. Only process 0 calls ``say``."""
        key = self._key(subject)
        if self.process == 0:
            self._set(key, _bytes(say()))
        return self._get(key).decode()

    def spread(self, subject: str, give: Callable[[], bytes]) -> bytes:
        """Bytes that process 0 has, to all. Only process 0 calls ``give``."""
        key = self._key(subject)
        data = give() if self.process == 0 else b""
        size = int(self.tell(f"{subject} size", lambda: str(len(data))))
        starts = range(0, size, _CHUNK_BYTES)
        if self.process == 0:
            for start in starts:
                self._set(f"{key}/{start}", data[start : start + _CHUNK_BYTES])
        else:
            data = b"".join(self._get(f"{key}/{start}") for start in starts)
        self.everyone(f"{subject} read", "")
        if self.process == 0:
            for start in starts:
                self._delete(f"{key}/{start}")
        return data

    def everyone(self, subject: str, text: str) -> list[str]:
        """What each process says of a subject, by process."""
        key = self._key(subject)
        self._set(f"{key}/{self.process}", _bytes(text))
        return [self._get(f"{key}/{process}").decode() for process in range(self.processes)]

    def gather(self, parts: Sequence[Array | None], owners: Sequence[int]) -> list[Array] | None:
        """Every part, in process 0; None elsewhere. A process gives those that it owns."""
        key = self._key("parts")
        gathered = []
        for k, (part, owner) in enumerate(zip(parts, owners, strict=True)):
            if self.process == 0:
                gathered.append(part if owner == 0 else self._receive(f"{key}/{k}"))
            elif owner == self.process:
                self._send(f"{key}/{k}", part)
        self.everyone("gathered", "")
        return None if self.process else [part for part in gathered if part is not None]

    def close(self) -> None:
        """Leave, once all others do: process 0 keeps the store."""
        self.everyone("left", "")
        with _lost():
            self._store.add("gone", 1)
            until = time.monotonic() + _LEAVE_SECONDS
            while self.process == 0 and time.monotonic() < until:
                if self._store.add("gone", 0) >= self.processes:
                    break
                time.sleep(_POLL_SECONDS)

    def clone(self) -> Any:
        """The store, for another thread. Where process 0 is stopped it does not answer at all."""
        return self._store.clone()

    def _key(self, subject: str) -> str:
        """A key of its own for each exchange: all processes make the same ones."""
        self._count += 1
        return f"{self._count}/{subject}"

    def _send(self, key: str, part: Array | None) -> None:
        assert part is not None, f"{key}: this process owns the part"
        data = np.asarray(part)
        self._set(key, f"{data.dtype.name} {' '.join(map(str, data.shape))}".encode())
        view = data.reshape(-1).view(np.uint8)
        for start in range(0, len(view), _CHUNK_BYTES):
            self._get(f"{key}/{start}/wanted")
            self._set(f"{key}/{start}", view[start : start + _CHUNK_BYTES].tobytes())

    def _receive(self, key: str) -> Array:
        kind, *extents = self._get(key).decode().split()
        part = np.empty(tuple(map(int, extents)), kind)
        view = part.reshape(-1).view(np.uint8)
        for start in range(0, len(view), _CHUNK_BYTES):
            self._set(f"{key}/{start}/wanted", b"")
            chunk = np.frombuffer(self._get(f"{key}/{start}"), np.uint8)
            view[start : start + _CHUNK_BYTES] = chunk
            self._delete(f"{key}/{start}")
        return part

    def _set(self, key: str, value: bytes) -> None:
        with _lost():
            self._store.set(key, value)

    def _get(self, key: str) -> bytes:
        with _lost():
            return bytes(self._store.get(key))

    def _delete(self, key: str) -> None:
        with _lost():
            self._store.delete_key(key)


def _bytes(text: str) -> bytes:
    """UTF-8, also of names of files that have no encoding."""
    return text.encode(errors="backslashreplace")


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except DistError as error:
        raise LostError(f"process 0, which keeps the processes' store, is gone: {error}") from error


def join(launch: Launch, *, within_seconds: float, listening: int | None = None) -> StoreWorld:
    """Meet the launch's other processes; process 0 serves the store, where the launcher does not.

    listening is a socket that process 0 was given, bound and listening.

    Raises:
        RunError: the port is taken, process 0 does not answer, or processes are missing, claim
            one index, or name another number of processes.
    """
    deadline = time.monotonic() + within_seconds
    if launch.process == 0 and not launch.has_store:
        served = _listen(launch) if listening is None else listening
        server = _connect(launch, within_seconds, is_master=True, master_listen_fd=served)
    else:
        server = _connect(launch, within_seconds)
    store = _torch.PrefixStore(f"wanc/{launch.attempt}", server)
    with _lost():
        _meet(launch, store, deadline)
    server.set_timeout(_FOREVER)
    return StoreWorld(launch, store)


def _listen(launch: Launch) -> int:
    """A socket at the launch's own address, which no other interface reaches."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((launch.address, launch.port))
            bound.listen(launch.processes)
        except OSError as error:
            remedy = "choose another MASTER_PORT, on every process"
            if error.errno == errno.EADDRNOTAVAIL:
                remedy = "this machine has no such address: mend MASTER_ADDR or --interface"
            raise RunError(
                f"process 0 cannot listen on {launch.address}:{launch.port}: {error.strerror}; "
                f"{remedy}"
            ) from error
        return bound.detach()


def _connect(launch: Launch, within_seconds: float, **how: Any) -> Any:
    host = launch.address if how else launch.host
    made: Queue[Any] = Queue()

    def make() -> None:
        limit = timedelta(seconds=within_seconds)
        try:
            made.put(
                _torch.TCPStore(host, launch.port, timeout=limit, wait_for_workers=False, **how)
            )
        except DistError as error:
            made.put(error)

    threading.Thread(target=make, daemon=True).start()  # some servers keep it waiting for ever
    try:
        store = made.get(timeout=within_seconds + 1)
        if isinstance(store, DistError):
            raise store
        return store
    except (DistError, Empty) as error:
        raise LostError(
            f"process {launch.process}: process 0 does not answer at {host}:{launch.port} within "
            f"{within_seconds:.0f} s: start it, or mend MASTER_ADDR and MASTER_PORT. Where a "
            "machine knows its own name as loopback, process 0 listens there: give an address, or "
            "--interface"
        ) from error


def _meet(launch: Launch, store: Any, deadline: float) -> None:
    """Wait until every process is here; raises RunError."""
    if store.add(f"claimed/{launch.process}", 1) > 1:
        raise RunError(
            f"two processes have RANK {launch.process}: each of {launch.processes} needs its own"
        )
    store.set(f"joined/{launch.process}", str(launch.processes))
    missing = list(range(launch.processes))
    while missing:
        for process in [p for p in missing if store.check([f"joined/{p}"])]:
            missing.remove(process)
            theirs = int(store.get(f"joined/{process}"))
            if theirs != launch.processes:
                raise RunError(
                    f"process {process} has WORLD_SIZE {theirs}, process {launch.process} has "
                    f"{launch.processes}: give every process the same"
                )
        if missing and time.monotonic() > deadline:
            raise RunError(
                f"process {', '.join(map(str, missing))} of {launch.processes} did not join in "
                "time: start every RANK from 0 to "
                f"{launch.processes - 1} with the same MASTER_ADDR and MASTER_PORT"
            )
        time.sleep(_POLL_SECONDS)

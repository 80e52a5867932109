"""Processes that meet at a store: here threads, each with a connection of its own."""

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch.distributed

from wanc.errors import LostError, RequestError, RunError
from wanc.processes.launch import LOOPBACK, Launch
from wanc.processes.store import StoreWorld, join
from wanc.processes.world import Alone, check_agreement

CHUNK_BYTES = 4 << 20
HANG_SECONDS = 20.0
SOON_SECONDS = 0.5
"""For meetings that fail."""


def together(*acts: Callable[[], Any]) -> list[Any]:
    """What each returned or raised, all at once in threads; fails where one hangs."""
    results: list[Any] = [None] * len(acts)

    def run(k: int) -> None:
        try:
            results[k] = acts[k]()
        except Exception as error:
            results[k] = error

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    hanging = [k for k, thread in enumerate(threads) if thread.is_alive()]
    assert not hanging, f"{hanging} hang"
    return results


def each(worlds: list[StoreWorld], act: Callable[[StoreWorld], Any]) -> list[Any]:
    return together(*(lambda world=world: act(world) for world in worlds))


def launch(process: int, processes: int, port: int, **more: Any) -> Launch:
    return Launch(
        process=process,
        processes=processes,
        host=LOOPBACK,
        port=port,
        address=LOOPBACK,
        **more,
    )


def meet(
    *launches: Launch, within_seconds: float = HANG_SECONDS, given: socket.socket | None = None
) -> list[Any]:
    """Their worlds, or why there are none; process 0 serves on a socket that it is given."""
    listening = given and given.detach()

    def one(place: Launch) -> StoreWorld:
        served = None if place.process else listening
        return join(place, within_seconds=within_seconds, listening=served)

    return together(*(lambda place=place: one(place) for place in launches))


def listeners(port: int) -> list[str]:
    """Addresses, as the kernel writes them, of the sockets that listen on a port."""
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    local = [row[1].split(":") for row in rows if row[3] == "0A"]
    return [address for address, number in local if int(number, 16) == port]


@pytest.fixture
def given() -> Iterator[socket.socket]:
    """A socket that listens already: who connects to it need not try again and again."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server


@pytest.fixture
def port() -> int:
    """One that is free on the loopback interface."""
    with socket.create_server((LOOPBACK, 0)) as server:
        return number_of(server)


def number_of(server: socket.socket) -> int:
    return server.getsockname()[1]


@pytest.fixture
def worlds(given: socket.socket) -> list[StoreWorld]:
    """Three processes that have met."""
    port = number_of(given)
    return meet(*(launch(process, 3, port) for process in range(3)), given=given)


# --- exchanges ------------------------------------------------------------------------------------


def test_places(worlds: list[StoreWorld]) -> None:
    assert [(world.process, world.processes, world.address) for world in worlds] == [
        (process, 3, LOOPBACK) for process in range(3)
    ]
    assert [world.hosted(6) for world in worlds] == [(0, 1), (2, 3), (4, 5)]
    assert worlds[0].hosted(6, process=2) == (4, 5)
    with pytest.raises(RequestError, match="3 processes for 8 ranks"):
        worlds[0].hosted(8)


def test_process_0_tells(worlds: list[StoreWorld]) -> None:
    asked = []

    def tell(world: StoreWorld) -> str:
        return world.tell("seed", lambda: asked.append(world.process) or "7 灯塔")

    assert each(worlds, tell) == ["7 灯塔"] * 3
    assert asked == [0]


def test_one_subject_again_and_again(worlds: list[StoreWorld]) -> None:
    def tell(world: StoreWorld) -> list[str]:
        return [world.tell("seed", lambda k=k: str(k)) for k in range(20)]

    assert each(worlds, tell) == [[str(k) for k in range(20)]] * 3


@pytest.mark.parametrize(
    "size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 5], ids="{} bytes".format
)
def test_process_0_spreads_bytes(worlds: list[StoreWorld], size: int) -> None:
    data = np.random.default_rng(0).bytes(size)
    asked = []

    def spread(world: StoreWorld) -> bytes:
        return world.spread("resume", lambda: asked.append(world.process) or data)

    assert [found == data for found in each(worlds, spread)] == [True] * 3
    assert asked == [0]


def test_the_store_keeps_no_chunk(worlds: list[StoreWorld]) -> None:
    """Of what went through it."""
    data = bytes(2 * CHUNK_BYTES)
    part = np.zeros(2 * CHUNK_BYTES, np.uint8)
    each(worlds, lambda world: world.spread("resume", lambda: data))
    each(worlds, lambda world: world.gather([part if world.process == 1 else None], [1]))
    store = worlds[1].clone()
    kept = {key: len(store.get(key)) for key in store.list_keys()}
    assert kept
    assert max(kept.values()) < 100


def test_everyone_speaks(worlds: list[StoreWorld]) -> None:
    said = ["", "of process 1\n", "灯塔"]
    assert each(worlds, lambda world: world.everyone("digest", said[world.process])) == [said] * 3


OWNED = [
    (2, np.arange(12, dtype=np.float32).reshape(3, 4)),
    (0, np.full((2, 2), np.nan, np.float32)),
    (1, np.arange(12).astype(ml_dtypes.bfloat16).reshape(3, 4)),
    (1, np.arange(CHUNK_BYTES // 4 + 3, dtype=np.float32)),
    (2, np.arange(CHUNK_BYTES + 2).astype(ml_dtypes.bfloat16).reshape(2, -1)),
    (2, np.arange(CHUNK_BYTES // 4, dtype=np.float32)),
    (0, np.arange(4).astype(ml_dtypes.bfloat16)),
    (1, np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)),
    (1, np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-3]),
    (2, np.zeros((0, 4), np.float32)),
    (2, np.array([True, False])),
    (1, np.array([[1 << 62]])),
]
"""Parts with their owners: more than a chunk, just one, none, and others than contiguous ones."""


def test_process_0_gathers(worlds: list[StoreWorld]) -> None:
    owners = [owner for owner, _ in OWNED]

    def gather(world: StoreWorld) -> Any:
        parts = [part if owner == world.process else None for owner, part in OWNED]
        return world.gather(parts, owners)

    gathered, *others = each(worlds, gather)
    assert others == [None, None]
    for found, (owner, part) in zip(gathered, OWNED, strict=True):
        assert (found.dtype, found.shape) == (part.dtype, part.shape), owner
        assert found.tobytes() == part.tobytes(), owner


def test_process_0_gathers_again(worlds: list[StoreWorld]) -> None:
    def gather(world: StoreWorld) -> Any:
        own = [np.full(3, k, np.float32) for k in range(5)]
        return [world.gather([part if world.process == 1 else None], [1]) for part in own]

    gathered = each(worlds, gather)[0]
    assert [[part.tolist() for part in parts] for parts in gathered] == [
        [[float(k)] * 3] for k in range(5)
    ]


def test_nothing_to_gather(worlds: list[StoreWorld]) -> None:
    assert each(worlds, lambda world: world.gather([], [])) == [[], None, None]


def test_all_agree(worlds: list[StoreWorld]) -> None:
    assert each(worlds, lambda world: check_agreement(world, "bundle", "a")) == [None] * 3


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("aba", "bundle: process 1 has b; 2 of 3 have a"),
        ("baa", "bundle: process 0 has b; 2 of 3 have a"),
    ],
)
def test_the_odd_process_is_named(worlds: list[StoreWorld], said: str, told: str) -> None:
    errors = each(worlds, lambda world: check_agreement(world, "bundle", said[world.process]))
    assert [type(error) for error in errors] == [RunError] * 3
    assert {str(error) for error in errors} == {told}


def test_one_process_does_the_same_alone() -> None:
    world = Alone()
    part = np.zeros(3, np.float32)
    assert (world.process, world.processes, world.hosted(4)) == (0, 1, (0, 1, 2, 3))
    assert world.tell("seed", lambda: "7") == "7"
    assert world.spread("resume", lambda: b"data") == b"data"
    assert world.everyone("digest", "a") == ["a"]
    assert world.gather([part], [0]) == [part]
    check_agreement(world, "bundle", "a")
    world.close()


# --- meeting and leaving --------------------------------------------------------------------------


@pytest.mark.parametrize("last", range(3))
def test_processes_start_in_any_order(port: int, last: int) -> None:
    def start(process: int) -> StoreWorld:
        time.sleep(0.05 if process == last else 0)
        return join(launch(process, 3, port), within_seconds=HANG_SECONDS)

    worlds = together(*(lambda process=process: start(process) for process in range(3)))
    assert each(worlds, lambda world: world.tell("seed", lambda: "7")) == ["7"] * 3
    assert listeners(port) == ["0100007F"]


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
def test_processes_leave_in_any_order(worlds: list[StoreWorld], order: tuple[int, ...]) -> None:
    def leave(world: StoreWorld) -> None:
        time.sleep(0.03 * order[world.process])
        world.close()

    assert each(worlds, leave) == [None] * 3


class Late:
    """A store to which this process says late that it is gone."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add(self, key: str, amount: int) -> int:
        time.sleep(0.2)
        return self._store.add(key, amount)


def test_process_0_leaves_last(worlds: list[StoreWorld]) -> None:
    """The store goes with it."""
    own = worlds[1].clone()
    late = StoreWorld(launch(1, 3, 0), Late(own))
    left = []

    def leave(world: StoreWorld) -> None:
        world.close()
        left.append(world.process)

    each([worlds[0], late, worlds[2]], leave)
    assert left == [2, 1, 0]


def test_only_the_loopback_interface_is_listened_on(port: int) -> None:
    assert not listeners(port)
    (world,) = meet(launch(0, 1, port))
    assert world.everyone("digest", "a") == ["a"]
    assert listeners(port) == ["0100007F"]


def test_a_socket_that_was_given(given: socket.socket) -> None:
    """A supervisor's: bound before any process starts, so that none can take its port."""
    port, descriptor = number_of(given), given.fileno()
    worlds = meet(launch(0, 2, port), launch(1, 2, port), given=given)
    assert each(worlds, lambda world: world.tell("seed", lambda: "7")) == ["7", "7"]
    assert listeners(port) == ["0100007F"]
    with socket.socket(fileno=os.dup(descriptor)) as kept:
        assert kept.getsockname() == (LOOPBACK, port)


def test_a_launcher_s_own_store(port: int) -> None:
    """It outlives a failed attempt, whose keys must not be taken for those of the next."""
    server = torch.distributed.TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False)
    for attempt in ("a-0", "a-1"):
        launches = [launch(k, 2, port, has_store=True, attempt=attempt) for k in range(2)]
        worlds = meet(*launches)
        told = each(worlds, lambda world, attempt=attempt: world.tell("seed", lambda: attempt))
        assert told == [attempt] * 2
    assert server.num_keys() > 0


# --- refusals -------------------------------------------------------------------------------------


def test_the_port_is_taken() -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = number_of(other)
        (error,) = meet(launch(0, 2, port), within_seconds=SOON_SECONDS)
    assert type(error) is RunError
    assert f"process 0 cannot listen on 127.0.0.1:{port}: Address already in use" in str(error)
    assert "choose another MASTER_PORT, on every process" in str(error)


@pytest.mark.parametrize(
    ("present", "missing"), [((0, 1, 3), "2"), ((0, 2), "1, 3"), ((0,), "1, 2, 3")], ids=str
)
def test_processes_that_do_not_come(
    given: socket.socket, present: tuple[int, ...], missing: str
) -> None:
    launches = [launch(k, 4, number_of(given)) for k in present]
    errors = meet(*launches, within_seconds=SOON_SECONDS, given=given)
    assert [type(error) for error in errors] == [RunError] * len(present)
    for error in errors:
        assert f"process {missing} of 4 did not join in time" in str(error)
        assert "start every RANK from 0 to 3" in str(error)


def test_two_processes_with_one_rank(given: socket.socket) -> None:
    launches = [launch(k, 2, number_of(given)) for k in (0, 1, 1)]
    found = meet(*launches, given=given)
    (error,) = (each for each in found if isinstance(each, Exception))
    assert type(error) is RunError
    assert str(error) == "two processes have RANK 1: each of 2 needs its own"
    assert isinstance(found[0], StoreWorld)


def test_other_numbers_of_processes(given: socket.socket) -> None:
    port = number_of(given)
    errors = meet(launch(0, 2, port), launch(1, 3, port), given=given)
    assert [type(error) for error in errors] == [RunError] * 2
    assert [str(error) for error in errors] == [
        "process 1 has WORLD_SIZE 3, process 0 has 2: give every process the same",
        "process 0 has WORLD_SIZE 2, process 1 has 3: give every process the same",
    ]


def test_process_0_does_not_come(port: int) -> None:
    began = time.monotonic()
    errors = meet(launch(1, 3, port), launch(2, 3, port), within_seconds=1.0)
    assert time.monotonic() - began < 10
    assert [type(error) for error in errors] == [LostError] * 2
    for process, error in enumerate(errors, start=1):
        assert (
            f"process {process}: process 0 does not answer at 127.0.0.1:{port} within 1 s: "
            "start it, or mend MASTER_ADDR and MASTER_PORT"
        ) in str(error)


def test_something_else_answers() -> None:
    """A web server at MASTER_PORT."""
    with socket.create_server((LOOPBACK, 0)) as server:

        def answer() -> None:
            while True:
                try:
                    end, _ = server.accept()
                except OSError:
                    return
                with end:
                    end.recv(100)
                    end.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n" * 10)

        threading.Thread(target=answer, daemon=True).start()
        (error,) = meet(launch(1, 2, number_of(server)), within_seconds=SOON_SECONDS)
        server.shutdown(socket.SHUT_RDWR)
    assert type(error) is LostError
    assert "process 0 does not answer" in str(error)


@pytest.mark.parametrize(
    "wait",
    [
        lambda world: world.tell("seed", str),
        lambda world: world.spread("resume", bytes),
        lambda world: world.everyone("digest", ""),
        lambda world: world.gather([np.zeros(3, np.float32)], [1]),
        lambda world: world.close(),
    ],
    ids=["tell", "spread", "everyone", "gather", "close"],
)
def test_the_store_goes_while_processes_wait_for_it(
    port: int, wait: Callable[[StoreWorld], Any]
) -> None:
    """A launcher's store ends as one does whose process is killed: its connections close."""
    served = [torch.distributed.TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False)]
    worlds = meet(*(launch(k, 3, port, has_store=True) for k in range(3)))

    def end() -> None:
        time.sleep(0.1)
        served.clear()

    waited = together(*(lambda world=world: wait(world) for world in worlds[1:]), end)[:2]
    later = each(worlds[1:], wait)
    assert [type(error) for error in waited + later] == [LostError] * 4
    for error in waited + later:
        assert str(error).startswith("process 0, which keeps the processes' store, is gone")

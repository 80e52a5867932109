"""How a launcher tells a process its place: the environment that torchrun and its kin set.

Knows variables and sockets' addresses, and nothing of what the processes run.
"""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from wanc.errors import RequestError

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""All of them, or none: RANK is a process's index, from 0."""

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""torchrun's own: the store at MASTER_ADDR:MASTER_PORT runs already, in its agent."""

LOOPBACK = "127.0.0.1"

_LOOKUP_SECONDS = 1.0

START_SECONDS = 300.0
"""For processes to start and to meet: imports take long where many share few cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One process's place among those of a run."""

    process: int
    processes: int
    host: str
    """Name or address of the machine with process 0."""
    port: int
    """Where the processes find each other."""
    address: str
    """This machine's own address, which its sockets bind and others connect to."""
    attempt: str = "0"
    """Told apart from earlier starts that used the same port."""
    has_store: bool = False
    """Whether the launcher runs the store itself."""

    @classmethod
    def of(
        cls,
        environment: Mapping[str, str],
        *,
        address: str | None = None,
        within_seconds: float = 0.0,
    ) -> Self | None:
        """What the environment says; None where it names no other process.

        A name of process 0's machine that is not known yet has so long to become so.

        Raises:
            RequestError: variables are missing, no numbers, or contradict each other.
        """
        given = [name for name in VARIABLES if environment.get(name)]
        if not {"RANK", "WORLD_SIZE"} & set(given) or environment.get("WORLD_SIZE") == "1":
            return None
        if missing := [name for name in VARIABLES if name not in given]:
            raise RequestError(
                f"the environment has {', '.join(given)} and lacks {', '.join(missing)}: "
                f"a launcher sets {', '.join(VARIABLES)}; unset them all to run alone"
            )
        process, processes = (_number(environment, name) for name in ("RANK", "WORLD_SIZE"))
        if not 0 <= process < processes:
            raise RequestError(
                f"RANK {process} with WORLD_SIZE {processes}: needs 0 to {processes - 1}"
            )
        host, port = environment["MASTER_ADDR"], _number(environment, "MASTER_PORT")
        if not 0 < port < 1 << 16:
            raise RequestError(f"MASTER_PORT {port}: needs 1 to {(1 << 16) - 1}")
        return cls(
            process=process,
            processes=processes,
            host=host,
            port=port,
            address=address or _own_address(host, port, within_seconds),
            attempt="-".join(
                environment.get(name, "0")
                for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
            ),
            has_store=environment.get(AGENT_STORE) == "True",
        )


def hosted_ranks(ranks: int, process: int, processes: int) -> tuple[int, ...]:
    """The ranks of a process: as many for each, in order; raises RequestError."""
    if ranks % processes:
        fitting = [str(n) for n in range(1, ranks + 1) if not ranks % n]
        raise RequestError(
            f"{processes} processes for {ranks} ranks: each hosts as many; "
            f"{', '.join(fitting)} processes would work"
        )
    each = ranks // processes
    return tuple(range(process * each, (process + 1) * each))


def named(ranks: tuple[int, ...]) -> str:
    """Ranks of one process, for people."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"


def interface_address(interface: str) -> str:
    """The IPv4 address of a network interface, or the address itself; raises RequestError."""
    import fcntl
    from ipaddress import AddressValueError, IPv4Address

    try:
        address = IPv4Address(interface)
        if address.is_unspecified:
            raise RequestError(f"interface {interface}: that is every interface; name one")
        return str(address)
    except AddressValueError:
        pass
    asked = interface.encode()[:15].ljust(40, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, 0x8915, asked)  # SIOCGIFADDR
        except OSError as error:
            known = ", ".join(name for _, name in socket.if_nameindex())
            raise RequestError(
                f"interface {interface!r}: {error.strerror}; this machine has {known}"
            ) from error
    return socket.inet_ntoa(answer[20:24])


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise RequestError(f"{name} is {environment[name]!r}, which is no number") from None


def _own_address(host: str, port: int, within_seconds: float) -> str:
    """The address from which this machine reaches process 0; raises RequestError."""
    deadline = time.monotonic() + within_seconds
    while True:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, port))  # sends nothing: it picks a route
                return str(probe.getsockname()[0])
        except (OSError, ValueError) as error:
            if isinstance(error, socket.gaierror) and time.monotonic() < deadline:
                time.sleep(_LOOKUP_SECONDS)
                continue
            reason = getattr(error, "strerror", None) or error
            raise RequestError(
                f"MASTER_ADDR {host!r} cannot be reached: {reason}; it is the name or address of "
                "the machine with RANK 0"
            ) from error

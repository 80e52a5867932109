"""The variables that the Neuron runtime reads as it starts, and what they are set to.

Knows names and values, and no runtime. A variable that the user has set to another value is never
overwritten: the user's would not work, and wanc cannot know what else it is for.
"""

import os
import socket
from collections.abc import Iterable, Mapping

from wanc.errors import BundleError
from wanc.processes.world import World
from wanc.runtime.requirement import Requirement, required

VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
ROOT_COMM_ID = "NEURON_RT_ROOT_COMM_ID"

_LNC = "NEURON_LOGICAL_NC_CONFIG"
_LNC_OF_OLD = "NEURON_RT_VIRTUAL_CORE_SIZE"
"""What earlier runtimes called it; never set here, but it may contradict."""
_LOOPBACK = "127.0.0.1"


def bundle_variables(*, lnc: int, scratchpad_page_size_mb: int) -> dict[str, str]:
    """What a variant's own requirements say, the same in every process."""
    return {
        _LNC: str(lnc),
        "NEURON_SCRATCHPAD_PAGE_SIZE": str(scratchpad_page_size_mb),
        "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS": "0",  # a call returns once it has run
    }


def process_variables(cores: Iterable[int], world: World) -> dict[str, str]:
    """The cores that a process takes for itself, and where the collectives of all ranks meet."""

    def meeting() -> str:
        return os.environ.get(ROOT_COMM_ID) or free_endpoint(world.address or _LOOPBACK)

    return {
        VISIBLE_CORES: ",".join(map(str, cores)),
        ROOT_COMM_ID: world.tell("root communicator", meeting),
    }


def free_endpoint(address: str) -> str:
    """An address and a port at which nobody listens now; libnrt itself will."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return f"{address}:{probe.getsockname()[1]}"


def variable_requirements(wanted: Mapping[str, str]) -> list[Requirement]:
    """Of the variables that must be as wanted, those that the user has set otherwise."""
    named = dict(wanted)
    if _LNC in wanted:
        named[_LNC_OF_OLD] = wanted[_LNC]
    return [
        required(name, value, os.environ[name], met=False, remedy=f"unset {name}: wanc sets it")
        for name, value in named.items()
        if os.environ.get(name, value) != value
    ]


def set_variables(wanted: Mapping[str, str]) -> tuple[str, ...]:
    """Set them, and say which were not set before; raises BundleError where the user's differ."""
    conflicts = variable_requirements(wanted)
    if conflicts:
        raise BundleError("\n  ".join(["the environment:", *map(str, conflicts)]))
    new = tuple(name for name in wanted if name not in os.environ)
    os.environ.update(wanted)
    return new


def unset_variables(names: Iterable[str]) -> None:
    """Take back what set_variables set."""
    for name in names:
        os.environ.pop(name, None)

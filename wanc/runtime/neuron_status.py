"""What the Neuron runtime's errors mean for whoever runs a bundle.

Knows nrtpy's texts, which hold libnrt's status codes; AWS documents both, and that a code is not
always enough to tell the cause.
"""

import re

from wanc.errors import LostError, RunError, WancError

_STATUS = re.compile(r"\b(?:NRT_[A-Z_]+|UNKNOWN STATUS)\((\d+)\)")

_MEANINGS = {
    1: "libnrt says no more, and its log on stderr may; a NEFF of another number of ranks fails so",
    4: "the core has no room for it: more ranks, fewer blocks in a program and smaller VAE tiles "
    "take less, and ending other processes on the core gives more",
    5: "it took longer than NEURON_RT_EXEC_TIMEOUT, by default 30 s, or waited for a rank that is "
    "gone: look at the other ranks first",
    6: "at a load AWS names a NEFF for another target as the cause: compile for this machine's "
    "chips (--target); in a call it is a fault of the hardware",
    9: "it needs more cores than the process has: end other processes that hold cores",
    10: "the runtime is older than the NEFF, and lacks what it uses: install the compiler's own "
    "release of aws-neuronx-runtime-lib, aws-neuronx-collectives and aws-neuronx-dkms",
    11: "the host has no memory left",
    101: "the core does not recover: end every process on it, and start anew",
    1003: "a result is no number",
    1005: "another process holds the core: end it",
    1006: "the program reads or writes out of bounds: compile it again",
    1200: "a rank did not come to a collective: look at the other ranks first",
    1206: "the network between machines failed: look at EFA",
}
"""By libnrt's status code, as AWS's pages of statuses and of nrtpy have it."""


_OF_OTHERS = (1200, 1206)
"""Statuses that follow from what became of another rank."""


def blame(kind: type[WancError], what: str, error: Exception) -> WancError:
    """An error of wanc from one of nrtpy: what was done, what the runtime says, what would work."""
    text = str(error) or type(error).__name__
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    if status in _OF_OTHERS and kind is RunError:
        kind = LostError
    made = kind(": ".join(filter(None, (what, text, _MEANINGS.get(status)))))
    made.__cause__ = error
    return made

"""What a variant whose ranks lie in the host's memory takes of it, and what is free there.

Knows no model. Weights are counted; work is what plan estimates.
"""

from dataclasses import replace
from math import prod

from wanc.bundle.config import VariantConfig
from wanc.machine import Machine, free_memory
from wanc.plan.abi import Program
from wanc.plan.memory import memory_parts
from wanc.runtime.requirement import Requirement, required
from wanc.spec.target import DTYPE_BYTES, GIB
from wanc.weights.needs import calls

_MOST_BYTES = 1 << 80
"""Of what is told to people; a damaged config may come to more than a float holds."""


def memory_requirement(
    config: VariantConfig, machine: Machine, hosted: int | None = None
) -> Requirement:
    """The memory of one process that hosts so many of the ranks, all by default.

    Incompatible where the weights alone are more than what is free; degraded where weights and
    work are.
    """
    ranks = config.variant.topology.ranks if hosted is None else hosted
    weights, work = weight_bytes(config, ranks), ranks * (work_bytes(config) or 0)
    free, limited = free_memory(machine)
    in_bf16 = "" if config.variant.precision == "bf16" else ", or a variant of --precision bf16"
    found = f"{_gib(free or 0)} GiB{', by its limit' if limited else ' free'}"
    return required(
        "memory",
        f"{_gib(weights + work)} GiB, {_gib(weights)} of it weights",
        "not known" if free is None else found,
        met=free is None or weights + work <= free,
        remedy=f"use a machine with more{in_bf16}",
        unmet="incompatible" if weights > (free or 0) else "degraded",
    )


def weight_bytes(config: VariantConfig, hosted: int) -> int:
    """All weights that so many ranks hold in one process, where equal shards are held once."""
    programs = plain_programs(config)
    found = {
        (call.component, weight.tensor_in(call.layers)): min(
            prod(weight.stored_shape) * DTYPE_BYTES[weight.dtype], hosted * weight.bytes
        )
        for call in calls(config.schedule)
        for weight in programs[call.program].weights
    }
    return sum(found.values())


def work_bytes(config: VariantConfig) -> int | None:
    """What one rank holds besides weights; None where the programs are not such as plan knows."""
    try:
        parts = memory_parts([*plain_programs(config).values()], config.schedule)
    except (LookupError, TypeError, ValueError, StopIteration):  # of definitions, which are free
        return None
    return sum(part.bytes for part in parts) - weight_bytes(config, 1)


def plain_programs(config: VariantConfig) -> dict[str, Program]:
    """Programs by name, of their definitions only what arithmetic is safe on: untrusted input."""
    programs = {}
    for record in config.programs:
        definition = {
            name: value
            for name, value in record.program.definition.items()
            if type(value) is int or name == "attention"
        }
        programs[record.program.name] = replace(record.program, definition=definition)
    return programs


def _gib(count: int) -> str:
    return f"{min(count, _MOST_BYTES) / GIB:.1f}"

"""What a variant needs of a checkpoint, and whether the checkpoint has it.

Reads the bundle's config; knows no model. All missing, extra and misshapen tensors make one error.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from wanc.errors import WeightsError
from wanc.plan.abi import Program
from wanc.plan.schedule import Call, Schedule
from wanc.spec.target import DTYPE_BYTES
from wanc.weights.checkpoint import Component
from wanc.weights.stored import DTYPES, REMEDY, Cut

_LISTED = 12
"""Problems of one kind that an error lists; it counts the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A tensor that must be there."""

    component: str
    names: tuple[str, ...]
    """Any one of these names will do."""
    shape: tuple[int, ...]
    bytes: int = 0
    """Size of all its shards in the dtype that programs take; 0 where it stays on the host."""
    cuts: tuple[Cut, ...] = ()
    """The distinct ways in which programs take it; none where it stays on the host."""


def calls(schedule: Schedule) -> Iterable[Call]:
    """Every call of a schedule."""
    return (call for stage in schedule.stages for call in stage.calls)


def schedule_needs(schedule: Schedule, programs: Mapping[str, Program]) -> list[Need]:
    """Every tensor that the schedule's calls take, each once."""
    found: dict[tuple[str, str], Need] = {}
    for call in calls(schedule):
        for weight in programs[call.program].weights:
            key = call.component, weight.tensor_in(call.layers)
            cuts = found[key].cuts if key in found else ()
            found[key] = Need(
                component=call.component,
                names=key[1:],
                shape=weight.stored_shape,
                bytes=prod(weight.stored_shape) * DTYPE_BYTES[weight.dtype],
                cuts=tuple(dict.fromkeys((*cuts, Cut.of(weight)))),
            )
    return list(found.values())


def count_casts(
    components: Mapping[str, Component], schedule: Schedule, programs: Mapping[str, Program]
) -> dict[str, int]:
    """How many tensors are cast when they are read, by ``float32 to bfloat16``."""
    needed = {
        (call.component, weight.tensor_in(call.layers)): weight.dtype
        for call in calls(schedule)
        for weight in programs[call.program].weights
    }
    counts: Counter[str] = Counter()
    for (component, name), dtype in needed.items():
        stored = DTYPES[components[component].tensors[name].dtype]
        if stored != dtype:
            counts[f"{stored} to {dtype}"] += 1
    return dict(sorted(counts.items()))


def check_weights(
    components: Mapping[str, Component],
    needs: Iterable[Need],
    *,
    unused: Mapping[str, tuple[str, ...]],
) -> None:
    """Raise WeightsError unless every need is met and nothing else is there.

    unused gives, by component, prefixes of tensors that belong to the model but to no program.
    """
    wanted: dict[str, set[str]] = {name: set() for name in components}
    missing, misshapen, misfits = [], [], []
    for need in needs:
        tensors = components[need.component].tensors
        wanted[need.component].update(need.names)
        found = [name for name in need.names if name in tensors]
        if not found:
            missing.append(f"{need.component}/{' or '.join(need.names)} {_shape(need.shape)}")
        misshapen += [
            f"{need.component}/{name} is {_shape(tensors[name].shape)}; needs {_shape(need.shape)}"
            for name in found
            if tensors[name].shape != need.shape
        ]
        misfits += [
            f"{need.component}/{name} is {tensors[name].cut}; needs {cut}"
            for name in found
            for cut in need.cuts
            if tensors[name].cut not in (None, cut)
        ]
    extra, odd = [], []
    for component in components.values():
        for name, stored in component.tensors.items():
            if stored.dtype not in DTYPES and name in wanted[component.name]:
                odd.append(f"{component.name}/{name} is {stored.dtype}; needs {', '.join(DTYPES)}")
            known = name in wanted[component.name]
            if not known and not name.startswith(unused.get(component.name, ("\0",))):
                extra.append(f"{component.name}/{name}")
    _refuse(
        {
            "missing": missing,
            "extra": extra,
            "of another shape": misshapen,
            "of a dtype": odd,
            f"prepared for other programs ({REMEDY})": misfits,
        }
    )


def _refuse(problems: Mapping[str, list[str]]) -> None:
    if not any(problems.values()):
        return
    lines = ["the checkpoint's tensors are not those that the bundle needs:"]
    for kind, found in problems.items():
        if found:
            lines.append(f"  {len(found)} {kind}:")
            lines += [f"    {line}" for line in found[:_LISTED]]
            if len(found) > _LISTED:
                lines.append(f"    … and {len(found) - _LISTED} more")
    raise WeightsError("\n".join(lines))


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"

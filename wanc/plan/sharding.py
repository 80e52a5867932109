"""Which dimensions tp splits, and which degrees are therefore legal.

cp splits tokens and cfg splits guidance branches; both replicate every weight.
"""

from dataclasses import dataclass
from math import gcd

from wanc.errors import RefusedError
from wanc.spec.model import Model
from wanc.spec.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitDimension:
    """A dimension that tp cuts into equal parts."""

    what: str
    size: int


def split_dimensions(model: Model) -> tuple[SplitDimension, ...]:
    """Every dimension of the model that tp splits."""
    transformer, text = model.transformer, model.text_encoder
    return (
        SplitDimension(what="attention heads", size=transformer.heads),
        SplitDimension(what="ffn width", size=transformer.ffn_width),
        SplitDimension(what="text encoder heads", size=text.heads),
        SplitDimension(what="text encoder ffn width", size=text.ffn_width),
    )


def legal_tp_degrees(model: Model) -> tuple[int, ...]:
    """Degrees that divide every split dimension, ascending."""
    common = gcd(*(dimension.size for dimension in split_dimensions(model)))
    return tuple(degree for degree in range(1, common + 1) if common % degree == 0)


def check_topology(
    topology: Topology,
    model: Model,
    *,
    tokens: int,
    max_ranks: int | None,
    suggest: bool = True,
) -> None:
    """Raise RefusedError where the model or the limit on ranks refuses the topology.

    suggest: whether to name smaller topologies, which nothing but their ranks speaks for.
    """
    problems = [
        f"tp{topology.tp}: {topology.tp} does not divide {dimension.size} {dimension.what}"
        for dimension in split_dimensions(model)
        if dimension.size % topology.tp
    ]
    if problems:
        degrees = ", ".join(f"tp{degree}" for degree in legal_tp_degrees(model))
        problems[-1] += f"; {'try' if suggest else 'those that do are'} {degrees}"
    if topology.cp > tokens:
        problems.append(
            f"cp{topology.cp}: there are only {tokens} tokens to split; try cp{tokens} or less"
        )
    if max_ranks is not None and topology.ranks > max_ranks:
        fits = [str(t) for t in smaller_topologies(topology, model) if t.ranks <= max_ranks]
        tried = f"; try {', '.join(fits[:3])}" if suggest else ""
        problems.append(f"{topology.ranks} ranks are more than the limit of {max_ranks}{tried}")
    if problems:
        raise RefusedError(f"topology {topology} with model {model.name}: " + "; ".join(problems))


def smaller_topologies(topology: Topology, model: Model) -> list[Topology]:
    """Topologies with a legal tp and divisors of the given cp and cfg, most ranks first."""
    found = {
        Topology(tp=tp, cp=cp, cfg=cfg)
        for tp in legal_tp_degrees(model)
        if tp <= topology.tp
        for cp in range(1, topology.cp + 1)
        if topology.cp % cp == 0
        for cfg in range(1, topology.cfg + 1)
    }
    return sorted(found - {topology}, key=lambda t: (-t.ranks, -t.tp, -t.cp))

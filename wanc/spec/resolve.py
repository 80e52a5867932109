"""From a request as given to a spec: defaults filled in, every value checked.

The one place where defaults of a request stand.
"""

from typing import cast

from wanc.errors import RequestError
from wanc.machine import NEURON_COMPILER, compiler_version, this_machine
from wanc.spec.checkpoint import resolve_model
from wanc.spec.sets import Request
from wanc.spec.shape import Shape
from wanc.spec.target import PLACEMENTS, PRECISIONS, Precision, target_facts
from wanc.spec.topology import Topology
from wanc.spec.variant import ATTENTIONS, TILE_GRIDS, Attention, Options, Spec, TileGrid, Variant

DEFAULT_MODEL = "wan2.2-t2v-a14b"


def resolve(request: Request, target: str) -> Spec:
    """The spec of a request for a target that is known; raises RequestError and RefusedError."""
    if not request.shapes:
        raise RequestError("no shape: give --shape 832x480x81, or a shape set")
    facts = target_facts(target)
    model = resolve_model(request.model or DEFAULT_MODEL)
    precision = _choice("precision", request.precision or facts.default_precision, PRECISIONS)
    placement = _choice("placement", request.placement or facts.default_placement, PLACEMENTS)
    variants = tuple(
        Variant(
            task=model.task,
            shape=Shape.parse(shape),
            topology=Topology.parse(topology),
            placement=placement,
            precision=cast(Precision, precision),
            target=target,
        )
        for shape in request.shapes
        for topology in request.topologies or ("tp1",)
    )
    options = Options(
        blocks_per_program=request.blocks_per_program,
        attention=cast(Attention, _choice("attention", request.attention or "ring", ATTENTIONS)),
        vae_tiles=cast(TileGrid, _choice("vae-tiles", request.vae_tiles or "even", TILE_GRIDS)),
    )
    return Spec(model=model, variants=tuple(dict.fromkeys(variants)), options=options)


def choose_target(wanted: str | None) -> tuple[str, str]:
    """The target's name, and why: trn2 where neuronx-cc is found and known, else cpu."""
    if wanted and wanted != "auto":
        return wanted, "as asked"
    if not neuron_compiler_found():
        return "cpu", f"auto: {NEURON_COMPILER} not found"
    return "trn2", f"auto: {NEURON_COMPILER} found"


def neuron_compiler_found() -> bool:
    """Whether the real compiler answers; PyPI's package of that name is an empty placeholder."""
    version, _ = compiler_version(this_machine(), NEURON_COMPILER)
    return bool(version)


def _choice(what: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise RequestError(f"{what} {value!r} is not known; known are {', '.join(allowed)}")
    return value

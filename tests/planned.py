"""Plans for an accelerator, from what a person writes."""

from wanc.plan.plan import Plan, make_plan
from wanc.spec.model import Model
from wanc.spec.presets import PRESETS
from wanc.spec.shape import Shape
from wanc.spec.target import target_facts
from wanc.spec.topology import Topology
from wanc.spec.variant import Options, Variant

A14B, I2V, TI2V = "wan2.2-t2v-a14b", "wan2.2-i2v-a14b", "wan2.2-ti2v-5b"


def asked(
    shape="1280x720x81",
    topology="tp8-cp4-cfg2",
    *,
    model: str | Model = A14B,
    target="trn2",
    placement=None,
    precision="bf16",
) -> tuple[Model, Variant]:
    """The model and the variant, with the target's own placement where none is named."""
    model = PRESETS[model] if isinstance(model, str) else model
    variant = Variant(
        task=model.task,
        shape=Shape.parse(shape),
        topology=Topology.parse(topology),
        placement=placement or target_facts(target).default_placement,
        precision=precision,
        target=target,
    )
    return model, variant


def planned(*args, options=(), **kwargs) -> Plan:
    """planned("832x480x81", "tp4-cp8", target="trn2", options={"blocks_per_program": 40})."""
    model, variant = asked(*args, **kwargs)
    return make_plan(model, variant, Options(**dict(options)))

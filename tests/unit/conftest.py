"""Plans and bundle variants, small and published, made without a compiler."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from wanc.bundle.config import FORMAT_VERSION, Blob, ProgramRecord, VariantConfig
from wanc.bundle.store import NewVariant
from wanc.digest import of_bytes
from wanc.plan.plan import Plan, make_plan
from wanc.spec.presets import PRESETS, TINY
from wanc.spec.shape import Shape
from wanc.spec.topology import Topology
from wanc.spec.variant import Options, Variant

MakePlan = Callable[..., Plan]


def plan_of(
    shape="208x128x5", topology="tp1", *, model=TINY, precision="fp32", max_ranks=None, **options
) -> Plan:
    """A plan from what a person writes; model is a preset's name or a Model."""
    variant = Variant(
        task="t2v",
        shape=Shape.parse(shape),
        topology=Topology.parse(topology),
        placement="linear",
        precision=precision,
        target="cpu",
    )
    model = PRESETS.get(model, model) if isinstance(model, str) else model
    return make_plan(model, variant, Options(**options), max_ranks=max_ranks)


@pytest.fixture(scope="session")
def plan() -> MakePlan:
    """plan("208x128x5", "tp2-cp2", model=..., precision=..., **options)."""
    return plan_of


@dataclass(frozen=True, kw_only=True)
class Made:
    """A variant to be written, with the bytes that stand for its programs."""

    new: NewVariant
    blobs: dict[str, bytes]

    @property
    def config(self) -> VariantConfig:
        return self.new.config


def variant_of(
    shape="208x128x5", topology="tp1", *, precision="fp32", executables="executable", **options
) -> Made:
    """A variant as compiling makes it, but that its programs are a few words."""
    planned = plan_of(shape, topology, precision=precision, **options)
    blobs, records = {}, []
    for program in planned.programs:
        kinds = []
        for kind in ("stablehlo", executables):
            data = f"{kind} of {program.name} {shape} {topology}".encode()
            blobs[of_bytes(data)] = data
            kinds.append(Blob(digest=of_bytes(data), size_bytes=len(data)))
        records.append(
            ProgramRecord(
                program=program,
                collectives={"all_reduce": 1},
                stablehlo=kinds[0],
                executable=kinds[1],
                compile_key={"isa": "x86-64-v3", "key_version": 1},
            )
        )
    config = VariantConfig(
        format_version=FORMAT_VERSION,
        variant=planned.variant,
        model=planned.model,
        options=Options(**options),
        geometry=planned.geometry,
        tokens=planned.tokens,
        mesh=planned.mesh,
        tiles=planned.tiles,
        programs=tuple(records),
        schedule=planned.schedule,
        requires={"target": "cpu", "jaxlib": "0"},
    )
    return Made(new=NewVariant(config=config, executable_type="test/executable"), blobs=blobs)


@pytest.fixture(scope="session")
def made() -> Callable[..., Made]:
    """made("208x128x5", "tp2", executables="other words")."""
    return variant_of

"""Opens a bundle's variant on this machine and a checkpoint, ready to run. Never compiles.

Refuses, before anything is loaded, what does not fit: version, digest, machine, weights.
"""

from importlib.metadata import version
from pathlib import Path

from wanc.bundle.config import ProgramRecord, VariantConfig
from wanc.bundle.store import Bundle
from wanc.errors import BundleError, RequestError
from wanc.plan.text_encoder import EMBEDDING_NAMES
from wanc.run.session import Session
from wanc.runtime.engine import Engine
from wanc.spec.topology import Topology
from wanc.weights.checkpoint import Component, open_components
from wanc.weights.needs import Need, calls, check_weights, schedule_needs

UNUSED = {
    "vae": ("encoder.", "quant_conv."),
    "text_encoder": EMBEDDING_NAMES,
}
"""Prefixes of tensors that belong to a component and that no program takes."""


def select_variant(
    bundle: Bundle, shape: str | None, topology: str | None, precision: str | None
) -> VariantConfig:
    """The one variant that the given values leave; raises RequestError listing those there are."""
    configs = [variant.config for variant in bundle.variants]
    wanted = {
        "shape": shape,
        "topology": topology and str(Topology.parse(topology)),
        "precision": precision,
    }
    found = [
        config
        for config in configs
        if all(
            value is None or str(getattr(config.variant, key)) == value
            for key, value in wanted.items()
        )
    ]
    if len(found) == 1:
        return found[0]
    have = "\n  ".join(str(config.variant) for config in configs)
    if found:
        raise RequestError(
            f"the bundle has {len(found)} variants that fit; choose with --shape, --topology or "
            f"--precision:\n  {have}"
        )
    asked = " ".join(f"{key} {value}" for key, value in wanted.items() if value)
    example = configs[0].variant
    raise RequestError(
        f"the bundle has no variant of {asked}; it has:\n  {have}\n"
        f"`wanc compile --model {configs[0].model.name} --shape {shape or example.shape} "
        f"--topology {topology or example.topology} -o {bundle.path}` would add it"
    )


def load(bundle: Bundle, config: VariantConfig, checkpoint: Path) -> Session:
    """A session on this machine's engine; raises BundleError and WeightsError."""
    check_machine(config)
    components = open_checkpoint(config, checkpoint)
    executables = {r.program.name: _executable(bundle, r) for r in config.programs}
    return Session(
        config=config,
        engine=make_engine(config),
        components=components,
        read_executable=executables.__getitem__,
    )


def check_machine(config: VariantConfig) -> None:
    """Raise BundleError where another version or target is needed than this machine has."""
    needs = config.requires.get("jaxlib")
    have = version("jaxlib")
    if config.variant.target != "cpu":
        raise BundleError(f"variant {config.variant}: this wanc runs target cpu only")
    if needs != have:
        raise BundleError(
            f"the executables need jaxlib {needs}; this machine has {have}: "
            f"install jaxlib=={needs}, or compile again with {have}"
        )


def open_checkpoint(config: VariantConfig, checkpoint: Path) -> dict[str, Component]:
    """The components that the schedule takes weights from, checked against the ABI."""
    names = list(dict.fromkeys(call.component for call in calls(config.schedule)))
    components = open_components(checkpoint, names)
    programs = {record.program.name: record.program for record in config.programs}
    text = config.model.text_encoder
    table = Need(
        component="text_encoder", names=EMBEDDING_NAMES, shape=(text.vocabulary, text.width)
    )
    needs = [*schedule_needs(config.schedule, programs), table]
    check_weights(components, needs, unused=UNUSED)
    return components


def make_engine(config: VariantConfig) -> Engine:
    """The engine of the variant's target."""
    from wanc.runtime.cpu import CpuEngine

    return CpuEngine(rank_count=config.variant.topology.ranks)


def _executable(bundle: Bundle, record: ProgramRecord) -> bytes:
    """A program's verified executable, whose features this machine has."""
    from wanc.bundle.xla_cpu import check_features

    if record.executable is None:
        raise BundleError(
            f"program {record.program.name} has no executable: compiling stopped before it; "
            f"compile again into {bundle.path} without --stop-after"
        )
    data = bundle.read(record.executable)
    check_features(data, record.program.name)
    return data

"""Opens a bundle's variant on this machine and a checkpoint, ready to run. Never compiles.

Refuses, before anything is loaded, what does not fit: version, digest, machine, weights.
"""

from dataclasses import replace
from pathlib import Path

import msgspec

from wanc.bundle.config import ProgramRecord, VariantConfig
from wanc.bundle.store import Bundle
from wanc.errors import BundleError, RefusedError, RequestError, RunError, WeightsError
from wanc.machine import free_memory, this_machine
from wanc.plan.text_encoder import EMBEDDING_NAMES
from wanc.run.session import Session
from wanc.runtime.runtime import TARGETS, Runtime, runtime_of
from wanc.spec.checkpoint import read_checkpoint
from wanc.spec.model import Model
from wanc.spec.shape import Shape
from wanc.spec.topology import Topology
from wanc.weights.checkpoint import Component, open_components
from wanc.weights.needs import Need, calls, check_weights, count_casts, schedule_needs

UNUSED = {
    "vae": ("encoder.", "quant_conv."),
    "text_encoder": EMBEDDING_NAMES,
}
"""Prefixes of tensors that belong to a component and that no program takes."""


def select_variant(
    bundle: Bundle,
    checkpoint: Path,
    *,
    shape: str | None,
    topology: str | None,
    precision: str | None,
) -> VariantConfig:
    """The one variant that the given values leave; raises RequestError listing those there are.

    Where variants of several models are left, the checkpoint's numbers decide.
    """
    wanted = {
        "shape": shape and str(Shape.parse(shape)),
        "topology": topology and str(Topology.parse(topology)),
        "precision": precision,
    }
    configs = [variant.config for variant in bundle.variants]
    fitting = [config for config in configs if _fits(config, wanted)]
    found = [config for config in fitting if can_run(config)] or fitting
    if len({config.model.name for config in found}) > 1:
        model = read_model(checkpoint)
        found = [config for config in found if not differences(config.model, model)]
    if len(found) == 1:
        return found[0]
    have = "\n  ".join(f"{config.variant}, model {config.model.name}" for config in configs)
    asked = " ".join(f"{key} {value}" for key, value in wanted.items() if value)
    if found:
        raise RequestError(
            f"the bundle has {len(found)} variants that fit; choose with --shape, --topology or "
            f"--precision:\n  {have}"
        )
    example = configs[0]
    raise RequestError(
        f"the bundle has no variant of {asked or 'this checkpoint'}; it has:\n  {have}\n"
        f"`wanc compile --model {checkpoint} --shape {shape or example.variant.shape} "
        f"--topology {topology or example.variant.topology} "
        f"--precision {precision or example.variant.precision} --target {TARGETS[0]} "
        f"-o {bundle.path}` would add it"
    )


def _fits(config: VariantConfig, wanted: dict[str, str | None]) -> bool:
    variant = config.variant
    return all(not value or str(getattr(variant, key)) == value for key, value in wanted.items())


def can_run(config: VariantConfig) -> bool:
    """Whether the variant is complete, and for a target that this version runs."""
    return config.stage == "compile" and config.variant.target in TARGETS


def check_complete(bundle: Bundle, config: VariantConfig) -> None:
    """Raise BundleError, with what would make it run, where the variant cannot."""
    if can_run(config):
        return
    target = config.variant.target
    what = "lacks executables" if target in TARGETS else f"is for target {target}"
    other = "" if target in TARGETS else f" --target {TARGETS[0]}"
    raise BundleError(
        f"variant {config.variant} {what}, and this version runs {', '.join(TARGETS)}: "
        f"`wanc compile --from {bundle.path}{other}` makes it run here"
    )


def load(bundle: Bundle, config: VariantConfig, checkpoint: Path) -> Session:
    """A session on this machine's engine; raises BundleError and WeightsError."""
    check_complete(bundle, config)
    runtime = runtime_of(config.variant.target)
    runtime.check_machine(config.requires)
    components = open_checkpoint(config, checkpoint)
    programs = {record.program.name: record.program for record in config.programs}
    executables = {r.program.name: read_executable(bundle, r, runtime) for r in config.programs}
    return Session(
        config=config,
        engine=runtime.engine(config.variant.topology.ranks),
        components=components,
        read_executable=executables.__getitem__,
        casts=count_casts(components, config.schedule, programs),
    )


def read_executable(bundle: Bundle, record: ProgramRecord, runtime: Runtime) -> bytes:
    """A program's verified executable, which this machine can run."""
    assert record.executable is not None, "check_complete refuses a variant without"
    data = bundle.read(record.executable)
    runtime.check_executable(data, record.program.name)
    return data


def fit_checkpoint(config: VariantConfig, checkpoint: Path) -> VariantConfig:
    """The config with the checkpoint's own sampling defaults, which no program depends on.

    Raises WeightsError where the checkpoint's configs describe other networks than the bundle's:
    heads, eps or the VAE's mean leave no trace in the shapes of tensors.
    """
    theirs = read_model(checkpoint)
    found = differences(config.model, theirs)
    if found:
        lines = "\n  ".join(found)
        raise WeightsError(
            f"{checkpoint} is another model than the bundle was compiled for:\n  {lines}"
        )
    return replace(config, model=replace(config.model, sampling=theirs.sampling))


def read_model(checkpoint: Path) -> Model:
    """The checkpoint's model; raises WeightsError where its configs are not those of one."""
    try:
        return read_checkpoint(checkpoint)
    except RefusedError as error:
        raise WeightsError(str(error)) from error


def differences(ours: Model, theirs: Model) -> list[str]:
    """Numbers of the networks in which two models differ, for people."""
    found = []
    for part in ("experts", "transformer", "text_encoder", "vae"):
        mine, other = (msgspec.to_builtins(getattr(model, part)) for model in (ours, theirs))
        if not isinstance(mine, dict):
            mine, other = {"": mine}, {"": other}
        found += [
            f"{part} {key}: the bundle has {mine[key]}, the checkpoint {other[key]}"
            for key in mine
            if mine[key] != other[key]
        ]
    return found


def open_checkpoint(config: VariantConfig, checkpoint: Path) -> dict[str, Component]:
    """The components that the schedule takes weights from, checked against the ABI."""
    names = list(dict.fromkeys(call.component for call in calls(config.schedule)))
    components = open_components(checkpoint, names)
    programs = {record.program.name: record.program for record in config.programs}
    text = config.model.text_encoder
    table = Need(
        component="text_encoder", names=EMBEDDING_NAMES, shape=(text.vocabulary, text.width)
    )
    needs = schedule_needs(config.schedule, programs)
    check_weights(components, [*needs, table], unused=UNUSED)
    check_memory(config, needs)
    return components


def check_memory(config: VariantConfig, needs: list[Need]) -> None:
    """Raise RunError where the weights alone are more than the memory that is free.

    All ranks are in this process and share equal shards, so each tensor counts once.
    """
    needed = sum(need.bytes for need in needs)
    free, _ = free_memory(this_machine())
    if free is not None and needed > free:
        raise RunError(
            f"variant {config.variant}: its weights take {needed / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} GiB of memory are free: use a machine with more, "
            "or a variant compiled with --precision bf16"
        )

"""Opens a bundle's variant on this machine and a checkpoint, ready to run. Never compiles.

Refuses, before anything is loaded, what does not fit: version, digest, signature, machine, weights.
"""

from dataclasses import replace
from pathlib import Path

import msgspec

from wanc.bundle.config import ProgramRecord, VariantConfig
from wanc.bundle.store import Bundle, open_bundle
from wanc.errors import BundleError, RefusedError, RequestError, RunError, WeightsError
from wanc.machine import this_machine
from wanc.plan.schedule import Stage
from wanc.plan.text_encoder import EMBEDDING_NAMES
from wanc.processes.world import Alone, World
from wanc.run.memory import memory_requirement
from wanc.run.request import LoadRequest
from wanc.run.session import Session
from wanc.runtime.requirement import Requirement, refuse, required, worst
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
    wanted = wanted_values(shape, topology, precision)
    configs = [variant.config for variant in bundle.variants]
    fitting = [config for config in configs if has_values(config, wanted)]
    found = usable(fitting)
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


def choose(request: LoadRequest) -> tuple[Bundle, VariantConfig]:
    """The bundle, and the variant that is asked for; raises BundleError and RequestError.

    Every process comes here first: where a signature is required, no program is read without one.
    """
    bundle = open_bundle(request.bundle)
    if request.signers:
        from wanc.signing.check import require_signature  # with cryptography, which few need

        require_signature(bundle, request.signers)
    selected = select_variant(
        bundle,
        request.weights,
        shape=request.shape,
        topology=request.topology,
        precision=request.precision,
    )
    return bundle, selected


def wanted_values(
    shape: str | None, topology: str | None, precision: str | None
) -> dict[str, str | None]:
    """What a variant must have, as its own texts write it; raises RequestError."""
    return {
        "shape": shape and str(Shape.parse(shape)),
        "topology": topology and str(Topology.parse(topology)),
        "precision": precision,
    }


def has_values(config: VariantConfig, wanted: dict[str, str | None]) -> bool:
    """Whether the variant has every value that is given."""
    variant = config.variant
    return all(not value or str(getattr(variant, key)) == value for key, value in wanted.items())


def can_run(config: VariantConfig) -> bool:
    """Whether the variant is complete, and for a target that this version runs."""
    return config.stage == "compile" and config.variant.target in TARGETS


def usable(configs: list[VariantConfig]) -> list[VariantConfig]:
    """Those that run here, an accelerator's before the CPU's; else complete ones, else all."""
    complete = [config for config in configs if can_run(config)]
    found = {}
    for config in sorted(complete, key=lambda each: TARGETS.index(each.variant.target)):
        v = config.variant
        if runs_here(config):
            found[v.shape, v.topology, v.precision, config.model.name] = config
    return [*found.values()] or complete or configs


def runs_here(config: VariantConfig) -> bool:
    """Whether this machine has what a complete variant needs."""
    try:
        return worst(runtime_of(config.variant.target).check(config)) != "incompatible"
    except BundleError:  # what it needs is damaged
        return False


def variant_requirements(bundle: Bundle, config: VariantConfig) -> list[Requirement]:
    """What a variant needs for this version to run it, whatever the machine."""
    target, stage = config.variant.target, config.stage
    how = "without --stop-after" if stage == "plan" else f"--from {bundle.path}"
    to = "" if target in TARGETS else f" --target {TARGETS[0]}"
    remedy = f"`wanc compile {how}{to}`"
    if target in TARGETS[1:]:
        remedy += f"; with --target {TARGETS[0]}, for any CPU"
    return [
        required("stage", "compile", stage, met=stage == "compile", remedy=remedy),
        required("target", target, ", ".join(TARGETS), met=not to, remedy=remedy),
        _world_size(config),
    ]


def _world_size(config: VariantConfig) -> Requirement:
    """Mesh and programs are for as many ranks as the topology."""
    ranks = config.variant.topology.ranks
    programs = (record.program for record in config.programs)
    counts = {each.name: each.replica_count for each in programs if each.ranks == "all"}
    counts["the mesh"] = len(config.mesh.coordinates)
    odd = [f"{name} is for {count}" for name, count in counts.items() if count != ranks]
    found = ", ".join(odd) or f"{ranks} in mesh and programs"
    remedy = "compile it again: its config is damaged"
    return required("world size", str(ranks), found, met=not odd, remedy=remedy)


def load(
    bundle: Bundle, config: VariantConfig, checkpoint: Path, world: World | None = None
) -> Session:
    """A session on this machine's engine; raises BundleError and WeightsError.

    world is the processes that share the ranks; this one alone, if none is given.
    """
    world = world or Alone()
    refuse(variant_requirements(bundle, config))
    runtime = runtime_of(config.variant.target)
    refuse(runtime.check(config))
    components = open_checkpoint(config, checkpoint)
    if runtime.in_host_memory:
        check_memory(config, len(world.hosted(config.variant.topology.ranks)))
    programs = {record.program.name: record.program for record in config.programs}
    executables = {
        r.program.name: read_executable(bundle, r, runtime, config) for r in config.programs
    }
    return Session(
        config=config,
        engine=runtime.engine(config, world),
        world=world,
        components=components,
        read_executable=executables.__getitem__,
        casts=count_casts(components, config.schedule, programs),
    )


def read_executable(
    bundle: Bundle, record: ProgramRecord, runtime: Runtime, config: VariantConfig
) -> bytes:
    """A program's verified executable, which this machine can run."""
    assert record.executable is not None, "the stage says that there is one"
    data = bundle.read(record.executable)
    runtime.check_executable(data, record.program, config)
    return data


def only_decoding(config: VariantConfig) -> VariantConfig:
    """The config with what decodes latents alone: no other program, weight or memory is needed."""
    stages = tuple(stage for stage in config.schedule.stages if _decodes(stage))
    called = {call.program for stage in stages for call in stage.calls}
    programs = tuple(record for record in config.programs if record.program.name in called)
    return replace(config, schedule=replace(config.schedule, stages=stages), programs=programs)


def _decodes(stage: Stage) -> bool:
    return stage.name.startswith("vae_decode")


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
    reads_text = any(not _decodes(stage) for stage in config.schedule.stages)
    used = (call.component for call in calls(config.schedule))
    names = [*(["text_encoder"] if reads_text else []), *used]
    components = open_components(checkpoint, list(dict.fromkeys(names)))
    programs = {record.program.name: record.program for record in config.programs}
    needs = schedule_needs(config.schedule, programs)
    if reads_text:
        rows = (config.model.text_encoder.vocabulary, config.model.text_encoder.width)
        needs.append(Need(component="text_encoder", names=EMBEDDING_NAMES, shape=rows))
    check_weights(components, needs, unused=UNUSED)
    return components


def check_memory(config: VariantConfig, hosted: int | None = None) -> None:
    """Raise RunError where the weights alone are more than the memory that is free.

    They are those of the ranks that this process hosts; of all, where no number is given.
    """
    memory = memory_requirement(config, this_machine(), hosted)
    if memory.verdict == "incompatible":
        raise RunError(f"variant {config.variant}: {memory}")

"""Whether this machine can run a bundle: what each variant needs, beside what was found.

Asks what load asks, and loads nothing. Reads blobs to check them, and of weights headers only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wanc.bundle.config import ProgramRecord, VariantConfig
from wanc.bundle.store import Bundle
from wanc.errors import BundleError, RequestError, WeightsError
from wanc.machine import Machine, this_machine
from wanc.run.load import (
    fit_checkpoint,
    has_values,
    open_checkpoint,
    read_executable,
    variant_requirements,
    wanted_values,
)
from wanc.run.memory import memory_requirement
from wanc.runtime.requirement import Requirement, Verdict, required, worst
from wanc.runtime.runtime import TARGETS, Runtime, runtime_of


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCheck:
    """A variant, held against this machine."""

    number: int
    """From 1, in the bundle's order."""
    config: VariantConfig
    requirements: tuple[Requirement, ...]

    @property
    def verdict(self) -> Verdict:
        """That of the worst requirement."""
        return worst(self.requirements)


def check_bundle(
    bundle: Bundle,
    weights: Path | None = None,
    *,
    shape: str | None = None,
    topology: str | None = None,
    precision: str | None = None,
    machine: Machine | None = None,
) -> tuple[VariantCheck, ...]:
    """Every variant that has the given values; raises RequestError where there is none."""
    machine, wanted = machine or this_machine(), wanted_values(shape, topology, precision)
    found = tuple(
        VariantCheck(
            number=number,
            config=entry.config,
            requirements=tuple(check_variant(bundle, entry.config, weights, machine)),
        )
        for number, entry in enumerate(bundle.variants, start=1)
        if has_values(entry.config, wanted)
    )
    if not found:
        asked = " ".join(f"{key} {value}" for key, value in wanted.items() if value)
        raise RequestError(
            f"the bundle has no variant of {asked}; `wanc inspect {bundle.path}` lists its variants"
        )
    return found


def check_variant(
    bundle: Bundle, config: VariantConfig, weights: Path | None, machine: Machine
) -> list[Requirement]:
    """All that a variant needs. One of another target is held against no machine."""
    target = config.variant.target
    runtime = runtime_of(target, machine) if target in TARGETS else None
    found = [*variant_requirements(bundle, config), *_executables(bundle, config, runtime)]
    if runtime is not None:
        if config.stage == "compile":  # one that is not states no requirements yet
            found += _machine(runtime, config)
        if runtime.in_host_memory:
            found.append(memory_requirement(config, machine))
    if weights is not None:
        found += _weights(config, weights)
    return found


def _executables(
    bundle: Bundle, config: VariantConfig, runtime: Runtime | None
) -> list[Requirement]:
    """Whether each is what its digest says, and made for what this machine has."""
    records = [record for record in config.programs if record.executable]
    if not records:
        return []
    faults = [fault for each in records if (fault := _fault(bundle, each, runtime, config))]
    found = "\n".join([f"{len(records) - len(faults)} sound", *faults])
    remedy = "where a blob is damaged or missing, copy the bundle again"
    return [required("executables", str(len(records)), found, met=not faults, remedy=remedy)]


def _fault(
    bundle: Bundle, record: ProgramRecord, runtime: Runtime | None, config: VariantConfig
) -> str:
    """What keeps a program from being loaded; empty where nothing does."""
    try:
        if runtime is not None:
            read_executable(bundle, record, runtime, config)
        elif record.executable:
            bundle.read(record.executable)
    except BundleError as error:
        return str(error)
    return ""


def _machine(runtime: Runtime, config: VariantConfig) -> list[Requirement]:
    try:
        return runtime.check(config)
    except BundleError as error:
        found, remedy = f"damaged\n{error}", "compile it again"
        return [required("requires", "what a machine must have", found, met=False, remedy=remedy)]


def _weights(config: VariantConfig, checkpoint: Path) -> list[Requirement]:
    """Whether the checkpoint's configs and tensors are those that the variant was compiled for."""

    def fit(what: str, needed: str, look: Callable[[VariantConfig, Path], object]) -> Requirement:
        try:
            look(config, checkpoint)
        except (WeightsError, OSError) as error:
            remedy = "give --weights a whole checkpoint of the bundle's model"
            return required(what, needed, f"not as needed\n{error}", met=False, remedy=remedy)
        return required(what, needed, "as needed", met=True, remedy="")

    return [
        fit("networks", f"numbers of {config.model.name}", fit_checkpoint),
        fit("tensors", "names, shapes, dtypes", open_checkpoint),
    ]

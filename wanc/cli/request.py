"""From flags and a shape set to plans. Says which target was chosen."""

from dataclasses import dataclass, replace
from pathlib import Path

from wanc.cli.terminal import note
from wanc.errors import RefusedError, RequestError
from wanc.plan.plan import Plan, make_plan, work_out
from wanc.plan.propose import best_topologies
from wanc.spec.resolve import choose_target, resolve
from wanc.spec.sets import Request, read_set
from wanc.spec.target import TARGETS, target_facts
from wanc.spec.variant import Options, Spec, Variant

AUTO = "auto"
"""In place of a topology: rank those that fit."""

MOST_CORES = 64
"""Cores of --topology auto where no number is given, on a machine that has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Plans of the topologies that suit one shape on so many cores, fastest first."""

    variant: Variant
    """What was asked for; its topology means nothing."""
    cores: int
    plans: list[Plan]


def plans_of(
    set_file: Path | None, flags: Request, max_ranks: int | None
) -> tuple[Spec, list[Plan]]:
    """Plan every variant of a request."""
    request = merged(set_file, flags)
    if AUTO in request.topologies:
        raise RequestError(
            "topology auto: choose one, as tp4-cp8-cfg2; `wanc plan --topology auto` ranks those "
            "that fit, alone and without others"
        )
    spec = _resolved(request)
    plans = plan_all(spec, max_ranks)
    _note_warnings(plans)
    return spec, plans


def rankings_of(
    set_file: Path | None, flags: Request, cores: int | None, max_ranks: int | None
) -> list[Ranking]:
    """Rank topologies for every shape of a request."""
    spec = _resolved(replace(merged(set_file, flags), topologies=()))
    facts = target_facts(spec.variants[0].target)
    if facts.accelerator is None:
        others = " or ".join(f"--target {name}" for name, t in TARGETS.items() if t.accelerator)
        raise RefusedError(
            f"topology auto: nothing is known of the speed of target {facts.name} to rank by; "
            f"try {others}"
        )
    machine = facts.accelerator.fabric.cores
    if cores is not None and cores > machine:
        raise RefusedError(f"{cores} cores are more than the {machine} of one {facts.name} machine")
    limit = min(machine, max_ranks or machine)
    most = min(cores or MOST_CORES, limit)
    found = [_ranking(spec, variant, most, limit) for variant in spec.variants]
    _note_warnings([ranking.plans[0] for ranking in found])
    return found


def _ranking(spec: Spec, variant: Variant, cores: int, limit: int) -> Ranking:
    """The ranking of one shape; raises RefusedError where no topology is accepted.

    limit: of the cores that may be proposed instead."""

    def attempt(variant: Variant, options: Options) -> Plan:
        return work_out(spec.model, variant, options)

    plans = best_topologies(spec.model, variant, spec.options, cores, attempt)
    if not plans:
        more = (2**n for n in range(1, limit.bit_length()) if 2**n > cores)
        enough = (n for n in more if best_topologies(spec.model, variant, spec.options, n, attempt))
        instead = next((f"; try --cores {n}" for n in enough), "")
        raise RefusedError(
            f"topology auto: no topology of at most {cores} cores of {variant.target} can hold "
            f"{variant.shape} in {variant.precision}{instead}"
        )
    return Ranking(variant=variant, cores=cores, plans=plans)


def merged(set_file: Path | None, flags: Request) -> Request:
    """Flags over a shape set."""
    return flags.over(read_set(set_file)) if set_file else flags


def _resolved(request: Request) -> Spec:
    target, why = choose_target(request.target)
    note(f"target {target} ({why})")
    return resolve(request, target)


def _note_warnings(plans: list[Plan]) -> None:
    for warning in dict.fromkeys(warning for plan in plans for warning in plan.warnings):
        note(f"warning: {warning}")


def plan_all(spec: Spec, max_ranks: int | None) -> list[Plan]:
    """Plan every variant; raises RefusedError with every variant that is refused."""
    plans, refused = [], []
    for variant in spec.variants:
        try:
            plans.append(make_plan(spec.model, variant, spec.options, max_ranks=max_ranks))
        except RefusedError as error:
            refused.append(str(error))
    if refused:
        raise RefusedError("\n  ".join(dict.fromkeys(refused)))
    return plans

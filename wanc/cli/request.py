"""From flags and a shape set to plans. Says which target was chosen."""

from pathlib import Path

from wanc.cli.terminal import note
from wanc.errors import RefusedError
from wanc.plan.plan import Plan, make_plan
from wanc.spec.resolve import choose_target, resolve
from wanc.spec.sets import Request, read_set
from wanc.spec.variant import Spec


def plans_of(
    set_file: Path | None, flags: Request, max_ranks: int | None
) -> tuple[Spec, list[Plan]]:
    """Plan every variant of a request."""
    request = flags.over(read_set(set_file)) if set_file else flags
    target, why = choose_target(request.target)
    note(f"target {target} ({why})")
    spec = resolve(request, target)
    plans = plan_all(spec, max_ranks)
    for plan in plans:
        for warning in plan.warnings:
            note(f"warning: {warning}")
    return spec, plans


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

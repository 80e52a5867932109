"""wanc doctor: what this machine can do, and what it lacks."""

from collections.abc import Sequence
from dataclasses import asdict

from wanc.cache.store import default_cache
from wanc.cli import options
from wanc.cli.terminal import emit, emit_json, table
from wanc.doctor import GOALS, Check, Verdict, examine, verdicts
from wanc.machine import this_machine


def doctor_command(json: options.Json = False) -> None:
    """Look at what this machine has.

    What it can compile and run, what is missing, and what would help."""
    checks = examine(this_machine(default_cache()))
    judged = verdicts(checks)
    if json:
        emit_json({"checks": [*map(asdict, checks)], "verdicts": [*map(asdict, judged)]})
    else:
        print_report(checks, judged)


def print_report(checks: Sequence[Check], judged: Sequence[Verdict]) -> None:
    """Checks by the first goal that they matter to, what would help, and the verdicts."""
    for goal in GOALS:
        group = [check for check in checks if check.group == goal]
        title = f"To {goal}" if goal == GOALS[0] else f"To {goal}, also"
        found = [(check.name, check.usable, check.found, check.purpose) for check in group]
        table(title, ("", "usable", "found", "for"), found)
        remedies = [f"{check.name}: {check.remedy}" for check in group if check.remedy]
        if remedies:
            emit("\n".join([*remedies, ""]))
    rows = [(v.goal, "ready" if v.ready else "not ready", "; ".join(v.because)) for v in judged]
    table("Verdict", ("", "", "short of"), rows)

"""The locks of the shipped shape sets hold: at full size, program by program.

Digests hold for the versions pinned in constraints.txt. Where a change is meant,
``wanc compile SET --stop-after lower --lock`` rewrites a lock, and its diff says which programs
people compile again.
"""

import functools
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from wanc.bundle.lock import LOCK_SUFFIX, Lock, read_lock, variant_key
from wanc.cli.request import plans_of
from wanc.compile import distinct_programs
from wanc.identity import spec_key
from wanc.plan.plan import Plan
from wanc.spec.sets import Request

ROOT = Path(__file__).parents[2]
SETS = sorted((ROOT / "shapes").glob("*.yaml"))
CHECKED = ("832x480x81", "tp4-cp8-cfg2")
"""The variant that every test run lowers at full size; make soak lowers all of every set."""
KINDS = (
    *("dit_embed", "dit_head"),
    *("text_encoder", "dit_context", "dit_blocks", "vae_decode_first", "vae_decode_rest"),
    *("vae_encode_first", "vae_encode_rest"),
)
QUICK_KINDS = 2


@functools.cache
def plans(path: Path) -> tuple[Plan, ...]:
    return tuple(plans_of(path, Request(), None)[1])


def lock(path: Path) -> Lock:
    return read_lock(ROOT / "bundles" / f"{path.stem}{LOCK_SUFFIX}")


def digest(key: str, plans: tuple[Plan, ...]) -> str:
    from wanc.lower.lower import lower
    from wanc.trace import trace

    return lower(trace(distinct_programs(plans)[key])).digest


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Without torch's thousands of lines below a failure's message."""
    caplog.set_level(logging.WARNING, logger="torch.__trace")


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_every_set_has_a_lock_of_its_variants_and_programs(path: Path) -> None:
    planned = {
        variant_key(plan.model, plan.variant): {program.name for program in plan.programs}
        for plan in plans(path)
    }
    assert {name: set(programs) for name, programs in lock(path).variants.items()} == planned


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_equal_programs_are_locked_as_equal(path: Path) -> None:
    """One program, one digest: across shapes and topologies as well."""
    found: dict[str, set[str]] = {}
    for plan in plans(path):
        locked = lock(path).variants[variant_key(plan.model, plan.variant)]
        for program in plan.programs:
            found.setdefault(spec_key(program), set()).add(locked[program.name])
    assert all(len(digests) == 1 for digests in found.values())


@pytest.mark.parametrize("kind", KINDS)
def test_full_size_program_of_480p(kind: str) -> None:
    task = "i2v" if kind.startswith("vae_encode") else "t2v"
    path = ROOT / "shapes" / f"wan2.2-{task}-a14b-trn2.yaml"
    (plan,) = (
        plan
        for plan in plans(path)
        if (str(plan.variant.shape), str(plan.variant.topology)) == CHECKED
    )
    (program,) = (program for program in plan.programs if program.kind == kind)
    locked = lock(path).variants[variant_key(plan.model, plan.variant)]
    assert digest(spec_key(program), (plan,)) == locked[program.name]


@pytest.mark.soak
@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_programs_of_every_set(path: Path, repetitions: Callable[[int, int], int]) -> None:
    """Every program in make soak; of those that lower in a second, every one in make test."""
    kinds = KINDS[: repetitions(QUICK_KINDS, len(KINDS))]
    expected = {
        spec_key(program): lock(path).variants[variant_key(plan.model, plan.variant)][program.name]
        for plan in plans(path)
        for program in plan.programs
        if program.kind in kinds
    }
    assert {key: digest(key, plans(path)) for key in expected} == expected

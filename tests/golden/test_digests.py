"""StableHLO digests of the tiny model's programs: a change of output shows in the file's diff.

Each line of digests.json that a change alters is a program that people recompile. Digests hold for
the versions pinned in constraints.txt: other ones of jax, torch or diffusers may give others.
``make golden`` rewrites the file. The full-size model's programs are in bundles/*.lock.json.
"""

import functools
import json
import logging
from collections.abc import Collection
from pathlib import Path

import pytest

from wanc.compile import distinct_programs
from wanc.identity import spec_key
from wanc.plan.plan import Plan, make_plan
from wanc.spec.presets import PRESETS
from wanc.spec.shape import Shape
from wanc.spec.target import Precision
from wanc.spec.topology import Topology
from wanc.spec.variant import Options, Variant

FILE = Path(__file__).with_name("digests.json")
KINDS = (
    *("dit_head", "dit_embed", "dit_context"),
    *("dit_blocks", "text_encoder", "vae_decode_first", "vae_decode_rest"),
)


def plan_of(model: str, shape: str, topology: str, precision: Precision) -> Plan:
    variant = Variant(
        task="t2v",
        shape=Shape.parse(shape),
        topology=Topology.parse(topology),
        placement="linear",
        precision=precision,
        target="cpu",
    )
    return make_plan(PRESETS[model], variant, Options())


@functools.cache
def tiny_plans() -> tuple[Plan, ...]:
    return (
        plan_of("tiny", "208x128x5", "tp1", "fp32"),
        plan_of("tiny", "208x128x5", "tp1", "bf16"),
        plan_of("tiny", "208x128x5", "tp2-cp2-cfg2", "fp32"),
        plan_of("tiny", "208x128x5", "tp2-cp2-cfg2", "bf16"),
        plan_of("tiny", "208x128x5", "tp4-cp8-cfg2", "fp32"),
        plan_of("tiny", "208x128x5", "tp4-cp8-cfg2", "bf16"),
        plan_of("tiny", "80x48x9", "cp2", "fp32"),  # masked: 45 tokens
    )


def lines(plans: Collection[Plan], kinds: Collection[str]) -> dict[str, str]:
    """Spec key of each program of the kinds, by its line in the file."""
    return {
        f"{plan.model.name} {plan.variant} {program.name}": spec_key(program)
        for plan in plans
        for program in plan.programs
        if program.kind in kinds
    }


def digests(plans: Collection[Plan], kinds: Collection[str]) -> dict[str, str]:
    """Digest of each program of the kinds, by its line; equal programs are traced once."""
    from wanc.lower.lower import lower
    from wanc.trace import trace

    found = {
        key: lower(trace(program)).digest
        for key, program in distinct_programs(plans).items()
        if program.kind in kinds
    }
    return {line: found[key] for line, key in lines(plans, kinds).items()}


def expected() -> dict[str, str]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def declared() -> dict[str, str]:
    return lines(tiny_plans(), KINDS)


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return request.config.getoption("--update-golden")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Without torch's thousands of lines below a failure's message."""
    caplog.set_level(logging.WARNING, logger="torch.__trace")


def compare_or_rewrite(seen: dict[str, str], *, update: bool) -> None:
    known = expected()
    if update:
        merged = {**known, **seen}
        kept = {line: merged[line] for line in declared() if line in merged}
        FILE.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        return
    changed = [line for line, digest in seen.items() if known.get(line) != digest]
    if changed:
        pytest.fail(
            "\n  ".join(["these programs changed, so people recompile them:", *changed])
            + f"\nif that is meant, make golden rewrites {FILE.name}",
            pytrace=False,
        )


@pytest.mark.parametrize("kind", KINDS)
def test_tiny_programs(kind: str, update: bool):
    compare_or_rewrite(digests(tiny_plans(), [kind]), update=update)


def test_file_has_the_declared_programs():
    assert list(expected()) == list(declared())

"""What lowering and lint say of real programs: no finding, and the model's line of every fault."""

import functools
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.cpu.conftest import tiny_plan
from wanc.compile import distinct_programs
from wanc.errors import ToolchainError
from wanc.lower.artifact import read_artifact
from wanc.lower.lint import check, lint
from wanc.lower.lower import Lowered, lower
from wanc.model import ops
from wanc.plan.abi import Program
from wanc.spec.target import TARGETS, TORUS
from wanc.spec.variant import Options
from wanc.trace import trace

PLANS = {
    "one rank": tiny_plan("208x128x5", "tp1"),
    "ring": tiny_plan("208x128x5", "tp4-cp4-cfg2", "bf16", placement=TORUS),
    "gathered": tiny_plan(
        "208x128x5", "tp2-cp2-cfg2", options=Options(attention="allgather"), placement=TORUS
    ),
    "masked ring": tiny_plan("80x48x9", "cp2", placement=TORUS),
    "masked, gathered": tiny_plan(
        "80x48x9", "tp2-cp2", "bf16", Options(attention="allgather"), placement=TORUS
    ),
}
PROGRAMS: dict[str, Program] = {
    f"{label}: {program.kind}": program
    for label, plan in PLANS.items()
    for program in distinct_programs([plan]).values()
    if label == "one rank" or program.ranks == "all"
}
SOURCE = re.compile(r"(model/\w+|autoencoder_kl_wan)\.py:\d+ in \S+: `.+`")


@functools.cache
def lowered(label: str) -> Lowered:
    return lower(trace(PROGRAMS[label]))


def operations(label: str) -> Iterator[tuple[str, str | None]]:
    """Name and source of each operation of a program."""
    read = read_artifact(lowered(label).stablehlo).operations
    return zip((op.name for op in read), lowered(label).sources, strict=True)


@pytest.mark.parametrize("label", PROGRAMS)
def test_real_program_has_no_finding(label: str):
    data, ranks = lowered(label).stablehlo, PROGRAMS[label].replica_count
    for target in ("cpu", "trn2", "trn3"):
        accelerator = TARGETS[target].accelerator
        assert lint(data, ranks=ranks, accelerator=accelerator) == ()


@pytest.mark.parametrize("label", PROGRAMS)
def test_operations_know_the_line_that_they_come_from(label: str):
    unknown = {name for name, source in operations(label) if source is None}
    assert unknown <= {"builtin.module", "func.func", "func.return", "stablehlo.constant"}
    sources = {source for _, source in operations(label) if source}
    assert sources
    assert not [source for source in sources if not SOURCE.fullmatch(source)]


def test_lines_are_those_of_the_operations():
    seen = {
        (name, source.split("`")[1]) for name, source in operations("ring: dit_blocks") if source
    }
    shifts = 'k_BNLK, v_BNLK = ring_shift(k_BNLK, "cp"), ring_shift(v_BNLK, "cp")'
    assert ("stablehlo.collective_permute", shifts) in seen
    assert ("stablehlo.exponential", "weights = torch.exp(scores_BNLT - maximum)") in seen
    assert ("stablehlo.all_reduce", 'squares = all_reduce(squares, "tp")') in seen
    assert {line for name, line in seen if name == "stablehlo.collective_permute"} == {shifts}


def test_operations_of_a_private_function_come_from_its_call():
    inside = [
        (op.name, source)
        for op, source in zip(
            read_artifact(lowered("one rank: text_encoder").stablehlo).operations,
            lowered("one rank: text_encoder").sources,
            strict=True,
        )
        if op.function not in ("", "main")
    ]
    assert "stablehlo.select" in {name for name, _ in inside}
    assert all(source and "torch.where(" in source for _, source in inside)


# --- faults in the model's code -------------------------------------------------------------------


def line_of(function: object, code: str) -> str:
    """How a source names a line of this file."""
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    (at,) = [i for i, line in enumerate(lines) if code in line]
    name = function.__name__  # type: ignore[attr-defined]
    return f"test_lint_sources.py:{first + at} in {name}: `{lines[at].strip()}`"


def wide_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.double()
    turned = wide * 2
    return turned.to(x.dtype)


def complex_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs).flatten(-2)


def odd_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    y = torch.sinh(x)
    return y + x.double().to(x.dtype)


def exact_gelu(*args: Tensor) -> Tensor:
    return ops.linear(F.gelu(ops.linear(*args[:3])), args[3])


def refusal(label: str) -> str:
    with pytest.raises(ToolchainError) as caught:
        lower(trace(PROGRAMS[label]))
    return str(caught.value)


def test_float64_is_refused_where_it_arises(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ops, "rotate", wide_rotate)
    text = refusal("one rank: dit_blocks")
    assert text.startswith("program dit_blocks: cannot be lowered (")
    assert "dtypes: torch.float64 is not one of torch.float32, torch.bfloat16" in text
    for code in ("x.double()", "wide * 2"):
        assert f"    from {line_of(wide_rotate, code)}" in text
    assert "_to_copy" in text


def test_complex_numbers_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ops, "rotate", complex_rotate)
    text = refusal("one rank: dit_blocks")
    assert "torch.complex64 is not one of" in text
    assert f"from {line_of(complex_rotate, 'view_as_complex')}" in text


def test_operators_and_dtypes_are_reported_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ops, "rotate", odd_rotate)
    text = refusal("one rank: dit_blocks")
    assert re.match(r"program dit_blocks: no lowering for aten\.sinh\.default; add them to ", text)
    where = line_of(odd_rotate, "sinh")
    assert (
        f"has no lowering\n    at sinh of the exported graph and 3 more\n    from {where}" in text
    )
    assert f"from {line_of(odd_rotate, 'double')}" in text


def test_what_jax_leaves_to_its_own_compilers_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ops, "gelu_mlp", exact_gelu)
    text = refusal("one rank: dit_blocks")
    assert "operators: chlo.erfc is no StableHLO" in text
    assert f"from {line_of(exact_gelu, 'F.gelu')}" in text


def test_lint_names_the_line_of_a_planted_group():
    program = PROGRAMS["gathered: dit_blocks"]
    groups = {**program.groups, "tp": program.groups["tp"][:-1]}
    planted = lower(trace(replace(program, groups=groups)))
    with pytest.raises(ToolchainError) as caught:
        check(
            planted.stablehlo,
            name=program.name,
            ranks=program.replica_count,
            accelerator=None,
            sources=planted.sources,
        )
    text = str(caught.value)
    left_out = ", ".join(map(str, sorted(program.groups["tp"][-1])))
    assert f"replica groups: groups leave out ranks: {left_out}" in text
    assert re.search(r"from model/ops\.py:\d+ in head_norms: `squares = all_reduce\(squares", text)
    assert re.search(r"from model/transformer\.py:\d+ in gather: `", text)


def moved_norm(x_BLD: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x_BLD.float(), x_BLD.shape[-1:], None, None, eps)


def test_sources_are_no_part_of_a_program(monkeypatch: pytest.MonkeyPatch):
    label = "one rank: dit_head"
    before = lowered(label)
    monkeypatch.setattr(ops, "layer_norm", moved_norm)
    moved = lower(trace(PROGRAMS[label]))
    assert moved.sources != before.sources
    assert moved.stablehlo == before.stablehlo
    assert moved.text == before.text

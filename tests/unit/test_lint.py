"""Lint: every kind of fault planted by itself, faults together, and the count of instructions."""

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.artifacts import artifact
from tests.programs import replicas
from wanc.build import lint_cached
from wanc.cache.store import Cache
from wanc.digest import of_bytes
from wanc.errors import RefusedError, ToolchainError
from wanc.lower.artifact import read_artifact
from wanc.lower.instructions import instructions
from wanc.lower.lint import Finding, check, lint, report
from wanc.spec.target import TARGETS, Accelerator

RANKS = 8


def accelerator(name: str = "trn2", **limits: int) -> Accelerator:
    known = TARGETS[name].accelerator
    assert known is not None
    return replace(known, limits=replace(known.limits, **limits))


def program(*lines: str, inputs: str = "%x: tensor<4x8xf32>", functions: str = "") -> bytes:
    body = "\n".join(lines)
    return artifact(
        f"""module @planted {{
          func.func public @main({inputs}) -> tensor<f32> {{
            {body}
            %zero = stablehlo.constant dense<0.0> : tensor<f32>
            return %zero : tensor<f32>
          }}
          {functions}
        }}"""
    )


def all_reduce(groups: str, name: str = "a", more: str = "") -> str:
    shape = "x".join(str(n) for n in (groups.count("[") - 1, groups.split("]")[0].count(",") + 1))
    return f"""%{name} = "stablehlo.all_reduce"(%x) ({{
        ^bb0(%l: tensor<f32>, %r: tensor<f32>):
          %s = stablehlo.add %l, %r : tensor<f32>
          stablehlo.return %s : tensor<f32>
      }}) {{replica_groups = dense<{groups}> : tensor<{shape}xi64>{more}}}
      : (tensor<4x8xf32>) -> tensor<4x8xf32>"""


def permute(pairs: list[list[int]]) -> str:
    return f"""%p = "stablehlo.collective_permute"(%x)
      {{source_target_pairs = dense<{pairs}> : tensor<{len(pairs)}x2xi64>}}
      : (tensor<4x8xf32>) -> tensor<4x8xf32>"""


def ring(ranks: int, step: int = 1) -> list[list[int]]:
    return [[rank, (rank + step) % ranks] for rank in range(ranks)]


LOOP = """%w = stablehlo.while(%i = %x) : tensor<4x8xf32>
  cond { %c = stablehlo.constant dense<false> : tensor<i1>
         stablehlo.return %c : tensor<i1> }
  do { stablehlo.return %i : tensor<4x8xf32> }"""
SORT = """%s = "stablehlo.sort"(%x) ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %c = stablehlo.compare LT, %l, %r : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
  }) {dimension = 1 : i64, is_stable = true} : (tensor<4x8xf32>) -> tensor<4x8xf32>"""
NOISE = """%a = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.constant dense<[4]> : tensor<1xi32>
  %r = stablehlo.rng %a, %a, %n, distribution = UNIFORM
    : (tensor<f32>, tensor<f32>, tensor<1xi32>) -> tensor<4xf32>"""
GATHER = """%i = stablehlo.constant dense<0> : tensor<i32>
  %d = stablehlo.dynamic_slice %x, %i, %i, sizes = [1, 1]
    : (tensor<4x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x1xf32>"""
CALL = "%c = stablehlo.custom_call @{}(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>"
WHOLE = "[[0, 1, 2, 3], [4, 5, 6, 7]]"

FAULTS: dict[str, tuple[bytes, str, str]] = {
    "while": (program(LOOP), "operators", "stablehlo.while: .*no dynamic loop"),
    "sort": (program(SORT), "operators", "stablehlo.sort: neuronx-cc fails"),
    "rng": (program(NOISE), "operators", "stablehlo.rng: noise comes from the host"),
    "dynamic slice": (program(GATHER), "operators", "dynamic_slice: every size and offset"),
    "custom call": (program(CALL.format("Erf")), "operators", "custom call of Erf: .*NativeKernel"),
    "unheard of": (program("%y = stablehlo.cbrt %x : tensor<4x8xf32>"), "operators", "cbrt: no"),
    "replica id": (
        program(
            "%r = stablehlo.replica_id : tensor<ui32>",
            "%i = stablehlo.convert %r : (tensor<ui32>) -> tensor<i32>",
        ),
        "rank identity",
        "stablehlo.replica_id: one program serves all ranks",
    ),
    "f64": (
        program("%y = stablehlo.convert %x : (tensor<4x8xf32>) -> tensor<4x8xf64>"),
        "dtypes",
        "f64 is not one of i1, i32, f32, bf16: neuronx-cc has no 64-bit floats",
    ),
    "i64": (
        program("%y = stablehlo.constant dense<1> : tensor<3xi64>"),
        "dtypes",
        "i64 is not one of .*narrows 64-bit integers",
    ),
    "complex input": (
        program(inputs="%x: tensor<4x8xcomplex<f32>>"),
        "dtypes",
        "complex<f32> is not one of .*nothing is complex",
    ),
    "8-bit floats": (program(inputs="%x: tensor<4xf8E4M3FN>"), "dtypes", "f8E4M3FN is not one of"),
    "dtype inside a reduction": (
        program(all_reduce(WHOLE).replace("f32>", "f64>"), inputs="%x: tensor<4x8xf64>"),
        "dtypes",
        "f64",
    ),
    "no tensor": (
        program(inputs="%x: tuple<tensor<f32>>"),
        "dtypes",
        "tuple<tensor<f32>> is not one of",
    ),
    "unknown size": (program(inputs="%x: tensor<?x8xf32>"), "static shapes", r"tensor<\?x8xf32>"),
    "unknown rank": (program(inputs="%x: tensor<*xf32>"), "static shapes", r"tensor<\*xf32>"),
    "missing rank": (
        program(all_reduce("[[0, 1, 2], [3, 4, 5]]")),
        "replica groups",
        "groups leave out ranks: 6, 7",
    ),
    "no groups": (
        program(all_reduce(WHOLE).replace(f"<{WHOLE}> : tensor<2x4", "<> : tensor<0x0")),
        "replica groups",
        "groups leave out ranks: 0, 1, 2, 3, 4, 5, 6, 7",
    ),
    "groups of unequal size": (
        program(all_reduce("[[0, 1, 2, 3, 4], [5, 6, 7, -1, -1]]")),
        "replica groups",
        "groups name what is none of the 8 ranks: -1",
    ),
    "rank beyond": (
        program(all_reduce("[[0, 1, 2, 3, 4, 5, 6, 7, 8]]")),
        "replica groups",
        "groups name what is none of the 8 ranks: 8",
    ),
    "missing source": (
        program(permute([[i, i] for i in range(RANKS - 1)])),
        "replica groups",
        "sources leave out ranks: 7",
    ),
    "target beyond": (
        program(permute([*ring(RANKS)[:-1], [7, 8]])),
        "replica groups",
        "targets leave out ranks: 0(.*\n)*.*targets name what is none of the 8 ranks: 8",
    ),
    "channel": (
        program(
            all_reduce(WHOLE, more=", channel_handle = #stablehlo.channel_handle<handle=1, type=1>")
        ),
        "replica groups",
        "channel_handle is set",
    ),
    "device ids": (
        program(
            all_reduce(
                WHOLE,
                more=", channel_handle = #stablehlo.channel_handle<handle=1, type=1>"
                ", use_global_device_ids",
            )
        ),
        "replica groups",
        "use_global_device_ids is set",
    ),
}


@pytest.mark.parametrize(("data", "rule", "problem"), FAULTS.values(), ids=FAULTS)
def test_fault_of_the_text_is_found(data: bytes, rule: str, problem: str):
    findings = [each for each in lint(data, ranks=RANKS, accelerator=None) if each.rule == rule]
    assert findings
    with pytest.raises(ToolchainError, match=f"program planted: .*\n(.*\n)*.*{rule}: .*{problem}"):
        check(data, name="planted", ranks=RANKS, accelerator=None)


ONE_RULE = {*FAULTS} - {"sort", "replica id", "dtype inside a reduction"}


@pytest.mark.parametrize("fault", sorted(ONE_RULE))
def test_fault_is_found_by_its_rule_alone(fault: str):
    data, rule, _ = FAULTS[fault]
    assert {each.rule for each in lint(data, ranks=RANKS, accelerator=None)} == {rule}


def test_types_count_wherever_they_stand():
    data = FAULTS["dtype inside a reduction"][0]
    places = [each.operation for each in lint(data, ranks=RANKS, accelerator=None)]
    assert places == [
        "argument 0 of func.func @main",
        "stablehlo.all_reduce (operation 2) -> tensor<4x8xf64>",
        "argument 0 of stablehlo.all_reduce (operation 2) -> tensor<4x8xf64>",
        "argument 1 of stablehlo.all_reduce (operation 2) -> tensor<4x8xf64>",
        "stablehlo.add (operation 3) -> tensor<f64>",
    ]


CLEAN = {
    "nothing": program(),
    "kernel": program(CALL.format("AwsNeuronCustomNativeKernel")),
    "all ranks": program(all_reduce(WHOLE), permute(ring(RANKS))),
    "integers in attributes": program(
        "%y = stablehlo.slice %x [0:1, 0:8] : (tensor<4x8xf32>) -> tensor<1x8xf32>"
    ),
}


@pytest.mark.parametrize("data", CLEAN.values(), ids=CLEAN)
def test_clean_program_has_no_finding(data: bytes):
    for target in (None, accelerator("trn2"), accelerator("trn3")):
        assert lint(data, ranks=RANKS, accelerator=target) == ()
        check(data, name="clean", ranks=RANKS, accelerator=target)


# --- what a target refuses ------------------------------------------------------------------------

ROWS_OF_THREE = f"[{', '.join(str([4 * c + i for c in (0, 1, 2)]) for i in range(4))}]"
LARGE = "tensor<1025x1024x512xf32>"

REFUSED: dict[str, tuple[bytes, int, Accelerator, str, str]] = {
    "three chips of a row": (
        program(all_reduce(ROWS_OF_THREE)),
        12,
        accelerator(),
        "fabric",
        r"4 of 4 groups have no route: cores 0, 4, 8 lie on chips .*; cores 1, 5, 9 .*; …",
    ),
    "offsets differ": (
        program(all_reduce("[[0, 5], [1, 4], [2, 6], [3, 7]]")),
        RANKS,
        accelerator(),
        "fabric",
        "2 of 4 groups have no route: cores 0, 5 are not the same cores of each chip",
    ),
    "ring step over a chip": (
        program(permute(ring(16, step=8))),
        16,
        accelerator(),
        "fabric",
        "16 of 16 steps have no route: a ring step from core 0 to core 8 goes from chip",
    ),
    "more ranks than cores": (
        program(permute(ring(128))),
        128,
        accelerator(),
        "fabric",
        "128 ranks are more than the 64 cores",
    ),
    "communicators": (
        program(all_reduce(WHOLE), permute(ring(RANKS))),
        RANKS,
        accelerator(communicators=1),
        "communicators",
        "2 distinct lists of replica groups; one program has at most 1",
    ),
    "large result": (
        program(
            f"%y = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f32>) -> {LARGE}",
            inputs="%x: tensor<f32>",
        ),
        1,
        accelerator(),
        "ceilings",
        f"{LARGE} takes 2.00 GiB, and a tensor at most 2.00",
    ),
    "large input": (
        program(inputs=f"%x: {LARGE}"),
        1,
        accelerator(),
        "ceilings",
        f"{LARGE} takes 2.00 GiB",
    ),
    "instructions of one operation": (
        program("%y = stablehlo.add %x, %x : tensor<4x8xf32>"),
        1,
        accelerator(operation_instructions=0),
        "ceilings",
        "about 1 instructions, and one operation has at most 0; smaller tiles",
    ),
    "instructions": (
        program("%y = stablehlo.add %x, %x : tensor<4x8xf32>"),
        1,
        accelerator(instructions=0),
        "ceilings",
        "about 1 instructions, and a program has at most 0; fewer blocks",
    ),
}


@pytest.mark.parametrize(
    ("data", "ranks", "target", "rule", "problem"), REFUSED.values(), ids=REFUSED
)
def test_what_the_target_refuses_is_found(
    data: bytes, ranks: int, target: Accelerator, rule: str, problem: str
):
    assert {each.rule for each in lint(data, ranks=ranks, accelerator=target)} == {rule}
    assert lint(data, ranks=ranks, accelerator=None) == ()
    with pytest.raises(RefusedError, match=f"{rule}: {problem}"):
        check(data, name="planted", ranks=ranks, accelerator=target)


def test_limits_themselves_are_allowed():
    data = program(all_reduce(WHOLE), permute(ring(RANKS)))
    limits = {
        "communicators": 2,
        "tensor_bytes": 4 * 8 * 4,
        "instructions": instructions(read_artifact(data)),
    }
    assert lint(data, ranks=RANKS, accelerator=accelerator(**limits)) == ()
    for name, value in limits.items():
        assert lint(data, ranks=RANKS, accelerator=accelerator(**{**limits, name: value - 1}))


def test_switch_joins_what_the_torus_does_not():
    for data, ranks, _, rule, _ in REFUSED.values():
        if rule == "fabric":
            assert lint(data, ranks=ranks, accelerator=accelerator("trn3")) == ()


def test_a_list_that_the_fabric_refuses_is_one_finding():
    data = program(all_reduce(ROWS_OF_THREE, "a"), all_reduce(ROWS_OF_THREE, "b"))
    (finding,) = lint(data, ranks=12, accelerator=accelerator())
    assert finding.operation == "stablehlo.all_reduce (operation 2) -> tensor<4x8xf32>"


def test_what_passed_is_held_against_another_target_too(tmp_path, monkeypatch):
    """And not looked at twice for the same one."""
    data, ranks, *_ = REFUSED["three chips of a row"]
    cache, planted = Cache(tmp_path), replicas(ranks)
    for _ in range(2):
        lint_cached(planted, data, of_bytes(data), None, cache)
        monkeypatch.setattr("wanc.lower.lint.lint", lambda *_, **__: pytest.fail("linted again"))
    monkeypatch.undo()
    with pytest.raises(RefusedError, match="fabric"):
        lint_cached(planted, data, of_bytes(data), accelerator(), cache)
    with pytest.raises(ToolchainError, match="leave out ranks: 12"):
        lint_cached(replicas(ranks + 1), data, of_bytes(data), None, cache)


# --- several at once ------------------------------------------------------------------------------

MANY = program(
    "%id = stablehlo.replica_id : tensor<ui32>",
    all_reduce("[[0, 5], [1, 4], [2, 3]]"),
    LOOP,
    "%y = stablehlo.convert %x : (tensor<4x8xf32>) -> tensor<4x8xf64>",
    "%z = stablehlo.convert %y : (tensor<4x8xf64>) -> tensor<4x8xf64>",
    inputs="%x: tensor<4x8xf32>, %d: tensor<?xf32>",
)


def test_all_findings_are_listed_at_once():
    target = accelerator(instructions=1, tensor_bytes=200, communicators=0)
    with pytest.raises(ToolchainError) as caught:
        check(MANY, name="dit_blocks", ranks=RANKS, accelerator=target)
    text = str(caught.value)
    assert text.startswith("program dit_blocks: fails lint (")
    for rule in ("operators", "rank identity", "dtypes", "static shapes", "replica groups"):
        assert f"\n  {rule}: " in text
    for rule in ("fabric", "communicators", "ceilings"):
        assert f"\n  {rule}: " in text
    assert "tensor<4x8xf64> takes" in text
    assert "instructions" in text


def test_findings_name_operation_and_source():
    data = program("%y = stablehlo.convert %x : (tensor<4x8xf32>) -> tensor<4x8xf64>")
    line = "model/ops.py:3 in f: `x.double()`"
    sources = [line if i == 2 else None for i in range(5)]
    (finding,) = lint(data, ranks=1, accelerator=None, sources=sources)
    assert finding.operation == "stablehlo.convert (operation 2) -> tensor<4x8xf64>"
    assert finding.source == line


def test_report_says_the_same_once():
    def finding(operation: str, source: str | None) -> Finding:
        return Finding(rule="dtypes", problem="f64", operation=operation, source=source)

    findings = [finding("a", "x.py:1"), finding("b", "x.py:1"), finding("c", None)]
    assert report("p", findings).splitlines() == [
        "program p: fails lint (3 findings)",
        "  dtypes: f64",
        "    at a and 1 more",
        "    from x.py:1",
        "  dtypes: f64",
        "    at c",
    ]
    assert report("p", findings[2:]).splitlines()[0] == "program p: fails lint"


@pytest.mark.parametrize("data", [b"", b"hello", CLEAN["all ranks"][:200]])
def test_what_is_no_artifact_is_an_error(data: bytes, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(ToolchainError, match="program's StableHLO"):
        lint(data, ranks=1, accelerator=None)
    assert capfd.readouterr() == ("", "")


def test_lint_needs_neither_torch_nor_jax():
    code = "import sys, wanc.lower.lint; assert not {'jax', 'torch'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- instructions ---------------------------------------------------------------------------------


def dot(rows: int, depth: int, columns: int, batch: int = 1) -> bytes:
    left, right = f"{batch}x{rows}x{depth}xf32", f"{batch}x{depth}x{columns}xf32"
    return program(
        "%y = stablehlo.dot_general %x, %w, batching_dims = [0] x [0],"
        " contracting_dims = [2] x [1]"
        f" : (tensor<{left}>, tensor<{right}>) -> tensor<{batch}x{rows}x{columns}xf32>",
        inputs=f"%x: tensor<{left}>, %w: tensor<{right}>",
    )


def convolution(groups: int = 1) -> bytes:
    kernel = f"256x{96 // groups}x3x3xf32"
    return program(
        "%y = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],"
        " window = {pad = [[1, 1], [1, 1]]}"
        f" {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}}"
        f" : (tensor<1x96x32x32xf32>, tensor<{kernel}>) -> tensor<1x256x32x32xf32>",
        inputs=f"%x: tensor<1x96x32x32xf32>, %w: tensor<{kernel}>",
    )


ADD = "stablehlo.add %x, %x : tensor<{}xf32>"
COUNTED = {
    "one tile": (dot(128, 128, 512), 1 + 1),
    "the other way round": (dot(512, 128, 128), 1 + 1),
    "one more row": (dot(129, 128, 512), 2 * (1 + 1)),
    "deeper sums leave PSUM once": (dot(128, 513, 512), 5 + 1),
    "batch": (dot(128, 128, 512, batch=3), 3 * (1 + 1)),
    "convolution": (convolution(), 2 * 2 * (9 * 1 + 1)),
    "element by element": (program(f"%y = {ADD.format(65537)}", inputs="%x: tensor<65537xf32>"), 2),
    "reduction counts what it reads": (
        program(
            "%i = stablehlo.constant dense<0.0> : tensor<f32>",
            "%y = stablehlo.reduce(%x init: %i) applies stablehlo.add across dimensions = [0]"
            " : (tensor<196608xf32>, tensor<f32>) -> tensor<f32>",
            inputs="%x: tensor<196608xf32>",
        ),
        3,
    ),
    "data moved": (
        program(
            "%y = stablehlo.transpose %x, dims = [1, 0] : (tensor<128x512xbf16>)"
            " -> tensor<512x128xbf16>",
            inputs="%x: tensor<128x512xbf16>",
        ),
        2,
    ),
    "collective": (program(all_reduce(WHOLE)), 1),
    "reshape": (
        program("%y = stablehlo.reshape %x : (tensor<4x8xf32>) -> tensor<32xf32>"),
        0,
    ),
    "calls": (
        program(
            "%y = call @twice(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>",
            "%z = call @twice(%y) : (tensor<4x8xf32>) -> tensor<4x8xf32>",
            functions=f"""
              func.func private @twice(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {{
                %y = {ADD.format("4x8")}
                %z = call @once(%y) : (tensor<4x8xf32>) -> tensor<4x8xf32>
                return %z : tensor<4x8xf32>
              }}
              func.func private @once(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {{
                %y = {ADD.format("4x8")}
                return %y : tensor<4x8xf32>
              }}""",
        ),
        4,
    ),
}


@pytest.mark.parametrize(("data", "count"), COUNTED.values(), ids=COUNTED)
def test_estimate_of_instructions(data: bytes, count: int):
    assert instructions(read_artifact(data)) == count

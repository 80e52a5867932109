"""Texts of MLIR compared: what came between, what is wired otherwise, what is numbered anew."""

import random
import re
import time

import pytest

from wanc.diff.text import compare_texts

HEAD = """module @m {
  func.func public @main(%arg0: tensor<4xf32> {wanc.name = "x"}, %arg1: tensor<4xf32> {wanc.name = "w"}) -> (tensor<4xf32> {wanc.name = "y"}) {"""  # noqa: E501
TAIL = "  }\n}"


def module(*lines: str) -> str:
    """A module whose values are numbered as MLIR does; lines name them as they like."""
    numbers: dict[str, str] = {}
    numbered = []
    for line in lines:
        for name in re.findall(r"%\w+", line):
            if name not in numbers and not name.startswith("%arg"):
                numbers[name] = f"%{len(numbers)}"
        numbered.append("    " + re.sub(r"%\w+", lambda m: numbers.get(m[0], m[0]), line))
    return "\n".join([HEAD, *numbered, TAIL])


def add(result: str, left: str, right: str) -> str:
    return f"{result} = stablehlo.add {left}, {right} : tensor<4xf32>"


def negate(result: str, operand: str) -> str:
    return f"{result} = stablehlo.negate {operand} : tensor<4xf32>"


LINES = [
    negate("%a", "%arg0"),
    add("%b", "%a", "%arg1"),
    add("%c", "%b", "%a"),
    add("%d", "%c", "%b"),
    add("%e", "%d", "%c"),
    negate("%f", "%e"),
    add("%g", "%f", "%a"),
    "return %g : tensor<4xf32>",
]


def marked(before: str, after: str) -> list[str]:
    """The lines that come and go, without their numbers."""
    lines = compare_texts(before, after).lines
    return [re.sub(r"\s+", " ", line) for line in lines if re.match(r"[-+]", line)]


def test_texts_that_are_the_same_have_no_line():
    found = compare_texts(module(*LINES), module(*LINES))
    assert (found.lines, found.rewired) == ((), 0)


def test_other_names_of_the_same_values_are_no_difference():
    text = module(*LINES)
    renamed = re.sub(r"%(\d)", lambda m: f"%{int(m[1]) + 40}", text).replace("%arg", "%in")
    assert compare_texts(text, renamed).lines == ()


def test_an_operation_in_the_middle_is_one_line_and_its_use():
    after = [*LINES[:4], negate("%new", "%d"), add("%e", "%new", "%c"), *LINES[5:]]
    assert marked(module(*LINES), module(*after)) == [
        "- %4 = stablehlo.add %3, %2 : tensor<4xf32>",
        "+ %4 = stablehlo.negate %3 : tensor<4xf32>",
        "+ %5 = stablehlo.add %4, %2 : tensor<4xf32>",
    ]
    assert compare_texts(module(*LINES), module(*after)).rewired == 1


def test_an_operation_that_nobody_uses_is_one_line():
    after = [*LINES[:4], negate("%new", "%d"), *LINES[4:]]
    added = ["+ %4 = stablehlo.negate %3 : tensor<4xf32>"]
    assert marked(module(*LINES), module(*after)) == added
    assert marked(module(*after), module(*LINES)) == [added[0].replace("+", "-", 1)]


def test_a_unified_diff_has_three_lines_of_context_and_counts():
    after = [*LINES[:4], negate("%new", "%d"), *LINES[4:]]
    assert compare_texts(module(*LINES), module(*after)).lines == (
        "@@ -5,6 +5,7 @@",
        "     %1 = stablehlo.add %0, %arg1 : tensor<4xf32>",
        "     %2 = stablehlo.add %1, %0 : tensor<4xf32>",
        "     %3 = stablehlo.add %2, %1 : tensor<4xf32>",
        "+    %4 = stablehlo.negate %3 : tensor<4xf32>",
        "     %5 = stablehlo.add %3, %2 : tensor<4xf32>",
        "     %6 = stablehlo.negate %5 : tensor<4xf32>",
        "     %7 = stablehlo.add %6, %0 : tensor<4xf32>",
    )


@pytest.mark.parametrize(
    "other", [add("%e", "%c", "%d"), add("%e", "%d", "%d"), add("%e", "%d", "%b")]
)
def test_other_operands_alone_are_seen(other):
    after = [*LINES[:4], other, *LINES[5:]]
    found = compare_texts(module(*LINES), module(*after))
    assert found.rewired == 1
    assert [line[0] for line in found.lines if line[0] in "-+"] == ["-", "+"]
    (old, new) = marked(module(*LINES), module(*after))
    assert old == "- %4 = stablehlo.add %3, %2 : tensor<4xf32>"
    assert new != old.replace("-", "+", 1)


def test_an_operation_that_became_another_leaves_its_uses_alone():
    after = [*LINES[:5], LINES[5].replace("negate", "abs"), *LINES[6:]]
    assert marked(module(*LINES), module(*after)) == [
        "- %5 = stablehlo.negate %4 : tensor<4xf32>",
        "+ %5 = stablehlo.abs %4 : tensor<4xf32>",
    ]


def test_parameters_have_lines_of_their_own():
    more = module(*LINES).replace(", %arg1:", ', %arg2: tensor<8xf32> {wanc.name = "new"}, %arg1:')
    assert marked(module(*LINES), more) == ['+%arg2: tensor<8xf32> {wanc.name = "new"},']
    renamed = module(*LINES).replace('"w"', '"v"')
    assert [line[:6] for line in marked(module(*LINES), renamed)] == ["-%arg1", "+%arg1"]


REGION = [
    '%r = "stablehlo.all_reduce"(%arg0) ({',
    "^bb0(%arg8: tensor<f32>, %arg9: tensor<f32>):",
    "  %0 = stablehlo.add %arg8, %arg9 : tensor<f32>",
    "  stablehlo.return %0 : tensor<f32>",
    "}) : (tensor<4xf32>) -> tensor<4xf32>",
]


def test_numbers_that_regions_use_again_are_other_values():
    def text(*body: str) -> str:
        return "\n".join([HEAD, *REGION, *body, TAIL])

    before = text("%0 = stablehlo.negate %r : t", "return %0 : t")
    after = text("%0 = stablehlo.abs %arg1 : t", "%1 = stablehlo.negate %r : t", "return %1 : t")
    assert marked(before, after) == ["+%0 = stablehlo.abs %arg1 : t"]


def test_results_of_one_operation_are_told_apart():
    split = "%s:2 = stablehlo.custom_call @split(%arg0) : (t) -> (t, t)"
    before, after = ("\n".join([HEAD, split, f"return %s#{i} : t", TAIL]) for i in (0, 1))
    assert marked(before, after) == ["-return %s#0 : t", "+return %s#1 : t"]


def test_functions_of_the_module_are_values_too():
    def text(*numbers: int) -> str:
        calls = [f"%{i} = call @clip_{n}(%arg0) : (t) -> t" for i, n in enumerate(numbers)]
        made = [f"  func.func private @clip_{n}(%arg0: t{n}) -> t {{" for n in sorted({*numbers})]
        return "\n".join([HEAD, *calls, TAIL, *made])

    assert marked(text(1, 2), re.sub(r"@clip_(\d)", r"@clip_1\1", text(1, 2))) == []
    assert marked(text(1, 2, 1), text(1, 2, 2)) == [
        "-%2 = call @clip_1(%arg0) : (t) -> t",
        "+%2 = call @clip_2(%arg0) : (t) -> t",
    ]


def test_a_custom_call_is_known_by_its_whole_name():
    before, after = (f"%0 = stablehlo.custom_call @ring_{n}(%arg0) : t" for n in (1, 2))
    assert len(marked(before, after)) == 2


def test_many_changes_in_a_long_program_are_all_that_is_seen_and_soon():
    """Blocks that are alike but for their weights, as a transformer's are."""
    blocks, random_ = 400, random.Random(1)
    weights = ", ".join(f'%w{i}: t {{wanc.name = "blocks.{i}.w"}}' for i in range(blocks))
    head = f"  func.func public @main(%x: t, {weights}) -> t {{"

    def text(negated: set[int]) -> str:
        lines, numbers, last = [head], iter(range(10**6)), "%x"
        for i in range(blocks):
            made = f"%{next(numbers)}"
            lines.append(f"    {made} = stablehlo.multiply {last}, %w{i} : t")
            for _ in range(30):
                last, made = made, f"%{next(numbers)}"
                lines.append(f"    {made} = stablehlo.add {last}, {last} : t")
            if i in negated:
                last, made = made, f"%{next(numbers)}"
                lines.append(f"    {made} = stablehlo.negate {last} : t")
            last = made
        return "\n".join([*lines, f"    return {last} : t", "  }"])

    changed = set(random_.sample(range(blocks), 20))
    started = time.monotonic()
    found = compare_texts(text(set()), text(changed))
    assert time.monotonic() - started < 10
    signs = [line[0] for line in found.lines if line[0] in "-+"]
    assert (signs.count("-"), signs.count("+")) == (20, 40)
    assert found.rewired == 20

"""wanc diff: what two bundles or locks have differently, and what is compiled again for it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wanc.cli import options
from wanc.cli.bundles import local_bundle
from wanc.cli.differences import MOST, difference_lines, numbered, shown
from wanc.cli.terminal import emit, emit_json, plain, table
from wanc.diff.again import Distinct
from wanc.diff.changes import words_changed
from wanc.diff.compare import Compared, Difference, compare
from wanc.diff.side import Side, side_of
from wanc.diff.text import compare_texts
from wanc.errors import BundleError, RequestError
from wanc.units import count, size

if TYPE_CHECKING:
    from wanc.lower.text import Text
    from wanc.share.pull import Programs

_MOST_LETTERS = 400
"""Of one line of a text: constants may have millions."""


def diff_command(
    a: Annotated[str, typer.Argument(metavar="A", help="A bundle, or a lock file.")],
    b: Annotated[str, typer.Argument(metavar="B", help="A bundle, or a lock file.")],
    text: Annotated[
        bool, typer.Option("--text", help="Also show how the StableHLO of programs differs.")
    ] = False,
    program: Annotated[
        str | None, typer.Option("--program", help="With --text: only programs of this name.")
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 where anything differs.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show what differs between two bundles or locks, and why.

    And which programs are compiled again for it."""
    if program is not None and not text:
        raise RequestError("--program: narrows --text, which is not given")
    programs: Programs = "all" if text else "none"
    before, after = (
        replace(side_of(str(local_bundle(Path(each), programs))), text=each) for each in (a, b)
    )
    try:
        compared = compare(before, after)
        texts = text_changes(before, after, compared, program) if text else None
        if json:
            emit_json(compared_json(before, after, compared, texts))
        else:
            print_compared(before, after, compared)
            for each in texts or ():
                print_text(each)
            if texts == []:
                emit("\nno text differs")
    except RecursionError as error:
        raise BundleError(f"{a}, {b}: a config nests too deep to be compared") from error
    if exit_code and compared.differs:
        raise typer.Exit(1)


# --- the text of programs ------------------------------------------------------------------


def text_changes(a: Side, b: Side, compared: Compared, program: str | None) -> list[dict[str, Any]]:
    """Every two texts that differ, once; raises RequestError where they are not to be had."""
    locks = [side.text for side in (a, b) if not side.bundle]
    if locks:
        raise RequestError(
            f"--text: {' and '.join(locks)}: a lock has digests and no programs; give two bundles"
        )
    known = sorted({name for side in (a, b) for each in side.digests.values() for name in each})
    if program is not None and program not in known:
        names = plain(", ".join(known))
        raise RequestError(f"--program {program!r}: neither has it; they have {names}")
    found = [
        each
        for each in compared.differences
        if each.kind == "stablehlo" and program in (None, *(p.program for p in each.places))
    ]
    from wanc.lower.text import texts_of

    texts = texts_of(
        {digest: data for each in found for digest, data in _artifacts(a, b, each).items()}
    )
    return [_text_change(each, texts[each.before], texts[each.after]) for each in found]


def _text_change(difference: Difference, before: "Text", after: "Text") -> dict[str, Any]:
    changes = compare_texts(before.text, after.text)
    names = sorted({**before.operators, **after.operators})
    counts = [(name, before.operators.get(name, 0), after.operators.get(name, 0)) for name in names]
    return {
        "programs": sorted({str(place.program) for place in difference.places}),
        "before": difference.before,
        "after": difference.after,
        "operators": [
            {"name": name, "before": old, "after": new} for name, old, new in counts if old != new
        ],
        "rewired": changes.rewired,
        "lines": list(changes.lines),
    }


def _artifacts(a: Side, b: Side, difference: Difference) -> dict[str, bytes]:
    """Both artifacts of a difference, by digest."""
    found = {}
    place = difference.places[0]
    for side in (a, b):
        blob = side.configs[place.variant].program(str(place.program)).stablehlo
        assert side.bundle, "text_changes refuses locks"
        assert blob, "a difference of StableHLO has both"
        found[blob.digest] = side.bundle.read(blob)
    return found


def print_text(changes: dict[str, Any]) -> None:
    """Operators that come or go, and the lines that differ."""
    pair = f"{shown(changes['before'])} -> {shown(changes['after'])}"
    emit(plain(f"\n{', '.join(changes['programs'])}: StableHLO {pair}"))
    rows = [(plain(o["name"]), str(o["before"]), str(o["after"])) for o in changes["operators"]]
    if rows:
        table("", ("operator", "before>", "after>"), rows)
    else:
        emit("as many of every operator\n")
    for line in changes["lines"]:
        more = f" … {len(line)} letters" if len(line) > _MOST_LETTERS else ""
        emit(plain(line[:_MOST_LETTERS]) + more)
    if not changes["lines"]:
        emit("no line differs, but for numbers of values")
    rewired = changes["rewired"]
    if rewired:
        emit(f"{count(rewired, 'line')} with other operands alone")


# --- what is shown -------------------------------------------------------------------------


def print_compared(a: Side, b: Side, compared: Compared) -> None:
    """Variants, differences, and what is compiled again."""
    for name, side in (("A", a), ("B", b)):
        what = f"bundle {side.bundle.digest[:19]}" if side.bundle else "lock"
        emit(plain(f"{name}  {side.text}\n   {what}, {count(len(side.digests), 'variant')}"))
    if not (a.bundle and b.bundle):
        emit("compared as far as locks go: variants, programs, StableHLO")
    emit("")
    if not compared.differs:
        emit("nothing differs")
        return
    numbers = numbered(compared)
    signs = dict.fromkeys(compared.added, "added") | dict.fromkeys(compared.removed, "removed")
    rows = [(str(n), signs.get(v, "differs"), plain(v)) for v, n in numbers.items()]
    table("Variants", (">", "", "variant"), rows)
    same = sum(variant in b.digests and variant not in numbers for variant in a.digests)
    if same:
        emit(f"{count(same, 'other variant')} without a difference\n")
    for line in difference_lines(compared, numbers):
        emit(line)
    print_again(compared)


def print_again(compared: Compared) -> None:
    """The programs of B that A does not have, and how much it has."""
    rows = [
        (
            plain(", ".join(dict.fromkeys(str(place.program) for place in each.places))),
            shown(each.stablehlo),
            "-" if each.bytes is None else size(each.bytes),
            str(len({place.variant for place in each.places})),
            plain(", ".join(each.why)) or "-",
        )
        for each in compared.again[:MOST]
    ]
    if rows:
        columns = ("program", "stablehlo", "executable>", "variants>", "why")
        table("Compiled again for B", columns, rows)
    if len(compared.again) > MOST:
        emit(f"and {len(compared.again) - MOST} more, which --json names\n")
    emit(f"compiled again: {amount(compared.again)}")
    emit(f"shared with A:  {amount(compared.shared)}")
    if compared.not_lowered:
        emit(f"not known:      {count(compared.not_lowered, 'program')} that B has not lowered")


def amount(programs: Sequence[Distinct]) -> str:
    """How many there are, and the bytes of their executables."""
    known = [each.bytes for each in programs if each.bytes is not None]
    return count(len(programs), "program") + (f", {size(sum(known))}" if known else "")


def compared_json(
    a: Side, b: Side, compared: Compared, texts: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """Everything, for programs."""
    import msgspec

    made: dict[str, Any] = {
        name: {
            "name": side.text,
            "digest": side.bundle.digest if side.bundle else None,
            "variants": len(side.digests),
        }
        for name, side in (("a", a), ("b", b))
    }
    made |= {"differs": compared.differs, **msgspec.to_builtins(compared)}
    for each in made["differences"]:
        words = words_changed(each["before"], each["after"])
        if words:
            each["added"], each["removed"] = words
    return made if texts is None else made | {"texts": texts}

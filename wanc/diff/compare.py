"""What two bundles or locks have differently, and what of it is compiled again.

One cause that holds for many programs is one difference with many places. Between bundles nothing
is left out but the order of variants and programs; with a lock on either side, variants, programs
and StableHLO are all that is compared.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from wanc.bundle.config import ProgramRecord, VariantConfig
from wanc.diff.again import Distinct, Place, compiled
from wanc.diff.changes import Change, FieldPath, changes, same
from wanc.diff.side import Side
from wanc.digest import of_json

Kind = Literal[
    "not_reproducible",
    "compile_key",
    "model",
    "options",
    "requires",
    "geometry",
    "tokens",
    "mesh",
    "tiles",
    "stage",
    "program_added",
    "program_removed",
    "graph",
    "abi",
    "collectives",
    "schedule",
    "stablehlo",
]
"""In the order in which they are told: causes before what follows from them."""

KINDS: tuple[Kind, ...] = get_args(Kind)

_ABI = ("replica_count", "weights", "inputs", "outputs", "donated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that differs, with everywhere that it does so."""

    kind: Kind
    path: FieldPath
    """What it is below its kind; empty where the kind says all."""
    before: Any
    """A JSON value; None where it is not there."""
    after: Any
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """All that two sides have differently."""

    added: tuple[str, ...]
    """Variants that only B has."""
    removed: tuple[str, ...]
    differences: tuple[Difference, ...]
    """Of variants that both have."""
    again: tuple[Distinct, ...]
    """Programs of B whose executables, or where there are none StableHLO, A has nowhere."""
    shared: tuple[Distinct, ...]
    not_lowered: int
    """Programs of B's variants whose StableHLO is not known."""

    @property
    def differs(self) -> bool:
        """Whether anything does."""
        return bool(self.added or self.removed or self.differences)


def compare(a: Side, b: Side) -> Compared:
    """Compare two sides; raises RecursionError where a value nests too deep to be compared."""
    found: dict[tuple[Kind, FieldPath, str], list[tuple[Change, Place]]] = {}
    for kind, change, place in _differences(a, b):
        key = (kind, change.path, of_json([change.before, change.after]))
        found.setdefault(key, []).append((change, place))
    differences = tuple(
        Difference(
            kind=kind,
            path=path,
            before=each[0][0].before,
            after=each[0][0].after,
            places=tuple(place for _, place in each),
        )
        for (kind, path, _), each in sorted(found.items(), key=lambda item: KINDS.index(item[0][0]))
    )
    again, shared = compiled(a, b, _reasons(a, b, differences))
    return Compared(
        added=tuple(variant for variant in b.digests if variant not in a.digests),
        removed=tuple(variant for variant in a.digests if variant not in b.digests),
        differences=differences,
        again=again,
        shared=shared,
        not_lowered=sum(digest is None for each in b.digests.values() for digest in each.values()),
    )


# --- what differs --------------------------------------------------------------------------

_Found = Iterator[tuple[Kind, Change, Place]]


def _differences(a: Side, b: Side) -> _Found:
    for variant in (variant for variant in a.digests if variant in b.digests):
        before, after = a.digests[variant], b.digests[variant]
        for name in {**before, **after}:
            place = Place(variant=variant, program=name)
            if name not in after:
                yield "program_removed", _change(before[name], None), place
            elif name not in before:
                yield "program_added", _change(None, after[name]), place
            elif a.bundle and b.bundle:
                records = (side.configs[variant].program(name) for side in (a, b))
                yield from ((kind, change, place) for kind, change in _of_program(*records))
            else:
                stages = ["lower" if side[name] else "plan" for side in (before, after)]
                if stages[0] != stages[1]:
                    yield "stage", _change(*stages), place
                elif before[name] != after[name]:
                    yield "stablehlo", _change(before[name], after[name]), place
        if a.bundle and b.bundle:
            yield from _of_variant(variant, a.configs[variant], b.configs[variant])


def _of_variant(variant: str, before: VariantConfig, after: VariantConfig) -> _Found:
    old, new = _json(before), _json(after)
    for kind in KINDS:
        # what a machine must have is known once there are executables
        if kind in old and (kind != "requires" or before.stage == after.stage):
            for change in changes(old[kind], new[kind]):
                yield kind, change, Place(variant=variant)


def _of_program(before: ProgramRecord, after: ProgramRecord) -> Iterator[tuple[Kind, Change]]:
    stages = _stage(before), _stage(after)
    if stages[0] != stages[1]:
        yield "stage", _change(*stages)
    if before.stablehlo and after.stablehlo and before.stablehlo != after.stablehlo:
        yield "stablehlo", _change(before.stablehlo.digest, after.stablehlo.digest)
    made, remade = before.executable, after.executable
    if bool(made) == bool(remade):
        yield from (("compile_key", change) for change in _of_keys(before, after))
        if made and remade and made != remade and same(before.compile_key, after.compile_key):
            yield "not_reproducible", _change(made.digest, remade.digest)
    old, new = _json(before), _json(after)
    yield from (("collectives", c) for c in changes(old["collectives"], new["collectives"]))
    for change in changes(old["program"], new["program"]):
        yield "abi" if change.path[0] in _ABI else "graph", change


def _of_keys(before: ProgramRecord, after: ProgramRecord) -> Iterator[Change]:
    """What keys differ in, but for StableHLO where they say no more than the records do."""
    told = all(
        record.stablehlo and record.compile_key.get("stablehlo") == record.stablehlo.digest
        for record in (before, after)
    )
    for change in changes(before.compile_key, after.compile_key):
        if not told or change.path != ("stablehlo",):
            yield change


def _change(before: Any, after: Any) -> Change:
    return Change(path=(), before=before, after=after)


def _json(record: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(record))


def _stage(record: ProgramRecord) -> str:
    return "compile" if record.executable else "lower" if record.stablehlo else "plan"


# --- why it is compiled again --------------------------------------------------------------

_WHY: dict[Kind, str] = {"stablehlo": "StableHLO", "stage": "stage", "program_added": "new program"}


def _reasons(a: Side, b: Side, differences: tuple[Difference, ...]) -> dict[Place, list[str]]:
    """Why the program of a place may not be one that A has."""
    found: dict[Place, list[str]] = {}
    for each in differences:
        why = each.path[0] if each.kind == "compile_key" else _WHY.get(each.kind)
        for place in each.places if why else ():
            found.setdefault(place, []).append(str(why))
    for variant in (variant for variant in b.digests if variant not in a.digests):
        for name in b.digests[variant]:
            found[Place(variant=variant, program=name)] = ["new variant"]
    return found

"""Which programs of one side are compiled again, and which ones the other has already.

A program is compiled once, whichever variants it serves: it is known by its compile key, or where
nothing was compiled by its target and its StableHLO. With a lock, by its StableHLO alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wanc.diff.side import Side
from wanc.digest import of_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A variant, or a program of it."""

    variant: str
    program: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Distinct:
    """A program of B that is compiled once."""

    stablehlo: str
    bytes: int | None
    """Of its executable, where there is one."""
    why: tuple[str, ...]
    """Why A does not have it; empty where it does."""
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """A variant's use of a program that was lowered."""

    place: Place
    stablehlo: str
    target: str
    """Empty where it is not asked for."""
    key: str | None
    """None where nothing was compiled, or it is not asked for."""
    bytes: int | None

    @property
    def identity(self) -> tuple[str, ...]:
        """What uses of one executable have in common."""
        return (self.key,) if self.key else (self.target, self.stablehlo)


def compiled(
    a: Side, b: Side, reasons: Mapping[Place, Sequence[str]]
) -> tuple[tuple[Distinct, ...], tuple[Distinct, ...]]:
    """B's programs that A has nowhere, each with why, and those that it has."""
    with_keys = bool(a.bundle and b.bundle)
    had = [*_uses(a, with_keys)]
    lowered = {(use.target, use.stablehlo) for use in had}
    known = {use.identity for use in had}
    found: dict[tuple[str, ...], list[_Use]] = {}
    for use in _uses(b, with_keys):
        found.setdefault(use.identity, []).append(use)
    again: list[Distinct] = []
    shared: list[Distinct] = []
    for identity, uses in found.items():
        first = uses[0]
        text = (first.target, first.stablehlo)
        is_known = bool({identity, text} & known or (not first.key and text in lowered))
        why = () if is_known else (why for use in uses for why in reasons.get(use.place, ()))
        (shared if is_known else again).append(
            Distinct(
                stablehlo=first.stablehlo,
                bytes=first.bytes,
                why=tuple(dict.fromkeys(why)),
                places=tuple(use.place for use in uses),
            )
        )
    return tuple(again), tuple(shared)


def _uses(side: Side, with_keys: bool) -> Iterator[_Use]:
    for variant, programs in side.digests.items():
        config = side.configs.get(variant)
        for name, digest in programs.items():
            if digest is None:
                continue
            record = config.program(name) if config else None
            made = record.executable if record else None
            yield _Use(
                place=Place(variant=variant, program=name),
                stablehlo=digest,
                target=config.variant.target if config and with_keys else "",
                key=of_json(record.compile_key) if record and made and with_keys else None,
                bytes=made.size_bytes if made else None,
            )

"""Numbers for people: counts, bytes, seconds. Knows nothing of what is counted."""

from collections.abc import Iterable

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MOST = 1 << 90
"""More bytes than there are: what says that it has more is damaged, and still shown."""


def count(number: int, what: str) -> str:
    """A number of things, in the singular or the plural."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def size(bytes_: int) -> str:
    """Bytes for people."""
    value = float(min(bytes_, _MOST))
    for unit in UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {UNITS[-1]}"


def seconds(value: float) -> str:
    """Seconds for people, with two or three digits."""
    return f"{value:.{0 if value >= 99.5 else 1 if value >= 9.95 else 2}f} s"


def spans(numbers: Iterable[int]) -> str:
    """Whole numbers in their order, those that follow one another as ``0-39``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] + 1 == number:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("-".join(map(str, span)) for span in found)

"""Colours of coordinates: cividis, which those who see few colours read as others do.

Nuñez, Anderton, Renslow: Optimizing colormaps with consideration for color vision deficiency to
enable accurate interpretation of scientific data, 2018.
"""

from dataclasses import dataclass

_ANCHORS = (
    *((0, 34, 78), (33, 58, 111), (76, 85, 107), (108, 110, 114)),
    *((141, 137, 118), (175, 165, 112), (211, 194, 99), (254, 232, 56)),
)
"""Red, green, blue at equal steps of the map."""

_FIRST, _LAST = 0.13, 0.93
"""Part of the map that is used: its ends are those of a dark and of a light page."""

_DARK, _LIGHT = "#000000", "#ffffff"
_EVEN = 0.179
"""Luminance on which either has a contrast of 4.6, and on any other one of them has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paint:
    """A colour to fill with, and that of text on it."""

    fill: str
    ink: str


def ordinal(index: int, count: int) -> Paint:
    """The colour of one of so many ordered things."""
    share = index / (count - 1) if count > 1 else 0.0
    place = (len(_ANCHORS) - 1) * (_FIRST + (_LAST - _FIRST) * share)
    before = min(int(place), len(_ANCHORS) - 2)
    red, green, blue = (
        round(low + (high - low) * (place - before))
        for low, high in zip(_ANCHORS[before], _ANCHORS[before + 1], strict=True)
    )
    is_dark = 0.2126 * _linear(red) + 0.7152 * _linear(green) + 0.0722 * _linear(blue) < _EVEN
    return Paint(fill=f"#{red:02x}{green:02x}{blue:02x}", ink=_LIGHT if is_dark else _DARK)


def _linear(value: int) -> float:
    """An sRGB value as light, of which luminance is a sum (WCAG 2)."""
    part = value / 255
    return part / 12.92 if part <= 0.04045 else float(((part + 0.055) / 1.055) ** 2.4)

"""What a toy clip shows, and the sentences that say so. Knows no pixels and no networks."""

import random
from dataclasses import dataclass
from itertools import product

COLORS = ("red", "green", "blue", "yellow")
KINDS = ("circle", "square", "triangle")
DIRECTIONS = ("left", "right", "up", "down")
BACKGROUNDS = ("dark", "light")

HELD_OUT_SCENES = 10
_HOLD_OUT_SEED = 1431


@dataclass(frozen=True, slots=True)
class Scene:
    """One shape that moves. None is an attribute that a sentence leaves open."""

    color: str | None
    kind: str | None
    direction: str | None
    background: str | None

    def sentence(self) -> str:
        """As ``a red circle moving left over a dark background``, with the parts that are named."""
        return " ".join(
            [
                "a",
                *([self.color] if self.color else []),
                self.kind or "shape",
                *(["moving", self.direction] if self.direction else []),
                *(["over", "a", self.background, "background"] if self.background else []),
            ]
        )


SCENES = tuple(Scene(*parts) for parts in product(COLORS, KINDS, DIRECTIONS, BACKGROUNDS))
"""Every scene of the grammar, with all four parts."""

HELD_OUT = tuple(random.Random(_HOLD_OUT_SEED).sample(SCENES, HELD_OUT_SCENES))
"""Scenes of which no clip is trained on."""

TRAINED = tuple(scene for scene in SCENES if scene not in HELD_OUT)

WORDS = (
    *("a", "moving", "over", "background", "shape"),
    *(*COLORS, *KINDS, *DIRECTIONS, *BACKGROUNDS),
)
"""Every word of the grammar."""

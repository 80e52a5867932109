"""What one run showed, stage by stage. Knows no model, and nothing of who ran it."""

from dataclasses import dataclass, field

import numpy as np

from wanc.arrays import Array
from wanc.run.observe import CONDITION, LATENTS, PIXELS, TEXT

STAGES = (TEXT, CONDITION, LATENTS, PIXELS)
"""In the order of a run. Only latents have steps; the others are at step 0."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What one run showed. A run that is repeated is recorded as it was the last time."""

    values: dict[tuple[str, int], Array] = field(default_factory=dict)
    """Values in fp32, by stage and step."""

    def observe(self, stage: str, step: int, values: Array) -> None:
        """Copy a stage's values, of any float dtype, as fp32."""
        assert stage in STAGES, stage
        self.values[stage, step] = np.array(values, dtype=np.float32)

    @property
    def moments(self) -> tuple[tuple[str, int], ...]:
        """What there are values of, in the order of a run."""
        return tuple(sorted(self.values, key=lambda moment: (STAGES.index(moment[0]), moment[1])))

"""Draws the weights of the tiny checkpoint, one tensor at a time.

Knows nothing of networks or files: a name and a shape give an array.

The numbers are such that a fault in any mechanism moves the final latents far beyond the
tolerances while rounding does not: ``RULES`` says what is drawn and why. Only uniform numbers
are drawn, by PCG64 and plain IEEE arithmetic, from one stream for each tensor: the same bytes
on every machine, whatever the order of drawing.
"""

import hashlib
import re
from dataclasses import dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Rule:
    """How the tensors whose ``component/name`` matches are drawn; the first match wins."""

    pattern: str
    kind: Literal["within", "heads", "gain"]
    """within: from low to high. heads: likewise, but each head keeps to a level of its own.
    gain: mean 0, std gain / sqrt(fan in), the gain rising from low to high over the rows."""
    low: float
    high: float
    why: str


RULES = (
    Rule(r"norm_[qk]\.weight", "heads", 0.5, 3.0, "soft heads show pad keys, sharp ones lost keys"),
    Rule(r"\.to_[qk]\.weight", "gain", 0.6, 1.4, "no half of the heads has the mean square of all"),
    Rule(r"attn\d\.to_out.*weight", "gain", 2.0, 2.0, "attention outweighs the residual stream"),
    Rule(r"norm2\.weight", "within", 0.5, 1.5, "a lost norm weight shows"),
    Rule(r"scale_shift_table", "within", -1.0, 1.0, "each row of the modulation shows"),
    Rule(r"time_embedder.*weight", "gain", 1.4, 1.4, "SiLU shrinks: timesteps still differ"),
    Rule(r"proj_out\.weight", "gain", 0.5, 0.5, "velocities below 1: latents stay O(1..10)"),
    Rule(r"encoder/shared", "within", -1.7, 1.7, "std 1: prompts differ"),
    Rule(r"relative_attention_bias", "within", -2.0, 2.0, "positions of text tokens show"),
    Rule(r"SelfAttention\.q", "gain", 0.4, 0.4, "UMT5's scores are unscaled: std near 1.5"),
    Rule(r"layer_norm|gamma", "within", 0.5, 1.5, "a lost norm weight shows"),
    Rule(r"decoder\.conv_out\.weight", "gain", 0.7, 0.7, "pixels fill [-1, 1], few saturate"),
    Rule(r"encoder\.conv_out\.weight", "gain", 4.0, 4.0, "latents near the std the VAE states"),
    Rule(r"bias$", "within", -0.4, 0.4, "a bias lost, or added once a rank, shows"),
    Rule(r"weight$", "gain", 1.0, 1.0, "magnitudes last"),
)


def draw(name: str, shape: tuple[int, ...], *, seed: int, heads: int) -> "npt.NDArray[np.float32]":
    """The tensor ``component/name`` of the checkpoint with this seed, for so many heads."""
    import numpy as np

    rule = rule_for(name)
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    stream = np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))
    unit = stream.random(shape)
    if rule.kind == "within":
        values = rule.low + (rule.high - rule.low) * unit
    elif rule.kind == "gain":
        gains = np.linspace(rule.low, rule.high, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
        values = (2 * unit - 1) * gains * sqrt(3 / prod(shape[1:]))
    else:
        bands = np.argsort(stream.random(heads))  # each head gets one of equal bands low..high
        band_of_row = np.repeat(bands, shape[0] // heads)
        values = rule.low + (rule.high - rule.low) / heads * (band_of_row + unit)
    return values.astype(np.float32)


def rule_for(name: str) -> Rule:
    """The rule that ``component/name`` is drawn by."""
    return next(rule for rule in RULES if re.search(rule.pattern, name))

"""Names that tests of this folder take from here."""

from tests.compiled import PROMPT, SEED, STEPS, tiny_plan

__all__ = ["PROMPT", "SEED", "STEPS", "tiny_plan"]

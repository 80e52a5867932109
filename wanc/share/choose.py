"""Which variants of a bundle are wanted, by words of theirs."""

from collections.abc import Sequence

from wanc.bundle.store import BundleVariant
from wanc.errors import RequestError


def chosen_variants(
    variants: Sequence[BundleVariant], wanted: Sequence[str], where: str
) -> list[BundleVariant]:
    """The variants that have all words of one of the texts; all where none is given.

    A text is as ``832x480x81 tp4-cp8-cfg2 bf16``, or a number from 1. Raises RequestError for one
    that none has.
    """
    if not wanted:
        return list(variants)
    found = []
    for text in wanted:
        words = {*text.split()}
        fitting = [
            variant
            for number, variant in enumerate(variants, start=1)
            if words <= {str(number), *variant.config.variant.texts().values()}
        ]
        if not fitting or not words:
            listed = "\n  ".join(
                f"{number} {variant.config.variant}"
                for number, variant in enumerate(variants, start=1)
            )
            raise RequestError(f"--variant {text!r}: {where} has:\n  {listed}")
        found += [variant for variant in fitting if variant not in found]
    return found

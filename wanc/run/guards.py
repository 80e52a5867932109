"""Guards of a run: values that must not go on. Knows arrays and where they came from."""

from typing import Any

import numpy as np

from wanc.errors import RunError


def check_finite(array: Any, stage: str, what: str) -> None:
    """Raise RunError where a value is not finite."""
    values = np.asarray(array)
    if not np.isfinite(values).all():
        bad = int(values.size - np.isfinite(values).sum())
        raise RunError(
            f"stage {stage}: {what}: {bad} of {values.size} values are not finite; "
            "look for NaN or infinity in the checkpoint's weights"
        )

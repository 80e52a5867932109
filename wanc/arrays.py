"""Host arrays as runtimes like them. Knows no runtime and no checkpoint."""

from typing import Any

import ml_dtypes  # noqa: F401  names bfloat16 to numpy
import numpy as np

Array = np.ndarray[Any, Any]

ALIGN_BYTES = 64
"""Host memory of this alignment is what runtimes share with their devices instead of copying."""


def aligned(array: Array, dtype: Any) -> Array:
    """The array in C order, of the dtype and aligned: itself where it is so, else a copy."""
    kind = np.dtype(dtype)
    fits = array.flags.c_contiguous and array.ctypes.data % ALIGN_BYTES == 0
    if fits and array.dtype == kind:
        return array
    room = np.empty(array.size * kind.itemsize + ALIGN_BYTES, np.uint8)
    start = -room.ctypes.data % ALIGN_BYTES
    copy: Array = room[start : start + array.size * kind.itemsize].view(kind).reshape(array.shape)
    copy[...] = array
    return copy

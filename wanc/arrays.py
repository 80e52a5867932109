"""Host arrays as runtimes like them, and the memory under them. Knows no runtime, no checkpoint."""

import ctypes
from typing import Any

import ml_dtypes  # noqa: F401  names bfloat16 to numpy
import numpy as np

Array = np.ndarray[Any, Any]

_libc = ctypes.CDLL(None)
_M_ARENA_MAX = -8
"""malloc.h's number of the option."""
_HEAPS = 2

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


def keep_heaps_few() -> None:
    """Have glibc share heaps among threads, where it is asked before they start.

    It would make one for each of XLA's threads, and activations that lie scattered over dozens of
    heaps leave holes in all of them: a process that generates again and again keeps growing.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, _HEAPS)


def give_freed_memory_back() -> None:
    """Return to the system what the process has freed and glibc keeps."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)

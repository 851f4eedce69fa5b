"""numpy arrays for kernels: a wrong one would be a crash there, so it is one line here."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray

LINE = 64  # bytes of a cache line, where packed weights begin

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def aligned(num_bytes: int) -> Bytes:
    """So many zeros, from a cache line on."""
    room = np.zeros(num_bytes + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    return room[start : start + num_bytes]


def check(name: str, array: NDArray[np.generic], dtype: DTypeLike, *shape: int) -> None:
    """Raises ValueError for an array that isn't of this type and shape, or that has gaps."""
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        gaps = "" if array.flags.c_contiguous else " with gaps"
        raise ValueError(f"{name}: {array.dtype} {array.shape}{gaps}; it is to be {np.dtype(dtype)} {shape}")


def check_range(name: str, array: NDArray[np.integer], low: int, high: int) -> None:
    """Raises ValueError for a number below `low` or above `high`."""
    if not array.size:
        return
    least, most = np.minimum.reduce(array), np.maximum.reduce(array)  # half the time of min() and max()
    if least < low or most > high:
        raise ValueError(f"{name}: {least} to {most}; allowed is {low} to {high}")


def pointer(array: NDArray[np.generic] | None) -> int | None:
    return None if array is None else array.ctypes.data

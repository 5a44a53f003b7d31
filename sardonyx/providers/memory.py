"""Where values live: an allocator for each kind of memory."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

# A cache line, and the widest vector.
ALIGNMENT = 64


class Allocator(Protocol):
    """Gives memory of one device."""

    name: str  # as memory descriptions show it: "Cpu", "Cuda"
    device: str  # as callers name it: "cpu", "cuda"

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A new tensor whose elements are not set; MemoryError where there is no room."""


class HostAllocator:
    """Memory that the processor reads directly, aligned to `ALIGNMENT` bytes."""

    name = "Cpu"
    device = "cpu"

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An array of `shape`; an array of objects holds None."""
        if dtype.kind == "O":
            return np.empty(shape, dtype)
        size = math.prod(shape) * dtype.itemsize
        memory = np.empty(size + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + size].view(dtype).reshape(shape)

"""Memory of large results, kept when an array dies and used again for the next one.

There is one pool in the process, because results outlive sessions. Small arrays are NumPy's own business: below
`SMALLEST` bytes the system's allocator does not return memory to the kernel.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.light_enum import Numbers

Array = np.ndarray[Any, Any]

SMALLEST = 128 << 10
ALIGNMENT = 64
PAGE = 4096
LARGE_PAGES_FROM = 4 << 20  # bytes of blocks for which Linux is asked for large pages, as NumPy asks for its arrays
MADV_HUGEPAGE = 14  # Linux's number for it
BLOCKS = 256  # rows of the table
LARGEST_KEPT = 256 << 20
POOL_BYTES = 512 << 20  # bytes of unused blocks at most

HEADER_WORDS = 8
FREE_BYTES = 0  # the word of the header that counts the bytes of unused blocks


class BlockColumn(Numbers):
    """The columns of the table of blocks."""

    STATE = 0
    CAPACITY = 1
    ADDRESS = 2
    COUNT = 4


class BlockState(Numbers):
    """Whether a row has a block, and whether an array uses it."""

    NONE = 0
    FREE = 1
    USED = 2


@dataclass(frozen=True)
class PoolCode:
    """Addresses of the native functions ``take``, ``give`` and ``release``."""

    take: int
    give: int
    release: int


class PooledMemory:
    """What an array of the pool's memory has at its base: the block goes back with it."""

    __slots__ = ("__array_interface__", "_pool", "_row")

    def __init__(self, pool: ResultPool, row: int, address: int, nbytes: int) -> None:
        self._pool = pool
        self._row = row
        self.__array_interface__ = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        self._pool.give(self._row)


class ResultPool:
    """The pool, for Python; native code uses the same table through `address`."""

    def __init__(self, code: PoolCode) -> None:
        self.code = code
        self._words = (ctypes.c_int64 * (HEADER_WORDS + BLOCKS * BlockColumn.COUNT))()
        self.address = ctypes.addressof(self._words)
        self._take: Callable[[int, int], int] = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(
            code.take
        )
        self._give: Callable[[int, int], None] = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code.give)

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """`np.empty`, in memory of the pool where the array is large enough for it."""
        nbytes = math.prod(shape) * dtype.itemsize
        row = self._take(self.address, nbytes) if nbytes >= SMALLEST else 0
        if not row:
            return np.empty(shape, dtype)
        columns = (ctypes.c_int64 * BlockColumn.COUNT).from_address(row)
        flat = np.asarray(PooledMemory(self, row, columns[BlockColumn.ADDRESS], nbytes))
        return np.ndarray(tuple(shape), dtype, flat)

    def give(self, row: int) -> None:
        """Take back the block of a row of the table."""
        self._give(self.address, row)

    @property
    def used_bytes(self) -> int:
        """Bytes of blocks that arrays use."""
        rows = np.array(self._words[HEADER_WORDS:], np.int64).reshape(BLOCKS, BlockColumn.COUNT)
        return int(rows[rows[:, BlockColumn.STATE] == BlockState.USED, BlockColumn.CAPACITY].sum())

    @property
    def free_bytes(self) -> int:
        """Bytes of blocks that no array uses."""
        return int(self._words[FREE_BYTES])


@functools.cache
def result_pool(code: PoolCode) -> ResultPool:
    """The process's pool."""
    return ResultPool(code)

"""Memory of the constants that sessions make: large pieces of the system's own, and blocks that are used again.

The system maps memory page by page, which takes longer than to fill it. Large pieces ask for large pages, so that a
session of many constants waits for some dozens of them in place of tens of thousands. The allocator of C has no part
in it: it would keep what is given back where something behind that is still in use.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from sardonyx.runtime.memory import address_space
from sardonyx.runtime.memory.arena_layout import ALIGNMENT
from sardonyx.runtime.memory.memory import require, unavailable

Array = np.ndarray[Any, Any]

_ALIGNMENT = 2 * ALIGNMENT
# Bytes of a piece, and of the arrays that are cut from one: larger ones are pieces of their own, and smaller ones find
# room between others.
PIECE = 8 << 20
LEAST, MOST = 32 << 10, 4 << 20
_LARGE_PAGE = 2 << 20
_IS_MAPPED = hasattr(mmap, "MAP_ANONYMOUS")


# What memory limits call the memory of constants.
WEIGHTS = "weights packed for kernels"


class HeldConstant(NamedTuple):
    """An array that a session keeps: of the model as it is, packed for kernels, or computed; perhaps not alone.

    Those that were made and have equal keys have equal contents; None stands for one that nothing tells from others.
    """

    kind: Literal["model", "packed", "computed"]
    array: Array
    is_shared: bool = False
    key: Hashable | None = None


class _Cutting(threading.local):
    """The piece that a thread cuts arrays from, which lives as long as these do, and where the rest of it begins."""

    piece: weakref.ref[Array] | None = None
    used = 0

    def cut(self, nbytes: int) -> Array:
        """So many bytes of a piece, of a new one where the last has no room for them."""
        held = None if self.piece is None else self.piece()
        if held is None or self.used + nbytes > held.size:
            if held is not None:
                _give_back(held, self.used)
            held = _system_memory(PIECE)
            self.piece, self.used = weakref.ref(held), 0
        first = self.used
        self.used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return held[first : first + nbytes]


_CUTTING = _Cutting()


def constant_empty(count: int, dtype: np.dtype[Any]) -> Array:
    """An uninitialised vector whose first element lies at a multiple of two cache lines.

    errors.Fail where it does not fit into memory, or under the limit that applies.
    """
    nbytes = count * dtype.itemsize
    require(nbytes, WEIGHTS, of_model=True)
    if nbytes >= MOST or (nbytes >= LEAST and not address_space.has_spare()):  # a piece is a reserve, too
        return _system_memory(nbytes).view(dtype)
    if nbytes >= LEAST:
        return _CUTTING.cut(nbytes).view(dtype)
    room = np.empty(nbytes + _ALIGNMENT, np.uint8)
    first = -int(room.__array_interface__["data"][0]) % _ALIGNMENT
    return room[first : first + nbytes].view(dtype)


class _Passing(threading.local):
    """The block of a thread for contents that pass, while nobody holds it; None outside `passing`."""

    spare: list[Array] | None = None


_PASSING = _Passing()


class _Block:
    """What an array of passing contents has at its base: its memory serves the next such array of the thread."""

    __slots__ = ("__array_interface__", "_home", "_memory")

    def __init__(self, memory: Array, home: list[Array]) -> None:
        self._memory, self._home = memory, home
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._home[:] = [max((self._memory, *self._home), key=len)]


@contextlib.contextmanager
def passing() -> Iterator[None]:
    """Inside, memory of one `passing_empty` of this thread serves the next one when it is free."""
    outer, _PASSING.spare = _PASSING.spare, []
    try:
        yield
    finally:
        _PASSING.spare = outer


def passing_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An uninitialised array for contents that are soon dropped: as `np.empty`, in memory that goes back then."""
    shape = tuple(shape)
    count = int(np.prod(shape, dtype=np.int64))
    nbytes, spare = count * dtype.itemsize, _PASSING.spare
    if nbytes < LEAST:
        return np.empty(shape, dtype)
    if spare is None:
        return _system_memory(nbytes).view(dtype).reshape(shape)
    memory = spare.pop() if spare and len(spare[0]) >= nbytes else _system_memory(nbytes)
    return np.asarray(_Block(memory, spare))[:nbytes].view(dtype).reshape(shape)


def _system_memory(nbytes: int) -> Array:
    """So many bytes of the system's, from the beginning of a page on."""
    if not _IS_MAPPED:
        room = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
        first = -int(room.__array_interface__["data"][0]) % mmap.PAGESIZE
        return room[first : first + nbytes]
    try:
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, MemoryError):
        raise unavailable(nbytes, WEIGHTS) from None
    if nbytes >= _LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without large pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def _give_back(piece: Array, used: int) -> None:
    """Let the system have what nobody took of a piece: a large page comes as a whole."""
    pages = piece.base.obj if isinstance(piece.base, memoryview) else None
    first = -(-used // mmap.PAGESIZE) * mmap.PAGESIZE
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") and first < piece.size:
        pages.madvise(mmap.MADV_DONTNEED, first, piece.size - first)

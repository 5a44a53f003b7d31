"""Pages of mapped files that were read for the last time, given back to the system."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def release_pages(array: Array) -> None:
    """Let the process hold no pages of the mapped file in which a contiguous array lies; nothing for other arrays.

    The contents stay as they are: whoever reads them again gets the pages from the system's cache of the file. Without
    this, weights that were copied into another layout would count twice in the memory of the process.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED") or not array.flags.forc:
        return
    whole = np.frombuffer(owner, np.uint8)
    if whole.flags.writeable:  # changed pages that belong to no file would be lost
        return
    begin = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (begin + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        owner.madvise(mmap.MADV_DONTNEED, first, last - first)

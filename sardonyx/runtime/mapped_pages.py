"""What is mapped into this process, and pages of mapped files that were read for the last time."""

from __future__ import annotations

import mmap
import os
import re
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class MappedRange(NamedTuple):
    """A range of addresses of this process; where it shows a file, its path and which byte of it comes first."""

    start: int
    end: int
    offset: int
    path: str


_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ \d+ *(.*)")


def mapped_ranges() -> list[MappedRange]:
    """All ranges of addresses in use, as Linux tells them; OSError on other systems."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        found = [_LINE.match(line) for line in file]
    return [MappedRange(int(one[1], 16), int(one[2], 16), int(one[3], 16), one[4]) for one in found if one is not None]


def map_file(path: str | os.PathLike[str]) -> memoryview:
    """The bytes of a regular file, mapped read-only; OSError where it cannot be opened."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


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

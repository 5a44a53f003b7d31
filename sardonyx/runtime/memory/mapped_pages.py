"""Files in memory: mapped ones, of which pages can be given back, and read ones; and what is mapped at all."""

from __future__ import annotations

import mmap
import os
import re
import time
from collections.abc import Iterable
from io import BufferedReader
from typing import Any, NamedTuple

import numpy as np

from sardonyx import errors
from sardonyx.runtime.file_state import FileState, is_settled, state_of

Array = np.ndarray[Any, Any]


class MappedRange(NamedTuple):
    """A range of addresses of this process; where it shows a file, its path and which byte of it comes first."""

    start: int
    end: int
    offset: int
    path: str


# An entry of a page in the kernel's table, and the place of the bit that says that it is in memory.
_PAGE_ENTRY, _PRESENT = np.dtype(np.uint64), np.uint64(63)

_LINE = r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ \d+ *(.*)"


def mapped_ranges() -> list[MappedRange]:
    """All ranges of addresses in use, as Linux tells them; OSError on other systems."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        found = [re.match(_LINE, line) for line in file]
    return [MappedRange(int(one[1], 16), int(one[2], 16), int(one[3], 16), one[4]) for one in found if one is not None]


class FileMap(mmap.mmap):
    """A mapped file, by its real path, and the state in which it was opened; `state` is the same where no later change
    can leave it as it is, else None."""

    path = ""
    opened: FileState = (0, 0, 0, 0, 0)
    state: FileState | None = None

    def was_written(self) -> bool:
        """Whether somebody has written to the file since, or made it shorter; what took its name is another file."""
        try:
            now = os.stat(self.path)
        except OSError:
            return False
        size, modified, _, inode, device = self.opened
        return (now.st_dev, now.st_ino) == (device, inode) and (now.st_size, now.st_mtime_ns) != (size, modified)


class FileContents(np.ndarray[Any, Any]):
    """The bytes of a file that was read; `state` as of a `FileMap`."""

    state: FileState | None = None


def map_open_file(handle: int, path: str | os.PathLike[str]) -> memoryview:
    """The bytes of a regular file that is open, mapped read-only."""
    if os.fstat(handle).st_size == 0:
        return memoryview(b"")
    mapped = FileMap(handle, 0, access=mmap.ACCESS_READ)
    mapped.path, mapped.opened = os.path.realpath(path), state_of(os.fstat(handle))
    mapped.state = _settled(mapped.opened)
    return memoryview(mapped)


def settle(view: memoryview) -> None:
    """A file that was mapped just now stays as it was opened: nobody else has it."""
    one = file_map(view)
    if one is not None:
        one.state = one.opened


def file_map(view: memoryview) -> FileMap | None:
    """The mapped file that a view is of, if it is of one."""
    return view.obj if isinstance(view.obj, FileMap) else None


def check_unwritten(maps: Iterable[FileMap]) -> None:
    """`Fail` where one of the files was written to: what is read of it may be gone, and ends the process, or is new."""
    for one in maps:
        if one.was_written():
            raise errors.Fail(
                f"{one.path} was written to while this session has weights mapped from it: make the session anew. To "
                "change a model that is in use, write another file and rename it (os.replace)."
            )


def named_path(path: str | os.PathLike[str]) -> str:
    """The absolute path of a file, in the folder in which it is named: of a link, not of the file that it leads to."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def read_open_file(file: BufferedReader) -> memoryview:
    """The bytes of a regular file that is open, in memory; OSError where it cannot be read."""
    memory = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
    view, filled = memoryview(memory.data), 0
    while filled < len(view) and (count := file.readinto(view[filled:])):  # 0 where it has become shorter since
        filled += count
    contents = memory[:filled].view(FileContents)
    contents.state = _settled(state_of(os.fstat(file.fileno())))
    contents.flags.writeable = False
    return contents.data


def _settled(state: FileState) -> FileState | None:
    """The state that a file has now, unless it may change unnoticed."""
    return state if is_settled(state, time.time()) else None


def root_of(array: Array) -> Any:
    """What has the memory that an array looks at: a mapped or read file, bytes, or an array."""
    owner: Any = array
    while True:
        if isinstance(owner, memoryview):
            owner = owner.obj
        elif isinstance(owner, np.ndarray) and not isinstance(owner, FileContents) and owner.base is not None:
            owner = owner.base
        else:
            return owner


def resident_bytes(ranges: Iterable[tuple[int, int]]) -> int:
    """Bytes between these pairs of addresses that are in this process's memory now, each once; 0 but on Linux."""
    found = 0
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            for start, end in _joined(ranges):
                first, last = start // mmap.PAGESIZE, -(-end // mmap.PAGESIZE)
                file.seek(first * _PAGE_ENTRY.itemsize)
                entries = np.frombuffer(file.read((last - first) * _PAGE_ENTRY.itemsize), _PAGE_ENTRY)
                pages = (first + np.flatnonzero(entries >> _PRESENT)) * mmap.PAGESIZE
                found += int((np.minimum(pages + mmap.PAGESIZE, end) - np.maximum(pages, start)).sum())
    except OSError:
        return 0
    return found


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same addresses in ranges that do not overlap, in order."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif start < end:
            found.append((start, end))
    return found


def release_pages(array: Array) -> None:
    """Let the process hold no pages of the mapped file in which a contiguous array lies; nothing for other arrays.

    The contents stay as they are: whoever reads them again gets the pages from the system's cache of the file. Without
    this, weights that were copied into another layout would count twice in the memory of the process.
    """
    owner = root_of(array)
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

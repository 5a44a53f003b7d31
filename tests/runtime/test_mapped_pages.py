"""Pages of mapped files leave the process, and their contents come back."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.runtime.memory.mapped_pages import release_pages

Array = np.ndarray[Any, Any]

PAGES = 64


def mapped(path: Path, access: int) -> mmap.mmap:
    path.write_bytes(np.arange(PAGES * mmap.PAGESIZE // 4, dtype=np.int32).tobytes())
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0, access=access)


def resident(array: Array) -> int:
    """Kilobytes of the mapping around an array that are in memory."""
    address = array.__array_interface__["data"][0]
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            begin, end = (int(part, 16) for part in head.split("-"))
            inside = begin <= address < end
        elif inside and head == "Rss:":
            return int(line.split()[1])
    raise AssertionError("the array lies in no mapping")


needs_smaps = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells what is in memory")


@needs_smaps
def test_pages_leave_and_their_contents_come_back(tmp_path: Path) -> None:
    array = np.frombuffer(memoryview(mapped(tmp_path / "weights", mmap.ACCESS_READ)), np.int32).reshape(PAGES, -1)
    expected = array.copy()
    before = resident(array)
    release_pages(array[8:-8])
    page = mmap.PAGESIZE // 1024
    assert before == PAGES * page
    assert resident(array) == 16 * page
    np.testing.assert_array_equal(array, expected)


@needs_smaps
def test_parts_of_pages_stay(tmp_path: Path) -> None:
    array = np.frombuffer(mapped(tmp_path / "weights", mmap.ACCESS_READ), np.int32)
    total = int(array.sum())
    before = resident(array)
    release_pages(array[1 : mmap.PAGESIZE // 4])
    assert resident(array) == before
    release_pages(array[::2])
    assert resident(array) == before
    assert int(array.sum()) == total


def test_memory_that_was_written_is_left_alone(tmp_path: Path) -> None:
    array = np.frombuffer(mapped(tmp_path / "weights", mmap.ACCESS_COPY), np.int32)
    array[:] = 7
    release_pages(array)
    assert (array == 7).all()
    own = np.full(PAGES * mmap.PAGESIZE, 3, np.uint8)
    release_pages(own)
    assert (own == 3).all()

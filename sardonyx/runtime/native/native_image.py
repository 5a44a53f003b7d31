"""Native code that was joined into one image ahead of time, in memory of this process.

The pages are filled while they may be written, and never may be written again once they may be run. They go when their
owner goes, but never at the end of the process, when threads may still be in them.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import weakref
from collections.abc import Sequence
from typing import Any

from sardonyx.runtime.files.engine_file import Bytes
from sardonyx.runtime.threads.interrupts import WORDS_SYMBOL, words_address

_FAILED = ctypes.c_void_p(-1).value


class ImageError(Exception):
    """Why an image cannot be loaded here."""


class NativeImage:
    """An image of `nbytes` at `address`, as long as this object lives."""

    def __init__(self, code: Bytes, slots: Sequence[tuple[int, str]]) -> None:
        """`code` is position-independent and whole pages; the words at `slots` take the addresses of functions of this
        process. ImageError where the system refuses, or has no such function."""
        addresses = [(place, _function(name)) for place, name in slots]
        size = code.nbytes
        if size == 0 or size % mmap.PAGESIZE or not all(0 <= place <= size - 8 for place, _ in addresses):
            raise ImageError("the image is not made of whole pages")
        library = _c_library()
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = library.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if address == _FAILED:
            raise ImageError(f"no memory for {size} bytes of code")
        ctypes.memmove(address, code.ctypes.data, size)
        for place, function in addresses:
            ctypes.c_uint64.from_address(address + place).value = function
        if library.mprotect(address, size, mmap.PROT_READ | mmap.PROT_EXEC):
            library.munmap(address, size)
            raise ImageError("the system does not let new code be run")
        self.address: int = address
        self.nbytes = size
        unmap = weakref.finalize(self, library.munmap, address, size)
        unmap.atexit = False


def _function(name: str) -> int:
    """The address of a function that is in this process, or of the words of its watch."""
    if name == WORDS_SYMBOL:
        return words_address()
    try:
        found = ctypes.cast(getattr(_process(), name), ctypes.c_void_p).value
    except AttributeError:
        found = None
    if found is None:
        raise ImageError(f"this process has no function {name}")
    return found


@functools.cache
def _process() -> Any:
    return ctypes.CDLL(None)


@functools.cache
def _c_library() -> Any:
    """The functions that map memory, with their types."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library

"""Makes one operation on files fail: the first, then the second, and so on until none does."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sardonyx.runtime.files import opening
from sardonyx.runtime.memory import mapped_pages
from sardonyx.runtime.memory.mapped_pages import FileMap

# What a system says that is full, closed to the process, broken, or changed between two steps.
ERRORS = (errno.ENOSPC, errno.EACCES, errno.EIO, errno.EMFILE, errno.ENOENT)
SHORT = 0  # no error: fewer bytes than were asked for

_BY_PATH = ("open", "stat", "lstat", "replace", "unlink", "mkdir", "scandir", "utime", "readlink", "rmdir")
_BY_HANDLE = ("fstat", "fsync", "preadv", "fchmod")
_COUNTS = frozenset({"preadv", "readinto", "write"})  # those that may do less than they are asked for


class Faults:
    """One failure, of the operation with this number (from 1) among those on files of a folder."""

    def __init__(self, folder: Path, number: int, error: int) -> None:
        self._folder, self._number, self._error = str(folder), number, error
        self._lock = threading.Lock()
        self._handles: set[int] = set()
        self.seen: list[str] = []

    @property
    def happened(self) -> bool:
        return len(self.seen) >= self._number

    def meets(self, operation: str) -> bool:
        """Count an operation; whether it is the one. It raises, or is to do less than it is asked for."""
        if self._error == SHORT and operation not in _COUNTS:
            return False
        with self._lock:
            self.seen.append(operation)
            if len(self.seen) != self._number:
                return False
        if self._error == SHORT:
            return True
        raise OSError(self._error, os.strerror(self._error))

    def concerns(self, place: Any) -> bool:
        if isinstance(place, int):
            return place in self._handles
        return isinstance(place, str | os.PathLike) and os.fspath(place).startswith(self._folder)

    def function(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(place: Any, *rest: Any, **named: Any) -> Any:
            if not (self.concerns(place) or self.concerns(named.get("dir_fd"))):
                return real(place, *rest, **named)
            if self.meets(name):
                (view,), offset = rest
                return real(place, [memoryview(view)[: max(1, len(view) // 3)]], offset)
            result = real(place, *rest, **named)
            if name == "open":
                self._handles.add(result)
            return result

        return call

    def file(self) -> type[FileIO]:
        faults = self

        class File(FileIO):
            def readinto(self, buffer: Any) -> int | None:
                view = memoryview(buffer).cast("B")
                return super().readinto(view[: max(1, len(view) // 3)] if faults.meets("readinto") else view)

            def write(self, data: Any) -> int | None:
                view = memoryview(data).cast("B")
                return super().write(view[: max(1, len(view) // 3)] if faults.meets("write") else view)

            def seek(self, *place: int) -> int:
                faults.meets("seek")
                return super().seek(*place)

            def truncate(self, size: int | None = None) -> int:
                faults.meets("truncate")
                return super().truncate(size)

        return File

    def map(self) -> type[FileMap]:
        faults = self

        class Map(FileMap):
            def __new__(cls, *given: Any, **named: Any) -> Any:
                faults.meets("mmap")
                return super().__new__(cls, *given, **named)

        return Map

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside the block the operation fails."""
        with pytest.MonkeyPatch.context() as patch:
            for name in (*_BY_PATH, *_BY_HANDLE):
                real = getattr(os, name)
                made = self.function(name, real)
                for sort in ("supports_dir_fd", "supports_fd", "supports_follow_symlinks"):
                    if real in getattr(os, sort):
                        patch.setattr(os, sort, getattr(os, sort) | {made})
                patch.setattr(os, name, made)
            patch.setattr(fcntl, "flock", self.function("flock", fcntl.flock))
            patch.setattr(opening, "FileIO", self.file())
            patch.setattr(mapped_pages, "FileMap", self.map())
            yield


def each_fault(folder: Path, error: int) -> Iterator[Faults]:
    """Failures of the first operation, the second and so on; the last one did not happen any more."""
    for number in count(1):
        faults = Faults(folder, number, error)
        yield faults
        if not faults.happened:
            assert number > 1, "no operation was seen"
            return

"""Allocations that fail in turn: memory of the system's, mapped files, code, arrays and threads that Sardonyx asks for.

Inside `Failing`, the allocation of a number fails as it would where there is no memory, and with `stays` all after it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
import pytest

from sardonyx.runtime.memory import mapped_pages
from sardonyx.runtime.native import native_image


class Failing:
    """Notes where the block allocates, and fails the allocation of `number` (from 0 on; -1: none)."""

    def __init__(self, number: int, stays: bool = False) -> None:
        self._number, self._stays = number, stays
        self.made: list[str] = []
        self._patch = pytest.MonkeyPatch()

    @property
    def has_failed(self) -> bool:
        return 0 <= self._number < len(self.made)

    def _fails(self, what: str) -> bool:
        frame: Any = sys._getframe(1)
        while frame.f_globals["__name__"] == __name__:
            frame = frame.f_back
        place = len(self.made)
        self.made.append(f"{what} in {frame.f_globals['__name__']}, line {frame.f_lineno}")
        return place == self._number or (self._stays and 0 <= self._number <= place)

    def __enter__(self) -> Failing:
        patch = self._patch
        no_memory = OSError(errno.ENOMEM, "Cannot allocate memory")
        real_map, real_new, real_library = mmap.mmap, mmap.mmap.__new__, native_image._c_library()

        def mapped(*given: Any, **named: Any) -> Any:
            if self._fails("mmap"):
                raise no_memory
            return real_map(*given, **named)

        class Kind(type):
            def __instancecheck__(cls, one: object) -> bool:
                return isinstance(one, real_map)

            def __call__(cls, *given: Any, **named: Any) -> Any:
                return mapped(*given, **named)

        def file_map(kind: Any, *given: Any, **named: Any) -> Any:
            if self._fails("mapped file"):
                raise no_memory
            return real_new(kind, *given, **named)

        class Library:
            def __getattr__(self, name: str) -> Any:
                return getattr(real_library, name)

            def mmap(library, *given: Any) -> Any:  # noqa: N805
                return ctypes.c_void_p(-1).value if self._fails("code") else real_library.mmap(*given)

        def array(make: Callable[..., Any], name: str) -> Callable[..., Any]:
            def made(*given: Any, **named: Any) -> Any:
                caller = sys._getframe(1).f_globals["__name__"]
                if caller.startswith("sardonyx.") and self._fails(name):
                    raise MemoryError
                return make(*given, **named)

            return made

        start = threading.Thread.start

        def started(thread: threading.Thread) -> None:
            if self._fails("thread"):
                raise RuntimeError("can't start new thread")
            start(thread)

        patch.setattr(mmap, "mmap", Kind("mmap", (), {}))
        patch.setattr(mapped_pages.FileMap, "__new__", file_map)
        patch.setattr(native_image, "_c_library", Library)
        for name in ("empty", "zeros", "empty_like", "zeros_like", "full", "ascontiguousarray"):
            patch.setattr(np, name, array(getattr(np, name), f"numpy.{name}"))
        patch.setattr(threading.Thread, "start", started)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._patch.undo()

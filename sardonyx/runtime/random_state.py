"""Where random numbers come from: one seed of the process, one generator for each random node of a session."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

from sardonyx.runtime.forks import free_in_child

_seed: int | None = None


def set_seed(seed: int) -> None:
    """Make the sessions created from now on reproducible: those of one seed draw the same numbers."""
    global _seed
    _seed = int(seed)


class Stream:
    """The random numbers of one node; every run continues where the last one stopped.

    A node with a seed of its own draws the same numbers in every session; without one they follow from the seed of
    the process and `name`, or from the operating system where no seed was set. Safe to use from several threads.
    """

    def __init__(self, name: str, own_seed: float | None = None) -> None:
        if own_seed is not None:
            seed = int(own_seed)
        elif _seed is not None:
            import zlib  # which processes without random operators do not need

            seed = _seed + zlib.crc32(name.encode())
        else:
            seed = int.from_bytes(os.urandom(4))
        self._generator = np.random.RandomState(seed % 2**32)
        self._lock = free_in_child(threading.Lock())

    def uniform(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """float64 numbers from [0, 1)."""
        with self._lock:
            return np.asarray(self._generator.uniform(0.0, 1.0, shape))

    def normal(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """float64 numbers of mean 0 and variance 1."""
        with self._lock:
            return np.asarray(self._generator.standard_normal(shape))


class Streams:
    """The streams of one session by the names and the seeds of its nodes.

    A session compiles its model again for other sizes or outputs: nodes that are made again draw on where the others
    stopped. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._streams: dict[tuple[str, float | None], Stream] = {}
        self._lock = free_in_child(threading.Lock())

    def stream(self, name: str, own_seed: float | None) -> Stream:
        """The stream of a node."""
        with self._lock:
            found = self._streams.get((name, own_seed))
            if found is None:
                found = self._streams[name, own_seed] = Stream(name, own_seed)
            return found

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Inside, `stream_of` gives these."""
        token = _serving.set(self)
        try:
            yield
        finally:
            _serving.reset(token)


_serving: ContextVar[Streams | None] = ContextVar("streams of a session", default=None)


def serving_streams() -> Streams:
    """The streams that are served here; new ones where none are."""
    return _serving.get() or Streams()


def stream_of(name: str, own_seed: float | None = None) -> Stream:
    """The stream of a node that is made: that of the session in the making, or one of its own."""
    return serving_streams().stream(name, own_seed)

"""What it costs to use memory that the system has just given."""

from __future__ import annotations

import functools
import mmap
import time

import numpy as np

_BYTES = 4 << 20
_REPETITIONS = 3


@functools.cache
def fault_nanoseconds() -> float:
    """Nanoseconds for a byte of memory that is touched for the first time: the least of several attempts."""
    return min(_touch() for _ in range(_REPETITIONS))


def _touch() -> float:
    began = time.perf_counter_ns()
    memory = mmap.mmap(-1, _BYTES)
    np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
    return (time.perf_counter_ns() - began) / _BYTES

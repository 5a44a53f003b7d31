"""Random numbers for operators that have no seed of their own; one source for all sessions of the process."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

_lock = threading.Lock()
_source = np.random.SeedSequence()


def seed(value: int) -> None:
    """Start over from a number: the same calls of `generator` then give the same numbers again."""
    global _source
    with _lock:
        _source = np.random.SeedSequence(value % 2**64)


def generator() -> np.random.Generator:
    """A generator of its own for one run of one node, so that threads never share one."""
    with _lock:
        child: Any = _source.spawn(1)[0]
    return np.random.Generator(np.random.PCG64(child))

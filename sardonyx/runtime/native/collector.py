"""Python's cyclic garbage collector, while a session or a plan is made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Make lasting objects without the collector, which else looks at all of them again and again.

    A session makes some hundred thousand objects that live as long as it does: collections took a tenth of the time,
    and more in a process with many objects of its own. Who finds the collector switched off, by the caller or by
    another session that is being made, leaves it as it is.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

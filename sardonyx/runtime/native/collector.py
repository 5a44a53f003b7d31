"""Python's cyclic garbage collector, while a session or a plan is made."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from contextlib import contextmanager

# How many sessions were made so far.
_sessions = itertools.count()


@contextmanager
def paused(*, for_session: bool = False) -> Iterator[None]:
    """Make lasting objects without the collector, which else looks at all of them again and again.

    A session makes some hundred thousand objects that live as long as it does: collections took a tenth of the time,
    and more in a process with many objects of its own. Who finds the collector switched off, by the caller or by
    another session that is being made, leaves it as it is.

    After the first session of a process, with which most modules come, all objects count as old: the collection that
    comes at once would take a twentieth of the time until there is a result. Not so after others, as none would ever
    come where sessions are made one after the other, and cycles among dropped objects would stay.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if for_session and next(_sessions) == 0 and not gc.get_freeze_count():  # what a program has frozen stays so
            gc.freeze()
            gc.unfreeze()
        gc.enable()

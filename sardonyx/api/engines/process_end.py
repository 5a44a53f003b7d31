"""Threads that write engines, and the end of the process: which it waits for, and what tells them."""

from __future__ import annotations

import atexit
import threading
import time
import weakref

# Seconds that a process waits at its end for engines that are being written; one that is not whole then is lost.
_PATIENCE = 3.0
# Between looks at whether a thread still writes.
_LOOK_SECONDS = 0.02

WRITERS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
AT_END = threading.Event()


@atexit.register
def _finish() -> None:
    AT_END.set()
    last = time.monotonic() + _PATIENCE
    for writer in tuple(WRITERS):
        writer.join(max(0.0, last - time.monotonic()))


def finish_writing() -> None:
    """Wait for all engines that are being written, however long that takes; not for plans that may join them later."""
    for writer in tuple(WRITERS):
        while writer in WRITERS and writer.is_alive():
            writer.join(_LOOK_SECONDS)

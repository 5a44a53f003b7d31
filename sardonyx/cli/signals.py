"""What Ctrl-C and a closed pipe do to the command.

Nothing is lost where the command is stopped while it imports or ends: it leaves at once, without a word. While it
works, Ctrl-C is a KeyboardInterrupt, so that what it began is undone. A reader that goes away, as `head` does, ends it
as it ends any other program.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

# What shells show for a program that Ctrl-C ended.
INTERRUPTED = 130


def leave_at_once() -> None:
    """From now on, Ctrl-C ends the process with `INTERRUPTED`, unless it is ignored, as behind nohup."""
    _at_interrupts(_end)


def interrupt() -> None:
    """From now on, Ctrl-C is a KeyboardInterrupt."""
    _at_interrupts(signal.default_int_handler)


def end_with_the_reader() -> None:
    """From now on, writing to a pipe that nobody reads ends the process, where the system knows that."""
    if hasattr(signal, "SIGPIPE"):
        _set(signal.SIGPIPE, signal.SIG_DFL)


def _at_interrupts(handler: Any) -> None:
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _end):
        _set(signal.SIGINT, handler)


def _set(number: int, handler: Any) -> None:
    try:
        signal.signal(number, handler)
    except ValueError:  # not in the main thread, which alone may
        return


def _end(number: int, frame: object) -> NoReturn:
    sys.stdout.flush()
    os._exit(INTERRUPTED)

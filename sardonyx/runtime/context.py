"""What one run carries along: whether to stop, and where to record what happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sardonyx import log
from sardonyx.light_dataclass import dataclass

if TYPE_CHECKING:
    from sardonyx.runtime.trace import Trace


def never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class RunContext:
    """Handed to every step of a run.

    `terminated` is asked before each step; `terminate_word` is the address of an int64 that native code looks at
    instead, 0 for none. `trace` is None unless profiling is on.
    """

    terminated: Callable[[], bool] = never
    terminate_word: int = 0
    trace: Trace | None = None
    logger: log.Logger = log.DEFAULT

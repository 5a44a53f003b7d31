"""How busy the processors of this process are with the work of others."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from sardonyx.runtime.threads.processors import available_processors

_STATISTICS = Path("/proc/stat")
_IDLE = (3, 4)  # the columns of idle time and of waiting for input and output


def other_load(seconds: float = 0.4) -> float | None:
    """Processors' worth of time that other processes take on the processors of this one, over the next `seconds`.

    None where the system does not tell. Time that somebody else takes from a virtual machine counts as well.
    """
    busy, own, began = _busy_seconds(), _own_seconds(), time.perf_counter()
    if busy is None:
        return None
    time.sleep(seconds)
    later, taken = _busy_seconds(), time.perf_counter() - began
    if later is None:
        return None
    return max(0.0, (later - busy - (_own_seconds() - own)) / taken)


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _busy_seconds() -> float | None:
    """Seconds that the processors of this process were not idle since the system began."""
    try:
        lines = _STATISTICS.read_text().splitlines()
    except OSError:
        return None
    own = available_processors()
    ticks, is_told = 0, False
    for line in lines:
        found = re.match(r"cpu(\d+) (.*)", line)
        if found and int(found[1]) in own:
            columns = list(map(int, found[2].split()))[:8]  # what follows is counted in these already
            ticks += sum(count for place, count in enumerate(columns) if place not in _IDLE)
            is_told = True
    return ticks / os.sysconf("SC_CLK_TCK") if is_told else None

"""The profile of a session: a Chrome trace with the categories, names and arguments that onnxruntime writes.

The file is a JSON array, one complete event (``"ph" : "X"``) per line, times in microseconds since the trace began;
Perfetto and onnxruntime's own tools read it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sardonyx.runtime.plan import Step, Value


class Trace:
    """Collects events from any thread and writes them once."""

    def __init__(self, prefix: str) -> None:
        self.start_ns = time.monotonic_ns()
        moment = datetime.now()
        self.path = f"{prefix}_{moment:%Y-%m-%d_%H-%M-%S}_{moment.microsecond // 1000:03d}.json"
        self._lines: list[str] = []
        self._lock = threading.Lock()
        with open(self.path, "w", encoding="utf-8"):
            pass  # the file exists from the start, so that a bad place is an error now and not at the end

    def now(self) -> int:
        """Nanoseconds on the trace's clock."""
        return time.monotonic_ns()

    def event(self, category: str, name: str, start: int, arguments: dict[str, Any] | None = None) -> None:
        """Record what lasted from `start` (a value of `now`) until now."""
        end = self.now()
        line = (
            f'{{"cat" : {json.dumps(category)},"pid" :{os.getpid()},"tid" :{threading.get_native_id()},'
            f'"dur" :{(end - start) // 1000},"ts" :{(start - self.start_ns) // 1000},"ph" : "X",'
            f'"name" :{json.dumps(name)},"args" : {json.dumps(arguments or {})}}}'
        )
        with self._lock:
            self._lines.append(line)

    def step(self, step: Step, start: int, inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
        """Record one step of a plan."""
        self.event("Node", f"{step.name}_kernel_time", start, {"op_name": step.op_type, "provider": step.provider})

    def write(self) -> str:
        """Write the file and return its name."""
        with self._lock, open(self.path, "w", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(self._lines) + "\n]\n")
        return self.path

"""What nodes read and write in bytes, as a table in a file: the most of all runs so far, written after each of them.

The file has the columns of onnxruntime's, which names nodes by their name and a number. Nodes that share a kernel have
one line with bytes, that of the leading node; the others have zeros. What a kernel needs for itself is memory of the
plan, not of the node, so that nothing is allocated for it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from sardonyx.runtime.files.opening import replacing
from sardonyx.runtime.forks import free_in_child
from sardonyx.runtime.trace import Trace, Work

_HEAD = "#name,input_sizes,initializers_sizes,total_dynamic_sizes,total_temp_allocations"


class NodeMemory(Trace):
    """Notes the sizes of every step; hands what it is told on to `inner`, where a profile is written, too."""

    def __init__(self, path: str, inner: Trace | None) -> None:  # the base class would create the profile's file
        self.start_ns = time.monotonic_ns() if inner is None else inner.start_ns
        self.pool = None if inner is None else inner.pool
        self.path = path
        self.inner = inner
        self._sizes: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._lock = free_in_child(threading.Lock())

    def event(
        self, category: str, name: str, start: int, arguments: dict[str, Any] | None = None, end: int | None = None
    ) -> None:
        """Only profiles have events."""
        if self.inner is not None:
            self.inner.event(category, name, start, arguments, end)

    def node(self, work: Work, start: int, end: int) -> None:
        """Note the sizes of one node, or of several that share a kernel."""
        if work.node_index >= 0:  # else a copy to an output of the model, which is no node
            found = work.activation_bytes, work.parameter_bytes, work.output_bytes
            with self._lock:
                for name in work.extra.get("nodes", ()):
                    self._sizes.setdefault((name, work.node_index), (0, 0, 0))
                known = self._sizes.get((work.name, work.node_index), found)
                most = tuple(map(max, known, found))
                self._sizes[work.name, work.node_index] = most  # type: ignore[assignment]
        if self.inner is not None:
            self.inner.node(work, start, end)

    def write(self) -> str:
        """Write the table and return the name of its file; OSError where that is not possible."""
        with self._lock:
            lines = [f"{name}_{number},{','.join(map(str, sizes))},0" for (name, number), sizes in self._sizes.items()]
            with replacing(self.path) as file:
                file.write("\n".join([_HEAD, *lines, ""]).encode())
        return self.path

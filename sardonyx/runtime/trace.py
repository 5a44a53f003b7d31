"""The profile of a session: a Chrome trace with the categories, names and arguments that onnxruntime writes.

The file is a JSON array, one complete event (``"ph" : "X"``) per line in order of their ends, times in microseconds
since the trace began; Perfetto and onnxruntime's own tools read it. Stages of the build are recorded under the
category "Compile", which onnxruntime does not write and its tools skip.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.files.opening import create, replacing
from sardonyx.runtime.forks import free_in_child

if TYPE_CHECKING:
    from sardonyx.runtime.plan import Step, Value

# C's names of element types, by the names of NumPy's dtypes where the two differ.
_C_NAMES = {"float32": "float", "float64": "double", "object": "string"}

# What onnxruntime counts for one element of a string tensor: the size of a std::string.
_STRING_BYTES = 32


TypeShapes = list[dict[str, list[int]]]


@dataclass(frozen=True, slots=True)
class Work:
    """What a profile tells of one step: which node, and the sizes and shapes of what it read and wrote."""

    name: str
    op_type: str
    provider: str
    node_index: int
    activation_bytes: int
    parameter_bytes: int
    output_bytes: int
    inputs: TypeShapes
    outputs: TypeShapes
    extra: Mapping[str, Any] = field(default_factory=dict)


class Trace:
    """Collects events from any thread and writes them once.

    `pool` names the session's thread pool in the scheduling statistics of each node; None for a session that runs
    on its caller's thread alone.
    """

    def __init__(self, prefix: str, pool: str | None = None) -> None:
        """Create the file `<prefix>_<date>_<time>_<milliseconds>.json`; OSError where that is not possible."""
        self.start_ns = time.monotonic_ns()
        self.pool = pool
        self.path = _made(prefix, datetime.now())
        self._lines: list[str] = []
        self._lock = free_in_child(threading.Lock())

    def now(self) -> int:
        """Nanoseconds on the trace's clock."""
        return time.monotonic_ns()

    def event(
        self, category: str, name: str, start: int, arguments: dict[str, Any] | None = None, end: int | None = None
    ) -> None:
        """Record what lasted from `start` to `end` (values of `now`), or until now."""
        finish = self.now() if end is None else end
        line = (
            f'{{"cat" : {json.dumps(category)},"pid" :{os.getpid()},"tid" :{threading.get_native_id()},'
            f'"dur" :{(finish - start) // 1000},"ts" :{(start - self.start_ns) // 1000},"ph" : "X",'
            f'"name" :{json.dumps(name)},"args" : {json.dumps(arguments or {})}}}'
        )
        with self._lock:
            self._lines.append(line)

    @contextlib.contextmanager
    def span(self, category: str, name: str, arguments: dict[str, Any] | None = None) -> Iterator[None]:
        """Record a block of code, also when it raises; `arguments` may be filled inside the block."""
        start = self.now()
        try:
            yield
        finally:
            self.event(category, name, start, arguments)

    def step(
        self,
        step: Step,
        start: int,
        end: int,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        constants: Container[int],
    ) -> None:
        """Record one step of a plan; `constants` are the slots whose values belong to the model."""
        constant_bytes = sum(
            _nbytes(value) for slot, value in zip(step.inputs, inputs, strict=True) if slot in constants
        )
        extra = {"host_reason": step.reason} if step.reason else {}
        self.node(
            Work(
                step.name,
                step.op_type,
                step.provider,
                step.node_index,
                sum(map(_nbytes, inputs)) - constant_bytes,
                constant_bytes,
                sum(map(_nbytes, outputs)),
                _type_shapes(inputs),
                _type_shapes(outputs),
                extra,
            ),
            start,
            end,
        )

    def segment(self, plan: Any, works: Callable[[], Sequence[Work]], times: np.ndarray[Any, Any]) -> None:
        """Record the steps of a native plan as the caller's thread saw them.

        times: int64[steps + 1], the start of each step and the end of the last one.
        """
        for index, work in enumerate(works()):
            start = int(times[index])
            self.node(work, start, max(start, int(times[index + 1])))

    def node(self, work: Work, start: int, end: int) -> None:
        """Record what one node, or several that share a kernel, did."""
        arguments = {
            "op_name": work.op_type,
            "provider": work.provider,
            "node_index": str(work.node_index),
            "activation_size": str(work.activation_bytes),
            "parameter_size": str(work.parameter_bytes),
            "output_size": str(work.output_bytes),
            "input_type_shape": work.inputs,
            "output_type_shape": work.outputs,
            "thread_scheduling_stats": self._scheduling(),
            **work.extra,
        }
        self.event("Node", f"{work.name}_kernel_time", start, arguments, end)

    def _scheduling(self) -> Any:
        """The form in which onnxruntime reports its pool; a session without one reports an empty string."""
        if self.pool is None:
            return ""
        main = {
            "thread_pool_name": self.pool,
            "thread_id": str(threading.get_ident()),
            "block_size": [],
            "core": -1,
            "Distribution": 0,
            "DistributionEnqueue": 0,
            "Run": 0,
            "Wait": 0,
            "WaitRevoke": 0,
        }
        return {"main_thread": main, "sub_threads": {}}

    def write(self) -> str:
        """Write the file and return its name."""
        with self._lock, replacing(self.path) as file:
            file.write(("[\n" + ",\n".join(self._lines) + "\n]\n").encode())
        return self.path


def _made(prefix: str, moment: datetime) -> str:
    """A new file of this moment, or of the next one at which there was none; OSError.

    It exists from the start, so that a bad place is an error now and not at the end.
    """
    while True:
        path = f"{prefix}_{moment:%Y-%m-%d_%H-%M-%S}_{moment.microsecond // 1000:03d}.json"
        try:
            create(path)
            return path
        except FileExistsError:
            moment += timedelta(milliseconds=1)


def span(trace: Trace | None, category: str, name: str) -> contextlib.AbstractContextManager[None]:
    """`Trace.span`, or nothing where there is no trace."""
    return contextlib.nullcontext() if trace is None else trace.span(category, name)


def _nbytes(value: Any) -> int:
    """Bytes of a tensor, or of all tensors in a sequence."""
    if isinstance(value, np.ndarray):
        return value.size * _STRING_BYTES if value.dtype.kind == "O" else value.nbytes
    return sum(map(_nbytes, value)) if isinstance(value, list) else 0


def type_shape(dtype: np.dtype[Any], shape: Sequence[int]) -> dict[str, list[int]]:
    """A tensor as a one-key object: the C name of the element type to the shape."""
    return {_C_NAMES.get(dtype.name, dtype.name.replace("_", "")): list(shape)}


def _type_shapes(values: Sequence[Any]) -> TypeShapes:
    """The tensors among `values`."""
    return [type_shape(value.dtype, value.shape) for value in values if isinstance(value, np.ndarray)]

"""How a test of the suite drives the project: through its public API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.compiler.control_flow_call import ControlFlowCall
from sardonyx.runtime.plan import Plan

_CONSTANTS_NEED_NO_INPUT = 4  # from this IR version on an initializer need not be an input

_PLAIN = {TensorProto.UNDEFINED, TensorProto.STRING}
_DTYPES = {
    f"tensor({name.lower()})": np.dtype(helper.tensor_dtype_to_np_dtype(number))
    for name, number in TensorProto.DataType.items()
    if number not in _PLAIN
}


@dataclass(frozen=True)
class Engine:
    """Makes sessions whose log stays silent: failures are reported by the suite.

    `kernels` names the instruction set of native code (empty: the best one; numpy: none). `threads` are those of a
    session. With `constants`, all inputs of a test but its first are part of the model, so that they are known, packed
    and folded while the session is made. With `counts_host_steps`, outcomes tell what ran outside of native code.
    """

    kernels: str = ""
    threads: int = 0
    constants: bool = False
    counts_host_steps: bool = False

    def run(self, model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
        """The outputs for one set of inputs, from a session of their own."""
        if self.constants:
            model, feeds = with_constants(model, feeds)
        return self.session(model)(feeds)

    def session(self, model: onnx.ModelProto) -> Callable[[dict[str, Any]], list[Any]]:
        """What runs the model."""
        session = self._session(model)
        kinds = [output.type for output in session.get_outputs()]

        def run(feeds: dict[str, Any]) -> list[Any]:
            return [_typed(value, kind) for value, kind in zip(session.run(None, feeds), kinds, strict=True)]

        return run

    def host_steps(self, model: onnx.ModelProto) -> list[str]:
        """The steps that call into Python, in the model and the bodies inside it: ``<OpType>: <reason>``."""
        return list(_host_steps(self._session(model)._session().plan))

    def _session(self, model: onnx.ModelProto) -> sardonyx.InferenceSession:
        options = sardonyx.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = self.threads
        if self.kernels:
            options.add_session_config_entry("sardonyx.cpu.kernels", self.kernels)
        return sardonyx.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _host_steps(plan: Plan) -> Iterator[str]:
    for step in plan.steps:
        if isinstance(step.call, ControlFlowCall):
            for body in step.call.bodies.values():
                yield from _host_steps(body)
        elif step.kind == "host":
            yield f"{step.op_type}: {step.reason}"


def with_constants(model: onnx.ModelProto, feeds: dict[str, Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The model with all inputs but its first that are tensors of numbers as initializers, and the feeds left."""
    names = [value.name for value in model.graph.input if value.name in feeds]
    known = {initializer.name for initializer in model.graph.initializer}
    chosen = [name for name in names[1:] if name not in known and _is_plain(feeds[name])]
    if not chosen or model.ir_version < _CONSTANTS_NEED_NO_INPUT:
        return model, feeds
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.initializer.extend(numpy_helper.from_array(feeds[name], name) for name in chosen)
    left = [value for value in copy.graph.input if value.name not in chosen]
    del copy.graph.input[:]
    copy.graph.input.extend(left)
    return copy, {name: value for name, value in feeds.items() if name not in chosen}


def _is_plain(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub"


def _typed(value: Any, kind: str) -> Any:
    """A tensor of a small type, which `run` gives as the integers that hold it, under its own type again."""
    dtype = _DTYPES.get(kind.replace("_", ""), _DTYPES.get(kind))
    held = isinstance(value, np.ndarray) and value.dtype == np.uint8
    if held and dtype is not None and dtype.itemsize == 1 and value.dtype != dtype:
        return value.view(dtype)
    return value

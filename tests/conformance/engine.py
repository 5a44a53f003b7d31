"""How a test of the suite drives the project: through its public API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import sardonyx

_PLAIN = {TensorProto.UNDEFINED, TensorProto.STRING}
_DTYPES = {
    f"tensor({name.lower()})": np.dtype(helper.tensor_dtype_to_np_dtype(number))
    for name, number in TensorProto.DataType.items()
    if number not in _PLAIN
}


class Engine:
    """Makes sessions whose log stays silent: failures are reported by the suite."""

    def session(self, model: onnx.ModelProto) -> Callable[[dict[str, Any]], list[Any]]:
        options = sardonyx.SessionOptions()
        options.log_severity_level = 4
        session = sardonyx.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        kinds = [output.type for output in session.get_outputs()]

        def run(feeds: dict[str, Any]) -> list[Any]:
            return [_typed(value, kind) for value, kind in zip(session.run(None, feeds), kinds, strict=True)]

        return run


def _typed(value: Any, kind: str) -> Any:
    """A tensor of a small type, which `run` gives as the integers that hold it, under its own type again."""
    dtype = _DTYPES.get(kind.replace("_", ""), _DTYPES.get(kind))
    held = isinstance(value, np.ndarray) and value.dtype == np.uint8
    if held and dtype is not None and dtype.itemsize == 1 and value.dtype != dtype:
        return value.view(dtype)
    return value

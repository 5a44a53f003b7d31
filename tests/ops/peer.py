"""One node on Sardonyx and on onnxruntime, inputs being tensors, strings or sequences of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute
from tests.ops.one_node import build


def _element(array: Any) -> int:
    if array.dtype == object:
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def _declared(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        return helper.make_tensor_sequence_value_info(name, _element(value[0]), None)
    return helper.make_tensor_value_info(name, _element(value), [f"{name}_{axis}" for axis in range(value.ndim)])


def node_model(
    op_type: str, inputs: Sequence[Any], outputs: int, opset: int, domain: str, version: int, attributes: dict[str, Any]
) -> onnx.ModelProto:
    names = [f"x{index}" for index in range(len(inputs))]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, "node", domain=domain, **attributes)
    declared = [_declared(name, value) for name, value in zip(names, inputs, strict=True)]
    graph = helper.make_graph([node], "graph", declared, [onnx.ValueInfoProto(name=name) for name in results])
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, version)] if domain else []
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def ours(
    op_type: str,
    inputs: Sequence[Any],
    outputs: int = 1,
    *,
    opset: int = 21,
    domain: str = "",
    version: int = 3,
    **attributes: Any,
) -> list[Any]:
    """The node's outputs on Sardonyx."""
    compiled = build(node_model(op_type, inputs, outputs, opset, domain, version, attributes))
    return execute(compiled.compiled.plan, RunContext(), list(inputs))


def compare(
    op_type: str,
    inputs: Sequence[Any],
    outputs: int = 1,
    *,
    opset: int = 21,
    domain: str = "",
    version: int = 3,
    rtol: float = 1e-5,
    **attributes: Any,
) -> None:
    """Assert that both give the same dtypes, shapes and contents."""
    ort = pytest.importorskip("onnxruntime")
    model = node_model(op_type, inputs, outputs, opset, domain, version, attributes)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    expected = session.run(None, {f"x{index}": value for index, value in enumerate(inputs)})
    found = ours(op_type, inputs, outputs, opset=opset, domain=domain, version=version, **attributes)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert isinstance(mine, list) == isinstance(theirs, list)
        pair = (mine, theirs) if isinstance(mine, list) else ([mine], [theirs])
        assert len(pair[0]) == len(pair[1])
        for a, b in zip(*pair, strict=True):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            if b.dtype.kind == "f":
                np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-5)
            else:
                np.testing.assert_array_equal(a, b)

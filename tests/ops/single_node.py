"""Runs one node on Sardonyx, on onnxruntime and on ONNX's reference, so that tests can compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from sardonyx import log
from sardonyx.api.building.compiled_model import CompiledModel
from sardonyx.graph.load import load_model
from sardonyx.providers import registry
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute

Array = np.ndarray[Any, Any]


def make_model(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any],
    opset: int,
    outputs: int = 1,
    constant_inputs: Sequence[int] = (),
) -> onnx.ModelProto:
    """A model of one node; inputs are graph inputs, or initializers where `constant_inputs` names them."""
    names = [f"x{index}" if value is not None else "" for index, value in enumerate(inputs)]
    node = onnx.helper.make_node(op_type, names, [f"y{index}" for index in range(outputs)], "node", **attributes)
    values, initializers = [], []
    for index, (name, value) in enumerate(zip(names, inputs, strict=True)):
        if value is None:
            continue
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        if index in constant_inputs:
            initializers.append(onnx.numpy_helper.from_array(value, name))
        else:
            values.append(onnx.helper.make_tensor_value_info(name, kind, value.shape))
    results = [onnx.ValueInfoProto(name=f"y{index}") for index in range(outputs)]
    graph = onnx.helper.make_graph([node], "one_node", values, results, initializers)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)


def compiled(model: onnx.ModelProto) -> CompiledModel:
    """The model compiled for the CPU provider."""
    provider = registry.create("CPUExecutionProvider", {})
    return CompiledModel.build(load_model(model.SerializeToString()), [provider], log.DEFAULT)


def run_ours(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Any]:
    """The outputs on Sardonyx; fails if a run changes its inputs or hands one of them out."""
    compilation = compiled(model)
    values = [feeds[value.name] for value in model.graph.input]
    before = [value.copy() for value in values]
    results = execute(compilation.compiled.plan, RunContext(), values)
    for value, kept in zip(values, before, strict=True):
        assert value.dtype == object or value.tobytes() == kept.tobytes(), "an input was changed"
        for result in results:
            assert not np.may_share_memory(result, value), "an output shares memory with an input"
    return results


def feeds_of(inputs: Sequence[Array | None], constant_inputs: Sequence[int] = ()) -> dict[str, Array]:
    return {f"x{i}": value for i, value in enumerate(inputs) if value is not None and i not in constant_inputs}


def ours(op_type: str, *inputs: Array | None, opset: int = 23, outputs: int = 1, **attributes: Any) -> list[Any]:
    """One node's outputs on Sardonyx."""
    return run_ours(make_model(op_type, inputs, attributes, opset, outputs), feeds_of(inputs))


def theirs(op_type: str, *inputs: Array | None, opset: int = 23, outputs: int = 1, **attributes: Any) -> list[Any]:
    """One node's outputs on onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = make_model(op_type, inputs, attributes, opset, outputs)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds_of(inputs)))


def assert_same(actual: Sequence[Any], expected: Sequence[Any], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Same dtypes, shapes and contents, floats within tolerances."""
    assert len(actual) >= len(expected)
    for ours_, theirs_ in zip(actual, expected, strict=False):
        assert ours_.dtype == theirs_.dtype
        assert ours_.shape == theirs_.shape
        if theirs_.dtype.kind == "f":
            np.testing.assert_allclose(ours_, theirs_, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(ours_, theirs_)

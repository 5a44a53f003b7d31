"""One-node models run by Sardonyx and by onnxruntime, whose outputs must agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx import log
from sardonyx.api.building.compiled_model import CompiledModel
from sardonyx.graph.load import load_model
from sardonyx.providers import registry
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute

Array = np.ndarray[Any, Any]
Inputs = Sequence[Array | None]


def element_type(array: Array) -> int:
    if array.dtype == np.dtype(object):
        return int(TensorProto.STRING)
    if array.dtype == ml_dtypes.bfloat16:
        return int(TensorProto.BFLOAT16)
    if array.dtype == ml_dtypes.float8_e4m3fn:
        return int(TensorProto.FLOAT8E4M3FN)
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def one_node(
    op_type: str,
    inputs: Inputs,
    outputs: Sequence[int] | int,
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "com.microsoft",
    opset: int = 21,
    constants: Sequence[int] = (),
    symbolic: bool = True,
) -> onnx.ModelProto:
    """A model of one node; `outputs` are element types (0: output not asked for), or how many like the first input.

    Inputs whose index is in `constants` become initializers; the others have symbolic shapes where `symbolic`.
    """
    names = ["" if array is None else f"in{index}" for index, array in enumerate(inputs)]
    while names and names[-1] == "":
        names.pop()
    first = next(array for array in inputs if array is not None)
    kinds = [element_type(first)] * outputs if isinstance(outputs, int) else list(outputs)
    results = ["" if kind == 0 else f"out{index}" for index, kind in enumerate(kinds)]
    node = helper.make_node(op_type, names, results, name="n", domain=domain, **dict(attributes or {}))
    given = [(index, array) for index, array in enumerate(inputs) if array is not None]
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(
                f"in{index}",
                element_type(array),
                [f"d{index}_{axis}" for axis in range(array.ndim)] if symbolic else array.shape,
            )
            for index, array in given
            if index not in constants
        ],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(results, kinds, strict=True) if name],
        [onnx.numpy_helper.from_array(array, f"in{index}") for index, array in given if index in constants],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds(model: onnx.ModelProto, inputs: Inputs) -> dict[str, Array]:
    wanted = [value.name for value in model.graph.input]
    return {name: array for name in wanted if (array := inputs[int(name[2:])]) is not None}


def sardonyx(model: onnx.ModelProto, given: Mapping[str, Array]) -> list[Any]:
    """The outputs as Sardonyx computes them; each must fit the type and shape that were inferred for it."""
    compiled = CompiledModel.build(
        load_model(model.SerializeToString()), [registry.create("CPUExecutionProvider", {})], log.DEFAULT
    )
    arrays = [np.array(given[value.name]) for value in compiled.model.graph.inputs]
    results = execute(compiled.compiled.plan, RunContext(), arrays)
    symbols: dict[str, int] = {}
    for value, array in zip(compiled.model.graph.inputs, arrays, strict=True):
        if value.shape is not None:
            symbols.update(
                {
                    str(dim.value): size
                    for dim, size in zip(value.shape, array.shape, strict=True)
                    if not isinstance(dim, int)
                }
            )
    for value, result in zip(compiled.model.graph.outputs, results, strict=True):
        assert value.shape is None or len(value.shape) == result.ndim, (value.name, value.shape, result.shape)
        for dim, size in zip(value.shape or (), result.shape, strict=value.shape is not None):
            if isinstance(dim, int):
                assert dim == size, (value.name, value.shape, result.shape)
            elif dim.value in symbols:
                assert symbols[str(dim.value)] == size, (value.name, value.shape, result.shape)
        if value.dtype is not None:
            assert value.dtype.numpy() == result.dtype, (value.name, value.dtype, result.dtype)
    return results


def onnxruntime(model: onnx.ModelProto, given: Mapping[str, Array]) -> list[Any]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {name: np.asarray(array, order="C") for name, array in given.items()})


def compare(
    op_type: str,
    inputs: Inputs,
    outputs: Sequence[int] | int = 1,
    attributes: Mapping[str, Any] | None = None,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    **options: Any,
) -> list[Any]:
    """Run the node on both engines and assert that they agree; gives Sardonyx's outputs."""
    model = one_node(op_type, inputs, outputs, attributes, **options)
    given = feeds(model, inputs)
    expected = onnxruntime(model, given)
    found = sardonyx(model, given)
    check(found, expected, rtol, atol)
    return found


def run(
    op_type: str,
    inputs: Inputs,
    outputs: Sequence[int] | int = 1,
    attributes: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[Any]:
    """Sardonyx's outputs of the node alone, for operators without a CPU kernel in onnxruntime."""
    model = one_node(op_type, inputs, outputs, attributes, **options)
    return sardonyx(model, feeds(model, inputs))


def check(found: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> None:
    assert len(found) == len(expected)
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours.dtype == theirs.dtype, (index, ours.dtype, theirs.dtype)
        assert ours.shape == theirs.shape, (index, ours.shape, theirs.shape)
        if ours.dtype.kind in "fV":
            np.testing.assert_allclose(
                ours.astype(np.float64), theirs.astype(np.float64), rtol=rtol, atol=atol, err_msg=f"output {index}"
            )
        else:
            np.testing.assert_array_equal(ours, theirs, err_msg=f"output {index}")

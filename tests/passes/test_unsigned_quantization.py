"""Signed activations become unsigned, and nothing of what they stand for changes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.passes.rules.unsigned_quantization import NAME
from tests.passes.models import operators, rewritten
from tests.passes.test_quantization import RNG, Model, convolution


def beside_constant() -> onnx.ModelProto:
    model = Model(2, 5, kind=np.int8)
    c = model.weight("c", RNG.integers(-128, 128, 5, dtype=np.int8), np.float32(0.01))
    model.add("Add", ["x_d", c], "a")
    return model.finished(model.pair("a", 0.03, -5))


def of_sixteen_bits() -> onnx.ModelProto:
    model = Model(2, 5, kind=np.int16)
    model.add("Add", ["x_d", "x_d"], "a")
    return model.finished(model.pair("a", 0.03, -5))


def test_activations_and_their_zero_points_are_shifted() -> None:
    after, reports = rewritten(convolution(kind=np.int8))
    assert reports[NAME].changes == 2
    assert operators(after) == ["QuantizeLinear", "QLinearConv", "DequantizeLinear"]
    constants = {one.name: numpy_helper.to_array(one) for one in after.graph.initializer}
    points = [constants[node.input[2]] for node in after.graph.node if node.op_type.endswith("tizeLinear")]
    assert [int(point) for point in points] == [131, 0]
    assert {point.dtype.name for point in points} == {"uint8"}


def test_constants_beside_them_are_shifted() -> None:
    after, reports = rewritten(beside_constant())
    assert reports[NAME].changes == 3
    assert operators(after) == ["QuantizeLinear", "QLinearAdd", "DequantizeLinear"]


def test_other_integers_stay() -> None:
    model = of_sixteen_bits()
    model.opset_import[0].version = 21
    _, reports = rewritten(model)
    assert reports[NAME].changes == 0
    given = beside_constant()
    given.graph.output.append(onnx.helper.make_tensor_value_info("x_q", onnx.TensorProto.INT8, (2, 5)))
    _, reports = rewritten(given)
    assert reports[NAME].changes == 1


@pytest.mark.parametrize("model", [convolution(kind=np.int8), beside_constant()])
def test_results_are_the_same(model: onnx.ModelProto) -> None:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    x = (RNG.standard_normal(shape) * 2).astype(np.float32)
    found = [
        sardonyx.InferenceSession(model.SerializeToString(), disabled_optimizers=disabled).run(None, {"x": x})[0]
        for disabled in ([], [NAME])
    ]
    assert np.array_equal(*found)

"""Models written with large weights inside."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.graph.load import load_model
from sardonyx.graph.saving import save_model


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int8, ml_dtypes.int4, ml_dtypes.bfloat16])
def test_large_weights_come_back(tmp_path: Path, kind: type) -> None:
    generator = np.random.default_rng(0)
    large = generator.integers(-8, 8, (300, 301)).astype(kind)
    other = generator.integers(-8, 8, (500, 700)).astype(kind)
    tensor = numpy_helper.from_array(large, "large")
    tensor.doc_string = "a weight"
    data_type = tensor.data_type
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["large"], ["a"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["other"], ["b"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["a", "small"], ["y"]),
        ],
        "model",
        [],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [300, 301]),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, [500, 700]),
        ],
        [tensor, numpy_helper.from_array(other, "other"), numpy_helper.from_array(np.float32(2), "small")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / "model.onnx"
    save_model(load_model(proto).model, path)
    after = onnx.load(path)
    onnx.checker.check_model(after)
    found = {one.name: one for one in after.graph.initializer}
    assert sorted(found) == ["large", "other", "small"]
    for name, array in (("large", large), ("other", other)):
        assert found[name].data_type == data_type
        np.testing.assert_array_equal(numpy_helper.to_array(found[name]).astype(np.float32), array.astype(np.float32))
    assert numpy_helper.to_array(found["small"]) == 2
    assert [node.op_type for node in after.graph.node] == ["Cast", "Cast", "Mul"]
    again = load_model(path).model
    np.testing.assert_array_equal(
        again.graph.initializers["large"].const_value.numpy().astype(np.float32), large.astype(np.float32)
    )

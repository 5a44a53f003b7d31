"""QuantizeLinear and DequantizeLinear with a scale for each block, in native code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import sardonyx


def pair(shape: tuple[int, ...], axis: int, scales: Any, zeros: Any) -> Any:
    attributes = {"axis": axis, "block_size": 2}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes),
    ]
    graph = helper.make_graph(
        nodes,
        "pair",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info("q", TensorProto.INT8, shape),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, shape),
        ],
        [numpy_helper.from_array(scales, "s"), numpy_helper.from_array(zeros, "z")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(("axis", "shape"), [(0, (12, 5)), (1, (4, 6)), (-1, (2, 3, 8)), (1, (2, 4, 3, 3))])
def test_blocks(axis: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    sizes = list(shape)
    sizes[axis] //= 2
    scales = rng.uniform(0.01, 0.1, sizes).astype(np.float32)
    model = pair(shape, axis, scales, rng.integers(-10, 10, sizes).astype(np.int8))
    x = rng.standard_normal(shape).astype(np.float32)
    session = sardonyx.InferenceSession(model.SerializeToString())
    assert [step.kind for step in session._sess._plan.steps] == ["segment"]
    codes, real = session.run(None, {"x": x})
    wanted_codes, wanted_real = ReferenceEvaluator(model).run(None, {"x": x})
    assert np.array_equal(codes, wanted_codes)
    assert np.array_equal(real, wanted_real)


def test_parameters_that_do_not_fit() -> None:
    model = pair((4, 6), 1, np.ones((4, 2), np.float32), np.zeros((4, 2), np.int8))
    with pytest.raises(Exception, match="do not fit"):
        sardonyx.InferenceSession(model.SerializeToString()).run(None, {"x": np.zeros((4, 6), np.float32)})

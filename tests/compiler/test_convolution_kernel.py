"""Convolutions as products, against the operator's own meaning in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort

Array = np.ndarray[Any, Any]


def run(
    x: Array, w: Array, bias: Array | None, kernels: str, residual: Array | None = None, **attributes: Any
) -> Array:
    names = ["x", "w"] + ([] if bias is None else ["b"])
    nodes = [helper.make_node("Conv", names, ["c"], **attributes)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None] * x.ndim)]
    last = "c"
    feeds = {"x": x}
    if residual is not None:
        nodes += [helper.make_node("Add", ["c", "r"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
        inputs.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, [None] * residual.ndim))
        feeds["r"] = residual
        last = "y"
    constants = [numpy_helper.from_array(w, "w")] + ([] if bias is None else [numpy_helper.from_array(bias, "b")])
    output = helper.make_tensor_value_info(last, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    return ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


CASES = [
    ((1, 3, 32, 32), (8, 3, 16, 16), {"strides": [16, 16]}),
    ((2, 3, 9, 10), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 20, 9, 10), (7, 20, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((1, 32, 7, 7), (48, 32, 1, 1), {}),
    ((1, 32, 7, 8), (48, 32, 1, 1), {"strides": [2, 2]}),
    ((1, 20, 30), (24, 20, 3), {"pads": [1, 1]}),
    ((2, 24, 31), (17, 24, 3), {"pads": [1, 1], "strides": [2]}),
    ((1, 18, 11, 12), (6, 9, 3, 3), {"group": 2}),
    ((1, 40, 11, 12), (40, 10, 3, 3), {"group": 4, "dilations": [2, 1], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), {"auto_pad": "SAME_LOWER"}),
    ((1, 16, 1, 9), (4, 16, 1, 3), {"dilations": [1, 2]}),
    ((0, 3, 8, 8), (4, 3, 3, 3), {}),
]


@pytest.mark.parametrize(("shape", "weights", "attributes"), CASES, ids=str)
@pytest.mark.parametrize("extended", [False, True], ids=["alone", "bias, residual, Relu"])
def test_it_is_the_correlation(
    shape: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, Any], extended: bool
) -> None:
    random = np.random.default_rng(7)
    x = random.standard_normal(shape).astype(np.float32)
    w = random.standard_normal(weights).astype(np.float32)
    bias = random.standard_normal(weights[0]).astype(np.float32) if extended else None
    expected = run(x, w, bias, "numpy", **attributes)
    residual = random.standard_normal(expected.shape).astype(np.float32) if extended else None
    found = run(x, w, bias, "", residual, **attributes)
    if residual is not None:
        expected = np.maximum(expected + residual, 0)
    assert found.shape == expected.shape
    scale = np.sqrt(np.prod(weights[1:]))
    np.testing.assert_allclose(found, expected, atol=2e-6 * scale, rtol=1e-5)


def test_a_chain_stays_right_in_channels_last_order() -> None:
    random = np.random.default_rng(3)
    nodes, constants = [], []
    last = "x"
    for index, (filters, channels, size) in enumerate([(20, 3, 3), (24, 20, 1), (24, 24, 3), (5, 24, 3)]):
        w = random.standard_normal((filters, channels, size, size)).astype(np.float32) / channels
        constants.append(numpy_helper.from_array(w, f"w{index}"))
        pads = [size // 2] * 4
        nodes.append(helper.make_node("Conv", [last, f"w{index}"], [f"c{index}"], pads=pads))
        nodes.append(helper.make_node("Sigmoid", [f"c{index}"], [f"s{index}"]))
        nodes.append(helper.make_node("Mul", [f"c{index}", f"s{index}"], [f"m{index}"]))
        last = f"m{index}"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    plain = ort.SessionOptions()
    plain.add_session_config_entry("sardonyx.cpu.kernels", "numpy")
    ours, meaning = ort.InferenceSession(model), ort.InferenceSession(model, plain)
    assert [step.kind for step in ours._sess._plan.steps] == ["segment"]
    for shape in [(1, 3, 9, 8), (2, 3, 5, 12)]:
        x = random.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(ours.run(None, {"x": x})[0], meaning.run(None, {"x": x})[0], atol=1e-5, rtol=1e-5)

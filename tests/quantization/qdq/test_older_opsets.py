"""Scales of channels in models of operator sets whose DequantizeLinear has no axis."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.quantization import CalibrationDataReader, QDQQuantizer, QuantType, quantize_dynamic, quantize_static
from tests.quantization.quantizing import ranges_of, run

RNG = np.random.default_rng(4)
WEIGHTS = (RNG.standard_normal((4, 3, 3, 3)) * np.array([0.01, 0.1, 1, 3]).reshape(4, 1, 1, 1)).astype(np.float32)
IMAGE = RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)


class _Once(CalibrationDataReader):
    def __init__(self) -> None:
        self._left = [{"x": IMAGE}]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


def _model(opset: int, last: str = "Flatten") -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("MaxPool", ["c"], ["p"], name="pool", kernel_shape=[2, 2]),
        helper.make_node(last, ["p"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize(("opset", "per_channel", "written"), [(11, True, 13), (12, True, 13), (11, False, 11)])
def test_the_operator_set_is_raised_where_channels_ask_for_it(
    tmp_path: Path, opset: int, per_channel: bool, written: int
) -> None:
    source, target = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(_model(opset), source)
    quantize_static(source, target, _Once(), per_channel=per_channel, activation_type=QuantType.QUInt8)
    model = onnx.load(target)
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == written
    exact = run(onnx.load(source), {"x": IMAGE})[0]
    ours = sardonyx.InferenceSession(target).run(None, {"x": IMAGE})[0]
    theirs = pytest.importorskip("onnxruntime").InferenceSession(target, providers=["CPUExecutionProvider"])
    step = (exact.max() - min(exact.min(), 0)) / 255
    np.testing.assert_allclose(ours, exact, atol=4 * step)
    np.testing.assert_allclose(theirs.run(None, {"x": IMAGE})[0], ours, atol=1.01 * step)


def test_a_quantizer_of_a_message_keeps_the_operator_set() -> None:
    """The message of the caller is not raised: the pairs are of com.microsoft, whose axis is older."""
    model = _model(11)
    ranges = ranges_of(model, {"x": IMAGE})
    operators = ["Conv", "MaxPool"]
    quantizer = QDQQuantizer(model, True, False, QuantType.QInt8, QuantType.QUInt8, ranges, [], [], operators, {})
    made = quantizer.quantize_model()
    pairs = [node for node in made.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert {node.domain for node in pairs} == {"com.microsoft"}
    exact = run(model, {"x": IMAGE})[0]
    step = (exact.max() - min(exact.min(), 0)) / 255
    np.testing.assert_allclose(run(made, {"x": IMAGE})[0], exact, atol=4 * step)


@pytest.mark.parametrize("batch", ["n", None, 2])
def test_sums_that_broadcast_by_attributes(tmp_path: Path, batch: str | int | None) -> None:
    """Opset 6 with a size that is left open, which onnx's converter does not take."""
    weight, bias = RNG.standard_normal((4, 4)).astype(np.float32), RNG.standard_normal(4).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Add", ["p", "b"], ["s"], broadcast=1, name="sum"),
        helper.make_node("Mul", ["s", "p"], ["y"], name="times"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=4), tmp_path / "m.onnx")
    quantize_dynamic(tmp_path / "m.onnx", tmp_path / "q.onnx")
    written = onnx.load(tmp_path / "q.onnx")
    assert (written.graph.input[0].type, written.graph.output[0].type) == (graph.input[0].type, graph.output[0].type)
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    product = x.astype(np.float64) @ weight
    (y,) = sardonyx.InferenceSession(tmp_path / "q.onnx").run(None, {"x": x})
    np.testing.assert_allclose(y, (product + bias) * product, rtol=0.1, atol=0.3)

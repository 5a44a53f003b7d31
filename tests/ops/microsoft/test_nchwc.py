"""Models that onnxruntime itself put into its blocked layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.graph.load import load_model
from sardonyx.ops.microsoft import nchwc
from tests.ops.microsoft import peer

RNG = np.random.default_rng(1)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array((RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32), name)


def optimized(nodes: list[Any], weights: list[Any], shape: tuple[int, ...], path: Path) -> onnx.ModelProto:
    """What onnxruntime saves of the model at its highest level."""
    ort = pytest.importorskip("onnxruntime")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(path / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(options.optimized_model_filepath)


def check(nodes: list[Any], weights: list[Any], shape: tuple[int, ...], path: Path, expected: set[str]) -> None:
    model = optimized(nodes, weights, shape, path)
    found = {node.op_type for node in model.graph.node if node.domain == "com.microsoft.nchwc"}
    if not found:
        pytest.skip("onnxruntime has no blocked layout on this machine")
    assert expected <= found
    given = {"x": RNG.standard_normal(shape).astype(np.float32)}
    peer.check(peer.sardonyx(model, given), peer.onnxruntime(model, given), 1e-4, 1e-4)


def conv(x: str, w: str, y: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, w], [y], **attributes)


@pytest.mark.parametrize("filters", [32, 24, 8])
def test_row_order_input_then_blocked_weights(filters: int, tmp_path: Path) -> None:
    nodes = [
        conv("x", "w0", "a", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        conv("b", "w1", "y", strides=[2, 2]),
    ]
    weights = [weight("w0", filters, 3, 3, 3), weight("w1", 16, filters, 3, 3)]
    check(nodes, weights, (2, 3, 9, 10), tmp_path, {"Conv", "ReorderOutput"})


@pytest.mark.parametrize("activation", ["Sigmoid", "LeakyRelu", "Tanh", "HardSigmoid"])
def test_residual_and_activation(activation: str, tmp_path: Path) -> None:
    nodes = [
        conv("x", "w0", "a"),
        conv("a", "w1", "b", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node(activation, ["c"], ["d"]),
        conv("d", "w2", "y"),
    ]
    weights = [weight("w0", 32, 32, 1, 1), weight("w1", 32, 32, 3, 3), weight("w2", 32, 32, 1, 1)]
    check(nodes, weights, (1, 32, 7, 6), tmp_path, {"Conv", "ReorderInput", "ReorderOutput"})


def test_depthwise_and_grouped(tmp_path: Path) -> None:
    nodes = [
        conv("x", "w0", "a", group=32, pads=[1, 1, 1, 1]),
        conv("a", "w1", "b", group=2),
        helper.make_node("Clip", ["b", "low", "high"], ["c"]),
        conv("c", "w2", "y"),
    ]
    bounds = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in (("low", 0), ("high", 6))]
    weights = [weight("w0", 32, 1, 3, 3), weight("w1", 64, 16, 1, 1), weight("w2", 16, 64, 1, 1), *bounds]
    check(nodes, weights, (1, 32, 7, 6), tmp_path, {"Conv"})


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ("GlobalMaxPool", {}),
        ("GlobalAveragePool", {}),
    ],
)
def test_pools(op_type: str, attributes: dict[str, Any], tmp_path: Path) -> None:
    nodes = [conv("x", "w0", "a"), helper.make_node(op_type, ["a"], ["b"], **attributes), conv("b", "w1", "y")]
    weights = [weight("w0", 32, 3, 1, 1), weight("w1", 16, 32, 1, 1)]
    check(nodes, weights, (1, 3, 9, 8), tmp_path, {"Conv", op_type})


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ],
)
def test_upsample(attributes: dict[str, Any], tmp_path: Path) -> None:
    nodes = [
        conv("x", "w0", "a"),
        helper.make_node("Resize", ["a", "", "scales"], ["b"], **attributes),
        conv("b", "w1", "y"),
    ]
    scales = numpy_helper.from_array(np.array([1, 1, 2, 3], np.float32), "scales")
    weights = [weight("w0", 16, 3, 1, 1), weight("w1", 16, 16, 1, 1), scales]
    check(nodes, weights, (1, 3, 5, 4), tmp_path, {"Conv", "Upsample"})


def test_filters_that_are_no_multiple_of_16_prove_blocks_of_8() -> None:
    def model(filters: int) -> Any:
        node = helper.make_node("Conv", ["x", "w"], ["y"], domain="com.microsoft.nchwc")
        graph = helper.make_graph(
            [node],
            "g",
            [helper.make_tensor_value_info("x", 1, (1, 16, 4, 4))],
            [helper.make_tensor_value_info("y", 1, None)],
            [weight("w", filters, 16, 1, 1)],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.nchwc", 1)]
        (found,) = load_model(helper.make_model(graph, opset_imports=opsets).SerializeToString()).model.graph
        return found

    assert nchwc.block_size(model(24)) == 8
    assert nchwc.block_size(model(32)) == nchwc.machine_block_size()


@pytest.mark.parametrize("block", [8, 16])
def test_stored_weights_are_put_in_order(block: int) -> None:
    plain = np.arange(32 * 16 * 3 * 2, dtype=np.float32).reshape(32, 16, 3, 2)
    both = plain.reshape(32 // block, block, 16 // block, block, 3, 2).transpose(0, 2, 4, 5, 3, 1)
    np.testing.assert_array_equal(nchwc.ordered(both.reshape(plain.shape), 1, block), plain)
    first = plain[:, :3]
    stored = np.ascontiguousarray(first.reshape(32 // block, block, 3, 3, 2).transpose(0, 2, 3, 4, 1))
    np.testing.assert_array_equal(nchwc.ordered(stored.reshape(first.shape), 1, block), first)


@pytest.mark.parametrize("channels_last", [0, 1])
def test_reordering_there_and_back(channels_last: int) -> None:
    x = RNG.standard_normal((2, 3, 5, 12)).astype(np.float32)
    attributes = {"channels_last": channels_last}
    (inner,) = peer.run("ReorderInput", [x], 1, attributes, domain="com.microsoft.nchwc")
    channels = 12 if channels_last else 3
    assert inner.shape[1] % 8 == 0
    assert not inner[:, channels:].any()
    (back,) = peer.run("ReorderOutput", [inner], 1, {**attributes, "channels": channels}, domain="com.microsoft.nchwc")
    np.testing.assert_array_equal(back, x)

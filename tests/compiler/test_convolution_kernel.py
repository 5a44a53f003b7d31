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


def _small_network() -> bytes:
    """First layer, overlapping windows with a stride, a grouped layer, channels joined and split, a residual."""
    random = np.random.default_rng(9)
    shapes = {
        "w0": (32, 3, 6, 6),
        "w1": (48, 32, 3, 3),
        "w2": (48, 12, 3, 3),
        "w3": (40, 96, 1, 1),
        "w4": (20, 20, 3, 3),
    }
    constants = [
        numpy_helper.from_array((random.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], strides=[2, 2], pads=[2, 2, 2, 2]),
        node("HardSwish", ["c0"], ["h0"]),
        node("Conv", ["h0", "w1"], ["c1"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], group=4),
        node("Concat", ["r1", "c2"], ["j"], axis=1),
        node("Conv", ["j", "w3"], ["c3"]),
        node("Split", ["c3"], ["s0", "s1"], axis=1, num_outputs=2),
        node("Conv", ["s0", "w4"], ["c4"], pads=[1, 1, 1, 1]),
        node("Add", ["c4", "s1"], ["a"]),
        node("Relu", ["a"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return bytes(model.SerializeToString())


def test_any_number_of_threads_gives_the_same_bits() -> None:
    x = np.random.default_rng(10).standard_normal((2, 3, 61, 44)).astype(np.float32)
    results = []
    for threads in (1, 2, 3):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(_small_network(), options)
        assert [step.kind for step in session._sess._plan.steps] == ["segment"]
        results.append(session.run(None, {"x": x})[0])
    plain = ort.SessionOptions()
    plain.add_session_config_entry("sardonyx.cpu.kernels", "numpy")
    meaning = ort.InferenceSession(_small_network(), plain).run(None, {"x": x})[0]
    np.testing.assert_allclose(results[0], meaning, atol=1e-5, rtol=1e-5)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


FUSED = [
    ("FusedConv", {"activation": "Relu"}, ["x", "w", "b", "z"]),
    ("FusedConv", {"activation": "HardSigmoid", "activation_params": [0.3, 0.4], "strides": [2, 1]}, ["x", "w", "b"]),
    ("NhwcFusedConv", {"activation": "LeakyRelu", "activation_params": [0.1], "pads": [1] * 4}, ["x", "w", "b", "z"]),
    ("NhwcConv", {"dilations": [2, 1], "group": 2}, ["x", "w"]),
]


@pytest.mark.parametrize(("kind", "attributes", "inputs"), FUSED)
def test_fused_and_channels_last_operators_are_native(kind: str, attributes: dict[str, Any], inputs: list[str]) -> None:
    random = np.random.default_rng(21)
    last = kind.startswith("Nhwc")
    x = random.standard_normal((2, 20, 9, 10) if not last else (2, 9, 10, 20)).astype(np.float32)
    w = random.standard_normal((18, 20 // attributes.get("group", 1), 3, 3)).astype(np.float32)
    w /= np.sqrt(w[0].size)  # results of the size for which the bounds below are meant
    b = random.standard_normal(18).astype(np.float32)

    def session(kernels: str, names: list[str]) -> Any:
        declared = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * 4) for n in names if n in ("x", "z")]
        nodes = [helper.make_node(kind, names, ["c"], domain="com.microsoft", **attributes)]
        nodes.append(helper.make_node("Tanh", ["c"], ["y"]))
        graph = helper.make_graph(
            nodes,
            "g",
            declared,
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in (("w", w), ("b", b)) if name in names],
        )
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        options = ort.SessionOptions()
        options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
        return ort.InferenceSession(model, options)

    feeds = {"x": x}
    if "z" in inputs:
        shape = session("numpy", inputs[:3]).run(None, feeds)[0].shape
        feeds["z"] = random.standard_normal(shape).astype(np.float32)
    ours = session("", inputs)
    assert [step.kind for step in ours._sess._plan.steps] == ["segment"]
    expected = session("numpy", inputs).run(None, feeds)[0]
    np.testing.assert_allclose(ours.run(None, feeds)[0], expected, atol=1e-5, rtol=1e-4)

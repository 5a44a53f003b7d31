"""The other operators of calibrated integers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx.quantization.quant_utils import QuantType
from sardonyx.quantization.refusal import InvalidQuantization
from tests.quantization.quantizing import (
    constants,
    model,
    node,
    operators,
    quantized,
    quantizer,
    ranges_of,
    requantized,
    run,
    run_peer,
    stored,
)

U8, S8 = QuantType.QUInt8, QuantType.QInt8
BOTH = pytest.mark.parametrize("activations", [U8, S8])
INT64, BOOL = onnx.TensorProto.INT64, onnx.TensorProto.BOOL


def _floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def _kind(activations: QuantType) -> type:
    return np.uint8 if activations is U8 else np.int8


def _real(kept: dict[str, np.ndarray], name: str, array: np.ndarray, kind: type) -> np.ndarray:
    """What the stored form of a value stands for."""
    zero_point = int(kept[f"{name}_zero_point"])
    return (stored(array, kept[f"{name}_scale"], zero_point, kind) - zero_point) * kept[f"{name}_scale"].astype(float)


@BOTH
@pytest.mark.parametrize("operator", ["Add", "Mul"])
@pytest.mark.parametrize("shape", [(3, 4), (4,), (3, 1)])
@pytest.mark.parametrize("is_constant", [False, True])
def test_add_and_mul(activations: QuantType, operator: str, shape: tuple[int, ...], is_constant: bool) -> None:
    left, right = _floats(3, 4), _floats(*shape)
    inputs = {"a": [3, 4]} if is_constant else {"a": [3, 4], "b": list(shape)}
    proto = model([node(operator, ["a", "b"], ["y"])], inputs, ["y"], {"b": right} if is_constant else {})
    feeds = {"a": left} if is_constant else {"a": left, "b": right}
    made = quantized(proto, ranges=ranges_of(proto, feeds), activation_type=activations)
    assert f"QLinear{operator}" in operators(made)
    kept, kind = constants(made), _kind(activations)
    one, other = _real(kept, "a", left, kind), _real(kept, "b", right, kind)
    exact = (one + other if operator == "Add" else one * other) / kept["y_scale"]
    expected, sure = requantized(exact, int(kept["y_zero_point"]), kind)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        found = np.rint(outputs[0] / kept["y_scale"]).astype(np.int64) + int(kept["y_zero_point"])
        np.testing.assert_array_equal(found[sure], expected[sure])


@BOTH
@pytest.mark.parametrize(
    ("operator", "function", "attributes"),
    [
        ("Sigmoid", lambda x: 1 / (1 + np.exp(-x)), {}),
        ("LeakyRelu", lambda x: np.where(x < 0, 0.2 * x, x), {"alpha": 0.2}),
    ],
)
def test_functions_of_one_number(activations: QuantType, operator: str, function, attributes: dict) -> None:
    proto = model([node(operator, ["x"], ["y"], **attributes)], {"x": [3, 40]}, ["y"], {})
    feeds = {"x": _floats(3, 40)}
    made = quantized(proto, ranges=ranges_of(proto, feeds), activation_type=activations)
    assert f"QLinear{operator}" in operators(made)
    kept, kind = constants(made), _kind(activations)
    exact = function(_real(kept, "x", feeds["x"], kind)) / kept["y_scale"]
    expected, sure = requantized(exact, int(kept["y_zero_point"]), kind)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        found = np.rint(outputs[0] / kept["y_scale"]).astype(np.int64) + int(kept["y_zero_point"])
        np.testing.assert_array_equal(found[sure], expected[sure])


def test_sigmoid_of_nnapi() -> None:
    proto = model([node("Sigmoid", ["x"], ["y"])], {"x": [3, 4]}, ["y"], {})
    made = quantized(proto, ranges=ranges_of(proto, {"x": _floats(3, 4)}), **{"extra.Sigmoid.nnapi": True})
    assert constants(made)["y_scale"] == 1 / 256


@BOTH
@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax(activations: QuantType, axis: int) -> None:
    proto = model([node("Softmax", ["x"], ["y"], axis=axis)], {"x": [3, 7, 5]}, ["y"], {})
    feeds = {"x": _floats(3, 7, 5)}
    made = quantized(proto, ranges=ranges_of(proto, feeds), activation_type=activations)
    kept = constants(made)
    assert kept["y_scale"] == np.float32(1 / 256)
    assert kept["y_zero_point"] == (0 if activations is U8 else -128)
    real = np.exp(_real(kept, "x", feeds["x"], _kind(activations)))
    exact = real / real.sum(axis, keepdims=True)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact, atol=1 / 256)


@BOTH
@pytest.mark.parametrize("include", [0, 1])
def test_average_pools(activations: QuantType, include: int) -> None:
    pool = node(
        "AveragePool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], count_include_pad=include
    )
    proto = model([pool, node("GlobalAveragePool", ["y"], ["z"])], {"x": [2, 3, 8, 8]}, ["y", "z"], {})
    feeds = {"x": _floats(2, 3, 8, 8)}
    made = quantized(proto, ranges=ranges_of(proto, feeds), activation_type=activations)
    assert operators(made)[1:3] == ["QLinearAveragePool", "QLinearGlobalAveragePool"]
    exact, kept = run(proto, feeds), constants(made)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact[0], atol=1.1 * (kept["x_scale"] / 2 + kept["y_scale"] / 2))
        np.testing.assert_allclose(outputs[1], exact[1], atol=kept["y_scale"] + kept["z_scale"])


@BOTH
def test_concat(activations: QuantType) -> None:
    proto = model(
        [node("Concat", ["a", "b", "c"], ["y"], axis=1)], {"a": [2, 3], "b": [2, 2]}, ["y"], {"c": _floats(2, 4)}
    )
    feeds = {"a": _floats(2, 3), "b": _floats(2, 2) * np.float32(3)}
    made = quantized(proto, ranges=ranges_of(proto, feeds), activation_type=activations)
    kept, kind = constants(made), _kind(activations)
    real = np.concatenate([_real(kept, name, {**feeds, "c": _floats(2, 4)}[name], kind) for name in "abc"], 1)
    expected, sure = requantized(real / kept["y_scale"], int(kept["y_zero_point"]), kind)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        found = np.rint(outputs[0] / kept["y_scale"]).astype(np.int64) + int(kept["y_zero_point"])
        np.testing.assert_array_equal(found[sure], expected[sure])


def test_where_of_two_quantised_values() -> None:
    proto = model(
        [
            node("Conv", ["x", "w"], ["c"]),
            node("Sigmoid", ["c"], ["s"]),
            node("Where", ["flags", "c", "s"], ["y"]),
        ],
        {"x": [1, 3, 4, 4], "flags": [1, 4, 4, 4]},
        ["y"],
        {"w": _floats(4, 3, 1, 1)},
        kinds={"flags": BOOL},
    )
    feeds = {"x": _floats(1, 3, 4, 4), "flags": _floats(1, 4, 4, 4) > 0}
    made = quantized(proto, ranges=ranges_of(proto, feeds))
    assert "QLinearWhere" in operators(made)
    (exact,) = run(proto, feeds)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact, atol=4 * constants(made)["c_scale"])


@pytest.mark.parametrize("force", [False, True])
def test_where_of_a_mask_stays_unless_forced(force: bool) -> None:
    proto = model(
        [node("Conv", ["x", "w"], ["c"]), node("Where", ["flags", "c", "mask"], ["y"]), node("Neg", ["c"], ["z"])],
        {"x": [1, 3, 4, 4], "flags": [1, 4, 4, 4]},
        ["y", "z"],
        {"w": _floats(4, 3, 1, 1), "mask": np.float32(-1e9)},
        kinds={"flags": BOOL},
    )
    feeds = {"x": _floats(1, 3, 4, 4), "flags": _floats(1, 4, 4, 4) > 0}
    made = quantized(proto, ranges=ranges_of(proto, feeds), ForceQuantizeNoInputCheck=force)
    assert ("QLinearWhere" in operators(made)) == force
    exact = run(proto, feeds)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[1], exact[1], atol=0.1)
        if not force:
            np.testing.assert_allclose(outputs[0], exact[0], atol=0.1)


def test_where_after_a_split() -> None:
    proto = model(
        [
            node("Split", ["x"], ["a", "b"], axis=1),
            node("Where", ["flags", "a", "b"], ["y"]),
        ],
        {"x": [2, 8], "flags": [2, 4]},
        ["y"],
        {},
        kinds={"flags": BOOL},
    )
    feeds = {"x": _floats(2, 8), "flags": _floats(2, 4) > 0}
    made = quantized(proto, ranges=ranges_of(proto, feeds))
    (exact,) = run(proto, feeds)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact, atol=0.05)


LAYOUT = [
    (node("MaxPool", ["c"], ["m"], kernel_shape=[2, 2], strides=[2, 2]), {}),
    (node("Reshape", ["c", "k"], ["m"]), {"k": np.array([0, -1])}),
    (node("Transpose", ["c"], ["m"], perm=[0, 2, 3, 1]), {}),
    (node("Unsqueeze", ["c", "k"], ["m"]), {"k": np.array([0])}),
    (node("Flatten", ["c"], ["m"]), {}),
    (node("Resize", ["c", "", "k"], ["m"], mode="nearest"), {"k": np.array([1, 1, 2, 2], np.float32)}),
    (node("Pad", ["c", "k"], ["m"], mode="reflect"), {"k": np.array([0, 0, 1, 1, 0, 0, 1, 1])}),
    (node("Pad", ["c", "k"], ["m"]), {"k": np.array([0, 0, 1, 1, 0, 0, 1, 1])}),
    (node("Pad", ["c", "k", "n"], ["m"]), {"k": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "n": np.float32(0.5)}),
]


@BOTH
@pytest.mark.parametrize(("middle", "more"), LAYOUT, ids=lambda one: getattr(one, "op_type", ""))
@pytest.mark.parametrize("force", [False, True])
def test_operators_that_give_what_they_read(
    activations: QuantType, middle: onnx.NodeProto, more: dict, force: bool
) -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), middle, node("Sigmoid", ["m"], ["y"])]
    proto = model(nodes, {"x": [2, 3, 4, 4]}, ["y"], {"w": _floats(4, 3, 1, 1), **more})
    feeds = {"x": _floats(2, 3, 4, 4)}
    made = quantized(
        proto, ranges=ranges_of(proto, feeds), activation_type=activations, ForceQuantizeNoInputCheck=force
    )
    assert operators(made) == ["QuantizeLinear", "QLinearConv", middle.op_type, "QLinearSigmoid", "DequantizeLinear"]
    (exact,) = run(proto, feeds)
    atol = constants(made)["c_scale"] * 0.6 + constants(made)["y_scale"]
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact, atol=atol)


@pytest.mark.parametrize("force", [False, True])
def test_reshape_of_a_float(force: bool) -> None:
    proto = model(
        [node("Reshape", ["x", "k"], ["m"]), node("Add", ["m", "m"], ["y"])],
        {"x": [2, 8]},
        ["y"],
        {"k": np.array([4, 4])},
    )
    feeds = {"x": _floats(2, 8)}
    made = quantized(proto, ranges=ranges_of(proto, feeds), ForceQuantizeNoInputCheck=force)
    assert operators(made)[0] == ("QuantizeLinear" if force else "Reshape")
    np.testing.assert_allclose(run(made, feeds)[0], run(proto, feeds)[0], atol=0.05)


def test_pad_by_a_number_that_is_not_stored_stays() -> None:
    proto = model(
        [
            node("Conv", ["x", "w"], ["c"]),
            node("Pad", ["c", "k", "n"], ["m"]),
            node("MaxPool", ["m"], ["y"], kernel_shape=[3, 3]),
        ],
        {"x": [1, 3, 4, 4]},
        ["y", "m"],
        {"w": _floats(4, 3, 1, 1), "k": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "n": np.float32(-1e30)},
    )
    feeds = {"x": _floats(1, 3, 4, 4)}
    made = quantizer(proto, ranges=ranges_of(proto, feeds))
    result = made.quantize_model()
    assert any("it pads with -1" in line for line in made.report.lines())
    assert run(result, feeds)[1].min() == np.float32(-1e30)


def test_cubic_resize_stays() -> None:
    proto = model(
        [node("Conv", ["x", "w"], ["c"]), node("Resize", ["c", "", "k"], ["y"], mode="cubic")],
        {"x": [1, 3, 4, 4]},
        ["y"],
        {"w": _floats(4, 3, 1, 1), "k": np.array([1, 1, 2, 2], np.float32)},
    )
    feeds = {"x": _floats(1, 3, 4, 4)}
    made = quantized(proto, ranges=ranges_of(proto, feeds))
    assert operators(made)[-2:] == ["DequantizeLinear", "Resize"]
    (exact,) = run(proto, feeds)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact, atol=0.1)


def test_max_pool_with_indices() -> None:
    proto = model(
        [node("Conv", ["x", "w"], ["c"]), node("MaxPool", ["c"], ["y", "i"], kernel_shape=[2, 2])],
        {"x": [1, 3, 4, 4]},
        ["y", "i"],
        {"w": _floats(4, 3, 1, 1)},
        kinds={"i": INT64},
    )
    feeds = {"x": _floats(1, 3, 4, 4)}
    made = quantized(proto, ranges=ranges_of(proto, feeds))
    outputs, exact = run(made, feeds), run(proto, feeds)
    np.testing.assert_allclose(outputs[0], exact[0], atol=0.1)
    assert outputs[1].shape == exact[1].shape


def test_arg_max_reads_what_is_stored() -> None:
    proto = model(
        [node("Conv", ["x", "w"], ["c"]), node("ArgMax", ["c"], ["y"], axis=1)],
        {"x": [1, 3, 4, 4]},
        ["y"],
        {"w": _floats(8, 3, 1, 1)},
        kinds={"y": INT64},
    )
    feeds = {"x": _floats(1, 3, 4, 4)}
    made = quantized(proto, ranges=ranges_of(proto, feeds))
    assert operators(made) == ["QuantizeLinear", "QLinearConv", "ArgMax"]
    assert (run(made, feeds)[0] == run(proto, feeds)[0]).mean() > 0.8
    np.testing.assert_array_equal(run(made, feeds)[0], run_peer(made, feeds)[0])


@BOTH
def test_gather_of_a_table_is_of_the_type_of_activations(activations: QuantType) -> None:
    table = _floats(9, 4)
    proto = model(
        [node("Gather", ["t", "i"], ["rows"]), node("Add", ["rows", "x"], ["y"])],
        {"i": [2], "x": [2, 4]},
        ["y"],
        {"t": table},
        kinds={"i": INT64},
    )
    feeds = {"i": np.array([7, 0]), "x": _floats(2, 4)}
    made = quantized(proto, ranges=ranges_of(proto, feeds), activation_type=activations)
    assert constants(made)["t_quantized"].dtype == _kind(activations)
    (exact,) = run(proto, feeds)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact, atol=0.06)


def test_type_of_one_tensor_that_others_do_not_go_with() -> None:
    proto = model(
        [node("Add", ["a", "b"], ["y"]), node("Mul", ["a", "a"], ["z"])], {"a": [3], "b": [3]}, ["y", "z"], {}
    )
    feeds = {"a": _floats(3), "b": _floats(3, seed=1)}
    made = quantizer(
        proto, ranges=ranges_of(proto, feeds), TensorQuantOverrides={"b": [{"quant_type": QuantType.QInt8}]}
    )
    made.quantize_model()
    assert any("several types: INT8, UINT8" in line for line in made.report.lines())


def test_overrides_of_scales_count() -> None:
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [3, 4]}, ["y"], {"w": _floats(4, 2)})
    feeds = {"x": _floats(3, 4)}
    overrides = {
        "x": [{"scale": np.array(0.5, np.float32), "zero_point": np.array(100)}],
        "w": [{"scale": np.array(0.25, np.float32), "zero_point": np.array(0)}],
    }
    kept = constants(quantized(proto, ranges=ranges_of(proto, feeds), TensorQuantOverrides=overrides))
    assert (kept["x_scale"], kept["x_zero_point"], kept["w_scale"]) == (0.5, 100, 0.25)
    np.testing.assert_array_equal(kept["w_quantized"], np.clip(np.rint(_floats(4, 2) / 0.25), -128, 127))


def test_body_that_reads_a_quantised_activation() -> None:
    from onnx import TensorProto, helper

    branches = {
        f"{name}_branch": helper.make_graph(
            [node(operator, ["c"], [name])], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
        )
        for name, operator in (("then", "Neg"), ("else", "Relu"))
    }
    for enable in (False, True):
        proto = model(
            [node("Conv", ["x", "w"], ["c"]), node("If", ["flag"], ["y"], **branches), node("Sigmoid", ["c"], ["z"])],
            {"x": [1, 3, 4, 4], "flag": []},
            ["y", "z"],
            {"w": _floats(4, 3, 1, 1)},
            kinds={"flag": BOOL},
        )
        for flag in (True, False):
            feeds = {"x": _floats(1, 3, 4, 4), "flag": np.array(flag)}
            made = quantized(proto, ranges=ranges_of(proto, feeds), EnableSubgraph=enable)
            exact = run(proto, feeds)
            for outputs in (run(made, feeds), run_peer(made, feeds)):
                for one, other in zip(outputs, exact, strict=True):
                    np.testing.assert_allclose(one, other, atol=0.05)


def test_weight_that_is_an_output_stays_exact() -> None:
    weight = _floats(4, 2)
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [3, 4]}, ["y", "w"], {"w": weight})
    feeds = {"x": _floats(3, 4)}
    made = quantized(proto, ranges=ranges_of(proto, feeds))
    np.testing.assert_array_equal(run(made, feeds)[1], weight)


def test_nothing_that_can_be_quantised() -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": [3]}, ["y"], {})
    with pytest.raises(InvalidQuantization, match="No node of the model can be quantised"):
        quantized(proto, ranges=ranges_of(proto, {"x": _floats(3)}))


def test_mask_of_infinite_numbers_stays_float() -> None:
    mask = np.zeros((4, 4), np.float32)
    mask[:, 2:] = -np.inf
    proto = model(
        [node("MatMul", ["x", "w"], ["s"]), node("Add", ["s", "mask"], ["m"]), node("Softmax", ["m"], ["y"])],
        {"x": [4, 8]},
        ["y"],
        {"w": _floats(8, 4), "mask": mask},
    )
    feeds = {"x": _floats(4, 8)}
    made = quantized(proto, ranges=ranges_of(proto, feeds))
    assert operators(made) == ["QuantizeLinear", "QLinearMatMul", "DequantizeLinear", "Add", "Softmax"]
    (exact,) = run(proto, feeds)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact, atol=0.05)
        assert not outputs[0][:, 2:].any()

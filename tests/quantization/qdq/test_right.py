"""Models that onnxruntime's quantizer gets wrong: what is right, in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.quantization.quant_utils import QuantType
from tests.quantization.qdq.pairs import check, error_of, evaluate, is_dequantized, named, nodes, quantized, quantizer
from tests.quantization.quantizing import Range, constants, model, node, run, run_peer

_RANDOM = np.random.default_rng(11)


def _floats(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _with_clip(low: float | None, high: float | None, **outputs: bool) -> onnx.ModelProto:
    bounds = {name: np.float32(bound) for name, bound in (("low", low), ("high", high)) if bound is not None}
    names = ["low" if low is not None else "", "high" if high is not None else ""]
    return model(
        [node("MatMul", ["x", "w"], ["m"]), node("Clip", ["m", *names], ["y"], name="clip")],
        {"x": [4, 6]},
        ["y", *outputs],
        {"w": _floats(6, 6), **bounds},
    )


@pytest.mark.parametrize(
    ("low", "high", "stays"),
    [
        (0.0, 6.0, False),
        (-1.0, 1.0, False),  # what is observed reaches both bounds, and nothing beyond them is stored
        (0.5, 2.0, True),  # a stored range reaches down to zero
        (-3.0, -0.5, True),
        (0.0, None, False),
        (None, None, True),
    ],
)
def test_a_clip_goes_where_the_stored_range_clamps(low: float | None, high: float | None, stays: bool) -> None:
    x = _floats(4, 6) * 3
    proto = quantized(_with_clip(low, high), {"x": x})
    if (low, high) == (None, None):
        stays = False  # it does nothing
    assert len(nodes(proto, "Clip")) == stays
    # Inputs far beyond what was seen are clamped as well.
    for scale in (1, 10):
        exact = check(proto, {"x": x * scale})[0]
        step = float(constants(proto)["y_scale"])
        assert (exact >= (-np.inf if low is None else low) - 0.51 * step).all()
        assert (exact <= (np.inf if high is None else high) + 0.51 * step).all()


def test_a_relu_stays_where_its_range_was_chosen_wider() -> None:
    x = _floats(4, 6)
    float_model = model(
        [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])], {"x": [4, 6]}, ["y"], {"w": _floats(6, 6)}
    )
    proto = quantized(float_model, {"x": x}, TensorQuantOverrides={"y": [{"rmin": -9.0, "rmax": 9.0}]})
    assert len(nodes(proto, "Relu")) == 1
    assert (check(proto, {"x": x})[0] >= 0).all()


def test_a_relu_stays_where_somebody_reads_its_input() -> None:
    """The input keeps a range of its own then."""
    x = _floats(4, 6)
    float_model = model(
        [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])],
        {"x": [4, 6]},
        ["y", "m"],
        {"w": _floats(6, 6)},
    )
    proto = quantized(float_model, {"x": x})
    clamped, whole = check(proto, {"x": x})
    exact = evaluate(float_model, {"x": x})[1]
    assert (clamped >= 0).all()
    assert np.abs(whole - exact).max() < 0.1 < np.abs(exact.min())


def test_a_relu_stays_where_its_result_stays_float() -> None:
    x = _floats(4, 6)
    float_model = model(
        [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])], {"x": [4, 6]}, ["y"], {"w": _floats(6, 6)}
    )
    proto = quantized(float_model, {"x": x}, OpTypesToExcludeOutputQuantization=["Relu"])
    assert len(nodes(proto, "Relu")) == 1
    assert (check(proto, {"x": x}, slack=5e-2)[0] >= 0).all()


def test_a_relu_stays_where_an_excluded_node_reads_it() -> None:
    x = _floats(4, 6)
    float_model = model(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Relu", ["m"], ["r"]),
            node("Sqrt", ["r"], ["s"], name="root"),
            node("Add", ["r", "r"], ["y"]),
        ],
        {"x": [4, 6]},
        ["s", "y"],
        {"w": _floats(6, 6)},
    )
    proto = quantized(float_model, {"x": x}, exclude=["root"])
    assert list(named(proto, "root").input) == ["r"]
    assert not np.isnan(check(proto, {"x": x * 5}, slack=0.5)[0]).any()


def test_a_relu_of_16_bits_stays() -> None:
    """Engines that take pairs of 16 bits out would lose it."""
    x = _floats(4, 6)
    float_model = model(
        [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])], {"x": [4, 6]}, ["y"], {"w": _floats(6, 6)}
    )
    assert len(nodes(quantized(float_model, {"x": x}, activation_type=QuantType.QUInt16), "Relu")) == 1


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("beta", [1.0, 0.5, 3.0, 0.0])
@pytest.mark.parametrize("per_channel", [False, True])
def test_gemm_with_alpha_and_beta(alpha: float, beta: float, per_channel: bool) -> None:
    x = _floats(5, 8)
    float_model = model(
        [node("Gemm", ["x", "w", "b"], ["y"], alpha=alpha, beta=beta, transB=1)],
        {"x": [5, 8]},
        ["y"],
        {"w": _floats(6, 8), "b": _floats(6) * 4},
    )
    proto = quantized(float_model, {"x": x}, per_channel=per_channel)
    check(proto, {"x": x})
    assert error_of(float_model, proto, {"x": x}) < 0.02


@pytest.mark.parametrize("shape", [(1, 6), (1,), (5, 6), (5, 1), ()])
@pytest.mark.parametrize("per_channel", [False, True])
def test_gemm_with_biases_of_any_shape(shape: tuple[int, ...], per_channel: bool) -> None:
    x = _floats(5, 8)
    float_model = model(
        [node("Gemm", ["x", "w", "b"], ["y"])],
        {"x": [5, 8]},
        ["y"],
        {"w": _floats(8, 6), "b": np.asarray(_floats(*shape), np.float32)},
    )
    proto = quantized(float_model, {"x": x}, per_channel=per_channel)
    check(proto, {"x": x})
    assert error_of(float_model, proto, {"x": x}) < 0.03


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8, QuantType.QInt16])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_bias_beyond_int32_raises_the_scale(kind: QuantType, per_channel: bool) -> None:
    """Whatever the type of the weights, and the report says so."""
    x = _floats(2, 4, 5, 5) * np.float32(1e-3)
    float_model = model(
        [node("Conv", ["x", "w", "b"], ["y"], name="it")],
        {"x": [2, 4, 5, 5]},
        ["y"],
        {"w": _floats(3, 4, 1, 1) * np.float32(1e-6), "b": np.array([5, -80, 0.5], np.float32)},
    )
    found = quantizer(float_model, {"x": x}, weight_type=kind, per_channel=per_channel)
    proto = found.quantize_model()
    check(proto, {"x": x}, peer=kind is not QuantType.QInt16)
    assert error_of(float_model, proto, {"x": x}) < 0.02
    assert any("scale of weight 'w' is raised" in note and "'b'" in note for note in found.report.notes)


def test_a_bias_may_stay_float_instead() -> None:
    x = _floats(2, 4, 5, 5) * np.float32(1e-3)
    float_model = model(
        [node("Conv", ["x", "w", "b"], ["y"], name="it")],
        {"x": [2, 4, 5, 5]},
        ["y"],
        {"w": _floats(3, 4, 1, 1) * np.float32(1e-6), "b": np.array([5, -80, 0.5], np.float32)},
    )
    found = quantizer(float_model, {"x": x}, QDQDisableWeightAdjustForInt32Bias=True)
    proto = found.quantize_model()
    assert list(named(proto, "it").input)[2] == "b"
    np.testing.assert_array_equal(constants(proto)["b"], [5, -80, 0.5])
    assert any("Conv it: its bias b stays float" in note for note in found.report.notes)
    check(proto, {"x": x}, peer=False)  # ONNX Runtime stores it as int32 by itself, and loses it
    assert error_of(float_model, proto, {"x": x}) < 0.01


def test_a_bias_of_two_nodes() -> None:
    x = _floats(2, 4, 5, 5)
    float_model = model(
        [node("Conv", ["x", "w", "b"], ["a"]), node("Conv", ["a", "v", "b"], ["y"])],
        {"x": [2, 4, 5, 5]},
        ["y", "b"],
        {"w": _floats(4, 4, 1, 1), "v": _floats(4, 4, 1, 1), "b": _floats(4)},
    )
    proto = quantized(float_model, {"x": x})
    exact = check(proto, {"x": x})
    assert error_of(float_model, proto, {"x": x}) < 0.03
    np.testing.assert_array_equal(exact[1], constants(float_model)["b"])  # an output is exact


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("per_channel", [False, True])
def test_conv_transpose_with_groups_and_bias(groups: int, per_channel: bool) -> None:
    x = _floats(2, 8, 5, 5)
    float_model = model(
        [node("ConvTranspose", ["x", "w", "b"], ["y"], group=groups, strides=[2, 2])],
        {"x": [2, 8, 5, 5]},
        ["y"],
        {"w": _floats(8, 12 // groups, 3, 3), "b": _floats(12) * 3},
    )
    proto = quantized(float_model, {"x": x}, per_channel=per_channel)
    assert constants(proto)["w_scale"].shape == ((12 // groups,) if per_channel else ())
    assert constants(proto)["b_quantized"].shape == (12,)
    check(proto, {"x": x})
    assert error_of(float_model, proto, {"x": x}) < 0.02


@pytest.mark.parametrize("shape", [(6,), (2, 6, 5), (3, 2, 6, 5)])
def test_products_per_channel_of_any_rank(shape: tuple[int, ...]) -> None:
    """Only a matrix has channels: of others no kernel takes several scales."""
    x = _floats(2, 4, 6)
    float_model = model([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 4, 6]}, ["y"], {"w": _floats(*shape)})
    for options in ({}, {"QDQOpTypePerChannelSupportToAxis": {"MatMul": 1}}):
        proto = quantized(float_model, {"x": x}, per_channel=True, **options)
        assert constants(proto)["w_scale"].shape == ()
        check(proto, {"x": x})
        assert error_of(float_model, proto, {"x": x}) < 0.02


def test_a_weight_of_a_table_and_a_product() -> None:
    """Each stores it as it needs: the table with one scale, the product with one for each channel."""
    rows = np.array([[1, 3]])
    float_model = model(
        [
            node("Gather", ["w", "rows"], ["e"], name="table"),
            node("Add", ["e", "c"], ["s"]),
            node("MatMul", ["s", "v"], ["z"]),
            node("MatMul", ["z", "w"], ["y"], name="product"),
        ],
        {"rows": [1, 2]},
        ["y"],
        {"w": _floats(9, 6), "v": _floats(6, 9), "c": _floats(6)},
        kinds={"rows": TensorProto.INT64},
    )
    proto = quantized(float_model, {"rows": rows}, per_channel=True)
    found = constants(proto)
    table, product = named(proto, "table").input[0], named(proto, "product").input[1]
    assert {table, product} == {"w_DequantizeLinear_Output", "w_DequantizeLinear_Output_1"}
    assert sorted(found[name].shape for name in ("w_scale", "w_scale_1")) == [(), (6,)]
    assert list(named(proto, "e_QuantizeLinear").input)[1:] == ["w_scale", "w_zero_point"]
    check(proto, {"rows": rows})
    assert error_of(float_model, proto, {"rows": rows}) < 0.05


def test_excluded_nodes_stay_exact() -> None:
    """They read the float weight and the float activation that quantised nodes read as well."""
    x = _floats(2, 4, 6)
    float_model = model(
        [
            node("MatMul", ["x", "w"], ["m"], name="one"),
            node("MatMul", ["x", "w"], ["n"], name="two"),
            node("Add", ["m", "n"], ["y"]),
        ],
        {"x": [2, 4, 6]},
        ["y", "n"],
        {"w": _floats(6, 6)},
    )
    proto = quantized(float_model, {"x": x}, exclude=["two"])
    assert list(named(proto, "two").input) == ["x", "w"]
    assert is_dequantized(proto, named(proto, "one").input[0])
    exact = check(proto, {"x": x})[1]
    np.testing.assert_array_equal(exact, evaluate(float_model, {"x": x})[1])


def test_outputs_are_exact_that_no_quantised_node_makes() -> None:
    x = _floats(2, 4, 6)
    float_model = model(
        [node("Exp", ["x"], ["e"], name="exp"), node("MatMul", ["e", "w"], ["y"])],
        {"x": [2, 4, 6]},
        ["y", "e", "w"],
        {"w": _floats(6, 6)},
    )
    proto = quantized(float_model, {"x": x})
    _, made, weight = check(proto, {"x": x})
    np.testing.assert_array_equal(made, np.exp(x.astype(np.float64)))
    np.testing.assert_array_equal(weight, constants(float_model)["w"])


def test_cubic_interpolation_has_a_range_of_its_own() -> None:
    x = _floats(1, 2, 6, 6)
    float_model = model(
        [node("MatMul", ["x", "w"], ["m"]), node("Resize", ["m", "", "s"], ["y"], mode="cubic")],
        {"x": [1, 2, 6, 6]},
        ["y"],
        {"w": _floats(6, 6), "s": np.array([1, 1, 2, 2], np.float32)},
    )
    proto = quantized(float_model, {"x": x})
    check(proto, {"x": x}, slack=1e-4)
    assert error_of(float_model, proto, {"x": x}) < 0.02


def test_padding_with_infinity_stays_float() -> None:
    x = _floats(1, 2, 6, 6)
    float_model = model(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Pad", ["m", "p", "v"], ["q"], name="pad"),
            node("MaxPool", ["q"], ["y"], kernel_shape=[3, 3]),
        ],
        {"x": [1, 2, 6, 6]},
        ["y"],
        {
            "w": _floats(6, 6),
            "p": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
            "v": np.float32(-np.inf),
        },
    )
    proto = quantized(float_model, {"x": x})
    assert named(proto, "pad").input[2] == "v"
    assert np.isfinite(check(proto, {"x": x}, slack=5e-2)[0]).all()


def test_a_mask_of_infinities_stays_float() -> None:
    """A constant that is not finite has no scale."""
    x = _floats(3, 3)
    mask = np.where(np.tri(3) > 0, 0, -np.inf).astype(np.float32)
    float_model = model(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Add", ["m", "mask"], ["a"], name="add"),
            node("Softmax", ["a"], ["y"]),
        ],
        {"x": [3, 3]},
        ["y"],
        {"w": _floats(3, 3), "mask": mask},
    )
    found = quantizer(
        float_model,
        {"x": x},
        ranges={
            "x": Range(np.float32(-3), np.float32(3)),
            "m": Range(np.float32(-6), np.float32(6)),
            "y": Range(np.float32(0), np.float32(1)),
        },
        operators=["MatMul", "Add", "Softmax"],
        exclude=["Softmax_y"],
        OpTypesToExcludeOutputQuantization=["Add"],
    )
    proto = found.quantize_model()
    np.testing.assert_array_equal(constants(proto)["mask"], mask)
    assert any("'mask'" in note and "not finite" in note for note in found.report.notes)
    result = run(proto, {"x": x})[0]
    np.testing.assert_array_equal(result[0], [1, 0, 0])


def _with_body(outer_reads: str) -> onnx.ModelProto:
    """An If whose branch multiplies an outer value by an outer weight."""
    branch = helper.make_graph(
        [helper.make_node("MatMul", [outer_reads, "w"], ["inner"], name="inner")],
        "then",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["same"], name="same")],
        "else",
        [],
        [helper.make_tensor_value_info("same", TensorProto.FLOAT, None)],
    )
    return model(
        [
            node("MatMul", ["x", "w"], ["m"], name="outer"),
            helper.make_node("If", ["c"], ["i"], name="if", then_branch=branch, else_branch=other),
            node("Add", ["m", "i"], ["y"], name="sum"),
        ],
        {"x": [4, 6], "c": []},
        ["y", "i"],
        {"w": _floats(6, 6)},
        kinds={"c": TensorProto.BOOL},
    )


@pytest.mark.parametrize("reads", ["x", "m"])
def test_bodies_stay_exact(reads: str) -> None:
    """They read the float weight and the float activation, by whatever it is made."""
    x, yes = _floats(4, 6), np.array(True)
    float_model = _with_body(reads)
    proto = quantized(float_model, {"x": x, "c": yes})
    body = next(one.g for one in named(proto, "if").attribute if one.name == "then_branch")
    inner = next(one for one in body.node if one.name == "inner")
    assert list(inner.input) == [reads, "w"]
    found = run(proto, {"x": x, "c": yes})
    float_outputs = run(float_model, {"x": x, "c": yes})
    if reads == "x":
        np.testing.assert_array_equal(found[1], float_outputs[1])
    np.testing.assert_allclose(found[1], run_peer(proto, {"x": x, "c": yes})[1], rtol=1e-5, atol=1e-5)
    assert np.abs(found[0] - float_outputs[0]).max() < 0.05 * np.abs(float_outputs[0]).max()


def test_bodies_are_quantised_where_that_is_asked_for() -> None:
    x, yes = _floats(4, 6), np.array(True)
    float_model = _with_body("x")
    ranges = {name: Range(np.float32(-12), np.float32(12)) for name in ("x", "m", "i", "y", "inner")}
    found = quantizer(float_model, {"x": x, "c": yes}, ranges=ranges, EnableSubgraph=True)
    proto = found.quantize_model()
    body = next(one.g for one in named(proto, "if").attribute if one.name == "then_branch")
    assert "w" not in constants(proto)
    inner = next(one for one in body.node if one.name == "inner")
    assert list(inner.input) == ["x_DequantizeLinear_Output", "w_DequantizeLinear_Output"]
    for value in (True, False):
        feeds = {"x": x, "c": np.array(value)}
        ours = run(proto, feeds)
        for one, other in zip(ours, run_peer(proto, feeds), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=24 / 255 * 1.01)
    np.testing.assert_allclose(run(float_model, feeds)[1], ours[1], rtol=0, atol=24 / 255)


def test_a_body_whose_ranges_nobody_knows_stays_float() -> None:
    x, yes = _floats(4, 6), np.array(True)
    ranges = {name: Range(np.float32(-12), np.float32(12)) for name in ("x", "m", "i", "y")}
    found = quantizer(_with_body("x"), {"x": x, "c": yes}, ranges=ranges, EnableSubgraph=True)
    found.quantize_model()
    (note,) = (note for note in found.report.notes if "bodies" in note)
    assert note.startswith("inner of bodies of control flow nodes have no range")


def test_a_body_has_the_ranges_that_the_caller_gives() -> None:
    ranges = {name: Range(np.float32(-12), np.float32(12)) for name in ("x", "m", "i", "y")}
    overrides = {"inner": [{"rmin": -12.0, "rmax": 12.0}]}
    x, float_model = _floats(4, 6), _with_body("x")
    found = quantizer(float_model, {"x": x}, ranges=ranges, EnableSubgraph=True, TensorQuantOverrides=overrides)
    proto = found.quantize_model()
    assert not any("bodies" in note for note in found.report.notes)
    body = next(one.g for one in named(proto, "if").attribute if one.name == "then_branch")
    assert [one.op_type for one in body.node].count("QuantizeLinear") == 1
    feeds = {"x": x, "c": np.array(True)}
    np.testing.assert_allclose(run(proto, feeds)[1], run(float_model, feeds)[1], rtol=0, atol=3 * 24 / 255)


def test_a_weight_that_callers_may_override_is_a_constant_afterwards() -> None:
    x = _floats(4, 6)
    float_model = model([node("MatMul", ["x", "w"], ["y"])], {"x": [4, 6], "w": [6, 6]}, ["y"], {"w": _floats(6, 6)})
    found = quantizer(float_model, {"x": x})
    proto = found.quantize_model()
    assert [value.name for value in proto.graph.input] == ["x"]
    assert "w is quantised and no input of the model any more" in found.report.notes
    check(proto, {"x": x})


def test_what_onnxruntime_writes_can_be_had() -> None:
    """`OrtCompatible`: the clip goes although nothing clamps then, scales of biases have one place."""
    x = _floats(4, 6) * 3
    proto = quantized(_with_clip(0.5, 2.0), {"x": x}, OrtCompatible=True)
    assert not nodes(proto, "Clip")
    gemm = model([node("Gemm", ["x", "w", "b"], ["y"])], {"x": [4, 6]}, ["y"], {"w": _floats(6, 6), "b": _floats(6)})
    assert constants(quantized(gemm, {"x": x}, OrtCompatible=True))["b_quantized_scale"].shape == (1,)


def test_names_that_are_taken_are_left_to_others() -> None:
    x = _floats(4, 6)
    float_model = model(
        [node("MatMul", ["x", "w"], ["w_quantized"]), node("Relu", ["w_quantized"], ["x_QuantizeLinear_Output"])],
        {"x": [4, 6]},
        ["x_QuantizeLinear_Output"],
        {"w": _floats(6, 6)},
    )
    proto = quantized(float_model, {"x": x})
    check(proto, {"x": x})
    names = [name for one in proto.graph.node for name in one.output] + list(constants(proto))
    assert len(names) == len(set(names))
    assert sardonyx.InferenceSession(proto.SerializeToString()).get_outputs()[0].name == "x_QuantizeLinear_Output"
    assert numpy_helper.to_array(proto.graph.initializer[0]) is not None

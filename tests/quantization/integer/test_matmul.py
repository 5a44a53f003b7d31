"""MatMul and Gemm of integers, with scales found in each run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx.quantization.quant_utils import QuantType
from sardonyx.quantization.refusal import InvalidQuantization
from tests.quantization.quantizing import (
    constants,
    dynamic_quantized,
    model,
    node,
    operators,
    quantized,
    quantizer,
    run,
    run_peer,
)

GENERATOR = np.random.default_rng(5)


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _expected(left: np.ndarray, weight: np.ndarray, scale: np.ndarray, zero_point: int) -> np.ndarray:
    """The product in integers of 64 bits, then in float32 as the graph says."""
    numbers, left_scale, left_zero = dynamic_quantized(left)
    sums = (numbers - left_zero) @ (weight.astype(np.int64) - zero_point)
    return sums.astype(np.float32) * (left_scale * scale.astype(np.float32))


@pytest.mark.parametrize("weight_type", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("reduce_range", [False, True])
def test_matmul_is_exact(weight_type: QuantType, per_channel: bool, reduce_range: bool) -> None:
    weight, left = _floats(24, 10) * np.linspace(0.1, 2, 10, dtype=np.float32), _floats(3, 7, 24)
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [3, 7, 24]}, ["y"], {"w": weight})
    made = quantized(proto, weight_type=weight_type, per_channel=per_channel, reduce_range=reduce_range)
    assert operators(made) == ["DynamicQuantizeLinear", "MatMulInteger", "Cast", "Mul", "Mul"]
    kept = constants(made)
    assert set(kept) == {"w_quantized", "w_scale", "w_zero_point"}
    scale, zero_point, numbers = kept["w_scale"], kept["w_zero_point"].astype(np.int64), kept["w_quantized"]
    assert scale.shape == ((10,) if per_channel else ())
    spread = np.abs(weight - (numbers.astype(np.float64) - zero_point) * scale)
    assert (spread <= scale * 0.501).all() or (weight_type is QuantType.QUInt8 and (spread <= scale).all())
    ends = {
        (QuantType.QInt8, False): (-127, 127),
        (QuantType.QInt8, True): (-64, 64),
        (QuantType.QUInt8, False): (0, 255),
        (QuantType.QUInt8, True): (0, 128),
    }
    low, high = ends[weight_type, reduce_range]
    assert low <= numbers.min() <= numbers.max() <= high
    np.testing.assert_array_equal(run(made, {"x": left})[0], _expected(left, numbers, scale, zero_point))
    np.testing.assert_allclose(run_peer(made, {"x": left})[0], run(made, {"x": left})[0], rtol=1e-5, atol=1e-5)


def test_two_products_of_one_input_share_its_numbers() -> None:
    proto = model(
        [node("MatMul", ["x", "a"], ["y"]), node("MatMul", ["x", "b"], ["z"])],
        {"x": [2, 8]},
        ["y", "z"],
        {"a": _floats(8, 3), "b": _floats(8, 5)},
    )
    assert operators(quantized(proto)).count("DynamicQuantizeLinear") == 1


def test_two_products_of_one_weight_store_it_once() -> None:
    weight = _floats(8, 8)
    proto = model(
        [node("MatMul", ["x", "w"], ["y"]), node("MatMul", ["y", "w"], ["z"])], {"x": [2, 8]}, ["z"], {"w": weight}
    )
    made = quantized(proto)
    assert sorted(constants(made)) == ["w_quantized", "w_scale", "w_zero_point"]
    left = _floats(2, 8)
    scale, numbers = constants(made)["w_scale"], constants(made)["w_quantized"]
    between = _expected(left, numbers, scale, 0)
    np.testing.assert_array_equal(run(made, {"x": left})[0], _expected(between, numbers, scale, 0))


@pytest.mark.parametrize("shape", [(4, 24, 10), (24, 10), (24,)])
def test_per_channel_of_each_rank_runs_everywhere(shape: tuple[int, ...]) -> None:
    weight, left = _floats(*shape), _floats(4, 5, 24)
    weight = weight * np.linspace(0.01, 1, shape[-1], dtype=np.float32)
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [4, 5, 24]}, ["y"], {"w": weight})
    made = quantized(proto, per_channel=True)
    kept = constants(made)
    assert kept["w_scale"].shape == {3: (4, 1, 10), 2: (10,), 1: ()}[len(shape)]
    expected = _expected(left, kept["w_quantized"], kept["w_scale"], 0)
    for outputs in (run(made, {"x": left}), run_peer(made, {"x": left})):
        np.testing.assert_allclose(outputs[0], expected, rtol=2e-5, atol=1e-6)
    assert np.abs(expected - left @ weight).max() < 0.15


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("bias", [None, (6,), (5, 6), (1,)])
@pytest.mark.parametrize("factors", [{}, {"alpha": 0.5, "beta": 3.0}, {"beta": 0.0}])
def test_gemm(side: int, bias: tuple[int, ...] | None, factors: dict[str, float]) -> None:
    weight, left = _floats(6, 8) if side else _floats(8, 6), _floats(8, 5) if side else _floats(5, 8)
    given = {"w": weight} if bias is None else {"w": weight, "b": _floats(*bias)}
    gemm = node("Gemm", ["x", *given], ["y"], transA=side, transB=side, **factors)
    proto = model([gemm], {"x": list(left.shape)}, ["y"], given)
    made = quantized(proto)
    assert "MatMulInteger" in operators(made)
    assert "Gemm" not in operators(made)
    kept = constants(made)
    numbers = dynamic_quantized(left.T if side else left)
    sums = (numbers[0] - numbers[2]) @ kept["w_quantized"].astype(np.int64)
    exact = sums * (float(numbers[1]) * float(kept["w_scale"])) * factors.get("alpha", 1.0)
    if bias is not None:
        exact = exact + factors.get("beta", 1.0) * given["b"].astype(np.float64)
    for outputs in (run(made, {"x": left}), run_peer(made, {"x": left})):
        np.testing.assert_allclose(outputs[0], exact, rtol=1e-5, atol=1e-5)


def test_excluded_gemm_stays_as_it_is() -> None:
    proto = model(
        [node("Gemm", ["x", "w"], ["y"], transB=1), node("MatMul", ["y", "v"], ["z"])],
        {"x": [5, 8]},
        ["y", "z"],
        {"w": _floats(6, 8), "v": _floats(6, 4)},
    )
    made = quantized(proto, exclude=["Gemm_y"])
    left = _floats(5, 8)
    np.testing.assert_array_equal(run(made, {"x": left})[0], run(proto, {"x": left})[0])
    assert "MatMulInteger" in operators(made)


def test_weight_behind_a_transpose_is_a_constant() -> None:
    table = _floats(11, 8)
    proto = model(
        [
            node("Gather", ["t", "i"], ["rows"]),
            node("Transpose", ["t"], ["turned"], perm=[1, 0]),
            node("MatMul", ["rows", "turned"], ["y"]),
        ],
        {"i": [3]},
        ["y"],
        {"t": table},
        kinds={"i": onnx.TensorProto.INT64},
    )
    made = quantized(proto)
    assert "MatMulInteger" in operators(made)
    indices = np.array([4, 0, 10])
    expected = table[indices] @ table.T
    for outputs in (run(made, {"i": indices}), run_peer(made, {"i": indices})):
        np.testing.assert_allclose(outputs[0], expected, atol=0.25)


def test_float16_is_widened_for_what_takes_float32_alone() -> None:
    weight, left = _floats(16, 4).astype(np.float16), _floats(3, 16).astype(np.float16)
    proto = model(
        [node("MatMul", ["x", "w"], ["y"])], {"x": [3, 16]}, ["y"], {"w": weight}, kind=onnx.TensorProto.FLOAT16
    )
    made = quantized(proto)
    kept = constants(made)
    expected = _expected(left.astype(np.float32), kept["w_quantized"], kept["w_scale"], 0).astype(np.float16)
    for outputs in (run(made, {"x": left}), run_peer(made, {"x": left})):
        assert outputs[0].dtype == np.float16
        np.testing.assert_allclose(outputs[0], expected, rtol=2e-3)


def test_second_input_that_is_no_constant() -> None:
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [3, 8], "w": [8, 4]}, ["y"], {})
    with pytest.raises(InvalidQuantization, match="MatMulConstBOnly"):
        quantized(proto)
    made = quantized(proto, MatMulConstBOnly=False)
    left, right = _floats(3, 8), _floats(8, 4)
    one, other = dynamic_quantized(left), dynamic_quantized(right)
    expected = ((one[0] - one[2]) @ (other[0] - other[2])).astype(np.float32) * (one[1] * other[1])
    np.testing.assert_array_equal(run(made, {"x": left, "w": right})[0], expected)


def test_sums_that_may_not_fit_stay_float() -> None:
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [1, 70000]}, ["y"], {"w": np.ones((70000, 1), np.float32)})
    with pytest.raises(InvalidQuantization, match="may exceed 32 bits"):
        quantized(proto)
    small = np.ones((70000, 1), np.float32)
    small[1:] = 0.1
    made = quantized(
        model([node("MatMul", ["x", "w"], ["y"])], {"x": [1, 70000]}, ["y"], {"w": small}), weight_type=QuantType.QInt8
    )
    assert "MatMulInteger" in operators(made)


def test_weight_that_is_an_output_stays_exact() -> None:
    weight = _floats(8, 4)
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 8]}, ["y", "w"], {"w": weight})
    made = quantized(proto)
    assert "MatMulInteger" in operators(made)
    np.testing.assert_array_equal(run(made, {"x": _floats(2, 8)})[1], weight)


def test_excluded_reader_of_a_weight_reads_it_exactly() -> None:
    weight = _floats(8, 8)
    proto = model(
        [node("MatMul", ["x", "w"], ["y"]), node("MatMul", ["x", "w"], ["z"]), node("Add", ["x", "x"], ["u"])],
        {"x": [2, 8]},
        ["y", "z", "u"],
        {"w": weight},
    )
    left = _floats(2, 8)
    made = quantized(proto, exclude=["MatMul_z"])
    before, after = run(proto, {"x": left}), run(made, {"x": left})
    np.testing.assert_array_equal(after[1], before[1])
    np.testing.assert_array_equal(after[2], before[2])
    assert (after[0] != before[0]).any()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weight_that_is_not_finite(number: float) -> None:
    weight = _floats(8, 4)
    weight[3, 2] = number
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 8]}, ["y"], {"w": weight})
    with pytest.raises(
        InvalidQuantization, match="Constant 'w' cannot be quantised: it has numbers that are not finite"
    ):
        quantized(proto)


def test_report_names_each_node() -> None:
    proto = model(
        [node("MatMul", ["x", "w"], ["y"]), node("Add", ["y", "y"], ["z"])], {"x": [2, 8]}, ["z"], {"w": _floats(8, 4)}
    )
    made = quantizer(proto)
    made.quantize_model()
    lines = made.report.lines()
    assert lines[0] == "MatMul MatMul_y: MatMulInteger of UINT8 and INT8"
    assert lines[1].startswith("Add Add_z: left, operator Add not asked for")


def test_bias_of_a_gemm_that_is_a_row_of_a_table() -> None:
    proto = model(
        [node("Gather", ["t", "i"], ["bias"]), node("Gemm", ["x", "w", "bias"], ["y"])],
        {"x": [3, 8], "i": []},
        ["y"],
        {"t": _floats(5, 4), "w": _floats(8, 4)},
        kinds={"i": onnx.TensorProto.INT64},
    )
    made = quantized(proto)
    assert operators(made).count("DequantizeLinear") == 1
    feeds = {"x": _floats(3, 8), "i": np.array(2)}
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], run(proto, feeds)[0], atol=0.15)

"""QLinearMatMul and QGemm."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.quantization.quant_utils import QuantType
from tests.quantization.quantizing import (
    constants,
    model,
    node,
    operators,
    quantized,
    ranges_of,
    requantized,
    run,
    run_peer,
    stored,
)

U8, S8 = QuantType.QUInt8, QuantType.QInt8


def _floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("activations", "weights"), [(U8, S8), (U8, U8), (S8, S8)])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("shape", [(8, 5), (3, 8, 5), (8,)])
def test_matmul_is_exact(activations: QuantType, weights: QuantType, per_channel: bool, shape: tuple[int, ...]) -> None:
    weight, left = _floats(*shape), _floats(3, 4, 8)
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [3, 4, 8]}, ["y"], {"w": weight})
    made = quantized(
        proto,
        ranges=ranges_of(proto, {"x": left}),
        weight_type=weights,
        activation_type=activations,
        per_channel=per_channel,
    )
    assert operators(made) == ["QuantizeLinear", "QLinearMatMul", "DequantizeLinear"]
    kept = constants(made)
    kind = np.uint8 if activations is U8 else np.int8
    numbers = stored(left, kept["x_scale"], int(kept["x_zero_point"]), kind) - int(kept["x_zero_point"])
    sums = numbers @ (kept["w_quantized"].astype(np.int64) - kept["w_zero_point"].astype(np.int64))
    exact = sums * (kept["x_scale"].astype(np.float64) * kept["w_scale"] / kept["y_scale"])
    expected, sure = requantized(exact, int(kept["y_zero_point"]), kind)
    for outputs in (run(made, {"x": left}), run_peer(made, {"x": left})):
        found = np.rint(outputs[0] / kept["y_scale"]).astype(np.int64) + int(kept["y_zero_point"])
        np.testing.assert_array_equal(found[sure], expected[sure])


def test_product_of_two_activations() -> None:
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [3, 8], "w": [8, 4]}, ["y"], {})
    feeds = {"x": _floats(3, 8), "w": _floats(8, 4)}
    made = quantized(proto, ranges=ranges_of(proto, feeds))
    assert operators(made).count("QuantizeLinear") == 2
    (exact,) = run(proto, feeds)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact, atol=0.15)


@pytest.mark.parametrize("factors", [{}, {"beta": 0.5}, {"alpha": 2.0}, {"alpha": 0.25, "beta": -3.0}, {"beta": 0.0}])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", [None, (6,), (1, 6), (5, 6), (), (5, 1)])
def test_gemm_is_exact(
    factors: dict[str, float], per_channel: bool, transposed: int, bias: tuple[int, ...] | None
) -> None:
    weight, left = _floats(6, 8) if transposed else _floats(8, 6), _floats(5, 8)
    given = {"w": weight} if bias is None else {"w": weight, "b": np.asarray(_floats(*bias), np.float32)}
    proto = model([node("Gemm", ["x", *given], ["y"], transB=transposed, **factors)], {"x": [5, 8]}, ["y"], given)
    made = quantized(proto, ranges=ranges_of(proto, {"x": left}), per_channel=per_channel)
    assert operators(made) == ["QuantizeLinear", "QGemm", "DequantizeLinear"]
    kept = constants(made)
    alpha, beta = factors.get("alpha", 1.0), factors.get("beta", 1.0)
    numbers = stored(left, kept["x_scale"], int(kept["x_zero_point"]), np.uint8) - int(kept["x_zero_point"])
    matrix = kept["w_quantized"].astype(np.int64)
    sums = numbers @ (matrix.T if transposed else matrix)
    scale = kept["x_scale"].astype(np.float64) * kept["w_scale"] * alpha
    if bias is not None and beta:
        sums = sums + kept["b_quantized"].astype(np.int64)
        assert np.abs(kept["b_quantized"] * scale - beta * given["b"]).max() <= scale.max() * 0.51
    expected, sure = requantized(sums * scale / kept["y_scale"], int(kept["y_zero_point"]), np.uint8)
    for outputs in (run(made, {"x": left}), run_peer(made, {"x": left})):
        found = np.rint(outputs[0] / kept["y_scale"]).astype(np.int64) + int(kept["y_zero_point"])
        np.testing.assert_array_equal(found[sure], expected[sure])
    (exact,) = run(proto, {"x": left})
    assert np.abs(run(made, {"x": left})[0] - exact).max() < 4 * kept["y_scale"]

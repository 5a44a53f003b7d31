"""Elementwise operators: dtypes, special values, wrapping integers and old broadcasting, against their peers."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from tests.ops.single_node import assert_same, ours, theirs

SPECIAL = np.array([math.nan, -math.inf, math.inf, -0.0, 0.0, -1.5, 2.5, 0.5, 1e30, -1e30], np.float32)
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


@pytest.mark.parametrize(
    "op", ["Abs", "Celu", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN",
           "LeakyRelu",
           "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Sqrt", "Tanh"]
)  # fmt: skip
def test_special_values(op: str) -> None:
    pytest.importorskip("onnxruntime")
    # onnxruntime's half-precision Sign maps NaN to 0; in float32 the two agree.
    assert_same(ours(op, SPECIAL, opset=20), theirs(op, SPECIAL, opset=20), rtol=1e-5)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Max", "Min", "Div", "Mod"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_as_in_numpy(op: str, dtype: type) -> None:
    limits = np.iinfo(dtype)
    a = np.array([limits.max, limits.min, 7, 100, 0], dtype)
    b = np.array([3, 5, 2, limits.max, 1], dtype)
    with np.errstate(over="ignore"):
        expected = {
            "Add": a + b, "Sub": a - b, "Mul": a * b, "Max": np.maximum(a, b), "Min": np.minimum(a, b), "Mod": a % b,
            "Div": np.array([int(math.copysign(abs(int(x)) // abs(int(y)), int(x) * int(y) or 1)) if abs(int(x)) < 2**53
                             else abs(int(x)) // abs(int(y)) * (1 if int(x) >= 0 else -1)
                             for x, y in zip(a, b, strict=True)], object).astype(dtype),
        }[op]  # fmt: skip
    (actual,) = ours(op, a, b)
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", ["Exp", "Gelu", "Sigmoid", "Softplus", "Sqrt"])
def test_narrow_floats_are_the_rounded_float32_results(op: str, dtype: type) -> None:
    x = np.random.default_rng(0).uniform(0, 3, 57).astype(dtype)
    (actual,) = ours(op, x, opset=22)
    (wide,) = ours(op, x.astype(np.float32), opset=22)
    assert actual.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(actual, wide.astype(dtype))


def test_mish_and_the_tanh_form_of_gelu_are_exact_where_they_vanish_and_where_they_do_not() -> None:
    """No sum cancels, nothing overflows: the error is one of the result's own size wherever that is not denormal."""
    x = np.concatenate([np.linspace(-7, 60, 4001), [1e5, 3e38]]).astype(np.float32)
    wide = x.astype(np.float64)
    cubic = 2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    with np.errstate(over="ignore"):
        expected = {"Mish": wide * np.tanh(np.logaddexp(0, wide)), "Gelu": wide / (1 + np.exp(-cubic))}
    np.testing.assert_allclose(ours("Mish", x, opset=20)[0], expected["Mish"], rtol=1e-6)
    (gelu,) = ours("Gelu", x, opset=20, approximate="tanh")
    np.testing.assert_allclose(gelu, expected["Gelu"], rtol=1e-5)


def test_nan_passes_through_extrema_and_clip() -> None:
    x, y = np.array([math.nan, 1], np.float32), np.array([1, math.nan], np.float32)
    for op in ("Max", "Min"):
        assert np.isnan(ours(op, x, y)[0]).all()
    low, high = np.array(0, np.float32), np.array(2, np.float32)
    assert np.isnan(ours("Clip", x, low, high)[0]).tolist() == [True, False]
    assert ours("Clip", np.array([5], np.float32), high, low)[0].tolist() == [0]  # min > max gives max


def test_powers_take_the_dtype_of_the_base() -> None:
    base = np.array([2, 3, -2], np.int32)
    assert ours("Pow", base, np.array([2, 0.5, 3], np.float32))[0].tolist() == [4, 1, -8]
    assert ours("Pow", base, np.array([2, 3, 2], np.int64))[0].dtype == np.int32
    (y,) = ours("Pow", base.astype(np.float32), np.array(2, np.int64))
    assert y.dtype == np.float32
    assert y.tolist() == [4, 9, 4]


@pytest.mark.parametrize(("shape", "axis"), [((3,), 1), ((3, 4), 1), ((4,), 2), ((2,), 0)])
def test_broadcasting_before_opset_7_is_aligned_at_an_axis(shape: tuple[int, ...], axis: int) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random((2, 3, 4)).astype(np.float32), rng.random(shape).astype(np.float32)
    (actual,) = ours("Add", a, b, opset=6, broadcast=1, axis=axis)
    np.testing.assert_array_equal(actual, a + b.reshape(shape + (1,) * (3 - axis - len(shape))))


@pytest.mark.parametrize("axis", [3, 2, -4, -1, 2**31, -(2**31)])
def test_an_axis_before_opset_7_has_room_for_the_second_input(axis: int) -> None:
    a, b = np.ones((2, 3, 4), np.float32), np.ones((3, 4), np.float32)
    with pytest.raises(errors.Fail, match=f"axis {axis}: an input of 2 dimensions does not fit"):
        ours("Add", a, b, opset=6, broadcast=1, axis=axis)


def test_shifts_beyond_the_width_leave_the_sign() -> None:
    x, count = np.array([-4, 4, -4, 4], np.int32), np.array([40, 40, 1, 1], np.int32)
    assert ours("BitShift", x, count, direction="RIGHT", opset=28)[0].tolist() == [-1, 0, -2, 2]
    assert ours("BitShift", x, count, direction="LEFT", opset=28)[0].tolist() == [0, 0, -8, 8]


def test_where_and_equal_take_strings() -> None:
    a, b = np.array(["x", "y"], object), np.array(["x", "z"], object)
    (equal,) = ours("Equal", a, b)
    assert equal.tolist() == [True, False]
    assert ours("Where", equal, a, np.array(["n"], object))[0].tolist() == ["x", "n"]


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ"])
def test_casts_to_8_bit_floats_saturate(kind: str) -> None:
    import onnx

    x = np.array([1e6, -math.inf, 0.3, math.nan], np.float32)
    to = getattr(onnx.TensorProto, kind)
    (y,) = ours("Cast", x, to=to)
    largest = float(ml_dtypes.finfo(y.dtype).max)
    assert y.astype(np.float32)[:2].tolist() == [largest, -largest]
    assert np.isnan(y.astype(np.float32)[3])
    (loose,) = ours("Cast", x, to=to, saturate=0)
    assert not np.isfinite(loose.astype(np.float32)[0])


def test_casts_of_strings() -> None:
    pytest.importorskip("onnxruntime")
    values = [1.5, 0.1, 1e10, 1e-7, 123456789, 1e7, 1e16, -0.0, math.nan, math.inf, -math.inf, 3.0]
    for dtype in (np.float32, np.float64, np.float16):
        with np.errstate(over="ignore"):
            numbers = np.array(values).astype(dtype)
        assert ours("Cast", numbers, to=8)[0].tolist() == theirs("Cast", numbers, to=8)[0].tolist()
    for integers in (np.array([-3, 0, 200], np.int16), np.array([2**63], np.uint64), np.array([True, False])):
        assert ours("Cast", integers, to=8)[0].tolist() == theirs("Cast", integers, to=8)[0].tolist()
    text = np.array(["1.5", "-inf", "NaN", "3e4"], object)
    np.testing.assert_array_equal(ours("Cast", text, to=1)[0], theirs("Cast", text, to=1)[0])
    assert ours("Cast", np.array(["15", "-3"], object), to=7)[0].tolist() == [15, -3]
    with pytest.raises(Exception, match="could not convert"):
        ours("Cast", np.array(["fifteen"], object), to=1)

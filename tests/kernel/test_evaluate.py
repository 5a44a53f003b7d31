"""Primitives and expressions against NumPy and float64."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.kernel import expr as k
from sardonyx.kernel.cost import operations
from sardonyx.kernel.evaluate import PRIMITIVES, erf, evaluate, working_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.kernel.program import Pointwise

Array = np.ndarray[Any, Any]
SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 1e-30, 3e38]
UNARY = {
    "absolute": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atanh": np.arctanh, "ceil": np.ceil, "cos": np.cos, "cosh": np.cosh, "exp": np.exp,
    "expm1": np.expm1, "floor": np.floor, "log": np.log, "log1p": np.log1p, "rint": np.rint, "sign": np.sign,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh, "trunc": np.trunc,
}  # fmt: skip
BINARY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "fmod": np.fmod,
    "modulo": np.mod, "maximum": np.maximum, "minimum": np.minimum, "power": np.power,
    "gated": lambda x, gate: x / (1 + np.exp(-gate)),
}  # fmt: skip


def kernel(*dtypes: Any, body: Any) -> Pointwise:
    inputs = tuple(np.dtype(dtype) for dtype in dtypes)
    return Pointwise(inputs, (body(*(Input(dtype, index) for index, dtype in enumerate(inputs))),))


@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary_primitives_agree_with_float64(name: str) -> None:
    x = np.array([*np.random.default_rng(0).uniform(-3, 3, 101), *SPECIAL], np.float32)
    (actual,) = evaluate(kernel(np.float32, body=lambda a: k.apply(name, a)), [x])
    with np.errstate(all="ignore"):
        expected = UNARY[name](x.astype(np.float64))
        np.testing.assert_allclose(actual, expected.astype(np.float32), rtol=5e-7, atol=1e-38)
    assert actual.dtype == np.float32


@pytest.mark.parametrize("name", sorted(BINARY))
@pytest.mark.parametrize(
    "shapes", [((7,), (7,)), ((3, 1, 5), (4, 1)), ((), (2, 3)), ((0, 3), (1, 3)), ((17, 1), (33,))]
)
def test_binary_primitives_broadcast_and_agree_with_float64(name: str, shapes: Any) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.uniform(0.1, 4, shape).astype(np.float32) for shape in shapes)
    (actual,) = evaluate(kernel(np.float32, np.float32, body=lambda x, y: k.apply(name, x, y)), [a, b])
    expected = BINARY[name](a.astype(np.float64), b.astype(np.float64))
    assert actual.shape == np.broadcast_shapes(*shapes)
    if name not in ("fmod", "modulo"):  # these jump, so a rounded operand may land on the other side
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
    else:
        np.testing.assert_array_equal(actual, BINARY[name](a, b))


def test_every_primitive_has_a_meaning_for_its_name() -> None:
    for name, builder in vars(k).items():
        if (
            callable(builder)
            and getattr(builder, "__doc__", None) == f"The primitive `{name}`; its meaning is in `evaluate.PRIMITIVES`."
        ):
            assert name in PRIMITIVES


def test_erf_is_accurate() -> None:
    x = np.concatenate([np.linspace(-7, 7, 4001), np.geomspace(1e-30, 1, 200)])
    expected = np.array([math.erf(value) for value in x])
    np.testing.assert_allclose(erf(x), expected, rtol=1e-13, atol=1e-15)
    single = x.astype(np.float32)
    exact = np.array([math.erf(float(value)) for value in single])
    relative = np.abs(erf(single).astype(np.float64) - exact) / np.maximum(np.abs(exact), 1e-30)
    assert relative[exact != 0].max() <= 1e-7
    special = erf(np.array([math.nan, math.inf, -math.inf, -0.0], np.float32))
    np.testing.assert_array_equal(special, np.array([math.nan, 1, -1, -0.0], np.float32))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_integer_division_truncates_and_never_traps(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    a = np.array([7, -7, 7, -7, limits.min, 5, 0], dtype)
    b = np.array([2, 2, -2, -2, 3, 0, 3], dtype)
    (actual,) = evaluate(kernel(dtype, dtype, body=lambda x, y: x / y), [a, b])
    assert actual.tolist() == [
        3,
        -3,
        -3,
        3,
        math.trunc(int(limits.min) / 3) if dtype != np.int64 else -(2**63 // 3),
        0,
        0,
    ]
    assert actual.dtype == dtype


def test_integer_powers_take_negative_exponents() -> None:
    base, exponent = np.array([2, 1, -1, -1, 0, 3], np.int32), np.array([-1, -5, -3, -2, -1, 4], np.int32)
    (actual,) = evaluate(kernel(np.int32, np.int32, body=k.power), [base, exponent])
    assert actual.tolist() == [0, 1, -1, 1, 0, 81]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_narrow_floats_are_rounded_once(dtype: Any) -> None:
    x = np.random.default_rng(2).uniform(-2, 2, 301).astype(dtype)
    (actual,) = evaluate(kernel(dtype, body=lambda a: k.exp(a) * 3 - a * a), [x])
    wide = x.astype(np.float32)
    assert actual.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(actual, (np.exp(wide) * 3 - wide * wide).astype(dtype))
    assert working_dtype(np.dtype(dtype)) == np.float32


@pytest.mark.parametrize(
    "body", [lambda x: x, lambda x: x.cast(np.float32), lambda x: k.where(x < 0, x, x), lambda x: k.absolute(x)]
)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
def test_results_are_new_writable_arrays(body: Any, shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    (result,) = evaluate(kernel(np.float32, body=body), [x])
    assert result.shape == shape
    assert not np.may_share_memory(result, x)
    assert result.flags.writeable


def test_an_input_broadcasts_to_the_shape_of_all_inputs() -> None:
    a, b = np.arange(3, dtype=np.float32), np.zeros((2, 1), np.float32)
    (result,) = evaluate(kernel(np.float32, np.float32, body=lambda x, y: x), [a, b])
    np.testing.assert_array_equal(result, np.broadcast_to(a, (2, 3)))
    result[...] = 7
    assert a.tolist() == [0, 1, 2]


def test_shared_subexpressions_and_several_outputs_are_computed_once() -> None:
    x = Input(np.dtype(np.float32), 0)
    shared = k.exp(x)
    both = Pointwise((x.dtype,), (shared + 1, shared * shared))
    assert sum(isinstance(e, k.Apply) and e.primitive == "exp" for e in k.walk(both.outputs)) == 1
    value = np.array([0.0, 1.0], np.float32)
    first, second = evaluate(both, [value])
    np.testing.assert_allclose(first, np.exp(value) + 1, rtol=1e-6)
    np.testing.assert_allclose(second, np.exp(value) ** 2, rtol=1e-6)


def test_operands_must_agree_on_their_dtype() -> None:
    a, b = Input(np.dtype(np.float32), 0), Input(np.dtype(np.int32), 1)
    with pytest.raises(TypeError, match="add needs operands of one dtype"):
        a + b
    assert (a + 1).dtype == np.float32
    assert (a < 1).dtype == np.bool_
    assert a.cast(np.float32) is a


def test_where_ignores_nan_of_the_other_branch() -> None:
    def body(x: Expr) -> Expr:
        return k.where(x > 0, k.log(x), -1)

    (result,) = evaluate(kernel(np.float32, body=body), [np.array([-1, 1], np.float32)])
    assert result.tolist() == [-1, 0]


def test_cost_counts_primitives_by_weight() -> None:
    assert operations(kernel(np.float32, body=lambda x: x)) == 1
    assert operations(kernel(np.float32, body=lambda x: x + 1)) == 1
    assert operations(kernel(np.float32, body=lambda x: k.exp(x) + 1)) > 10

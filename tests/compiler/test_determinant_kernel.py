"""Determinants against exact ones, on every instruction set."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx.compiler.kernels.matrices.determinant import Determinant
from tests.compiler.steps import VARIANTS, Array, bind


def _exact(matrix: Array) -> float:
    """By elimination of fractions."""
    rows = [[Fraction(float(number)) for number in row] for row in matrix]
    product = Fraction(1)
    for column in range(len(rows)):
        best = next((row for row in range(column, len(rows)) if rows[row][column]), None)
        if best is None:
            return 0.0
        if best != column:
            rows[column], rows[best] = rows[best], rows[column]
            product = -product
        product *= rows[column][column]
        for row in range(column + 1, len(rows)):
            factor = rows[row][column] / rows[column][column]
            rows[row] = [one - factor * other for one, other in zip(rows[row], rows[column], strict=True)]
    return float(product)


def _found(x: Array, variant: str) -> Array:
    binder, memory, (result,) = bind(Determinant({}), [x], variant)
    assert not memory.run(binder, one_by_one=True)
    assert result is not None
    return memory.read(result).copy()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_determinants(variant: str, dtype: type) -> None:
    rng = np.random.default_rng(1)
    step = 2.0 ** -{"float64": 47, "float32": 23, "float16": 10, "bfloat16": 7}[np.dtype(dtype).name]
    for shape in ((0, 0), (1, 1), (2, 2), (5, 3, 3), (2, 1, 4, 4), (9, 9), (17, 17), (0, 3, 3)):
        x = (rng.normal(size=shape) * 1.5).astype(dtype)
        exact = np.empty(shape[:-2])
        for place in np.ndindex(exact.shape):
            exact[place] = _exact(x[place])
        with np.errstate(over="ignore"):
            expected = exact.astype(dtype).astype(np.float64)
        np.testing.assert_allclose(_found(x, variant).astype(np.float64), expected, rtol=step * 4, atol=0)


def test_singular_and_special_matrices() -> None:
    x = np.zeros((5, 3, 3))
    x[1] = [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    x[2] = np.arange(9).reshape(3, 3)
    x[3, 1, 1] = np.nan
    x[4] = np.diag([1e200, 1e200, 1e200])
    found = _found(x, "")
    np.testing.assert_array_equal(found[:2], [0, -1])
    assert abs(found[2]) < 1e-14
    assert np.isnan(found[3])
    assert found[4] == np.inf


def test_large_matrix() -> None:
    x = np.random.default_rng(2).normal(size=(150, 150)) / 8
    sign, magnitude = np.linalg.slogdet(x)
    np.testing.assert_allclose(_found(x, ""), sign * np.exp(magnitude), rtol=1e-11)


def test_matrices_that_are_not_square() -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> det (float[n, m, k] x) => (float[n] y) { y = Det(x) }'
    )
    session = sardonyx.InferenceSession(model.SerializeToString())
    x = np.random.default_rng(3).normal(size=(4, 3, 3)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.linalg.det(x.astype(np.float64)), rtol=1e-6)
    with pytest.raises(sardonyx.errors.OnnxRuntimeError, match="square"):
        session.run(None, {"x": x[:, :2]})

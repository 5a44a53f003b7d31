"""Sums of products, compared with NumPy in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.native.products.summation import Einsum
from tests.compiler.steps import VARIANTS, Array, bind, outputs_of

EQUATIONS = {
    "ij->ji": ["ab"],
    "ij->": ["ab"],
    "ii->i": ["aa"],
    "ii": ["aa"],
    "...ii->...i": ["baa"],
    "...ii->i...": ["bcaa"],
    "i,i": ["a", "a"],
    "i,j->ji": ["a", "b"],
    "ij,ij->ij": ["ab", "ab"],
    "bij,bjk->bik": ["cab", "cbd"],
    "bij,bjk->kbi": ["cab", "cbd"],
    "...ij,...jk->...ik": ["cdab", "dbe"],
    "bhid,bhjd->bhij": ["abcd", "abed"],
    "ij,kj->k": ["ab", "cb"],
    "ij,jk,kl->il": ["ab", "bc", "cd"],
    "i...,j...->ij...": ["ab", "cb"],
    "abc,cd,ef->abdf": ["abc", "cd", "ae"],
    "ij,jk": ["ab", "1c"],
    "iij,j->i": ["aab", "b"],
}
SIZES = {"a": 5, "b": 7, "c": 3, "d": 18, "e": 4, "1": 1}


def _terms(equation: str) -> tuple[tuple[str, ...], str]:
    left, arrow, right = equation.partition("->")
    letters = left.replace(",", "").replace("...", "")
    return tuple(left.split(",")), right if arrow else "".join(sorted(c for c in set(letters) if letters.count(c) == 1))


def _kernel(equation: str) -> Einsum:
    terms, result = _terms(equation)
    return Einsum({"terms": terms, "result": result})


def _inputs(equation: str, dtype: type = np.float32) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal([SIZES[c] for c in shape]).astype(dtype) for shape in EQUATIONS[equation]]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_sums_of_products(equation: str) -> None:
    inputs = _inputs(equation)
    expected = np.einsum(equation, *(x.astype(np.float64) for x in inputs))
    for known in ((), (1,)) if len(inputs) > 1 else ((),):
        (found,) = outputs_of(_kernel(equation), inputs, known=known)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_sums_of_products_on_every_instruction_set(variant: str) -> None:
    for equation, dtype in (("bij,bjk->kbi", np.float64), ("...ij,...jk->...ik", np.float16), ("ij->", np.float32)):
        inputs = _inputs(equation, dtype)
        expected = np.einsum(equation, *(x.astype(np.float64) for x in inputs))
        (found,) = outputs_of(_kernel(equation), inputs, variant)
        np.testing.assert_allclose(found, expected, rtol=2e-3 if dtype is np.float16 else 1e-5, atol=1e-2)


def test_sum_of_bfloat16_is_rounded_once() -> None:
    x = np.random.default_rng(2).standard_normal((3, 500)).astype(ml_dtypes.bfloat16)
    (found,) = outputs_of(_kernel("ij->i"), [x])
    exact = x.astype(np.float64).sum(1).astype(np.float32).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found, exact)


def test_empty_sums_are_zero() -> None:
    (found,) = outputs_of(_kernel("ij,jk->ik"), [np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)])
    np.testing.assert_array_equal(found, np.zeros((2, 3), np.float32))
    (found,) = outputs_of(_kernel("ij->i"), [np.zeros((2, 0), np.float32)])
    np.testing.assert_array_equal(found, np.zeros(2, np.float32))


def test_sizes_that_contradict_are_refused() -> None:
    with pytest.raises(ValueError, match="'j' has the sizes 3 and 4"):
        bind(_kernel("ij,jk->ik"), [np.zeros((2, 3), np.float32), np.zeros((4, 5), np.float32)])

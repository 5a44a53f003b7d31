"""Rows with a 1 at an element's category, for every instruction set of this machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from sardonyx.compiler.kernels.classic.one_hot import OneHotRows
from sardonyx.ops.ml.encoding import OneHotEncoder
from tests.compiler.steps import VARIANTS, bind, outputs_of

Array = np.ndarray[Any, Any]
CATEGORIES = {
    "one": [4],
    "few": [3, -1, 0],
    "repeated": [3, 5, 3, 7, 5],
    "a vector": list(range(16)),
    "far apart": [2**62, -(2**62), 0, 1 << 40, *range(20)],
    "many": list(range(100)),
}
DTYPES = [np.int8, np.int32, np.int64, np.float32, np.float64]


def elements(categories: list[int], dtype: Any, count: int) -> Array:
    rng = np.random.default_rng(count)
    near = rng.choice(categories, count) + rng.integers(0, 2, count)
    if np.dtype(dtype).kind == "f":
        special = rng.choice([np.nan, np.inf, -np.inf, 2.0**63, -(2.0**63), -0.5], count)
        return np.where(rng.random(count) < 0.8, near + rng.random(count) * 0.9, special).astype(dtype)
    return np.clip(near, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)


def rows_of(given: Array, categories: list[int]) -> Array:
    places = {category: place for place, category in enumerate(categories)}
    result = np.zeros((*given.shape, len(categories)), np.float32)
    for index, element in np.ndenumerate(given):
        if -(2.0**63) < element < 2.0**63 and int(element) in places:
            result[(*index, places[int(element)])] = 1
    return result


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CATEGORIES)
@pytest.mark.parametrize("count", [0, 1, 9, 1300])
def test_rows_of_categories(name: str, count: int, variant: str) -> None:
    categories = CATEGORIES[name]
    kernel = OneHotRows({"categories": np.array(categories), "zeros": True})
    for dtype in DTYPES:
        given = elements(categories, dtype, count)
        (found,) = outputs_of(kernel, [given], variant, one_by_one=True)
        np.testing.assert_array_equal(found, rows_of(given, categories))


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_element_of_no_category_is_a_fault_where_there_are_no_zeros(variant: str) -> None:
    kernel = OneHotRows({"categories": np.array([2, 4]), "zeros": False})
    for given, wrong in ((np.array([[4, 2, 2]]), False), (np.array([4.5, 3.0]), True), (np.array([np.nan]), True)):
        binder, memory, (rows,) = bind(kernel, [given], variant)
        assert memory.run(binder) == (["an element is of no category, and zeros is 0"] if wrong else [])
        assert rows is not None
        np.testing.assert_array_equal(memory.read(rows), rows_of(given, [2, 4]))


@pytest.mark.parametrize("name", CATEGORIES)
def test_the_meaning_in_numpy(name: str) -> None:
    node = ir.node("OneHotEncoder", [], {"cats_int64s": CATEGORIES[name]}, domain="ai.onnx.ml")
    for dtype in DTYPES:
        given = elements(CATEGORIES[name], dtype, 60).reshape(5, 12)
        (found,) = OneHotEncoder(node, 1).run(given)
        np.testing.assert_array_equal(found, rows_of(given, CATEGORIES[name]))

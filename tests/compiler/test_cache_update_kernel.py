"""TensorScatter against the operator's NumPy form, for every instruction set of this machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from sardonyx.compiler.kernels.attention.cache_update import TensorScatter
from sardonyx.ops.framework.registry import operator_of
from tests.compiler.steps import VARIANTS, bind, outputs_of

Array = np.ndarray[Any, Any]


def expected(axis: int, mode: str, *arrays: Array) -> Array:
    values = [ir.Value(name=f"x{index}") for index in range(len(arrays))]
    attributes = [ir.AttrInt64("axis", axis), ir.AttrString("mode", mode)]
    node = ir.Node("", "TensorScatter", values, attributes, version=24)
    return np.asarray(operator_of(node).run(*arrays)[0])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize(
    ("cache", "axis", "length"),
    [((2, 3, 8, 5), -2, 3), ((3, 8, 16), 1, 8), ((2, 9, 4, 33), 1, 1), ((4, 6), -1, 2), ((2, 3, 8, 5), -2, 0)],
)
def test_cache_updates(cache: tuple[int, ...], axis: int, length: int, mode: str, dtype: Any, variant: str) -> None:
    rng, place = np.random.default_rng(3), axis % len(cache)
    past = rng.integers(0, 100, cache).astype(dtype)
    update = rng.integers(0, 100, (*cache[:place], length, *cache[place + 1 :])).astype(dtype)
    last = cache[place] - length + 1 if mode == "linear" else 40
    firsts = rng.integers(0, last, cache[0])
    for arrays in ([past, update, firsts], [past, update]):
        kernel = TensorScatter({"axis": axis, "mode": mode})
        (found,) = outputs_of(kernel, arrays, variant, one_by_one=True)
        np.testing.assert_array_equal(found, expected(axis, mode, *arrays))


def test_impossible_places_are_faults() -> None:
    past, update = np.zeros((2, 4, 3), np.float32), np.ones((2, 2, 3), np.float32)
    for mode, wrong, message in [
        ("linear", 3, "write_indices leave no room for 2 of 4 places from 3 on"),
        ("linear", -1, "write_indices must not be negative, as -1 is"),
        ("circular", -5, "write_indices must not be negative, as -5 is"),
    ]:
        firsts = np.array([0, wrong])
        binder, memory, _ = bind(TensorScatter({"axis": -2, "mode": mode}), [past, update, firsts])
        assert memory.run(binder) == [message]
        with pytest.raises(ValueError, match=message):
            expected(-2, mode, past, update, firsts)


def test_shapes_that_do_not_fit_are_refused() -> None:
    past = np.zeros((2, 4, 3), np.float32)
    for update, firsts, message in [
        (np.ones((2, 5, 3), np.float32), None, "does not fit past_cache"),
        (np.ones((2, 2, 4), np.float32), None, "does not fit past_cache"),
        (np.ones((2, 2, 3), np.float32), np.zeros(3, np.int64), "the batch's"),
    ]:
        with pytest.raises(ValueError, match=message):
            bind(TensorScatter({"axis": -2, "mode": "linear"}), [past, update, firsts])

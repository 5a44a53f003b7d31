"""Trilu, OneHot and ReverseSequence against the operators' NumPy forms, for every instruction set."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from sardonyx.compiler.kernels.movement.one_hot import OneHot
from sardonyx.compiler.kernels.movement.reverse_sequence import ReverseSequence
from sardonyx.compiler.kernels.movement.triangle import Triangle
from sardonyx.ops.framework.facts import tensor
from sardonyx.ops.framework.registry import operator_of
from tests.compiler.steps import VARIANTS, bind, outputs_of

Array = np.ndarray[Any, Any]


def expected(op_type: str, version: int, attributes: dict[str, int], *arrays: Array) -> Array:
    values = [ir.Value(name=f"x{index}") for index in range(len(arrays))]
    node = ir.Node("", op_type, values, [ir.AttrInt64(*item) for item in attributes.items()], version=version)
    return np.asarray(operator_of(node).run(*arrays)[0])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.bool_, np.float16, np.float32, np.int64, np.complex128])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 70, 33), (1, 1), (0, 3), (3, 0)])
def test_triangles(shape: tuple[int, ...], upper: int, dtype: Any, variant: str) -> None:
    data = np.random.default_rng(3).integers(1, 2, shape).astype(dtype)
    for diagonal in (0, 1, -2, 40, -80, 2**62):
        k = np.array(diagonal)
        (found,) = outputs_of(Triangle({"upper": upper}), [data, k], variant, known=[1], one_by_one=True)
        np.testing.assert_array_equal(found, expected("Trilu", 14, {"upper": upper}, data, k))
    (found,) = outputs_of(Triangle({"upper": upper}), [data], variant)
    np.testing.assert_array_equal(found, np.triu(data) if upper else np.tril(data))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.int64])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("shape", [(4,), (3, 5), (2, 0)])
def test_one_hot(shape: tuple[int, ...], axis: int, index_dtype: Any, dtype: Any, variant: str) -> None:
    indices = np.random.default_rng(3).integers(-9, 9, shape).astype(index_dtype)
    depth, values = np.array(6), np.array([0, 1]).astype(dtype)
    kernel = OneHot({"axis": axis})
    (found,) = outputs_of(kernel, [indices, depth, values], variant, known=[1], one_by_one=True)
    np.testing.assert_array_equal(found, expected("OneHot", 11, {"axis": axis}, indices, depth, values))


def test_what_one_hot_refuses() -> None:
    kernel, indices, values = OneHot({"axis": -1}), np.array([1]), np.array([0, 1])
    for depth, others, message in [
        (np.array([1, 2]), values, "one element"),
        (np.array(0), values, "must be positive"),
        (np.array(3), np.array([1]), "must be \\[off, on\\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            bind(kernel, [indices, depth, others], known=[1])
    single = tensor(ir.DataType.FLOAT, [3])
    for dtype in (ir.DataType.UINT64, ir.DataType.BOOL, ir.DataType.FLOAT8E5M2):
        assert "whole numbers of 64 bits" in str(kernel.declines([tensor(dtype, [3])], [single]))
    assert kernel.declines([tensor(ir.DataType.INT32, [3])], [single]) is None
    assert kernel.declines([single], [single]) is None


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_one_hot_of_floating_point_indices(dtype: Any, variant: str) -> None:
    """Those with a fraction, NaN, and infinities leave their rows off; negative ones count from the end."""
    numbers = [0, 1, 5, -1, -6, -7, 6, 0.5, -0.5, -0.0, 3.75, np.nan, np.inf, -np.inf, 60000, -60000]
    indices, depth, values = np.array(numbers).astype(dtype), np.array(6), np.array([2, 7], np.int32)
    (found,) = outputs_of(OneHot({"axis": 0}), [indices, depth, values], variant, known=[1])
    on = {place: number % 6 for place, number in enumerate([0, 1, 5, -1, -6])} | {9: 0}
    for place in range(len(numbers)):
        assert np.flatnonzero(found[:, place] == 7).tolist() == ([on[place]] if place in on else [])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32])
def test_one_hot_of_other_integers(dtype: Any) -> None:
    indices = np.random.default_rng(3).integers(0, 9, (5, 3)).astype(dtype)
    depth, values = np.array(6), np.array([0, 1], np.float32)
    (found,) = outputs_of(OneHot({"axis": 1}), [indices, depth, values], known=[1])
    np.testing.assert_array_equal(found, expected("OneHot", 11, {"axis": 1}, indices, depth, values))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("time_axis", [0, 1])
@pytest.mark.parametrize("rest", [(), (3,), (40, 2)])
def test_reversed_sequences(rest: tuple[int, ...], time_axis: int, dtype: Any, variant: str) -> None:
    rng = np.random.default_rng(3)
    data = rng.integers(0, 100, (6, 6, *rest)).astype(dtype)
    lengths = np.array([0, 1, 6, 3, 2, 5])
    attributes = {"batch_axis": 1 - time_axis, "time_axis": time_axis}
    (found,) = outputs_of(ReverseSequence(attributes), [data, lengths], variant, one_by_one=True)
    np.testing.assert_array_equal(found, expected("ReverseSequence", 10, attributes, data, lengths))


def test_impossible_lengths_are_faults() -> None:
    kernel, data = ReverseSequence({"batch_axis": 0, "time_axis": 1}), np.zeros((2, 3), np.float32)
    for wrong in (4, -1):
        binder, memory, _ = bind(kernel, [data, np.array([1, wrong])])
        assert memory.run(binder) == [f"a length of sequence_lens, {wrong}, must lie in [0, 3], the time axis's size"]
        with pytest.raises(ValueError, match=r"must lie in \[0, 3\]"):
            expected("ReverseSequence", 10, {"batch_axis": 0, "time_axis": 1}, data, np.array([1, wrong]))
    with pytest.raises(ValueError, match="the batch's"):
        bind(kernel, [data, np.array([1])])

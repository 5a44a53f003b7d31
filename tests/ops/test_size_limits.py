"""What broadcasts tell of how long sizes are at most."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import Dim, tensor
from sardonyx.ops.framework.size_limits import SizeLimits

PAST, NEW = ir.SymbolicDim("past"), ir.SymbolicDim("new")
KEYS = dims.add(PAST, NEW)


def limited(size: Dim, limit: int = 8) -> SizeLimits:
    limits = SizeLimits()
    limits.learn([(1, dims.minimum(limit, size)), (2, 3, size)])
    return limits


def plain(limits: SizeLimits, dim: Dim) -> Any:
    found = limits.within(tensor(ir.DataType.INT64, (dim,))).shape
    assert found is not None
    return found[0]


def test_a_size_that_a_table_broadcasts_to_is_at_most_the_length_of_the_table() -> None:
    limits = limited(KEYS)
    assert limits
    assert plain(limits, dims.minimum(8, KEYS)) == KEYS
    assert plain(limits, dims.minimum(9, KEYS)) == KEYS


def test_what_is_at_most_such_a_size_has_its_limit() -> None:
    assert plain(limited(KEYS), dims.minimum(8, PAST)) == PAST


def test_rows_between_two_limited_sizes_are_as_many_as_there_are_new_ones() -> None:
    rows = dims.maximum(0, dims.subtract(dims.minimum(8, KEYS), dims.minimum(8, PAST)))
    assert plain(limited(KEYS), rows) == NEW
    assert plain(limited(KEYS), dims.multiply(rows, PAST)) == dims.multiply(NEW, PAST)


@pytest.mark.parametrize("dim", [dims.minimum(7, KEYS), dims.minimum(8, dims.multiply(2, KEYS)), dims.maximum(8, KEYS)])
def test_others_stay(dim: Dim) -> None:
    assert plain(limited(KEYS), dim) == dim


def test_a_table_of_one_row_broadcasts_to_any_size() -> None:
    assert not limited(KEYS, 1)


def test_a_dimension_beside_another_size_tells_nothing() -> None:
    limits = SizeLimits()
    limits.learn([(dims.minimum(8, KEYS),), (PAST,), (1,)])
    assert not limits


def test_contents_become_plain_as_well() -> None:
    fact = tensor(ir.DataType.INT64, (2,), (dims.minimum(8, KEYS), 3))
    assert limited(KEYS).within(fact).elements == (KEYS, 3)

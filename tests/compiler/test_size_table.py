"""Rows of numbers come back as they were, whatever their columns have in common."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.compiler.stored.size_table import SizeTable, Words, packed

LIMITS = np.iinfo(np.int64)


def restored(rows: Words, key: int) -> SizeTable:
    table = packed(rows, key)
    assert table.data.size == table.content["bytes"]
    assert table.data.size % 8 == 0
    return SizeTable(table.content, table.data)


def check(rows: Words, key: int = 1) -> SizeTable:
    table = restored(rows, key)
    assert table.rows == len(rows)
    for number, row in enumerate(rows):
        np.testing.assert_array_equal(table.row(number), row)
        assert table.find(row[:key].tolist()) == number
    return table


def lengths(*columns: Words) -> Words:
    """Rows of a length, and of what follows from it."""
    return np.ascontiguousarray(np.stack(np.broadcast_arrays(*columns), axis=1), np.int64)


N = np.arange(1, 100, dtype=np.int64)


def test_columns_that_follow_from_another_are_kept_once() -> None:
    rows = lengths(N, 4 * N, 7 - 12 * N, N // 8, -3 * (N // 8) + 1, np.int64(5))
    table = packed(rows, 1)
    assert table.content["sizes"] == [99, 6, 5, 2]
    assert table.content["narrow"]
    check(rows)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_rows(count: int) -> None:
    check(lengths(N[:count], N[:count] ** 3, np.int64(9)))


def test_numbers_of_64_bits() -> None:
    extremes = np.array([LIMITS.min, LIMITS.max, 0, -1, 1, LIMITS.min + 1], np.int64)
    floats = np.random.default_rng(0).standard_normal(6).view(np.int64)
    numbers = np.arange(6)
    table = check(lengths(numbers, extremes, floats, -floats, extremes[::-1], np.where(numbers == 3, LIMITS.min, 0)))
    assert not packed(lengths(numbers, floats), 1).content["narrow"]
    assert table.row(2) is not table.row(2)


def test_rows_are_found_by_all_of_their_key() -> None:
    batches, sizes = np.meshgrid(np.arange(1, 5), np.arange(0, 96, 32), indexing="ij")
    batch, size = batches.reshape(-1), sizes.reshape(-1)
    table = check(lengths(batch, np.int64(3), size, size, batch, batch * size), key=5)
    for missing in ([1, 3, 33, 33, 1], [1, 3, 32, 64, 1], [1, 4, 32, 32, 1], [5, 3, 32, 32, 5], [1, 3, 32, 32, 2]):
        assert table.find(missing) is None
    assert table.find([1, 3, 32, 32]) is None
    assert table.find([1 << 70, 3, 32, 32, 1]) is None


def test_a_key_that_is_the_same_in_all_rows() -> None:
    table = restored(lengths(np.int64(2), N), 1)
    assert table.find([2]) == 0
    assert table.find([3]) is None


def test_no_key() -> None:
    assert restored(np.array([[4, 5]], np.int64), 0).find([]) == 0

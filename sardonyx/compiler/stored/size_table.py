"""Rows of numbers that differ in few of them, as a base and few columns.

Plans of one structure for many sizes are such rows: most numbers are the same in all of them, and of the others most
are one column times a factor, such as the length itself. A row is put together again by one operation of NumPy.
Numbers are taken modulo 2^64, as words of a plan are any 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sardonyx.runtime.files.engine_file import Bytes

Words = np.ndarray[Any, np.dtype[np.int64]]

_WORD = 8
_NARROW = np.iinfo(np.int32)


class Packed(NamedTuple):
    """A table for `SizeTable`: `content` as JSON, and its bytes, whole words of 64 bits."""

    content: dict[str, Any]
    data: Bytes


def packed(rows: Words, key: int) -> Packed:
    """The table of these rows (int64[n, m], n at least 1), which are found by their first `key` numbers."""
    base = np.ascontiguousarray(rows[0])
    places = np.flatnonzero((rows != base).any(axis=0))
    with np.errstate(over="ignore"):
        differences = rows[:, places] - base[places]
        scales = np.gcd.reduce(differences, axis=0) if places.size else np.zeros(0, np.int64)
        columns = differences // scales
        # Of a column and its negative, one is kept.
        first = columns[(columns != 0).argmax(axis=0), np.arange(places.size)]
        signs = np.where(first < 0, -1, 1)
        scales, columns = scales * signs, np.ascontiguousarray((columns * signs).T)
    numbers: dict[bytes, int] = {}
    which = np.array([numbers.setdefault(column.tobytes(), len(numbers)) for column in columns], np.int64)
    distinct = np.frombuffer(b"".join(numbers), np.int64).reshape(len(numbers), len(rows)).T
    is_narrow = not distinct.size or (distinct.min() >= _NARROW.min and distinct.max() <= _NARROW.max)
    matrix = np.ascontiguousarray(distinct, np.int32 if is_narrow else np.int64).reshape(-1).view(np.uint8)
    matrix = np.concatenate([matrix, np.zeros(-matrix.size % _WORD, np.uint8)])
    data = np.concatenate([one.view(np.uint8) for one in (base, places, which, scales)] + [matrix])
    sizes = [len(rows), base.size, places.size, len(numbers)]
    return Packed({"sizes": sizes, "narrow": bool(is_narrow), "key": key, "bytes": data.size}, data)


class SizeTable:
    """The rows of `packed`, each made when it is asked for."""

    def __init__(self, content: Mapping[str, Any], data: Bytes) -> None:
        self.rows, width, varying, distinct = content["sizes"]
        ends = np.cumsum([width, varying, varying, varying]).tolist()
        words = data[: _WORD * ends[-1]].view(np.int64)
        self._base, self._places, self._which, self._scales = np.split(words, ends[:-1])
        kind, nbytes = (np.int32, 4) if content["narrow"] else (np.int64, 8)
        start = _WORD * ends[-1]
        matrix = data[start : start + self.rows * distinct * nbytes].view(kind)
        self._matrix = matrix.reshape(self.rows, distinct)
        key = content["key"]
        self._key = self._base[:key].tolist()
        # Of the numbers by which rows are found: which vary, by the column that they follow.
        self._found_by = [
            (place, scale, column)
            for place, scale, column in zip(
                self._places.tolist(), self._scales.tolist(), self._which.tolist(), strict=True
            )
            if place < key
        ]

    def find(self, key: list[int]) -> int | None:
        """The row that begins with these numbers; None where there is none."""
        if len(key) != len(self._key):
            return None
        rest = [wanted - base for wanted, base in zip(key, self._key, strict=True)]
        needed: dict[int, int] = {}
        for place, scale, column in self._found_by:
            value, odd = divmod(rest[place], scale)
            if odd or needed.setdefault(column, value) != value:
                return None
            rest[place] = 0
        if any(rest):
            return None
        matching = np.ones(self.rows, bool)
        for column, value in needed.items():
            matching &= self._matrix[:, column] == value
        row = int(matching.argmax())
        return row if matching[row] else None

    def row(self, number: int) -> Words:
        """A row, in memory of its own."""
        row = self._base.copy()
        if self._places.size:
            row[self._places] += self._matrix[number].astype(np.int64)[self._which] * self._scales
        return row

"""Values by key in the form in which kernels look them up: by the key itself, or by two hashes of it.

In the second form each key has two places where it may be, and is at one of them: two comparisons tell where, however
many keys there are, without a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from sardonyx.compiler.arguments import Record, Size, Table
from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.types import F32, F64, I64, U64
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.view import reshaped_strides
from sardonyx.light_dataclass import dataclass

# Integers are looked up by place where a table of all between the least and the greatest key has no more entries than
# this for each key, or than so many at all: it is read at random and shall stay in the nearest cache.
_ENTRIES_PER_KEY = 4
_ENTRIES = 1024
# Moves of keys from one of their places to the other before other hashes are tried.
_MOVES = 100
_TRIES = 8
# The bits of every NaN.
NAN_BITS = 0x7FF8_0000_0000_0000


class TableArguments(Record):
    """What a kernel is told of a table; the values come by themselves."""

    keys = Table(I64)
    count = Size()  # places
    first_multiplier = Size()
    second_multiplier = Size()
    shift = Size()


class KeyTable:
    """A table in the code of a kernel.

    Where it is `dense`, the keys follow one another by 1 from the first one on, and nothing but that one is read.
    """

    def __init__(self, k: Function, a: TableArguments, *, dense: bool) -> None:
        self._k, self._dense = k, dense
        self._keys, self._count = a.keys, a.count
        self._multipliers = [one.to(U64) for one in (a.first_multiplier, a.second_multiplier)]
        self._shift = a.shift.to(U64)

    def places(self, wanted: Sequence[Value]) -> list[Value]:
        """The places of keys; how many places there are stands for one that is not among them."""
        k = self._k
        if self._dense:
            first = self._keys.load(0)
            found = [one - first for one in wanted]  # a difference may wrap around, but then it is no place
            return [k.select(place.to(U64) < self._count.to(U64), place, self._count) for place in found]
        return k.abreast([partial(self._hashed, one) for one in wanted])

    def _hashed(self, wanted: Value) -> Value:
        """One of the two places where a key may be; others hold a key of the table, too, with its value."""
        k, number = self._k, wanted.to(U64)
        mixed = number ^ (number >> 32)
        chosen = self._count
        for multiplier in self._multipliers:
            place = ((mixed * multiplier) >> self._shift).to(I64)
            chosen = k.select(self._keys.load(place).equals(wanted), place, chosen)
        return chosen


def float_key(k: Function, number: Value) -> Value:
    """The key of a float: zeros have one, and all NaN."""
    wide = (number.to(F32) if number.type.bits < 32 else number).to(F64)
    return k.select(wide.differs(wide), NAN_BITS, (wide + 0.0).bits_as(I64))


@dataclass(frozen=True)
class KeyedTable:
    """`keys` (int64) and, behind the values at their `count` places, the one for everything else.

    Where it is `dense`, the keys are `count` integers from the only one of `keys` on; else a key is where one of its
    hashes says, `multipliers` and `shift`, and places that nothing is at hold the first one's key and value.
    """

    keys: Array
    count: int
    values: Array
    dense: bool
    multipliers: tuple[int, int] = (0, 0)
    shift: int = 0

    def arguments(self, binder: Binder) -> TableArguments:
        """What a kernel is told of it."""
        first, second = self.multipliers
        return TableArguments(
            keys=binder.constant(self.keys),
            count=self.count,
            first_multiplier=first,
            second_multiplier=second,
            shift=self.shift,
        )


def in_line(binder: Binder, data: Tensor) -> tuple[Tensor, int]:
    """The elements, at least one, and how far apart they lie; a copy of them where that varies."""
    strides = reshaped_strides(data.shape, data.strides, (data.size,))
    return (contiguous(binder, data), 1) if strides is None else (data, strides[0])


def keyed_table(keys: Array, values: Array, otherwise: Array) -> KeyedTable:
    """The table of distinct keys (int64), at least one, with their values; `otherwise` is the value of all others."""
    span = int(keys.max()) - int(keys.min()) + 1
    if span > max(_ENTRIES, _ENTRIES_PER_KEY * len(keys)):
        return _hashed(keys, values, otherwise)
    table = np.full(span + 1, otherwise)
    table[keys - keys.min()] = values
    return KeyedTable(keys.min(keepdims=True), span, table, True)


def float_keys(numbers: Array) -> Array:
    """Floats as keys: zeros of both signs have one, and all NaN."""
    bits = (numbers.astype(np.float64) + 0.0).view(np.int64)
    return np.where(np.isnan(numbers), NAN_BITS, bits)


def _hashed(keys: Array, values: Array, otherwise: Array) -> KeyedTable:
    rng = np.random.default_rng(len(keys))
    bits = max(1, (2 * len(keys)).bit_length())
    while True:
        for _ in range(_TRIES):
            one, other = (int(number) | 1 for number in rng.integers(1 << 62, 1 << 63, 2))
            seats = _seats(_hashes(keys, one, 64 - bits), _hashes(keys, other, 64 - bits), 1 << bits)
            if seats is not None:
                places = np.where(seats < 0, 0, seats)
                table = np.append(values[places], otherwise)
                return KeyedTable(keys[places], 1 << bits, table, False, (one, other), 64 - bits)
        bits += 1


def _hashes(keys: Array, multiplier: int, shift: int) -> list[int]:
    numbers = keys.view(np.uint64)
    mixed = numbers ^ (numbers >> np.uint64(32))
    return ((mixed * np.uint64(multiplier)) >> np.uint64(shift)).tolist()  # type: ignore[no-any-return]


def _seats(first: list[int], second: list[int], count: int) -> Array | None:
    """Which key is at each of `count` places, -1 for none; None where some keys get in each other's way."""
    seats = [-1] * count
    for key, place in enumerate(first):
        for _ in range(_MOVES):
            seats[place], key = key, seats[place]
            if key < 0:
                break
            place = second[key] if place == first[key] else first[key]
        else:
            return None
    return np.array(seats)

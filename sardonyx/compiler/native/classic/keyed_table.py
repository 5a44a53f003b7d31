"""Values by key in the form in which kernels look them up: by the key itself, or by two hashes of it.

In the second form each key has two places where it may be, and is at one of them: two comparisons tell where, however
many keys there are, without a branch.
"""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.binding import Array, Binder
from sardonyx.compiler.bound_step import Argument
from sardonyx.compiler.llvm.kernels.classic.key_table import NAN_BITS
from sardonyx.light_dataclass import dataclass

# Integers are looked up by place where a table of all between the least and the greatest key has no more entries than
# this for each key, or than so many at all: it is read at random and shall stay in the nearest cache.
_ENTRIES_PER_KEY = 4
_ENTRIES = 1024
# Moves of keys from one of their places to the other before other hashes are tried.
_MOVES = 100
_TRIES = 8


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

    def words(self, binder: Binder) -> list[Argument]:
        """What a kernel is told of it, see `KeyTable`; the values come by themselves."""
        return [binder.constant(self.keys), self.count, *self.multipliers, self.shift]


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

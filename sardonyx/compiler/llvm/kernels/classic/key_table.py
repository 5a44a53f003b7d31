"""Keys found in the tables of `native.classic.keyed_table`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import F32, F64, I64, U64

# The bits of every NaN.
NAN_BITS = 0x7FF8_0000_0000_0000


class KeyTable:
    """A table by its argument words: keys (int64), how many places there are, two multipliers, a shift.

    Where it is `dense`, the keys follow one another by 1 from the first one on, and nothing but that one is read.
    """

    def __init__(self, k: Function, words: Pointer, *, dense: bool) -> None:
        self._k, self._dense = k, dense
        self._keys, self._count = k.pointer(words.load(0), I64), words.load(1)
        self._multipliers = [words.load(place).to(U64) for place in (2, 3)]
        self._shift = words.load(4).to(U64)

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

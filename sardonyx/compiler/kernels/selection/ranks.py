"""Ranks: unsigned integers that compare as numbers of any type do, and their order.

An entry is a rank above the complement of a place, in one unsigned integer of twice the rank's width: of two entries
the greater one stands for the better element, or of equal elements for the earlier one. NaN is above every number, as
NumPy sorts it, and both zeros are equal.
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import BOOL, I64, PTR, U8, U32, U64, Type
from sardonyx.light_dataclass import dataclass

_DIGITS = 256  # of a byte, by which entries are distributed
_FEW = 48  # entries that are inserted one by one into the sorted ones before them
_INFINITIES = {("f", 16): 0x7C00, ("bf", 16): 0x7F80, ("f", 32): 0x7F800000, ("f", 64): 0x7FF0000000000000}


@dataclass(frozen=True)
class Ranking:
    """How elements of `type` compare: the `largest` of them is the best one, or the smallest."""

    type: Type
    largest: bool = True

    @property
    def rank(self) -> Type:
        return U64 if self.type.bits == 64 else U32

    @property
    def entry(self) -> Type:
        return Type("u", 2 * self.rank.bits)

    @property
    def stored(self) -> Type:
        """The bits of an element."""
        return U8 if self.type == BOOL else Type("u", self.type.bits)

    @property
    def best(self) -> int:
        """The greatest rank that there is."""
        return int((1 << self.rank.bits) - 1)

    def of(self, k: Function, bits: Value) -> Value:
        """The ranks of elements that are given by their bits."""
        width = bits.type.bits
        top = 1 << (width - 1)
        rank = bits
        if self.type.is_float:
            infinity = _INFINITIES[self.type.kind, self.type.bits]
            magnitude = bits & (top - 1)
            negative = bits >= k.constant(bits.type, top)
            rank = k.select(negative & magnitude.differs(0), ~bits, magnitude | k.constant(bits.type, top))
            rank = k.select(magnitude > k.constant(bits.type, infinity), k.constant(bits.type, (1 << width) - 1), rank)
        elif self.type.is_signed:
            rank = bits ^ k.constant(bits.type, top)
        rank = rank.to(self.rank)
        return rank if self.largest else ~rank

    def entry_of(self, k: Function, rank: Value, place: Value) -> Value:
        """The entry of one element at a place (i64)."""
        below = (~place).bits_as(U64).to(self.rank)
        return (rank.to(self.entry) << self.rank.bits) | below.to(self.entry)

    def place_in(self, entry: Value) -> Value:
        """The place that an entry holds."""
        return (~entry.to(self.rank)).to(U64).bits_as(I64)

    def rank_in(self, entry: Value) -> Value:
        return (entry >> self.rank.bits).to(self.rank)

    def sorting_bytes(self, entries: int) -> int:
        """Scratch memory for `Sorter` of so many entries."""
        return self.rank.nbytes * _DIGITS * 4 + entries * self.entry.nbytes


class Sorter:
    """Sorts entries from best to worst: a few by insertion, more of them byte by byte of their ranks.

    The byte-wise distribution (least significant byte first) keeps the order of equal ranks, so the entries of equal
    ranks must come in the order of their places, as they do where elements are visited in theirs.
    """

    def __init__(self, k: Function, ranking: Ranking, room: Pointer) -> None:
        """`room` are `ranking.sorting_bytes` of memory."""
        self._k, self._ranking = k, ranking
        self._counts = room.cast(U32)
        self._other = room.cast(U8).offset(ranking.rank.nbytes * _DIGITS * 4).cast(ranking.entry)

    def sort(self, entries: Pointer, count: Value) -> None:
        """Sort the first `count` entries where they are."""
        k = self._k
        few = count <= _FEW
        with k.when(few):
            self._insert(entries, count)
        with k.otherwise(few):
            self._distribute(entries, count)

    def _insert(self, entries: Pointer, count: Value) -> None:
        k = self._k
        with k.loop(1, count) as place:
            entry = entries.load(place)
            hole = k.variable(I64, place)
            going = k.variable(BOOL, True)
            with k.loop_while(going.get):
                before = hole.get() - 1
                # Of the first entry's place the entry itself is read, which ends the search.
                other = entries.load(k.larger(before, 0))
                better = (before >= 0) & (other < entry)
                with k.when(better):
                    entries.store(other, hole.get())
                    hole.set(before)
                going.set(better)
            entries.store(entry, hole.get())

    def _distribute(self, entries: Pointer, count: Value) -> None:
        k, ranking = self._k, self._ranking
        width = ranking.rank.nbytes
        with k.loop(0, width * _DIGITS) as place:
            self._counts.store(0, place)
        with k.loop(0, count) as place:
            rank = ranking.rank_in(entries.load(place))
            for byte in range(width):
                slot = self._digit(rank, byte) + byte * _DIGITS
                self._counts.store(self._counts.load(slot) + 1, slot)
        from_, to = k.variable(PTR), k.variable(PTR)
        from_.set(entries.address)
        to.set(self._other.address)
        for byte in range(width):
            counts = self._counts.offset(byte * _DIGITS)
            first = Pointer(from_.get(), ranking.entry).load(0)
            # A byte that is the same everywhere moves nothing.
            differs = counts.load(self._digit(ranking.rank_in(first), byte)).to(U64).bits_as(I64) < count
            with k.when(differs):
                self._pass(counts, Pointer(from_.get(), ranking.entry), Pointer(to.get(), ranking.entry), byte, count)
                before = from_.get()
                from_.set(to.get())
                to.set(before)
        elsewhere = k.emit(BOOL, f"icmp ne ptr {from_.get().name}, {entries.address.name}")
        with k.when(elsewhere):
            k.copy(entries, Pointer(from_.get(), U8), count * ranking.entry.nbytes)

    def _digit(self, rank: Value, byte: int) -> Value:
        return ((rank >> (8 * byte)) & 255).to(U64).bits_as(I64)

    def _pass(self, counts: Pointer, from_: Pointer, to: Pointer, byte: int, count: Value) -> None:
        """Distribute by one byte, the greatest first; counts become the places where the next entries go."""
        k, ranking = self._k, self._ranking
        total = k.variable(U32, 0)
        with k.loop(0, _DIGITS) as place:
            digit = -place + (_DIGITS - 1)
            many = counts.load(digit)
            counts.store(total.get(), digit)
            total.set(total.get() + many)
        with k.loop(0, count) as place:
            entry = from_.load(place)
            digit = self._digit(ranking.rank_in(entry), byte)
            goal = counts.load(digit)
            counts.store(goal + 1, digit)
            to.store(entry, goal.to(U64).bits_as(I64))


def lanes_that(k: Function, mask: Value) -> Value:
    """A vector of truth values as the bits of an integer (i64), that of the first lane lowest."""
    return mask.bits_as(Type("u", mask.type.lanes)).to(U64).bits_as(I64)


def lowest_bit(k: Function, bits: Value) -> Value:
    """The number of the lowest bit that is set in an i64."""
    return k.call("llvm.cttz.i64", I64, bits, k.constant(BOOL, True))


__all__ = ["Ranking", "Sorter", "lanes_that", "lowest_bit"]

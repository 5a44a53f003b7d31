"""Elements of any numeric type as the numbers that sampling computes with, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, as_stored, memory_type
from sardonyx.compiler.llvm.types import BOOL, F32, F64, I32, Type


def working_type(storage: Type) -> Type:
    """What elements are computed as: F64 where they are that, else F32."""
    return F64 if storage == F64 else F32


class Elements:
    """Elements of a storage type at an address, read and written as those of a working type (F32 or F64).

    With `rounds`, integers are rounded to the nearest, halves away from zero.
    """

    def __init__(self, address: Pointer, storage: Type, working: Type, *, rounds: bool = False) -> None:
        self.storage, self.working, self.rounds = storage, working, rounds
        self.pointer = address.cast(memory_type(storage))
        self._k = address.function

    def offset(self, elements: Any) -> Elements:
        """The elements that begin so many further on."""
        return Elements(self.pointer.offset(elements), self.storage, self.working, rounds=self.rounds)

    def load(self, index: Any = 0, lanes: int = 1, mask: Value | None = None) -> Value:
        return self._read(self.pointer.load(index, lanes, mask))

    def gather(self, indices: Value, mask: Value | None = None) -> Value:
        return self._read(self.pointer.gather(indices, mask))

    def _read(self, stored: Value) -> Value:
        value = as_loaded(stored, self.storage)
        return value if value.type.scalar == self.working else value.to(self.working)

    def store(self, value: Value, index: Any = 0, mask: Value | None = None) -> None:
        """Write numbers rounded to the type: to nearest, of integers towards zero and into their range."""
        if self.rounds:
            half = self._k.constant(value.type, 0.5)
            value = value + self._k.select(value < 0.0, -half, half)
        self.pointer.store(stored(self._k, value, self.storage), index, mask)


def stored(k: Function, value: Value, storage: Type) -> Value:
    """A working number as it lies in memory."""
    if storage.is_float:
        return as_stored(k, value, storage) if storage.is_narrow_float else value.to(storage)
    if storage == BOOL:
        return as_stored(k, value.differs(0.0), storage)
    if storage.bits >= 32:
        return value.to(storage)
    span = 1 << storage.bits
    lowest = -span // 2 if storage.is_signed else 0
    return k.larger(k.smaller(value.to(I32), lowest + span - 1), lowest).to(storage)


def vector_loop(k: Function, count: Value, lanes: int, body: Callable[[Value, int, Value | None], None]) -> None:
    """`body(at, lanes, mask)` for vectors over `count` elements; the last ones under a mask, or one by one."""
    whole = count & -lanes
    with k.loop(0, whole, lanes) as at:
        body(at, lanes, None)
    if k.target.has_masks:
        with k.when(whole < count):
            body(whole, lanes, k.lanes_below(count - whole, lanes))
    else:
        with k.loop(whole, count) as at:
            body(at, 1, None)


def blocked_loop(
    k: Function, count: Value, lanes: int, vectors: int, body: Callable[[Value, int, int, Value | None], None]
) -> None:
    """`body(at, vectors, lanes, mask)` for blocks of so many vectors, then for single ones, as `vector_loop` has it."""
    block = lanes * vectors
    blocks = count // block * block
    with k.loop(0, blocks, block) as at:
        body(at, vectors, lanes, None)
    vector_loop(k, count - blocks, lanes, lambda at, width, mask: body(blocks + at, 1, width, mask))


def sum_of(k: Function, factors: Sequence[tuple[Value, Value]]) -> Value:
    """The sum of products."""
    (value, weight), *others = factors
    total = value * weight
    for value, weight in others:
        total = k.fma(value, weight, total)
    return total


def interleaved(k: Function, vectors: Sequence[Value]) -> list[Value]:
    """The elements of a power of two of vectors: the first ones of all, the second ones, and so on."""
    if len(vectors) == 1:
        return list(vectors)
    lanes = vectors[0].type.lanes
    low = [lane // 2 + lane % 2 * lanes for lane in range(lanes)]
    high = [lane + lanes // 2 for lane in low]
    pairs = zip(interleaved(k, vectors[::2]), interleaved(k, vectors[1::2]), strict=True)
    return [k.shuffle(even, odd, half) for even, odd in pairs for half in (low, high)]


__all__ = ["Elements", "blocked_loop", "interleaved", "stored", "sum_of", "vector_loop", "working_type"]

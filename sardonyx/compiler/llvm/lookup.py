"""Lanes chosen by number at run time: the vocabulary has no such shuffle, but some machines do."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, I8, U8, U16, U32


def has_lookup(target: Target) -> bool:
    """Whether `lookup` is faster than reading the elements one by one from memory."""
    return "avx2" in target.features


def lookup(k: Function, halves: Sequence[Value], indices: Value) -> Value:
    """For each lane the element of one or two whole registers of F32, one behind the other, that `indices` (I32) names.

    Indices lie below the number of lanes of them all. For targets that `has_lookup` names.
    """
    wide = F32.vector(k.target.lanes(F32))
    if wide.lanes == 16:
        if len(halves) == 1:
            return k.call("llvm.x86.avx512.permvar.sf.512", wide, halves[0], indices)
        return k.call("llvm.x86.avx512.vpermi2var.ps.512", wide, halves[0], indices, halves[1])
    # The instruction looks at the lowest bits alone, so that the same indices serve both halves.
    found = [k.call("llvm.x86.avx2.permps", wide, half, indices) for half in halves]
    return found[0] if len(found) == 1 else k.select(indices < wide.lanes, *found)


# Bytes of a table that every byte has a place in, and the words that hold them.
BYTES = 256
TABLE = U32.vector(BYTES // U32.nbytes)


def is_table(value: Value) -> bool:
    """Whether a value is such a table, and no vector of elements."""
    return value.type == TABLE


def has_byte_lookup(target: Target) -> bool:
    """Whether a byte is found in a table in less time than some dozen operations with floats take."""
    return has_word_lookup(target) or "avx2" in target.features


def has_word_lookup(target: Target) -> bool:
    """Whether that is `byte_lookup`, for lanes of 32 bits; otherwise it is `bytes_lookup`, for 32 bytes at once."""
    return "avx512f" in target.features


def byte_lookup(k: Function, table: Value, indices: Value) -> Value:
    """For each lane of U8 the byte of a `TABLE` that it names.

    The words lie in four registers: two instructions choose among 32 words each, and a shift finds the byte.
    """
    wide = U32.vector(16)
    numbers = indices.to(U32)
    words = numbers >> 2
    parts = [k.shuffle(table, None, range(first, first + 16)) for first in range(0, BYTES // 4, 16)]
    lower, upper = (
        k.call("llvm.x86.avx512.vpermi2var.d.512", wide, one, words, other) for one, other in (parts[:2], parts[2:])
    )
    return (k.select(numbers < BYTES // 2, lower, upper) >> ((numbers & 3) << 3)).to(U8)


# Bytes that `bytes_lookup` finds at once in 256 bits, and those among which one instruction chooses.
BYTES_AT_ONCE = 32
_ROW = 16
_CHOOSERS = {32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}


def bytes_lookup(k: Function, table: Pointer | Value, indices: Value) -> Value:
    """The same for a register of U8, 32 or 64 lanes, by instructions that choose among bytes; the table may lie in
    memory.

    The lowest four bits choose in each row of 16 bytes, the others among the sixteen rows, bit by bit: what a blend
    looks at is the highest bit of a byte, to which the others are shifted.
    """
    lanes = indices.type.lanes
    lowest = indices & (_ROW - 1)
    bits = [(indices.bits_as(U16) << shift).bits_as(U8) for shift in (3, 2, 1)]
    masks = [one.bits_as(I8) < 0 for one in (*bits, indices)]
    found = [k.call(_CHOOSERS[lanes], indices.type, row, lowest) for row in _rows(k, table, lanes)]
    for mask in masks:
        found = [k.select(mask, upper, lower) for lower, upper in zip(found[::2], found[1::2], strict=True)]
    return found[0]


def _rows(k: Function, table: Pointer | Value, lanes: int) -> list[Value]:
    """The rows of a table, each as often as fills a register of so many lanes."""
    firsts, repeats = range(0, BYTES, _ROW), lanes // _ROW
    if isinstance(table, Value):
        bytes_ = table.bits_as(U8)
        return [k.shuffle(bytes_, None, [*range(first, first + _ROW)] * repeats) for first in firsts]
    return [k.shuffle(table.load(first, _ROW), None, [*range(_ROW)] * repeats) for first in firsts]


def in_table(k: Function, table: Value, indices: Value) -> Value:
    """For each lane of U8 the byte of a `TABLE` that it names: a vector of 16 where the machine has `byte_lookup`, or
    a whole register."""
    return bytes_lookup(k, table, indices) if indices.type.lanes in _CHOOSERS else byte_lookup(k, table, indices)

"""Narrow floats from and to the types in which they are computed, on targets with and without instructions.

LLVM would call library functions for many of its own conversions, which no kernel finds; here are none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.compiler.llvm.tiny_floats import from_byte, to_byte
from sardonyx.compiler.llvm.types import BF16, BRAIN, F32, F64, HALF, U8, U16, U32, Type

if TYPE_CHECKING:
    from sardonyx.compiler.llvm.builder import Function, Value


def converted(value: Value, scalar: Type) -> Value:
    """What `Value.to` does from or to narrow floats: always by way of F32 but for F64 to F16 and to tiny floats, which
    is rounded once.
    """
    source = value.type.scalar
    if source.is_narrow_float:
        return from_bits(value.bits_as(word_of(source)), source).to(scalar)
    if source != F64:
        value = value.to(F32)
    return to_bits(value.function, value, scalar).bits_as(scalar)


def word_of(storage: Type) -> Type:
    """The integer that a narrow float is in memory."""
    return U8 if storage.is_tiny_float else U16


def widened(value: Value, wanted: Type) -> Value:
    """A value as `wanted`, its own scalar type or, for narrow floats, F32."""
    return value.to(wanted)


def narrowed(k: Function, value: Value, storage: Type) -> Value:
    """A value rounded to `storage`: once, but by way of F32 for bfloat16 (as `ml_dtypes` does)."""
    return value.to(storage)


def rounded_quickly(k: Function, single: Value) -> Value:
    """F32 rounded to bfloat16 by the instruction for it, to which denormal numbers are zero."""
    wide = single.type.with_scalar(BRAIN)
    return k.emit(wide, f"fptrunc {single.type} {single.name} to {wide}")


def from_bits(word: Value, storage: Type) -> Value:
    """The F32 value of narrow floats given by their bits (`word_of` their type)."""
    if storage.is_tiny_float:
        return from_byte(word, storage)
    if storage == BF16:
        return (word.to(U32) << 16).bits_as(F32)
    if word.function.target.has_f16_converts:
        half, wide = word.bits_as(HALF), word.type.with_scalar(F32)
        return word.function.emit(wide, f"fpext {half.type} {half.name} to {wide}")
    return _widened_half(word)


def to_bits(k: Function, value: Value, storage: Type) -> Value:
    """The bits of a value rounded to a narrow float."""
    source = value.type.scalar
    if storage == BF16:
        return _narrowed_brain(k, value.to(F32))
    single = _rounded_to_odd(k, value) if source == F64 else value.to(F32)
    if storage.is_tiny_float:
        return to_byte(k, single, storage)
    if not k.target.has_f16_converts:
        return _narrowed_half(k, single)
    half = single.type.with_scalar(HALF)
    return k.emit(half, f"fptrunc {single.type} {single.name} to {half}").bits_as(U16)


def _rounded_to_odd(k: Function, value: Value) -> Value:
    """F64 as F32 whose last bit says whether something was lost: rounding it again then gives the right result."""
    single = value.to(F32)
    again = single.to(F64)
    inexact = (again < value) | (again > value)
    too_far = k.unary("fabs", again) > k.unary("fabs", value)
    word = single.bits_as(U32)
    towards_zero = k.select(too_far, word - 1, word)
    return k.select(inexact, towards_zero | 1, word).bits_as(F32)


def _widened_half(half: Value) -> Value:
    k, word = half.function, half.to(U32)
    # The exponent's offset is set right by a multiplication, which also makes denormal numbers normal.
    magnitude = ((word & 0x7FFF) << 13).bits_as(F32) * 2.0**112
    special = (word & 0x7FFF) >= 0x7C00
    bits = magnitude.bits_as(U32)
    bits = k.select(special, bits | 0x7F800000, bits)
    return (bits | ((word & 0x8000) << 16)).bits_as(F32)


def _narrowed_half(k: Function, single: Value) -> Value:
    word = single.bits_as(U32)
    magnitude = word & 0x7FFFFFFF
    # Normal results: round to nearest even at bit 13. Denormal ones: a sum whose last bit is the result's does it.
    offset = 112 << 23
    normal = (magnitude - offset + 0xFFF + ((magnitude >> 13) & 1)) >> 13
    half_smallest = k.constant(single.type, 0.5)
    denormal = (magnitude.bits_as(F32) + half_smallest).bits_as(U32) - half_smallest.bits_as(U32)
    bits = k.select(magnitude < (113 << 23), denormal, normal)
    bits = k.select(magnitude >= 0x477FF000, k.constant(word.type, 0x7C00), bits)
    bits = k.select(magnitude > 0x7F800000, k.constant(word.type, 0x7E00), bits)
    return (bits | ((word >> 16) & 0x8000)).to(U16)


def _narrowed_brain(k: Function, single: Value) -> Value:
    if k.flushes and k.target.has_bf16_dot:
        return rounded_quickly(k, single).bits_as(U16)
    word = single.bits_as(U32)
    rounded = (word + ((word >> 16) & 1) + 0x7FFF) >> 16
    return k.select(single.differs(single), (word >> 16) | 0x40, rounded).to(U16)

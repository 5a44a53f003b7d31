"""Roundings to integers, and remainders."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.mathematics.elements import absolute, copy_sign, format_of


def _by_instruction(k: Function) -> bool:
    """Whether the target rounds to integers by an instruction; SSE2 does not."""
    return k.target.architecture != "x86_64" or "sse4.1" in k.target.features


def rint(k: Function, x: Value) -> Value:
    """The nearest integer, of two the even one."""
    if _by_instruction(k):
        return k.unary("rint", x)
    # Adding 2^mantissa_bits leaves no bits for a fraction; larger numbers are integers already, as is infinity.
    large = 2.0 ** format_of(x).mantissa_bits
    magnitude = absolute(k, x)
    rounded = (magnitude + large) - large
    return copy_sign(k, k.select(magnitude < large, rounded, magnitude), x)


def floor(k: Function, x: Value) -> Value:
    if _by_instruction(k):
        return k.unary("floor", x)
    nearest = rint(k, x)
    return copy_sign(k, k.select(nearest > x, nearest - 1.0, nearest), x)


def ceil(k: Function, x: Value) -> Value:
    if _by_instruction(k):
        return k.unary("ceil", x)
    nearest = rint(k, x)
    return copy_sign(k, k.select(nearest < x, nearest + 1.0, nearest), x)


def trunc(k: Function, x: Value) -> Value:
    if _by_instruction(k):
        return k.unary("trunc", x)
    magnitude = absolute(k, x)
    nearest = rint(k, magnitude)
    return copy_sign(k, k.select(nearest > magnitude, nearest - 1.0, nearest), x)


def fmod(k: Function, a: Value, b: Value) -> Value:
    """The remainder with the sign of `a`, exact, by C's library."""
    return k.binary("rem", a, b)


def modulo(k: Function, a: Value, b: Value) -> Value:
    """The remainder with the sign of `b`."""
    remainder = fmod(k, a, b)
    other_sign = (remainder < 0.0) ^ (b < 0.0)
    moved = k.select(other_sign, remainder + b, remainder)
    return k.select(remainder.equals(0.0), copy_sign(k, k.constant(b.type, 0.0), b), moved)

"""Exponentials and sigmoids: a power of 2, and a polynomial or ratio of what is left of the exponent.

Range reductions are those of Cody and Waite.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.lookup import lookup
from sardonyx.compiler.llvm.mathematics import coefficients
from sardonyx.compiler.llvm.mathematics.avx512 import LESSER_MAGNITUDE, by_avx512, by_registers, has_avx512, has_tables
from sardonyx.compiler.llvm.mathematics.elements import clamped, copy_sign, format_of, polynomial, table
from sardonyx.compiler.llvm.types import F32, I32


class _Reduced(NamedTuple):
    """exp(x) = 2^n exp(remainder) with n an integer, or a multiple of 1 / steps; `shifted` is n with the format's magic
    number, divided by the steps, added."""

    remainder: Value
    n: Value
    shifted: Value


def reduce_exponent(k: Function, x: Value, low: Value | None = None, steps: int = 1, *, once: bool = False) -> _Reduced:
    """The reduction of exp for x (+ low) that is not far outside the range of exponents.

    Where it is done `once`, log(2) is one number: the remainder of float32 is off by n * 2e-9.
    """
    of = format_of(x)
    magic = of.magic / steps
    shifted = k.fma(x, k.constant(x.type, 1 / math.log(2)), k.constant(x.type, magic))
    n = shifted - magic
    r = k.fma(n, k.constant(x.type, -math.log(2) if once else -of.ln2_high), x)
    if not once:
        r = k.fma(n, k.constant(x.type, -of.ln2_low), r)
    return _Reduced(r if low is None else r + low, n, shifted)


def fraction_of_exp(k: Function, r: Value) -> Value:
    """exp(r) - 1, accurate near 0, for the remainder of a reduction."""
    return k.fma(r * r, polynomial(k, r, table("EXP", r)), r)


def _exp_of_remainder(k: Function, r: Value) -> Value:
    """exp(r), in float32 by as few terms as its bound allows where no product is rounded before its sum."""
    if r.type.bits == 32 and k.target.has_fma:
        return polynomial(k, r, coefficients.WHOLE_EXP_32)
    return fraction_of_exp(k, r) + 1.0


def scaled(k: Function, p: Value, reduced: _Reduced, adjust: int = 0) -> Value:
    """p * 2^(n + adjust) with one rounding, also where that is infinite or denormal; AVX-512 rounds n down."""
    of = format_of(p)
    if has_avx512(k, p):
        return by_avx512(k, "scalef", [p, reduced.n + float(adjust) if adjust else reduced.n])
    integer = of.integer
    base = k.constant(p.type, of.magic).bits_as(integer)
    n = reduced.shifted.bits_as(integer) - base + adjust
    half = n >> 1
    first = ((half + of.bias) << of.mantissa_bits).bits_as(p.type.scalar)
    second = ((n - half + of.bias) << of.mantissa_bits).bits_as(p.type.scalar)
    return p * first * second


def exp(k: Function, x: Value) -> Value:
    """e^x."""
    return exp_times(k, x, 0)


def exp_times(k: Function, x: Value, adjust: int) -> Value:
    """e^x * 2^adjust, which overflows only where the product does."""
    of = format_of(x)
    if has_tables(k, x):
        return by_registers(k, x, lambda part: _exp_by_table(k, part, adjust))
    if has_avx512(k, x):
        # Where x is infinite, NaN or far outside, so is n, which then decides alone, as the remainder's bound sees to.
        reduced = reduce_exponent(k, x)
        r = by_avx512(k, "range", [reduced.remainder, k.constant(x.type, 0.5)], LESSER_MAGNITUDE)
    else:
        reduced = reduce_exponent(k, clamped(k, x, of.exp_lowest, of.exp_highest))
        r = reduced.remainder
    return scaled(k, _exp_of_remainder(k, r), reduced, adjust)


# Powers of 2 that two registers of AVX-512 hold, from 1 on.
_STEPS = 32
_POWERS = [2.0 ** (step / _STEPS) for step in range(_STEPS)]


def _reduce_by_table(k: Function, x: Value, *, once: bool = False) -> tuple[_Reduced, Value, Value]:
    """The reduction of exp for a register of AVX-512, its remainder within bounds, and the looked up fraction of 2^n.

    Where x is infinite, NaN or far outside, so is n, which then decides alone, as the remainder's bound sees to.
    """
    reduced = reduce_exponent(k, x, steps=_STEPS, once=once)
    r = by_avx512(k, "range", [reduced.remainder, k.constant(x.type, 0.5 / _STEPS)], LESSER_MAGNITUDE)
    low, high = (k.numbers(F32, half) for half in (_POWERS[: x.type.lanes], _POWERS[x.type.lanes :]))
    return reduced, r, lookup(k, (low, high), reduced.shifted.bits_as(I32))


def _exp_by_table(k: Function, x: Value, adjust: int) -> Value:
    """The same for a register of AVX-512: 2^n for n a multiple of 1 / 32 is looked up, so that few terms are left."""
    reduced, r, power = _reduce_by_table(k, x)
    p = k.fma(power * r, polynomial(k, r, coefficients.SHORT_EXP_32), power)
    return scaled(k, p, reduced, adjust)


def sigmoid(k: Function, x: Value) -> Value:
    """1 / (1 + e^-x); where that is denormal, it may be 0.

    With -x = n log(2) + r and t = tanh(r / 2) it is (1 - t) / (1 - t + 2^n (1 + t)): the division takes the place of
    some terms of an exponential, and only the last sum waits for 2^n.
    """
    if x.type.bits == 64:
        return 1.0 / (exp(k, -x) + 1.0)
    if has_tables(k, x):
        return by_registers(k, x, partial(_sigmoid_by_table, k))
    # Within these bounds 2^n is zero, a normal number or infinite.
    reduced = reduce_exponent(k, -clamped(k, x, -88.7, 88.0))
    r = reduced.remainder
    ratio = polynomial(k, r * r, coefficients.HALF_TANH_32)
    one = k.constant(x.type, 1.0)
    above, below = k.fma(-r, ratio, one), k.fma(r, ratio, one)
    of = format_of(x)
    n = reduced.shifted.bits_as(of.integer) - k.constant(x.type, of.magic).bits_as(of.integer)
    power = ((n + of.bias) << of.mantissa_bits).bits_as(F32)
    return above / k.fma(power, below, above)


def _sigmoid_by_table(k: Function, x: Value) -> Value:
    """The same for a register of AVX-512, where r is so small that t is a multiple of it."""
    reduced, r, power = _reduce_by_table(k, -x)
    power = scaled(k, power, reduced)
    above = coefficients.INVERSE_HALF_TANH_32 - r
    return above / k.fma(power, r + coefficients.INVERSE_HALF_TANH_32, above)


def gated(k: Function, x: Value, gate: Value) -> Value:
    """x * sigmoid(gate); where the sigmoid is denormal, it may be 0.

    One division where the sum below it is short.
    """
    if has_tables(k, gate):
        return x / by_registers(k, gate, partial(_inverse_sigmoid_by_table, k))
    if gate.type.bits == 32 and k.target.has_fma:
        return x / _inverse_sigmoid(k, gate)
    return x * sigmoid(k, gate)


def _inverse_sigmoid(k: Function, x: Value) -> Value:
    """1 + e^-x in float32; below -20 its error grows to 6 units in the last place at -80.

    The remainder keeps the sign of x, so that nothing is negated: the polynomial's odd factors are.
    """
    of = format_of(x)
    bounded = clamped(k, x, -88.7, 88.0)  # 2^n is zero, a normal number or infinite
    shifted = k.fma(bounded, k.constant(x.type, -1 / math.log(2)), k.constant(x.type, of.magic))
    r = k.fma(shifted - of.magic, k.constant(x.type, math.log(2)), bounded)
    factors = [-factor if index % 2 else factor for index, factor in enumerate(coefficients.WHOLE_EXP_32)]
    n = shifted.bits_as(of.integer) - k.constant(x.type, of.magic).bits_as(of.integer)
    power = ((n + of.bias) << of.mantissa_bits).bits_as(F32)
    return k.fma(power, polynomial(k, r, factors), k.constant(x.type, 1.0))


def _inverse_sigmoid_by_table(k: Function, x: Value) -> Value:
    """1 + e^-x for a register of AVX-512; below -20 its error grows to 6 units in the last place at -80."""
    reduced, r, power = _reduce_by_table(k, -x, once=True)
    power = scaled(k, power, reduced)
    one = k.constant(x.type, 1.0)
    return k.fma(power, polynomial(k, r, (1.0, *coefficients.SHORT_EXP_32)), one)


def expm1(k: Function, x: Value) -> Value:
    """e^x - 1, accurate near 0."""
    of = format_of(x)
    reduced = reduce_exponent(k, clamped(k, x, -0.75 * (of.mantissa_bits + 4), of.exp_infinite))
    fraction = fraction_of_exp(k, reduced.remainder)
    # 2^(n-1) is a normal number over the whole range; the doubling at the end overflows where the result does.
    integer = of.integer
    n = reduced.shifted.bits_as(integer) - k.constant(x.type, of.magic).bits_as(integer)
    half = ((n + (of.bias - 1)) << of.mantissa_bits).bits_as(x.type.scalar)
    result = k.fma(fraction, half, half - 0.5) * 2.0
    result = k.select(reduced.n.equals(0.0), fraction, result)
    return copy_sign(k, result, x)

"""Logarithms, and powers by a logarithm and an exponential."""

from __future__ import annotations

import math

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.mathematics import coefficients
from sardonyx.compiler.llvm.mathematics.elements import (
    copy_sign,
    format_of,
    polynomial,
    to_float,
)


def split(k: Function, x: Value) -> tuple[Value, Value]:
    """m and e (as a float) with x = m * 2^e and m from sqrt(1/2) to sqrt(2), for positive normal x."""
    of = format_of(x)
    root = k.constant(x.type, math.sqrt(0.5)).bits_as(of.integer)
    offset = x.bits_as(of.integer) - root
    e = offset >> of.mantissa_bits
    m = ((offset & ((1 << of.mantissa_bits) - 1)) + root).bits_as(x.type.scalar)
    return m, to_float(k, e, x.type.scalar)


def _log_of_sum(k: Function, f: Value, e: Value, correction: Value | None = None) -> Value:
    """log(1 + f) + e * log(2), plus a small correction, for f from sqrt(1/2) - 1 to sqrt(2) - 1."""
    of = format_of(f)
    half_square = f * f * 0.5
    low = e * of.ln2_low
    if correction is not None:
        low = low + correction
    if f.type.bits == 32:
        cube = f * f * f
        low = k.fma(cube, polynomial(k, f, coefficients.LOG_32), low)
        return k.fma(e, k.constant(f.type, of.ln2_high), (low - half_square) + f)
    s = f / (f + 2.0)
    z = s * s
    ratio = z * polynomial(k, z, coefficients.LOG_RATIO_64)
    low = k.fma(s, half_square + ratio, low)
    return k.fma(e, k.constant(f.type, of.ln2_high), f - (half_square - low))


def log(k: Function, x: Value) -> Value:
    """The natural logarithm."""
    of = format_of(x)
    denormal = x < of.smallest_normal
    bits = of.mantissa_bits + 2
    m, e = split(k, k.select(denormal, x * 2.0**bits, x))
    e = k.select(denormal, e - float(bits), e)
    result = _log_of_sum(k, m - 1.0, e)
    return _log_specials(k, result, x, x)


def _log_specials(k: Function, result: Value, x: Value, argument: Value) -> Value:
    """The logarithm of zero, of negative numbers, of infinity and of NaN; `argument` is what `x` came from."""
    result = k.select(x < math.inf, result, argument)
    result = k.select(x.equals(0.0), k.constant(x.type, -math.inf), result)
    return k.select(x < 0.0, k.constant(x.type, math.nan), result)


def log1p(k: Function, x: Value) -> Value:
    """log(1 + x), accurate near 0."""
    of = format_of(x)
    u = x + 1.0
    m, e = split(k, u)
    # 1 + f = (1 + x) * 2^-e without the rounding of u; above `great` that rounding does not matter.
    exponent = u.bits_as(of.integer) - m.bits_as(of.integer)
    inverse = (k.constant(x.type, 1.0).bits_as(of.integer) - exponent).bits_as(x.type.scalar)
    f = k.select(u < of.great, k.fma(x, inverse, inverse - 1.0), m - 1.0)
    result = _log_specials(k, _log_of_sum(k, f, e), u, x)
    return copy_sign(k, result, x)

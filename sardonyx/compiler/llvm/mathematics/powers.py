"""Powers: in F64 by a logarithm with some ten bits more than the format has, as an unevaluated sum of two numbers."""

from __future__ import annotations

import math

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.mathematics import coefficients
from sardonyx.compiler.llvm.mathematics.elements import absolute, clamped, copy_sign, exact, format_of, polynomial
from sardonyx.compiler.llvm.mathematics.exponentials import exp, fraction_of_exp, reduce_exponent, scaled
from sardonyx.compiler.llvm.mathematics.logarithms import log, split
from sardonyx.compiler.llvm.mathematics.rounding import rint
from sardonyx.compiler.llvm.types import F32, F64, I64


def _sum_of(k: Function, a: Value, b: Value) -> tuple[Value, Value]:
    """a + b and its rounding error, for |a| >= |b| (Dekker)."""
    total = exact(k, "add", a, b)
    return total, exact(k, "sub", b, exact(k, "sub", total, a))


def _product_of(k: Function, a: Value, b: Value) -> tuple[Value, Value]:
    """a * b and its rounding error."""
    product = exact(k, "mul", a, b)
    if k.target.has_fma:
        return product, k.fma(a, b, k.negate(product))
    halves = []
    for factor in (a, b):  # Veltkamp's splitting in halves whose products are exact
        high = (factor.bits_as(I64) & ~((1 << 27) - 1)).bits_as(F64)
        halves.append((high, exact(k, "sub", factor, high)))
    (a1, a0), (b1, b0) = halves
    error = exact(k, "sub", exact(k, "mul", a1, b1), product)
    for left, right in ((a1, b0), (a0, b1), (a0, b0)):
        error = exact(k, "add", error, exact(k, "mul", left, right))
    return product, error


def _precise_log(k: Function, x: Value) -> tuple[Value, Value]:
    """The logarithm of a positive finite F64 number as a sum of two numbers, to some 2^-64 of its size."""
    of = format_of(x)
    denormal = x < of.smallest_normal
    m, e = split(k, k.select(denormal, x * 2.0**54, x))
    e = k.select(denormal, e - 54.0, e)
    # s = f / (2 + f) = (m - 1) / (m + 1), with what its rounding and that of the denominator left.
    f = m - 1.0
    denominator, lost = _sum_of(k, k.constant(x.type, 2.0), f)
    s = f / denominator
    product, error = _product_of(k, s, denominator)
    rest = exact(k, "sub", exact(k, "sub", f, product), error)
    s_low = (rest - s * lost) / denominator
    # log(m) = 2 s + s^3 (2/3 + z R): the cube's leading part in twice the precision, too.
    z, z_low = _product_of(k, s, s)
    z_low = z_low + (s + s) * s_low
    cube, cube_low = _product_of(k, z, s)
    cube_low = cube_low + z_low * s + z * s_low
    third, third_low = _product_of(k, cube, k.constant(x.type, 2 / 3))
    third_low = third_low + cube_low * (2 / 3) + cube * 3.700743415417188e-17
    tail = cube * (z * polynomial(k, z, coefficients.LOG_TAIL_64))
    high, low = _sum_of(k, s + s, third)
    low = low + (third_low + (s_low + s_low) + tail)
    big, small = _sum_of(k, e * of.ln2_high, high)
    swapped_big, swapped_small = _sum_of(k, high, e * of.ln2_high)
    none = e.equals(0.0)
    big, small = k.select(none, swapped_big, big), k.select(none, swapped_small, small)
    return _sum_of(k, big, small + (low + e * of.ln2_low))


def power(k: Function, base: Value, exponent: Value) -> Value:
    """base ** exponent; F32 is computed in F64."""
    if base.type.bits == 32:
        wide = _positive_power(k, absolute(k, base).to(F64), exponent.to(F64), precise=False)
        magnitude = wide.to(F32)
    else:
        magnitude = _positive_power(k, absolute(k, base), exponent, precise=True)
    one, zero = 1.0, 0.0
    whole = rint(k, exponent).equals(exponent)
    half = exponent * 0.5
    odd = whole & rint(k, half).differs(half)
    result = k.select(odd, copy_sign(k, magnitude, base), magnitude)
    undefined = (base < zero) & (base > -math.inf) & ~whole
    result = k.select(undefined, k.constant(base.type, math.nan), result)
    result = k.select(base.differs(base), base, result)
    result = k.select(exponent.differs(exponent), exponent, result)
    return k.select(exponent.equals(zero) | base.equals(one), k.constant(base.type, one), result)


def _positive_power(k: Function, base: Value, exponent: Value, precise: bool) -> Value:
    """base ** exponent for base >= 0, in F64; not for NaN."""
    if not precise:
        logarithm = log(k, base)
        return exp(k, k.select(logarithm.equals(0.0), logarithm, logarithm * exponent))
    of = format_of(base)
    ordinary = (base > 0.0) & (base < math.inf)
    high, low = _precise_log(k, k.select(ordinary, base, k.constant(base.type, 2.0)))
    product, error = _product_of(k, high, exponent)
    error = error + low * exponent
    # Beyond the range of exponents the error is not needed, and may be NaN; log(1) * infinity is 0 here.
    inside = absolute(k, product) < 1.25 * of.exp_highest
    error = k.select(inside, error, k.constant(base.type, 0.0))
    edge = k.select(base.equals(0.0), k.constant(base.type, -math.inf), k.constant(base.type, math.inf)) * exponent
    product = k.select(ordinary, product, edge)
    product = k.select(base.equals(1.0), k.constant(base.type, 0.0), product)
    reduced = reduce_exponent(k, clamped(k, product, of.exp_lowest, of.exp_highest), error)
    return scaled(k, fraction_of_exp(k, reduced.remainder) + 1.0, reduced)

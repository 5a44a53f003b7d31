"""The error function."""

from __future__ import annotations

from functools import partial

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.mathematics import coefficients
from sardonyx.compiler.llvm.mathematics.avx512 import by_registers, has_tables
from sardonyx.compiler.llvm.mathematics.elements import absolute, clamped, copy_sign, polynomial, unit_ratio
from sardonyx.compiler.llvm.mathematics.exponentials import exp_times
from sardonyx.compiler.llvm.mathematics.segments import erf_by_segments


def erf(k: Function, x: Value) -> Value:
    """The error function."""
    if has_tables(k, x):
        return by_registers(k, x, partial(erf_by_segments, k))
    if x.type.bits == 32:
        bounded = clamped(k, x, -4.08, 4.08)
        return unit_ratio(k, bounded, coefficients.ERF_NUMERATOR_32, coefficients.ERF_DENOMINATOR_32)
    magnitude = clamped(k, absolute(k, x), 0.0, 6.0)
    square = magnitude * magnitude
    small = k.fma(magnitude, polynomial(k, square, coefficients.ERF_64), magnitude)
    # erfc(x) = exp(-x^2) times what a polynomial can approximate, divided by 1 + 2 x.
    t = (magnitude - 2.0) / (magnitude + 2.0)
    factor = polynomial(k, t, coefficients.ERFC_64) / k.fma(magnitude, k.constant(x.type, 2.0), k.constant(x.type, 1.0))
    large = 1.0 - exp_times(k, -square, 0) * factor
    return copy_sign(k, k.select(magnitude < 1.0, small, large), x)

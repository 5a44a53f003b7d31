"""Hyperbolic functions and their inverses."""

from __future__ import annotations

import math

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.mathematics import coefficients
from sardonyx.compiler.llvm.mathematics.elements import (
    absolute,
    clamped,
    copy_sign,
    format_of,
    polynomial,
    sqrt,
    table,
    unit_ratio,
)
from sardonyx.compiler.llvm.mathematics.exponentials import exp_times, expm1
from sardonyx.compiler.llvm.mathematics.logarithms import log1p


def tanh(k: Function, x: Value) -> Value:
    """The hyperbolic tangent."""
    if x.type.bits == 32:
        bounded = clamped(k, x, -9.54, 9.54)
        return unit_ratio(k, bounded, coefficients.TANH_NUMERATOR_32, coefficients.TANH_DENOMINATOR_32)
    t = expm1(k, absolute(k, x) * -2.0)
    return copy_sign(k, t / (t + 2.0), x)


def sinh(k: Function, x: Value) -> Value:
    """The hyperbolic sine."""
    magnitude = absolute(k, x)
    half = exp_times(k, magnitude, -1)
    square = magnitude * magnitude
    small = k.fma(magnitude * square, polynomial(k, square, table("SINH", x)), magnitude)
    return copy_sign(k, k.select(magnitude < 1.0, small, half - 0.25 / half), x)


def cosh(k: Function, x: Value) -> Value:
    """The hyperbolic cosine."""
    half = exp_times(k, absolute(k, x), -1)
    return half + 0.25 / half


def asinh(k: Function, x: Value) -> Value:
    """The inverse of the hyperbolic sine."""
    magnitude = absolute(k, x)
    square = magnitude * magnitude
    large = magnitude > format_of(x).great
    argument = magnitude + square / (sqrt(k, square + 1.0) + 1.0)
    result = log1p(k, k.select(large, magnitude, argument))
    return copy_sign(k, k.select(large, result + math.log(2), result), x)


def acosh(k: Function, x: Value) -> Value:
    """The inverse of the hyperbolic cosine; NaN below 1."""
    above = x - 1.0
    large = x > format_of(x).great
    argument = above + sqrt(k, k.fma(above, above, above + above))
    result = log1p(k, k.select(large, x, argument))
    result = k.select(large, result + math.log(2), result)
    return k.select(x < 1.0, k.constant(x.type, math.nan), result)


def atanh(k: Function, x: Value) -> Value:
    """The inverse of the hyperbolic tangent; infinite at 1, NaN beyond."""
    magnitude = absolute(k, x)
    return copy_sign(k, log1p(k, (magnitude + magnitude) / (1.0 - magnitude)) * 0.5, x)

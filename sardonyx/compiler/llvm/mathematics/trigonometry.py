"""Sine, cosine, tangent and their inverses of floating-point vectors.

Arguments are reduced by multiples of pi/2 in F64 (three parts of 33 bits, after Cody and Waite); lanes beyond that
reduction's range go to C's library one by one.
"""

from __future__ import annotations

import math

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.mathematics.elements import absolute, copy_sign, polynomial, sqrt, table
from sardonyx.compiler.llvm.types import F64, I64

# pi / 2 in parts whose products with integers below 2^19 are exact, and what they leave.
_PARTS = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624871116645580e-21)
_REST = 8.47842766036889956997e-32
_MAGIC = 6755399441055744.0
_FARTHEST = 500000.0

_PI_HIGH, _PI_LOW = math.pi, 1.2246467991473532e-16


def _reduced(k: Function, x: Value) -> tuple[Value, Value, Value]:
    """r, its rounding error and the quadrant (i64), where x = quadrant * pi / 2 + r + error; in F64."""
    wide = x.to(F64)
    shifted = k.fma(wide, k.constant(wide.type, 2 / math.pi), k.constant(wide.type, _MAGIC))
    quadrant = shifted.bits_as(I64)
    n = shifted - _MAGIC
    r = wide - n * _PARTS[0]
    second = n * _PARTS[1]
    high = r - second
    low = (r - high) - second
    third = n * _PARTS[2]
    total = high - (third - low)
    return total, (high - total) - (third - low) - n * _REST, quadrant


def _sine_and_cosine(k: Function, x: Value) -> tuple[Value, Value, Value]:
    """Sine and cosine of the reduced argument in the format of `x`, and the quadrant."""
    wide, error, quadrant = _reduced(k, x)
    single = x.type.bits == 32
    r = wide.to(x.type.scalar)
    z = r * r
    sine_tail = r * z * polynomial(k, z, table("SIN", x))
    cosine_tail = z * z * polynomial(k, z, table("COS", x))
    if single:
        return r + sine_tail, k.fma(z, k.constant(x.type, -0.5), cosine_tail) + 1.0, quadrant
    half = z * 0.5
    leading = 1.0 - half
    lost = (1.0 - leading) - half
    sine = r + k.fma(error, leading, sine_tail)
    return sine, leading + (lost + k.fma(-r, error, cosine_tail)), quadrant


def _with_library(k: Function, name: str, x: Value, result: Value) -> Value:
    """`result`, where lanes too far for the reduction are replaced by what C's library gives."""
    magnitude = absolute(k, x)
    far = (magnitude > _FARTHEST) & (magnitude < math.inf)
    place = k.variable(x.type, result)
    with k.when(k.any_lane(far)):
        lanes = x.type.lanes
        if lanes == 1:
            place.set(k.call(name, F64, x.to(F64)).to(x.type))
        else:
            with k.loop(0, lanes) as lane, k.when(far.lane(lane)):
                one = k.call(name, F64, x.lane(lane).to(F64)).to(x.type.scalar)
                place.set(k.insert(place.get(), one, lane))
    nowhere = k.select(magnitude < math.inf, x, k.constant(x.type, math.nan))
    return k.select(nowhere.differs(nowhere), nowhere, place.get())


def _odd(quadrant: Value, bit: int) -> Value:
    return (quadrant & bit).differs(0)


def sin(k: Function, x: Value) -> Value:
    """The sine of an angle in radians."""
    sine, cosine, quadrant = _sine_and_cosine(k, x)
    result = k.select(_odd(quadrant, 1), cosine, sine)
    result = k.select(_odd(quadrant, 2), -result, result)
    # The reduction loses the sign of zero.
    result = k.select(x.equals(0.0), x, result)
    return _with_library(k, "sin", x, result)


def cos(k: Function, x: Value) -> Value:
    """The cosine of an angle in radians."""
    sine, cosine, quadrant = _sine_and_cosine(k, x)
    result = k.select(_odd(quadrant, 1), sine, cosine)
    return _with_library(k, "cos", x, k.select(_odd(quadrant + 1, 2), -result, result))


def tan(k: Function, x: Value) -> Value:
    """The tangent of an angle in radians."""
    sine, cosine, quadrant = _sine_and_cosine(k, x)
    odd = _odd(quadrant, 1)
    result = k.select(odd, -cosine, sine) / k.select(odd, sine, cosine)
    return _with_library(k, "tan", x, k.select(x.equals(0.0), x, result))


def atan(k: Function, x: Value) -> Value:
    """The angle from -pi/2 to pi/2 whose tangent is `x`."""
    magnitude = absolute(k, x)
    steep = magnitude > math.tan(3 * math.pi / 8)
    middle = magnitude > math.tan(math.pi / 8)
    above = k.select(steep, k.constant(x.type, -1.0), k.select(middle, magnitude - 1.0, magnitude))
    below = k.select(steep, magnitude, k.select(middle, magnitude + 1.0, k.constant(x.type, 1.0)))
    t = above / below
    z = t * t

    def of(for_steep: float, for_middle: float) -> Value:
        no = k.constant(x.type, 0.0)
        return k.select(steep, k.constant(x.type, for_steep), k.select(middle, k.constant(x.type, for_middle), no))

    tail = k.fma(t * z, polynomial(k, z, table("ATAN", x)), of(_PI_LOW / 2, _PI_LOW / 4))
    return copy_sign(k, of(_PI_HIGH / 2, _PI_HIGH / 4) + (t + tail), x)


def _asin_parts(k: Function, x: Value) -> tuple[Value, Value, Value]:
    """Whether |x| > 1/2; then s = sqrt((1 - |x|) / 2), else s = |x|; and asin(s) - s."""
    magnitude = absolute(k, x)
    large = magnitude > 0.5
    z = k.select(large, (1.0 - magnitude) * 0.5, magnitude * magnitude)
    s = k.select(large, sqrt(k, z), magnitude)
    return large, s, s * z * polynomial(k, z, table("ASIN", x))


def asin(k: Function, x: Value) -> Value:
    """The angle from -pi/2 to pi/2 whose sine is `x`; NaN outside [-1, 1]."""
    large, s, tail = _asin_parts(k, x)
    twice = s + s
    complement = _PI_HIGH / 2 - (twice + ((tail + tail) - _PI_LOW / 2))
    return copy_sign(k, k.select(large, complement, s + tail), x)


def acos(k: Function, x: Value) -> Value:
    """The angle from 0 to pi whose cosine is `x`; NaN outside [-1, 1]."""
    large, s, tail = _asin_parts(k, x)
    negative = x < 0.0
    twice = (s + tail) * 2.0
    for_large = k.select(negative, _PI_HIGH - (twice - _PI_LOW), twice)
    signed = copy_sign(k, s, x) + copy_sign(k, tail, x)
    return k.select(large, for_large, _PI_HIGH / 2 - (signed - _PI_LOW / 2))


# One operand, by the name of the primitive of expressions.

"""What the functions are made of: formats of floats, their signs and bounds, polynomials and ratios of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.mathematics import coefficients
from sardonyx.compiler.llvm.types import I32, I64, Type


class Format(NamedTuple):
    """What the algorithms need to know of a floating-point format."""

    integer: Type
    mantissa_bits: int
    bias: int
    magic: float  # 1.5 * 2^mantissa_bits: adding it rounds to an integer, which the low bits then hold
    ln2_high: float  # its products with exponents are exact
    ln2_low: float
    exp_lowest: float  # below it exp is 0
    exp_infinite: float  # at it and above exp is infinite
    exp_highest: float  # above it exp / 2 is infinite
    smallest_normal: float
    great: float  # above it, x + 1 and x are the same for a logarithm, and x * x does not overflow


_FORMATS = {
    32: Format(I32, 23, 127, 12582912.0, 0.693359375, -2.12194440e-4, -104.5, 88.9, 90.0, 2.0**-126, 2.0**30),
    64: Format(
        I64,
        52,
        1023,
        6755399441055744.0,
        6.93147180369123816490e-01,
        1.90821492927058770002e-10,
        -746.0,
        709.9,
        711.0,
        2.0**-1022,
        2.0**60,
    ),
}


def format_of(x: Value) -> Format:
    """The format of a value; TypeError unless it is F32 or F64."""
    if x.type.kind != "f" or x.type.bits not in _FORMATS:
        raise TypeError(f"no mathematics for {x.type}; convert it to float or double")
    return _FORMATS[x.type.bits]


def table(name: str, x: Value) -> Sequence[float]:
    """The coefficients called `name` for the format of `x`."""
    found: Sequence[float] = getattr(coefficients, f"{name}_{x.type.bits}")
    return found


def polynomial(k: Function, x: Value, coefficients_: Sequence[float]) -> Value:
    """The polynomial with these coefficients, lowest power first, by Horner's rule."""
    total = k.constant(x.type, coefficients_[-1])
    for coefficient in reversed(coefficients_[:-1]):
        total = k.fma(total, x, k.constant(x.type, coefficient))
    return total


def unit_ratio(k: Function, x: Value, above: Sequence[float], below: Sequence[float]) -> Value:
    """x P(x^2) / Q(x^2), limited to [-1, 1]; the ratio is above 1 where the caller limits `x`, so 1 is reached."""
    square = x * x
    quotient = x * polynomial(k, square, above) / polynomial(k, square, below)
    return clamped(k, quotient, -1.0, 1.0)


def clamped(k: Function, x: Value, lowest: float, highest: float) -> Value:
    """`x` within bounds; NaN stays NaN. Two instructions."""
    x = k.faster_smaller(k.constant(x.type, highest), x)
    return k.faster_larger(k.constant(x.type, lowest), x)


def absolute(k: Function, x: Value) -> Value:
    return k.unary("fabs", x)


def copy_sign(k: Function, magnitude: Value, sign: Value) -> Value:
    return k.call(f"llvm.copysign.{magnitude.type.mangled}", magnitude.type, magnitude, sign)


def sqrt(k: Function, x: Value) -> Value:
    return k.unary("sqrt", x)


def to_float(k: Function, n: Value, scalar: Type) -> Value:
    """A small signed integer as a float of its width, by the magic number: no target lacks that."""
    of = _FORMATS[scalar.bits]
    base = k.constant(n.type.with_scalar(scalar), of.magic)
    return (base.bits_as(of.integer) + n).bits_as(scalar) - of.magic


def exact(k: Function, operation: str, left: Value, right: Value) -> Value:
    """Arithmetic that the code generator must not contract into a fused operation."""
    return k.emit(left.type, f"f{operation} {left.type} {left.name}, {right.name}")

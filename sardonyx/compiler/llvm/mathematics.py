"""Exponentials, logarithms, powers, sigmoids, hyperbolic functions, the error function and roundings of float vectors.

Every function takes a value of type F32 or F64 with any number of lanes and emits straight code. Range reductions are
those of Cody and Waite; the coefficients are in `coefficients`. NaN stays NaN, infinities, denormal numbers and
the sign of zero are handled as IEEE 754 and C99's Annex F say. Bounds of the error in units in the last place, over
the whole range, as `tests/compiler/test_mathematics.py` measures them on every instruction set:

    function                     F32   F64
    exp                            2     2
    expm1                          3     3
    sigmoid                        4     2
    log, log1p                     2     2
    power                          1     2
    erf                            7     2
    tanh                           6     3
    sinh, cosh                     3     3
    asinh, acosh, atanh            4     4
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from sardonyx.compiler.llvm import coefficients
from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.lookup import lookup
from sardonyx.compiler.llvm.segments import erf_by_segments
from sardonyx.compiler.llvm.types import F32, F64, I32, I64, Type


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


def polynomial(k: Function, x: Value, coefficients_: Sequence[float]) -> Value:
    """The polynomial with these coefficients, lowest power first, by Horner's rule."""
    total = k.constant(x.type, coefficients_[-1])
    for coefficient in reversed(coefficients_[:-1]):
        total = k.fma(total, x, k.constant(x.type, coefficient))
    return total


def table(name: str, x: Value) -> Sequence[float]:
    """The coefficients called `name` for the format of `x`."""
    found: Sequence[float] = getattr(coefficients, f"{name}_{x.type.bits}")
    return found


def absolute(k: Function, x: Value) -> Value:
    return k.unary("fabs", x)


def copy_sign(k: Function, magnitude: Value, sign: Value) -> Value:
    return k.call(f"llvm.copysign.{magnitude.type.mangled}", magnitude.type, magnitude, sign)


def sqrt(k: Function, x: Value) -> Value:
    return k.unary("sqrt", x)


def any_lane(k: Function, mask: Value) -> Value:
    """Whether a truth value holds in some lane, as a scalar."""
    if mask.type.lanes == 1:
        return mask
    word = k.emit(Type("u", mask.type.lanes), f"bitcast {mask.type} {mask.name} to i{mask.type.lanes}")
    return word.differs(0)


# Rounding


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


# Instructions of AVX-512 that other machines have none for


_LESSER_MAGNITUDE = 2  # the mode of `range` that takes the operand nearer to zero, with the first one's sign


def _has_avx512(k: Function, x: Value) -> bool:
    """Whether the target has AVX-512's instructions for values of this type."""
    bits = x.type.lanes * x.type.bits
    return "avx512vl" in k.target.features and (bits in (128, 256) or bits % 512 == 0)


def _by_avx512(k: Function, name: str, operands: Sequence[Value], *modes: int) -> Value:
    """An instruction's result, by halves where the vectors are wider than a register."""
    type_ = operands[0].type
    lanes, bits = type_.lanes, type_.lanes * type_.bits
    if bits > 512:
        halves = [range(lanes // 2), range(lanes // 2, lanes)]
        low, high = (_by_avx512(k, name, [k.shuffle(one, None, half) for one in operands], *modes) for half in halves)
        return k.shuffle(low, high, range(lanes))
    letter = "s" if type_.bits == 32 else "d"
    mask = Type("i", max(8, lanes))
    arguments = [*operands, *(k.constant(I32, mode) for mode in modes), operands[0], k.constant(mask, -1)]
    if bits == 512:
        arguments.append(k.constant(I32, 4))  # round as the processor is set to
    return k.call(f"llvm.x86.avx512.mask.{name}.p{letter}.{bits}", type_, *arguments)


# Exponentials


def _clamped(k: Function, x: Value, lowest: float, highest: float) -> Value:
    """`x` within bounds; NaN stays NaN. Two instructions."""
    x = k.faster_smaller(k.constant(x.type, highest), x)
    return k.faster_larger(k.constant(x.type, lowest), x)


class _Reduced(NamedTuple):
    """exp(x) = 2^n exp(remainder) with n an integer, or a multiple of 1 / steps; `shifted` is n with the format's magic
    number, divided by the steps, added."""

    remainder: Value
    n: Value
    shifted: Value


def _reduce_exponent(
    k: Function, x: Value, low: Value | None = None, steps: int = 1, *, once: bool = False
) -> _Reduced:
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


def _fraction(k: Function, r: Value) -> Value:
    """exp(r) - 1, accurate near 0, for the remainder of a reduction."""
    return k.fma(r * r, polynomial(k, r, table("EXP", r)), r)


def _exp_of_remainder(k: Function, r: Value) -> Value:
    """exp(r), in float32 by as few terms as its bound allows where no product is rounded before its sum."""
    if r.type.bits == 32 and k.target.has_fma:
        return polynomial(k, r, coefficients.WHOLE_EXP_32)
    return _fraction(k, r) + 1.0


def _scaled(k: Function, p: Value, reduced: _Reduced, adjust: int = 0) -> Value:
    """p * 2^(n + adjust) with one rounding, also where that is infinite or denormal; AVX-512 rounds n down."""
    of = format_of(p)
    if _has_avx512(k, p):
        return _by_avx512(k, "scalef", [p, reduced.n + float(adjust) if adjust else reduced.n])
    integer = of.integer
    base = k.constant(p.type, of.magic).bits_as(integer)
    n = reduced.shifted.bits_as(integer) - base + adjust
    half = n >> 1
    first = ((half + of.bias) << of.mantissa_bits).bits_as(p.type.scalar)
    second = ((n - half + of.bias) << of.mantissa_bits).bits_as(p.type.scalar)
    return p * first * second


def exp(k: Function, x: Value) -> Value:
    """e^x."""
    return _exp(k, x, 0)


# Powers of 2 that two registers of AVX-512 hold, from 1 on.
_STEPS = 32
_POWERS = [2.0 ** (step / _STEPS) for step in range(_STEPS)]


def _has_tables(k: Function, x: Value) -> bool:
    """Whether powers of 2 are looked up."""
    return x.type.bits == 32 and "avx512vl" in k.target.features


def _by_registers(k: Function, x: Value, compute: Callable[[Value], Value]) -> Value:
    """What `compute` makes of whole registers: of all that `x` fills, of a part of one where it is narrower.

    The bits are the same for any number of lanes.
    """
    lanes, whole = x.type.lanes, k.target.lanes(x.type.scalar)
    if lanes > whole:
        halves = [k.shuffle(x, None, half) for half in (range(lanes // 2), range(lanes // 2, lanes))]
        low, high = k.abreast([partial(_by_registers, k, half, compute) for half in halves])
        return k.shuffle(low, high, range(lanes))
    if lanes == whole:
        return compute(x)
    if lanes == 1:
        return compute(k.splat(x, whole)).lane(0)
    return k.shuffle(compute(k.shuffle(x, None, [min(lane, lanes - 1) for lane in range(whole)])), None, range(lanes))


def _reduce_by_table(k: Function, x: Value, *, once: bool = False) -> tuple[_Reduced, Value, Value]:
    """The reduction of exp for a register of AVX-512, its remainder within bounds, and the looked up fraction of 2^n.

    Where x is infinite, NaN or far outside, so is n, which then decides alone, as the remainder's bound sees to.
    """
    reduced = _reduce_exponent(k, x, steps=_STEPS, once=once)
    r = _by_avx512(k, "range", [reduced.remainder, k.constant(x.type, 0.5 / _STEPS)], _LESSER_MAGNITUDE)
    low, high = (k.numbers(F32, half) for half in (_POWERS[: x.type.lanes], _POWERS[x.type.lanes :]))
    return reduced, r, lookup(k, low, high, reduced.shifted.bits_as(I32))


def _exp_by_table(k: Function, x: Value, adjust: int) -> Value:
    """The same for a register of AVX-512: 2^n for n a multiple of 1 / 32 is looked up, so that few terms are left."""
    reduced, r, power = _reduce_by_table(k, x)
    p = k.fma(power * r, polynomial(k, r, coefficients.SHORT_EXP_32), power)
    return _scaled(k, p, reduced, adjust)


def _exp(k: Function, x: Value, adjust: int) -> Value:
    """e^x * 2^adjust, which overflows only where the product does."""
    of = format_of(x)
    if _has_tables(k, x):
        return _by_registers(k, x, lambda part: _exp_by_table(k, part, adjust))
    if _has_avx512(k, x):
        # Where x is infinite, NaN or far outside, so is n, which then decides alone, as the remainder's bound sees to.
        reduced = _reduce_exponent(k, x)
        r = _by_avx512(k, "range", [reduced.remainder, k.constant(x.type, 0.5)], _LESSER_MAGNITUDE)
    else:
        reduced = _reduce_exponent(k, _clamped(k, x, of.exp_lowest, of.exp_highest))
        r = reduced.remainder
    return _scaled(k, _exp_of_remainder(k, r), reduced, adjust)


def sigmoid(k: Function, x: Value) -> Value:
    """1 / (1 + e^-x); where that is denormal, it may be 0.

    With -x = n log(2) + r and t = tanh(r / 2) it is (1 - t) / (1 - t + 2^n (1 + t)): the division takes the place of
    some terms of an exponential, and only the last sum waits for 2^n.
    """
    if x.type.bits == 64:
        return 1.0 / (exp(k, -x) + 1.0)
    if _has_tables(k, x):
        return _by_registers(k, x, partial(_sigmoid_by_table, k))
    # Within these bounds 2^n is zero, a normal number or infinite.
    reduced = _reduce_exponent(k, -_clamped(k, x, -88.7, 88.0))
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
    power = _scaled(k, power, reduced)
    above = coefficients.INVERSE_HALF_TANH_32 - r
    return above / k.fma(power, r + coefficients.INVERSE_HALF_TANH_32, above)


def gated(k: Function, x: Value, gate: Value) -> Value:
    """x * sigmoid(gate); where the sigmoid is denormal, it may be 0.

    One division where the sum below it is short.
    """
    if _has_tables(k, gate):
        return x / _by_registers(k, gate, partial(_inverse_sigmoid, k))
    return x * sigmoid(k, gate)


def _inverse_sigmoid(k: Function, x: Value) -> Value:
    """1 + e^-x for a register of AVX-512; below -20 its error grows to 6 units in the last place at -80."""
    reduced, r, power = _reduce_by_table(k, -x, once=True)
    power = _scaled(k, power, reduced)
    one = k.constant(x.type, 1.0)
    return k.fma(power, polynomial(k, r, (1.0, *coefficients.SHORT_EXP_32)), one)


def expm1(k: Function, x: Value) -> Value:
    """e^x - 1, accurate near 0."""
    of = format_of(x)
    reduced = _reduce_exponent(k, _clamped(k, x, -0.75 * (of.mantissa_bits + 4), of.exp_infinite))
    fraction = _fraction(k, reduced.remainder)
    # 2^(n-1) is a normal number over the whole range; the doubling at the end overflows where the result does.
    integer = of.integer
    n = reduced.shifted.bits_as(integer) - k.constant(x.type, of.magic).bits_as(integer)
    half = ((n + (of.bias - 1)) << of.mantissa_bits).bits_as(x.type.scalar)
    result = k.fma(fraction, half, half - 0.5) * 2.0
    result = k.select(reduced.n.equals(0.0), fraction, result)
    return copy_sign(k, result, x)


# Logarithms


def _split(k: Function, x: Value) -> tuple[Value, Value]:
    """m and e (as a float) with x = m * 2^e and m from sqrt(1/2) to sqrt(2), for positive normal x."""
    of = format_of(x)
    root = k.constant(x.type, math.sqrt(0.5)).bits_as(of.integer)
    offset = x.bits_as(of.integer) - root
    e = offset >> of.mantissa_bits
    m = ((offset & ((1 << of.mantissa_bits) - 1)) + root).bits_as(x.type.scalar)
    return m, _to_float(k, e, x.type.scalar)


def _to_float(k: Function, n: Value, scalar: Type) -> Value:
    """A small signed integer as a float of its width, by the magic number: no target lacks that."""
    of = _FORMATS[scalar.bits]
    base = k.constant(n.type.with_scalar(scalar), of.magic)
    return (base.bits_as(of.integer) + n).bits_as(scalar) - of.magic


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
    m, e = _split(k, k.select(denormal, x * 2.0**bits, x))
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
    m, e = _split(k, u)
    # 1 + f = (1 + x) * 2^-e without the rounding of u; above `great` that rounding does not matter.
    exponent = u.bits_as(of.integer) - m.bits_as(of.integer)
    inverse = (k.constant(x.type, 1.0).bits_as(of.integer) - exponent).bits_as(x.type.scalar)
    f = k.select(u < of.great, k.fma(x, inverse, inverse - 1.0), m - 1.0)
    result = _log_specials(k, _log_of_sum(k, f, e), u, x)
    return copy_sign(k, result, x)


# Hyperbolic functions and their inverses


def tanh(k: Function, x: Value) -> Value:
    """The hyperbolic tangent."""
    if x.type.bits == 32:
        bounded = _clamped(k, x, -9.54, 9.54)
        return _unit_ratio(k, bounded, coefficients.TANH_NUMERATOR_32, coefficients.TANH_DENOMINATOR_32)
    t = expm1(k, absolute(k, x) * -2.0)
    return copy_sign(k, t / (t + 2.0), x)


def _unit_ratio(k: Function, x: Value, above: Sequence[float], below: Sequence[float]) -> Value:
    """x P(x^2) / Q(x^2), limited to [-1, 1]; the ratio is above 1 where the caller limits `x`, so 1 is reached."""
    square = x * x
    quotient = x * polynomial(k, square, above) / polynomial(k, square, below)
    return _clamped(k, quotient, -1.0, 1.0)


def sinh(k: Function, x: Value) -> Value:
    """The hyperbolic sine."""
    magnitude = absolute(k, x)
    half = _exp(k, magnitude, -1)
    square = magnitude * magnitude
    small = k.fma(magnitude * square, polynomial(k, square, table("SINH", x)), magnitude)
    return copy_sign(k, k.select(magnitude < 1.0, small, half - 0.25 / half), x)


def cosh(k: Function, x: Value) -> Value:
    """The hyperbolic cosine."""
    half = _exp(k, absolute(k, x), -1)
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


# The error function


def erf(k: Function, x: Value) -> Value:
    """The error function."""
    if _has_tables(k, x):
        return _by_registers(k, x, partial(erf_by_segments, k))
    if x.type.bits == 32:
        bounded = _clamped(k, x, -4.08, 4.08)
        return _unit_ratio(k, bounded, coefficients.ERF_NUMERATOR_32, coefficients.ERF_DENOMINATOR_32)
    magnitude = _clamped(k, absolute(k, x), 0.0, 6.0)
    square = magnitude * magnitude
    small = k.fma(magnitude, polynomial(k, square, coefficients.ERF_64), magnitude)
    # erfc(x) = exp(-x^2) times what a polynomial can approximate, divided by 1 + 2 x.
    t = (magnitude - 2.0) / (magnitude + 2.0)
    factor = polynomial(k, t, coefficients.ERFC_64) / k.fma(magnitude, k.constant(x.type, 2.0), k.constant(x.type, 1.0))
    large = 1.0 - _exp(k, -square, 0) * factor
    return copy_sign(k, k.select(magnitude < 1.0, small, large), x)


# Powers: in F64 a logarithm with some ten bits more than the format has, as an unevaluated sum of two numbers.


def exact(k: Function, operation: str, left: Value, right: Value) -> Value:
    """Arithmetic that the code generator must not contract into a fused operation."""
    return k.emit(left.type, f"f{operation} {left.type} {left.name}, {right.name}")


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
    m, e = _split(k, k.select(denormal, x * 2.0**54, x))
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
    reduced = _reduce_exponent(k, _clamped(k, product, of.exp_lowest, of.exp_highest), error)
    return _scaled(k, _fraction(k, reduced.remainder) + 1.0, reduced)


# Remainders


def fmod(k: Function, a: Value, b: Value) -> Value:
    """The remainder with the sign of `a`, exact, by C's library."""
    return k.binary("rem", a, b)


def modulo(k: Function, a: Value, b: Value) -> Value:
    """The remainder with the sign of `b`."""
    remainder = fmod(k, a, b)
    other_sign = (remainder < 0.0) ^ (b < 0.0)
    moved = k.select(other_sign, remainder + b, remainder)
    return k.select(remainder.equals(0.0), copy_sign(k, k.constant(b.type, 0.0), b), moved)


# One operand, by the name of the primitive of expressions.
FUNCTIONS: dict[str, Callable[[Function, Value], Value]] = {
    "absolute": absolute,
    "acosh": acosh,
    "asinh": asinh,
    "atanh": atanh,
    "ceil": ceil,
    "cosh": cosh,
    "erf": erf,
    "exp": exp,
    "expm1": expm1,
    "floor": floor,
    "log": log,
    "log1p": log1p,
    "rint": rint,
    "sigmoid": sigmoid,
    "sinh": sinh,
    "sqrt": sqrt,
    "tanh": tanh,
    "trunc": trunc,
}

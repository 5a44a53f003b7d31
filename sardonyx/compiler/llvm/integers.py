"""Integer primitives that machines do not have as NumPy defines them: division, remainders, powers, shifts, signs."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.mathematics.rounding import trunc
from sardonyx.compiler.llvm.types import F32, F64, Type


def absolute(k: Function, x: Value) -> Value:
    """The magnitude; the lowest number stays itself."""
    return k.select(x < 0, -x, x) if x.type.is_signed else x


def negative(k: Function, x: Value) -> Value:
    """The opposite number, modulo the width."""
    return -x


def sign(k: Function, x: Value) -> Value:
    """-1, 0 or 1."""
    positive = (x > 0).to(x.type.scalar)
    return k.select(x < 0, k.constant(x.type, -1), positive) if x.type.is_signed else positive


def divide(k: Function, a: Value, b: Value) -> Value:
    """The quotient rounded towards zero; 0 for a zero divisor; modulo the width where it leaves the range."""
    zero = b.equals(0)
    return k.select(zero, k.constant(a.type, 0), _quotient(k, a, k.select(zero, k.constant(b.type, 1), b)))


def _quotient(k: Function, a: Value, b: Value) -> Value:
    """a / b for b other than 0, by floats where their mantissa holds the integers: processors divide no vectors."""
    bits, scalar = a.type.bits, a.type.scalar
    if bits <= 32:
        # The quotient's distance from the next integer, at least 1 / b, is more than its rounding error.
        wide = F32 if bits <= 16 else F64
        quotient = trunc(k, a.to(wide) / b.to(wide))
        return quotient.to(Type("i", 64 if bits == 32 else 32)).to(scalar)
    if not a.type.is_signed:
        return a // b
    minus_one = b.equals(-1)
    return k.select(minus_one, -a, a // k.select(minus_one, k.constant(b.type, 1), b))


def fmod(k: Function, a: Value, b: Value) -> Value:
    """The remainder with the sign of `a`; 0 for a zero divisor."""
    zero = b.equals(0)
    safe = k.select(zero, k.constant(b.type, 1), b)
    return k.select(zero, k.constant(a.type, 0), a - _quotient(k, a, safe) * safe)


def modulo(k: Function, a: Value, b: Value) -> Value:
    """The remainder with the sign of `b`; 0 for a zero divisor."""
    remainder = fmod(k, a, b)
    if not a.type.is_signed:
        return remainder
    return k.select(remainder.differs(0) & ((remainder ^ b) < 0), remainder + b, remainder)


def shift_left(k: Function, x: Value, count: Value) -> Value:
    """x * 2^count; 0 for a count that is not below the width."""
    inside = _below_width(count)
    return k.select(inside, x << k.select(inside, count, k.constant(count.type, 0)), k.constant(x.type, 0))


def shift_right(k: Function, x: Value, count: Value) -> Value:
    """x / 2^count rounded down; all sign bits for a count that is not below the width."""
    inside = _below_width(count)
    if x.type.is_signed:
        return x >> k.select(inside, count, k.constant(count.type, x.type.bits - 1))
    return k.select(inside, x >> k.select(inside, count, k.constant(count.type, 0)), k.constant(x.type, 0))


def _below_width(count: Value) -> Value:
    return count.bits_as(Type("u", count.type.bits)) < count.type.bits


def power(k: Function, base: Value, exponent: Value) -> Value:
    """base ** exponent modulo the width; the truncated reciprocal for a negative exponent."""
    result = k.variable(base.type, 1)
    factor = k.variable(base.type, base)
    unsigned = Type("u", base.type.bits)
    left = k.variable(exponent.type.with_scalar(unsigned), exponent.bits_as(unsigned))
    if base.type.is_signed:
        left.set(k.select(exponent < 0, k.constant(exponent.type, 0), exponent).bits_as(unsigned))
    with k.loop_while(lambda: k.any_lane(left.get().differs(0))):
        now = left.get()
        result.set(k.select((now & 1).differs(0), result.get() * factor.get(), result.get()))
        factor.set(factor.get() * factor.get())
        left.set(now >> 1)
    if not base.type.is_signed:
        return result.get()
    return k.select(exponent < 0, _reciprocal(k, base, (exponent & 1).differs(0)), result.get())


def _reciprocal(k: Function, base: Value, odd: Value) -> Value:
    """A negative power, truncated: of 1 it is 1, of -1 it is -1 or 1, else 0."""
    zero, one = k.constant(base.type, 0), k.constant(base.type, 1)
    of_minus_one = k.select(odd, k.constant(base.type, -1), one)
    return k.select(base.equals(1), one, k.select(base.equals(-1), of_minus_one, zero))


def power_of_constant(k: Function, base: Value, exponent: int) -> Value:
    """base ** exponent by repeated squaring."""
    if exponent < 0:
        odd = k.constant(Type("u", 1, base.type.lanes), bool(exponent & 1))
        return _reciprocal(k, base, odd)
    result = k.constant(base.type, 1)
    factor = base
    while exponent:
        if exponent & 1:
            result = factor if result.name.startswith(("splat", "1")) else result * factor
        exponent >>= 1
        if exponent:
            factor = factor * factor
    return result


# By the name of the primitive.
FUNCTIONS: dict[str, Callable[..., Value]] = {
    "absolute": absolute,
    "divide": divide,
    "fmod": fmod,
    "modulo": modulo,
    "negative": negative,
    "power": power,
    "shift_left": shift_left,
    "shift_right": shift_right,
    "sign": sign,
}

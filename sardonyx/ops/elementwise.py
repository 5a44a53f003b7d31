"""Arithmetic on each element: add, divide, powers, roundings, trigonometry, Clip, Where, Min, Max, Sum, Mean."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from sardonyx.kernel import expr as k
from sardonyx.kernel.expr import Expr
from sardonyx.kernel.program import Host, Kernel
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Elementwise, Value, operator


class Unary(Elementwise):
    """One primitive of one input."""

    primitive: ClassVar[Callable[[Expr], Expr]]

    def scalar(self, x: Expr) -> Expr:
        return type(self).primitive(x)


def _unary(op_type: str, primitive: Callable[[Expr], Expr]) -> None:
    attributes = {"primitive": staticmethod(primitive), "__doc__": primitive.__doc__, "__module__": __name__}
    operator(op_type)(type(op_type, (Unary,), attributes))


_unary("Abs", k.absolute)
_unary("Acos", k.acos)
_unary("Acosh", k.acosh)
_unary("Asin", k.asin)
_unary("Asinh", k.asinh)
_unary("Atan", k.atan)
_unary("Atanh", k.atanh)
_unary("Ceil", k.ceil)
_unary("Cos", k.cos)
_unary("Cosh", k.cosh)
_unary("Exp", k.exp)
_unary("Floor", k.floor)
_unary("Log", k.log)
_unary("Neg", lambda x: -x)
_unary("Reciprocal", lambda x: 1 / x)
_unary("Round", k.rint)
_unary("Sign", k.sign)
_unary("Sin", k.sin)
_unary("Sinh", k.sinh)
_unary("Sqrt", k.sqrt)
_unary("Tan", k.tan)


@operator("Erf")
class Erf(Elementwise):
    """The error function; of integers, rounded towards zero, as a cast does."""

    def scalar(self, x: Expr) -> Expr:
        if x.dtype.kind in "iu":
            return k.erf(x.cast(np.float64)).cast(x.dtype)
        return k.erf(x)


class LegacyBroadcast(Elementwise):
    """A binary operator before opset 7, which broadcasts the second input only, aligned at `axis`.

    With `broadcast` set and no axis, the second shape must be a suffix of the first: NumPy's rule covers that.
    """

    axis: int | None = None
    broadcast: int = 0

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if self.axis is not None:
            return Host(self.run, "the second input's place depends on the run's ranks")
        return super().lower(inputs)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        first = inputs[0]
        assert first is not None
        return [Fact(self.result_type([first]), first.shape)]

    def run(self, a: Array, b: Array) -> Sequence[Value]:
        return super().run(a, aligned(a.ndim, b, self.axis))


def aligned(rank: int, b: Array, axis: int | None) -> Array:
    """`b` with ones behind its dimensions, so that its first one meets dimension `axis` of a tensor of that rank.

    ValueError where that is no dimension of it, or where `b` has more dimensions than there are from that one on.
    """
    if axis is None:
        return b
    start = axis + rank if axis < 0 else axis
    if not 0 <= start <= rank - b.ndim:
        raise ValueError(
            f"axis {axis}: an input of {b.ndim} dimensions does not fit into the {rank} of the first one from there on"
        )
    return b.reshape(b.shape + (1,) * (rank - start - b.ndim))


@operator("Add")
class OldAdd(LegacyBroadcast):
    """A + B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a + b


@operator("Add", since=7)
class Add(Elementwise):
    """A + B; integers wrap."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a + b


@operator("Sub")
class OldSub(LegacyBroadcast):
    """A - B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a - b


@operator("Sub", since=7)
class Sub(Elementwise):
    """A - B; integers wrap."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a - b


@operator("Mul")
class OldMul(LegacyBroadcast):
    """A * B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a * b


@operator("Mul", since=7)
class Mul(Elementwise):
    """A * B; integers wrap."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a * b


@operator("Div")
class OldDiv(LegacyBroadcast):
    """A / B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a / b


@operator("Div", since=7)
class Div(Elementwise):
    """A / B; integers truncate towards zero, and a zero divisor gives zero."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a / b


def _power(base: Expr, exponent: Expr) -> Expr:
    """base ** exponent in the base's dtype; computed in float64 where the two dtypes share no exact one."""
    if base.dtype == exponent.dtype:
        return k.power(base, exponent)
    if base.dtype.kind in "iu" and exponent.dtype.kind in "iu":
        return k.power(base.cast(np.int64), exponent.cast(np.int64)).cast(base.dtype)
    if base.dtype.kind in "iu" or exponent.dtype.itemsize > base.dtype.itemsize:
        return k.power(base.cast(np.float64), exponent.cast(np.float64)).cast(base.dtype)
    return k.power(base, exponent.cast(base.dtype))


@operator("Pow")
class OldPow(LegacyBroadcast):
    """X ** Y."""

    def scalar(self, base: Expr, exponent: Expr) -> Expr:
        return _power(base, exponent)


@operator("Pow", since=7)
class Pow(Elementwise):
    """X ** Y in the dtype of X, whatever the dtype of Y."""

    def scalar(self, base: Expr, exponent: Expr) -> Expr:
        return _power(base, exponent)


@operator("Mod")
class Mod(Elementwise):
    """The remainder: of the sign of B, or with `fmod` of the sign of A, as C's fmod."""

    fmod: int = 0

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return k.fmod(a, b) if self.fmod else k.modulo(a, b)


@operator("Max")
class Max(Elementwise):
    """The largest of all inputs; NaN where one of them is."""

    def scalar(self, *inputs: Expr) -> Expr:
        return functools.reduce(k.maximum, inputs)


@operator("Min")
class Min(Elementwise):
    """The smallest of all inputs; NaN where one of them is."""

    def scalar(self, *inputs: Expr) -> Expr:
        return functools.reduce(k.minimum, inputs)


@operator("Sum")
class Sum(Elementwise):
    """The sum of all inputs."""

    def scalar(self, *inputs: Expr) -> Expr:
        return functools.reduce(lambda a, b: a + b, inputs)


@operator("Mean")
class Mean(Elementwise):
    """The mean of all inputs."""

    def scalar(self, *inputs: Expr) -> Expr:
        return functools.reduce(lambda a, b: a + b, inputs) / len(inputs)


_FLOAT32_MAX = 3.4028234663852886e38


@operator("Clip")
class OldClip(Elementwise):
    """X limited to the range of the attributes."""

    min: float = -_FLOAT32_MAX
    max: float = _FLOAT32_MAX

    def scalar(self, x: Expr) -> Expr:
        return k.minimum(k.maximum(x, self.min), self.max)


@operator("Clip", since=11)
class Clip(Elementwise):
    """X limited to [min, max], both optional scalars; `max` everywhere where min > max; NaN stays NaN."""

    def scalar(self, x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
        result = x if low is None else k.maximum(x, low)
        return result if high is None else k.minimum(result, high)


@operator("Where")
class Where(Elementwise):
    """X where the condition holds, else Y."""

    def scalar(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        return k.where(condition, yes, no)

    def run(self, *inputs: Value) -> Sequence[Value]:
        return (np.where(*inputs),) if inputs[1].dtype == object else super().run(*inputs)

    def result_type(self, inputs: Sequence[Fact]) -> Any:
        return inputs[1].type

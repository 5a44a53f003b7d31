"""Scalar expressions: the body of a pointwise kernel, as a DAG over its inputs.

An operator states its meaning once, as an expression; the NumPy evaluator, constant folding and the native
renderers all read the same DAG. Every expression knows its dtype; operands of one arithmetic primitive must have
the same dtype, except that a Python number takes the dtype of the other operand.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from sardonyx.light_dataclass import dataclass

Number = int | float | bool


class Expr:
    """One scalar value of a pointwise kernel."""

    dtype: np.dtype[Any]

    def __add__(self, other: Operand) -> Expr:
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return apply("subtract", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return apply("subtract", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return apply("multiply", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return apply("multiply", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return apply("divide", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return apply("divide", other, self)

    def __neg__(self) -> Expr:
        return apply("negative", self)

    def __lt__(self, other: Operand) -> Expr:
        return apply("less", self, other)

    def __le__(self, other: Operand) -> Expr:
        return apply("less_equal", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return apply("less", other, self)

    def __ge__(self, other: Operand) -> Expr:
        return apply("less_equal", other, self)

    def equals(self, other: Operand) -> Expr:
        """Elementwise equality; ``==`` itself compares the objects, so that expressions can be dictionary keys."""
        return apply("equal", self, other)

    def cast(self, dtype: np.dtype[Any] | type) -> Expr:
        """The value converted as NumPy's ``astype`` does; itself if it has that dtype already."""
        wanted = np.dtype(dtype)
        return self if wanted == self.dtype else Apply(wanted, "cast", (self,))


Operand = Expr | Number


@dataclass(frozen=True, eq=False, slots=True)
class Input(Expr):
    """The current element of the kernel's input number `index`."""

    dtype: np.dtype[Any]
    index: int


@dataclass(frozen=True, eq=False, slots=True)
class Constant(Expr):
    """A number known when the kernel is built."""

    dtype: np.dtype[Any]
    value: Number


@dataclass(frozen=True, eq=False, slots=True)
class Apply(Expr):
    """A primitive applied to expressions."""

    dtype: np.dtype[Any]
    primitive: str
    args: tuple[Expr, ...] = field(default=())


@dataclass(frozen=True, eq=False, slots=True)
class Reduce(Expr):
    """An expression combined over all elements of the current row of a `Reduction`: a value of the row.

    `kind` is one of `REDUCTIONS`.
    """

    dtype: np.dtype[Any]
    kind: str
    arg: Expr


@dataclass(frozen=True, eq=False, slots=True)
class RowLength(Expr):
    """How many elements the current row of a `Reduction` has."""

    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False, slots=True)
class RowIndex(Expr):
    """The number of the current element in its row, which extends along one dimension."""

    dtype: np.dtype[Any]


# ``bound`` is a maximum that may be any number where an element is NaN.
REDUCTIONS = frozenset({"sum", "product", "maximum", "minimum", "bound"})


# Primitives whose result is a truth value, whatever they compare.
COMPARISONS = frozenset({"less", "less_equal", "equal", "isnan", "isinf", "logical_and", "logical_or", "logical_xor"})


def constant(value: Number, dtype: np.dtype[Any] | type) -> Constant:
    return Constant(np.dtype(dtype), value)


def apply(primitive: str, *operands: Operand) -> Expr:
    """`primitive` of the operands, which must agree on their dtype; numbers follow the expressions."""
    dtypes = {operand.dtype for operand in operands if isinstance(operand, Expr)}
    if len(dtypes) != 1:
        raise TypeError(f"{primitive} needs operands of one dtype, not {sorted(map(str, dtypes))}")
    (dtype,) = dtypes
    args = tuple(operand if isinstance(operand, Expr) else Constant(dtype, operand) for operand in operands)
    result = np.dtype(np.bool_) if primitive in COMPARISONS or primitive == "logical_not" else dtype
    return Apply(result, primitive, args)


def where(condition: Expr, yes: Operand, no: Operand) -> Expr:
    """`yes` where `condition` holds, else `no`; only the chosen one's NaN matters."""
    dtype = next(operand.dtype for operand in (yes, no) if isinstance(operand, Expr))
    branches = (operand if isinstance(operand, Expr) else Constant(dtype, operand) for operand in (yes, no))
    return Apply(dtype, "where", (condition, *branches))


def _named(primitive: str) -> Callable[..., Expr]:
    def build(*operands: Operand) -> Expr:
        return apply(primitive, *operands)

    build.__name__ = primitive
    build.__doc__ = f"The primitive `{primitive}`; its meaning is in `evaluate.PRIMITIVES`."
    return build


absolute = _named("absolute")
acos = _named("acos")
acosh = _named("acosh")
asin = _named("asin")
asinh = _named("asinh")
atan = _named("atan")
atanh = _named("atanh")
bitwise_and = _named("bitwise_and")
bitwise_not = _named("bitwise_not")
bitwise_or = _named("bitwise_or")
bitwise_xor = _named("bitwise_xor")
ceil = _named("ceil")
cos = _named("cos")
cosh = _named("cosh")
equal = _named("equal")
erf = _named("erf")
exp = _named("exp")
expm1 = _named("expm1")
floor = _named("floor")
fmod = _named("fmod")
gated = _named("gated")
isinf = _named("isinf")
isnan = _named("isnan")
log = _named("log")
log1p = _named("log1p")
logical_and = _named("logical_and")
logical_not = _named("logical_not")
logical_or = _named("logical_or")
logical_xor = _named("logical_xor")
maximum = _named("maximum")
minimum = _named("minimum")
modulo = _named("modulo")
power = _named("power")
rint = _named("rint")
shift_left = _named("shift_left")
shift_right = _named("shift_right")
sigmoid = _named("sigmoid")
sign = _named("sign")
sin = _named("sin")
sinh = _named("sinh")
sqrt = _named("sqrt")
tabulated = _named("tabulated")
tan = _named("tan")
tanh = _named("tanh")
trunc = _named("trunc")


def reduce(kind: str, arg: Expr) -> Expr:
    """`arg` combined over the current row; ValueError for an unknown kind."""
    if kind not in REDUCTIONS:
        raise ValueError(f"{kind} is no kind of reduction: {', '.join(sorted(REDUCTIONS))}")
    return Reduce(arg.dtype, kind, arg)


def mean(arg: Expr) -> Expr:
    """The mean of `arg` over the current row."""
    return reduce("sum", arg) / RowLength(arg.dtype)


def arguments(expr: Expr) -> tuple[Expr, ...]:
    """The expressions that an expression is made of directly."""
    if isinstance(expr, Apply):
        return expr.args
    return (expr.arg,) if isinstance(expr, Reduce) else ()


def walk(roots: Sequence[Expr], leaves: Container[int] = ()) -> list[Expr]:
    """Every expression reachable from `roots` once, arguments before users.

    Those whose id is among `leaves` are not entered.
    """
    order: list[Expr] = []
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        expr, ready = stack.pop()
        if ready:
            order.append(expr)
        elif id(expr) not in seen:
            seen.add(id(expr))
            stack.append((expr, True))
            if id(expr) not in leaves:
                stack.extend((arg, False) for arg in reversed(arguments(expr)))
    return order


def tables_of(roots: Sequence[Expr]) -> frozenset[int]:
    """The numbers of the inputs that are tables of 256 bytes, whole for every element."""
    found = (expr.args[1] for expr in walk(roots) if isinstance(expr, Apply) and expr.primitive == "tabulated")
    return frozenset(table.index for table in found if isinstance(table, Input))


def substitute(roots: Sequence[Expr], replaced: Callable[[Input], Expr]) -> list[Expr]:
    """The expressions with each `Input` replaced; shared parts stay shared."""
    made: dict[int, Expr] = {}
    for expr in walk(roots):
        if isinstance(expr, Input):
            made[id(expr)] = replaced(expr)
        elif isinstance(expr, Apply):
            made[id(expr)] = Apply(expr.dtype, expr.primitive, tuple(made[id(arg)] for arg in expr.args))
        elif isinstance(expr, Reduce):
            made[id(expr)] = Reduce(expr.dtype, expr.kind, made[id(expr.arg)])
        else:
            made[id(expr)] = expr
    return [made[id(root)] for root in roots]

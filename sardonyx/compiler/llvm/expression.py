"""Vector code for scalar expressions: every primitive of `kernel.evaluate`, for every dtype of the kernel language.

Values are computed as the evaluator computes them: narrow floats in float32, rounded once when the expression is
finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sardonyx.compiler.llvm import integers
from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.lookup import in_table, is_table
from sardonyx.compiler.llvm.mathematics.elements import absolute, sqrt
from sardonyx.compiler.llvm.mathematics.functions import ONE_OPERAND, TWO_OPERANDS
from sardonyx.compiler.llvm.narrow_floats import from_bits, narrowed, to_bits, widened
from sardonyx.compiler.llvm.types import BOOL, E8M0, F32, F64, I8, I32, I64, U8, Type, type_of
from sardonyx.kernel.dtypes import TINY_INTEGERS
from sardonyx.kernel.expr import Apply, Constant, Expr, Input, Reduce, walk
from sardonyx.light_dataclass import dataclass

# Powers of two are only read.
_ONLY_READ = np.dtype(E8M0.kind)
_LOGIC = {
    "logical_and": "and",
    "logical_or": "or",
    "logical_xor": "xor",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
}
_ARITHMETIC = {"add": "add", "subtract": "sub", "multiply": "mul"}
_RELATIONS = {"less": "lt", "less_equal": "le", "equal": "eq"}
_ON_TRUTH = frozenset(
    {*_LOGIC, *_RELATIONS, "add", "multiply", "maximum", "minimum", "logical_not", "bitwise_not", "where", "cast"}
    | {"isnan", "isinf", "absolute"}
)
_ON_INTEGERS = frozenset(
    {*_LOGIC, *_RELATIONS, *_ARITHMETIC, "maximum", "minimum", "logical_not", "bitwise_not", "where", "cast", "isnan"}
    | {"isinf", "absolute", "negative", "sign", "divide", "modulo", "fmod", "power", "shift_left", "shift_right"}
    | {"ceil", "floor", "trunc"}
)
_ON_TINY_INTEGERS = frozenset({"cast", "where"})
_ON_FLOATS = frozenset(
    {*ONE_OPERAND, *TWO_OPERANDS, *_RELATIONS, *_ARITHMETIC, "maximum", "minimum", "where", "cast", "isnan", "isinf"}
    | {"negative", "sign", "divide", "logical_and", "logical_or", "logical_xor", "logical_not"}
)


def working_type(dtype: np.dtype[Any]) -> Type:
    """The type in which values of `dtype` are computed; TypeError for a dtype without rendering."""
    found = type_of(dtype)
    if found is None:
        raise TypeError(f"the kernel language has no {dtype}")
    if found.is_tiny_integer:
        return I8 if found.is_signed else U8
    return F32 if found.is_narrow_float else found


def supported(roots: Sequence[Expr]) -> str | None:
    """Why there is no vector code for these expressions; None where there is."""
    for expr in walk(roots):
        if type_of(expr.dtype) is None:
            return f"{expr.dtype} has no native arithmetic"
        if expr.dtype == _ONLY_READ and not isinstance(expr, Input):
            return f"no vector code rounds to {expr.dtype}"
        if isinstance(expr, Reduce) and expr.dtype == np.bool_ and expr.kind in ("sum", "product"):
            return f"{expr.kind} over rows of {expr.dtype} has no vector code"
        if isinstance(expr, Apply):
            dtype = expr.args[-1].dtype  # the first operand of `where` is a condition
            known = {"b": _ON_TRUTH, "i": _ON_INTEGERS, "u": _ON_INTEGERS}.get(dtype.kind, _ON_FLOATS)
            known = _ON_TINY_INTEGERS if dtype in TINY_INTEGERS else known
            if expr.primitive not in known:
                return f"{expr.primitive} of {dtype} has no vector code"
    return None


def emit_expression(
    k: Function, roots: Sequence[Expr], inputs: Sequence[Value], known: Mapping[int, Value] | None = None
) -> list[Value]:
    """The values of `roots` for the current elements `inputs`, in the storage types of their dtypes.

    An input may have its dtype's storage type or the working type (an accumulator in float32 for a float16 result); a
    table of bytes is a vector of words (`lookup.TABLE`).
    all values have as many lanes as the widest input, except that what depends on scalars alone stays a scalar.
    A subexpression that several places share is emitted once, and one that is `known`, as `emit_working` has it, not at
    all. Memory is not touched.
    """
    values = emit_working(k, [unrounded(root) for root in roots], inputs, known)
    return [finished(k, value, root.dtype) for value, root in zip(values, roots, strict=True)]


def unrounded(root: Expr) -> Expr:
    """What a root rounds to a narrow float, where that is all it does with floats: finishing does the same."""
    if isinstance(root, Apply) and root.primitive == "cast" and working_type(root.args[0].dtype) in (F32, F64):
        wanted = type_of(root.dtype)
        if wanted is not None and wanted.is_narrow_float:
            return root.args[0]
    return root


def emit_working(
    k: Function, roots: Sequence[Expr], inputs: Sequence[Value], known: Mapping[int, Value] | None = None
) -> list[Value]:
    """As `emit_expression`, but the results have the working types of their dtypes.

    Expressions whose values are `known` (by the id of the expression, in the working type) are not emitted.
    """
    values = dict(known or {})
    _add_values(k, roots, inputs, values)
    return [values[id(root)] for root in roots]


def emit_parts(k: Function, roots: Sequence[Expr], inputs: Mapping[int, Value]) -> dict[int, Value]:
    """The values of the roots and of all that they are made of, by the id of the expression, in working types: what
    expressions around them know. Inputs go by their index."""
    values: dict[int, Value] = {}
    _add_values(k, roots, inputs, values)
    return values


def _add_values(
    k: Function, roots: Sequence[Expr], inputs: Sequence[Value] | Mapping[int, Value], values: dict[int, Value]
) -> None:
    """Emit what the roots need beyond the `values` that are there, which those join."""
    for expr in walk(roots, values):
        if id(expr) not in values:
            values[id(expr)] = emit_node(k, expr, inputs, values)


# How many vectors go through an expression abreast: enough that the processor finds something to do while a long chain
# of instructions waits for its results, and no more than leave registers for constants.
STRANDS = 4


def emit_abreast(
    k: Function, roots: Sequence[Expr], inputs: Sequence[Sequence[Value]], known: Mapping[int, Value] | None = None
) -> list[list[Value]]:
    """`emit_working` for several sets of inputs, their instructions in turns; `STRANDS` of them are worth it."""
    return k.abreast([partial(emit_working, k, roots, one, known) for one in inputs])


def emit_node(
    k: Function, expr: Expr, inputs: Sequence[Value] | Mapping[int, Value], values: Mapping[int, Value]
) -> Value:
    """The value of one node in its working type, from those of its arguments in `values`."""
    wanted = working_type(expr.dtype)
    if isinstance(expr, Input):
        value = inputs[expr.index]
        return value if is_table(value) else widened(value, wanted)
    if isinstance(expr, Constant):
        return k.constant(wanted, _as_number(expr))
    assert isinstance(expr, Apply)
    args = [values[id(arg)] for arg in expr.args]
    if expr.primitive == "cast":
        kept = _whole_number(expr)
        if kept is not None:
            return _limited(k, kept, values)
        if fits(expr.args[0], expr.dtype):
            return _limited_whole(k, expr.args[0], values).to(wanted)
        return _cast(k, args[0], expr)
    if expr.primitive == "where":
        return k.select(args[0], args[1], args[2])
    if expr.primitive == "tabulated":
        return in_table(k, args[1], args[0].bits_as(U8)).bits_as(wanted)
    lanes = max(arg.type.lanes for arg in args)
    args = [k.splat(arg, lanes) if not _is_literal(arg) else k.constant(arg.type.vector(lanes), _number_of(source))
            for arg, source in zip(args, expr.args, strict=True)]  # fmt: skip
    return _apply(k, expr, args)


def finished(k: Function, value: Value, dtype: np.dtype[Any]) -> Value:
    """A working value rounded to the storage type of its dtype."""
    storage = type_of(dtype)
    assert storage is not None
    return narrowed(k, value, storage)


def _is_literal(value: Value) -> bool:
    return not value.name.startswith("%")


def _number_of(expr: Expr) -> int | float | bool:
    """The number behind a literal."""
    assert isinstance(expr, Constant)
    return _as_number(expr)


def _as_number(expr: Constant) -> int | float | bool:
    """A constant's value as its working dtype holds it."""
    dtype = expr.dtype
    if dtype.kind == "b":
        return bool(expr.value)
    if dtype.kind in "iu":
        return int(np.asarray(expr.value).astype(dtype))
    return float(np.asarray(expr.value, np.float64 if dtype == np.float64 else np.float32))


def _cast(k: Function, value: Value, expr: Apply) -> Value:
    wanted = type_of(expr.dtype)
    assert wanted is not None
    if wanted.is_narrow_float:
        if value.type.scalar not in (F32, F64):
            value = value.to(F32)
        return from_bits(to_bits(k, value, wanted), wanted)
    if value.type.is_float and not wanted.is_float and wanted != BOOL:
        return _to_integer(k, value, wanted).to(working_type(expr.dtype))
    return value.to(wanted).to(working_type(expr.dtype))


@dataclass(frozen=True)
class _Limited:
    """A minimum of a maximum, or a maximum of a minimum: `expr` between two constants."""

    low: float
    high: float
    expr: Expr


def _limits(expr: Expr) -> _Limited | None:
    """What the expression limits, and to what."""
    found: dict[str, float] = {}
    while len(found) < 2:
        if not isinstance(expr, Apply) or expr.primitive not in ("minimum", "maximum") or expr.primitive in found:
            return None
        number = next((arg for arg in expr.args if isinstance(arg, Constant)), None)
        if number is None:
            return None
        found[expr.primitive] = float(_as_number(number))
        expr = expr.args[0] if expr.args[1] is number else expr.args[1]
    low, high = found["maximum"], found["minimum"]
    return _Limited(low, high, expr) if low <= high else None


def fits(expr: Expr, dtype: np.dtype[Any]) -> bool:
    """Whether a float is limited to numbers of a narrow integer dtype, or is NaN."""
    wanted = type_of(dtype)
    if wanted is None or wanted.is_float or not 1 < wanted.bits <= 16 or expr.dtype.kind != "f":
        return False
    limits, lowest = _limits(expr), -(1 << (wanted.bits - 1)) if wanted.is_signed else 0
    return limits is not None and lowest <= limits.low and limits.high < lowest + (1 << wanted.bits)


def _is_whole(expr: Expr) -> bool:
    """Whether the numbers of a float expression are whole ones, where they are numbers."""
    if isinstance(expr, Constant):
        return float(_as_number(expr)).is_integer()
    if not isinstance(expr, Apply):
        return False
    if expr.primitive == "cast":
        return expr.args[0].dtype.kind in "iu"
    if expr.primitive == "rint":
        return True
    return expr.primitive in ("add", "minimum", "maximum") and all(map(_is_whole, expr.args))


def _whole_number(expr: Apply) -> Expr | None:
    """What a cast back from a narrow integer restores: the whole float32 number that was cast to it."""
    (source,) = expr.args
    if expr.dtype != np.float32 or not isinstance(source, Apply) or source.primitive != "cast":
        return None
    (number,) = source.args
    return number if number.dtype == np.float32 and fits(number, source.dtype) and _is_whole(number) else None


@dataclass(frozen=True)
class _Rounded:
    """`expr` rounded to the nearest whole number, and a narrow integer, cast to a float, that is added."""

    expr: Expr
    point: Apply | None


def _rounded(expr: Expr, values: Mapping[int, Value]) -> _Rounded | None:
    """The float32 expression as such a sum whose parts have values."""
    found = _sum_of_rounded(expr)
    if found is None or id(found.expr) not in values:
        return None
    return found if found.point is None or id(found.point.args[0]) in values else None


def _sum_of_rounded(expr: Expr) -> _Rounded | None:
    if not isinstance(expr, Apply) or expr.dtype != np.float32:
        return None
    if expr.primitive == "rint":
        return _Rounded(expr.args[0], None)
    if expr.primitive != "add":
        return None
    for one, other in (expr.args, expr.args[::-1]):
        if not isinstance(one, Apply) or one.primitive != "rint":
            continue
        if isinstance(other, Apply) and other.primitive == "cast" and _is_narrow(other.args[0].dtype):
            return _Rounded(one.args[0], other)
    return None


def _is_narrow(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" and dtype.itemsize <= 2


def _limited(k: Function, expr: Expr, values: Mapping[int, Value]) -> Value:
    """A limited float, with the least one in place of NaN.

    What is rounded before it is limited may be limited before it is rounded.
    """
    limits = _limits(expr)
    assert limits is not None
    rounded = _rounded(limits.expr, values)
    if rounded is None:
        return k.faster_larger(values[id(expr)], limits.low)
    nearest = ONE_OPERAND["rint"](k, _within(k, limits, rounded, values))
    return nearest if rounded.point is None else nearest + values[id(rounded.point)]


def _limited_whole(k: Function, expr: Expr, values: Mapping[int, Value]) -> Value:
    """The same as an integer of 32 bits."""
    limits = _limits(expr)
    assert limits is not None
    rounded = _rounded(limits.expr, values)
    if rounded is None or k.target.architecture != "x86_64":
        return _cut(k, _limited(k, expr, values), I32)
    within = _within(k, limits, rounded, values)
    wanted = within.type.with_scalar(I32)
    nearest = k.call(f"llvm.lrint.{wanted.mangled}.{within.type.mangled}", wanted, within)
    return nearest if rounded.point is None else nearest + values[id(rounded.point.args[0])].to(I32)


def _within(k: Function, limits: _Limited, rounded: _Rounded, values: Mapping[int, Value]) -> Value:
    """What is rounded, so that the sum is within the limits; the least one in place of NaN."""
    low: Value | float = limits.low
    high: Value | float = limits.high
    if rounded.point is not None:
        point = values[id(rounded.point)]
        low, high = k.constant(point.type, limits.low) - point, k.constant(point.type, limits.high) - point
    return k.faster_smaller(k.faster_larger(values[id(rounded.expr)], low), high)


def _to_integer(k: Function, value: Value, wanted: Type) -> Value:
    """A float as an integer, as `kernel.integers` has it."""
    whole = I64 if wanted.bits == 64 else I32
    half, lowest = 2.0 ** (whole.bits - 1), -(1 << (whole.bits - 1))
    high = value >= half if wanted.bits == whole.bits and not wanted.is_signed else None
    if high is not None:
        value = k.select(high, value - half, value)
    cut = _cut(k, value, whole)
    result = k.select(k.unary("fabs", value) < half, cut, k.constant(cut.type, lowest))
    if high is not None:
        result = k.select(high, result ^ lowest, result)
    return result.to(wanted)


def _cut(k: Function, value: Value, whole: Type) -> Value:
    """A float without its fraction; anything where `whole` does not hold it."""
    cut = value.type.with_scalar(whole)
    return k.emit(cut, f"fptosi {value.type} {value.name} to {cut}")


def _apply(k: Function, expr: Apply, args: list[Value]) -> Value:
    name, first = expr.primitive, args[0]
    if name in _RELATIONS:
        return k.compare(_RELATIONS[name], first, args[1])
    if name in ("logical_and", "logical_or", "logical_xor", "logical_not"):
        truths = [arg.to(BOOL) for arg in args]
        return ~truths[0] if name == "logical_not" else k.binary(_LOGIC[name], *truths)
    if first.type.is_float:
        return _on_floats(k, expr, args)
    if name in _LOGIC:
        return k.binary(_LOGIC[name], first, args[1])
    if name == "bitwise_not":
        return ~first
    if name in ("isnan", "isinf"):
        return k.constant(BOOL.vector(first.type.lanes), False)
    if first.type.scalar == BOOL:
        return _on_truth(k, name, args)
    return _on_integers(k, expr, args)


def _on_truth(k: Function, name: str, args: list[Value]) -> Value:
    if name == "absolute":
        return args[0]
    operation = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}[name]
    return k.binary(operation, args[0], args[1])


def _on_floats(k: Function, expr: Apply, args: list[Value]) -> Value:
    name, x = expr.primitive, args[0]
    if name in _ARITHMETIC:
        return k.binary(_ARITHMETIC[name], x, args[1])
    if name == "divide":
        return k.binary("div", x, args[1])
    if name in ("maximum", "minimum"):
        return _extreme(k, expr, args)
    if name == "negative":
        return -x
    if name == "isnan":
        return x.differs(x)
    if name == "isinf":
        return absolute(k, x).equals(float("inf"))
    if name == "sign":
        positive = k.select(x > 0.0, k.constant(x.type, 1.0), k.select(x.equals(0.0), k.constant(x.type, 0.0), x))
        return k.select(x < 0.0, k.constant(x.type, -1.0), positive)
    if name == "power":
        return _power(k, expr, args)
    if name in TWO_OPERANDS:
        return TWO_OPERANDS[name](k, x, args[1])
    return ONE_OPERAND[name](k, x)


def _extreme(k: Function, expr: Apply, args: list[Value]) -> Value:
    """NaN of either operand stays; one instruction on x86 where one of them is a number known now."""
    larger = expr.primitive == "maximum"
    for index, arg in enumerate(expr.args):
        if isinstance(arg, Constant) and arg.value == arg.value:
            known, other = args[index], args[1 - index]
            return k.faster_larger(known, other) if larger else k.faster_smaller(known, other)
    return k.larger(*args) if larger else k.smaller(*args)


def _power(k: Function, expr: Apply, args: list[Value]) -> Value:
    base, exponent = args
    if isinstance(expr.args[1], Constant):
        number = expr.args[1].value
        if number == 1:
            return base
        if number == 2:
            return base * base
        if number == 3:
            return base * base * base
        if number == -1:
            return 1.0 / base
        if number == 0.5:  # the root of -0 is 0, and of -infinity infinite
            root = sqrt(k, base + 0.0)
            return k.select(base.equals(float("-inf")), k.constant(base.type, float("inf")), root)
    return TWO_OPERANDS["power"](k, base, exponent)


def _on_integers(k: Function, expr: Apply, args: list[Value]) -> Value:
    name, x = expr.primitive, args[0]
    if name in _ARITHMETIC:
        return k.binary(_ARITHMETIC[name], x, args[1])
    if name in ("maximum", "minimum"):
        return k.larger(*args) if name == "maximum" else k.smaller(*args)
    if name in ("ceil", "floor", "trunc"):
        return x
    if name == "power" and isinstance(expr.args[1], Constant):
        return integers.power_of_constant(k, x, int(expr.args[1].value))
    return integers.FUNCTIONS[name](k, *args)

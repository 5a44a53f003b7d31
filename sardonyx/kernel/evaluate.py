"""The meaning of kernels in NumPy: the rendering that every other one is compared with.

float16, bfloat16 and 8-bit floats are computed in float32 and rounded once, at the end of the expression, as the
native kernels do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.dtypes import NARROW_FLOATS, TINY_INTEGERS
from sardonyx.kernel.expr import Apply, Constant, Expr, Input, Reduce, RowIndex, RowLength, tables_of, walk
from sardonyx.kernel.integers import to_integers
from sardonyx.kernel.program import Pointwise, Reduction, is_row_value

Array = np.ndarray[Any, Any]


# Nodes of the error function between 0 and 4, where it is 1 in float32, and its Taylor coefficients there: with
# g = 2 / sqrt(pi) * exp(-n * n) they are g, -n g, (2 n n - 1) / 3 g and (n / 2 - n n n / 3) g.
_NODES_PER_UNIT = 64
_BLOCK = 1 << 14


@functools.cache
def _erf_table() -> tuple[Array, ...]:
    nodes = np.arange(4 * _NODES_PER_UNIT + 1) / _NODES_PER_UNIT
    slope = 2 / math.sqrt(math.pi) * np.exp(-nodes * nodes)
    values = np.array([math.erf(node) for node in nodes])
    square = nodes * nodes
    return values, slope, -nodes * slope, (2 * square - 1) / 3 * slope, nodes * (0.5 - square / 3) * slope


def _erf_of_single(x: Array) -> Array:
    """erf of float32 by the Taylor polynomial around the nearest node, in float64: correctly rounded but for ties.

    In blocks, so that the intermediate arrays stay in the cache.
    """
    flat = np.ascontiguousarray(x).reshape(-1)
    result = np.empty_like(flat)
    table = _erf_table()
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK].astype(np.float64)
        scaled = np.fmin(np.abs(block), 4.0) * _NODES_PER_UNIT
        node = np.rint(scaled)
        distance = (scaled - node) / _NODES_PER_UNIT
        index = node.astype(np.intp)
        value, *slopes = (column[index] for column in table)
        total = slopes[3]
        for slope in reversed(slopes[:3]):
            total = total * distance + slope
        value = np.copysign(total * distance + value, block)
        result[start : start + _BLOCK] = np.where(np.isnan(block), block, value)
    return result.reshape(x.shape)


def erf(x: Array) -> Array:
    """The error function, in float64 inside; float32 has a way of its own.

    Abramowitz and Stegun 7.1.5 (series) below 2.5 in magnitude, the continued fraction of erfc (7.1.14) above;
    absolute error below 1e-15 in float64.
    """
    if np.asarray(x).dtype == np.float32:
        return _erf_of_single(np.asarray(x))
    wide = np.asarray(x, np.float64)
    magnitude = np.asarray(np.abs(wide))
    result = np.array(np.sign(wide))  # right where erfc underflows; keeps NaN
    small = magnitude < 2.5
    if small.any():
        z = wide[small]
        square = z * z
        term = z.copy()
        total = z.copy()
        for n in range(1, 40):
            term *= -square / n
            total += term / (2 * n + 1)
        result[small] = total * (2.0 / math.sqrt(math.pi))
    middle = (magnitude >= 2.5) & (magnitude < 6.0)
    if middle.any():
        z = magnitude[middle]
        fraction = np.zeros_like(z)
        for n in range(60, 0, -1):
            fraction = (n / 2.0) / (z + fraction)
        tail = np.exp(-z * z) / (math.sqrt(math.pi) * (z + fraction))
        result[middle] = np.sign(wide[middle]) * (1.0 - tail)
    return result.astype(np.asarray(x).dtype)


def _divide(a: Array, b: Array) -> Array:
    """Division that truncates towards zero for integers, as C does; a zero divisor gives 0 there."""
    if np.issubdtype(a.dtype, np.integer):
        quotient = np.zeros(np.broadcast_shapes(a.shape, b.shape), a.dtype)
        safe = np.where(b == 0, np.ones_like(b), b)
        if np.issubdtype(a.dtype, np.unsignedinteger):
            quotient[...] = a // safe
        else:
            floored = a // safe
            quotient[...] = floored + ((a % safe != 0) & ((a < 0) != (safe < 0)))
        return np.where(b == 0, np.zeros_like(quotient), quotient)
    return np.asarray(a / b)


def _power(base: Array, exponent: Array) -> Array:
    """Powers; of integers modulo the width of their dtype, where a negative exponent gives the truncated reciprocal."""
    if not np.issubdtype(base.dtype, np.signedinteger):
        return np.asarray(np.power(base, exponent))
    raised = np.power(base, np.maximum(exponent, 0))
    minus_one = np.where((exponent & 1).astype(bool), -1, 1)
    reciprocal = np.where(base == 1, 1, np.where(base == -1, minus_one, 0)).astype(base.dtype)
    return np.where(exponent < 0, reciprocal, raised)


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)); an exponential that overflows gives the right limit, zero."""
    return np.asarray(1 / (1 + np.exp(-x)))


def _gated(x: Array, gate: Array) -> Array:
    """x * sigmoid(gate)."""
    return np.asarray(x * _sigmoid(gate))


def _tabulated(index: Array, table: Array) -> Array:
    """The byte of a table of 256 bytes at the place that a byte, taken as unsigned, names."""
    return np.asarray(table[index.view(np.uint8)])


def _where(condition: Array, yes: Array, no: Array) -> Array:
    return np.where(condition, yes, no)


# What each primitive means. A renderer implements the same names.
PRIMITIVES: dict[str, Callable[..., Any]] = {
    "absolute": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "add": np.add,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "bitwise_and": np.bitwise_and,
    "bitwise_not": np.bitwise_not,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "divide": _divide,
    "equal": np.equal,
    "erf": erf,
    "exp": np.exp,
    "expm1": np.expm1,
    "floor": np.floor,
    "fmod": np.fmod,
    "gated": _gated,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "less": np.less,
    "less_equal": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logical_and": np.logical_and,
    "logical_not": np.logical_not,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "modulo": np.mod,
    "multiply": np.multiply,
    "negative": np.negative,
    "power": _power,
    "rint": np.rint,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "sigmoid": _sigmoid,
    "sign": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "subtract": np.subtract,
    "tabulated": _tabulated,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
    "where": _where,
}


def working_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which values of `dtype` are computed."""
    return np.dtype(np.float32) if dtype in NARROW_FLOATS else dtype


def evaluate(kernel: Pointwise, inputs: Sequence[Array]) -> list[Array]:
    """Run a pointwise kernel: new arrays, one for each output, of the inputs' broadcast shape."""
    values: dict[int, Array] = {}
    with np.errstate(all="ignore"):
        for expr in walk(kernel.outputs):
            values[id(expr)] = _value(expr, inputs, values)
        tables = tables_of(kernel.outputs)
        shape = np.broadcast_shapes(*(array.shape for index, array in enumerate(inputs) if index not in tables))
        return [_finish(values[id(expr)], expr, shape) for expr in kernel.outputs]


_REDUCTIONS: dict[str, Any] = {
    "sum": np.add,
    "product": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "bound": np.maximum,
}


def _of_nothing(kind: str, dtype: np.dtype[Any]) -> Any:
    """What a row without elements is reduced to."""
    if kind in ("sum", "product"):
        return dtype.type(kind == "product")
    highest = kind == "minimum"
    if dtype.kind == "b":
        return highest
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if highest else np.iinfo(dtype).min
    return np.inf if highest else -np.inf


def evaluate_reduction(kernel: Reduction, inputs: Sequence[Array], axes: Sequence[int]) -> list[Array]:
    """Run a reduction whose rows extend along `axes` of the inputs' broadcast shape.

    Outputs that are values of rows keep those axes with size 1. The maximum of a row without elements is the lowest
    number of its dtype, the minimum the highest.
    """
    values: dict[int, Array] = {}
    shape = np.broadcast_shapes(*(array.shape for array in inputs))
    over = tuple(axis % len(shape) for axis in axes)
    kept = tuple(1 if axis in over else size for axis, size in enumerate(shape))
    with np.errstate(all="ignore"):
        for expr in walk(kernel.outputs):
            if isinstance(expr, Reduce):
                elements = np.broadcast_to(values[id(expr.arg)], shape)
                start = _of_nothing(expr.kind, elements.dtype)
                combined = _REDUCTIONS[expr.kind].reduce(elements, axis=over, keepdims=True, initial=start)
                values[id(expr)] = np.asarray(combined, working_dtype(expr.dtype))
            elif isinstance(expr, RowLength):
                values[id(expr)] = np.asarray(math.prod(shape[axis] for axis in over), working_dtype(expr.dtype))
            elif isinstance(expr, RowIndex):
                (axis,) = over
                numbers = np.arange(shape[axis], dtype=expr.dtype)
                values[id(expr)] = numbers.reshape(-1, *(1,) * (len(shape) - 1 - axis))
            else:
                values[id(expr)] = _value(expr, inputs, values)
        return [_finish(values[id(expr)], expr, kept if is_row_value(expr) else shape) for expr in kernel.outputs]


def _value(expr: Expr, inputs: Sequence[Array], values: dict[int, Array]) -> Array:
    if isinstance(expr, Input):
        return inputs[expr.index].astype(working_dtype(expr.dtype), copy=False)
    if isinstance(expr, Constant):
        return np.asarray(expr.value, working_dtype(expr.dtype))
    assert isinstance(expr, Apply)
    args = [values[id(arg)] for arg in expr.args]
    if expr.primitive == "cast":
        to_integer = args[0].dtype.kind == "f" and (expr.dtype.kind in "iu" or expr.dtype in TINY_INTEGERS)
        # Not every pair of narrow dtypes has a conversion of its own.
        source = args[0].astype(np.int8) if args[0].dtype in TINY_INTEGERS else args[0]
        result = to_integers(source, expr.dtype) if to_integer else source.astype(expr.dtype)
        return result.astype(working_dtype(expr.dtype), copy=False)
    return np.asarray(PRIMITIVES[expr.primitive](*args), working_dtype(expr.dtype))


def _finish(value: Array, expr: Expr, shape: tuple[int, ...]) -> Array:
    if value.shape != shape:
        value = np.broadcast_to(value, shape)
    if value.dtype != expr.dtype:
        return value.astype(expr.dtype)
    return value.copy() if not value.flags.owndata or isinstance(expr, Input) else value

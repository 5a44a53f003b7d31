"""Functions of one byte as tables: what an expression makes of a byte before the next one, computed ahead.

Between two quantisations, an activation such as x * sigmoid(x) takes some dozen operations for each element, divisions
among them. It has 256 results, which are looked up instead (`llvm.lookup`). They are computed in NumPy, functions such
as exp in float64, so that they are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.lookup import BYTES, has_byte_lookup
from sardonyx.compiler.native.template import Epilogue
from sardonyx.kernel.cost import weight
from sardonyx.kernel.evaluate import evaluate
from sardonyx.kernel.expr import Apply, Constant, Expr, Input, apply, substitute, walk
from sardonyx.kernel.program import Pointwise

_BYTES = (np.dtype(np.uint8), np.dtype(np.int8))
_U8, _F32, _F64 = np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.float64)

# Operations that a look-up outweighs; a function of fewer is computed.
_WORTH_A_TABLE = 12

# What machines compute in float32 with errors of their own.
_INEXACT = frozenset(
    {"acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "expm1", "gated", "log", "log1p"}
    | {"power", "sigmoid", "sin", "sinh", "tan", "tanh"}
)


def with_tables(binder: Binder, epilogue: Epilogue | None) -> tuple[Epilogue | None, list[Tensor]]:
    """The epilogue with functions of one byte as tables, whose inputs follow those of its operands; and the tables."""
    if epilogue is None or not has_byte_lookup(binder.target):
        return epilogue, []
    outputs, operands = epilogue.outputs, epilogue.operands
    functions = _functions(outputs, operands)
    if not functions:
        return epilogue, []
    tables: list[Tensor] = []
    made: dict[int, Expr] = {}
    for expr in walk(outputs):
        if id(expr) in functions:
            tables.append(binder.constant(_table(expr, functions[id(expr)], operands)))
            place = Input(_U8, len(operands) + len(tables))
            made[id(expr)] = Apply(expr.dtype, "tabulated", (made[id(functions[id(expr)])], place))
        elif isinstance(expr, Apply):
            made[id(expr)] = Apply(expr.dtype, expr.primitive, tuple(made[id(arg)] for arg in expr.args))
        else:
            made[id(expr)] = expr
    roots = [made[id(root)] for root in outputs]
    read = sorted({leaf.index for leaf in walk(roots) if isinstance(leaf, Input)} - {0})
    places = {index: place for place, index in enumerate(read, 1)}
    renumbered = substitute(roots, lambda leaf: Input(leaf.dtype, places.get(leaf.index, 0)))
    kept = tuple(operands[index - 1] for index in read if index <= len(operands))
    return Epilogue(tuple(renumbered), kept), tables


def _functions(outputs: Sequence[Expr], operands: Sequence[Tensor]) -> dict[int, Expr]:
    """The bytes, by id, that are worth a table, and the byte that each of them is a function of.

    No operand's contents are looked at for that.
    """
    order = walk(outputs)
    place = {id(expr): number for number, expr in enumerate(order)}
    known, sources = _sources(order, operands)
    found: dict[int, Expr] = {}
    wanted = {id(root) for root in outputs}
    for expr in reversed(order):
        if id(expr) not in wanted or id(expr) in known:
            continue
        others = [order[number] for number in sorted(sources[id(expr)]) if number != place[id(expr)]]
        is_byte = isinstance(expr, Apply) and expr.dtype in _BYTES
        if is_byte and others and weight([expr], {id(others[0])}) >= _WORTH_A_TABLE:
            found[id(expr)] = others[0]
            wanted.add(id(others[0]))
        elif isinstance(expr, Apply):
            wanted.update(map(id, expr.args))
    return found


def _sources(order: Sequence[Expr], operands: Sequence[Tensor]) -> tuple[set[int], dict[int, frozenset[int]]]:
    """The expressions, by id, that are known before the run; and of each other one the bytes, by their places in the
    order, of which it is a function."""
    known: set[int] = set()
    sources: dict[int, frozenset[int]] = {}
    for number, expr in enumerate(order):
        own = frozenset({number}) if expr.dtype in _BYTES else frozenset()
        if isinstance(expr, Constant) or (isinstance(expr, Input) and _is_number(expr, operands)):
            known.add(id(expr))
        elif isinstance(expr, Apply):
            open_ones = [sources[id(arg)] for arg in expr.args if id(arg) not in known]
            if not open_ones:
                known.add(id(expr))
            sources[id(expr)] = own.union(_common(open_ones))
        else:
            sources[id(expr)] = own
    return known, sources


def _common(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    first, *others = [*sets] or [frozenset[int]()]
    return first.intersection(*others)


def _is_number(leaf: Input, operands: Sequence[Tensor]) -> bool:
    """Whether an operand is one number, which is known."""
    return leaf.index > 0 and operands[leaf.index - 1].size == 1 and operands[leaf.index - 1].is_known


def _table(expr: Expr, source: Expr, operands: Sequence[Tensor]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The results of all 256 bytes, at the places that these have as unsigned ones."""
    made: dict[int, Expr] = {id(source): Input(source.dtype, 0)}
    for one in walk([expr], made):
        if id(one) in made:
            continue
        if isinstance(one, Input):
            array = operands[one.index - 1].array
            assert array is not None
            made[id(one)] = Constant(one.dtype, array.reshape(-1)[0].item())
        elif isinstance(one, Apply):
            made[id(one)] = _precise(Apply(one.dtype, one.primitive, tuple(made[id(arg)] for arg in one.args)))
        else:
            made[id(one)] = one
    bytes_ = np.arange(BYTES, dtype=np.uint8).view(source.dtype)
    (found,) = evaluate(Pointwise((source.dtype,), (made[id(expr)],)), [bytes_])
    return found.view(np.uint8)


def _precise(expr: Apply) -> Expr:
    """A function of float32 that machines approximate, rounded once from float64."""
    if expr.dtype != _F32 or expr.primitive not in _INEXACT:
        return expr
    return apply(expr.primitive, *(arg.cast(_F64) for arg in expr.args)).cast(_F32)

"""Functions of one byte as tables: what an expression makes of a byte before the next one, computed ahead.

Between two quantisations, an activation such as x * sigmoid(x) takes some dozen operations for each element, divisions
among them. It has 256 results, which are looked up instead (`llvm.lookup`). They are computed in NumPy, functions such
as exp in float64, so that they are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.llvm.lookup import BYTES, has_byte_lookup
from sardonyx.kernel.cost import weight
from sardonyx.kernel.evaluate import evaluate
from sardonyx.kernel.expr import Apply, Constant, Expr, Input, apply, substitute, walk
from sardonyx.kernel.program import Pointwise
from sardonyx.light_dataclass import dataclass

Table = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
_BYTES = (np.dtype(np.uint8), np.dtype(np.int8))
_U8, _F32, _F64 = np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.float64)

# Operations that a look-up outweighs; a function of fewer is computed. Where registers are full of bytes a look-up
# takes less than to make them real does.
WORTH_A_TABLE, WORTH_AMONG_BYTES = 12, 4

# What machines compute in float32 with errors of their own.
_INEXACT = frozenset(
    {"acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "expm1", "gated", "log", "log1p"}
    | {"power", "sigmoid", "sin", "sinh", "tan", "tanh"}
)


def with_tables(binder: Binder, epilogue: Epilogue | None) -> tuple[Epilogue | None, list[Tensor]]:
    """The epilogue with functions of one byte as tables, whose inputs follow those of its operands; and the tables."""
    if epilogue is None or not has_byte_lookup(binder.target):
        return epilogue, []
    found = tabulated(epilogue.outputs, (None, *epilogue.operands))
    if found is None:
        return epilogue, []
    tables = [binder.constant(table) for table in found.tables]
    places = {index: place for place, index in enumerate(found.kept, 1)}
    first = len(epilogue.operands) + 1
    places.update({first + number: len(places) + 1 + number for number in range(len(tables))})
    outputs = substitute(found.outputs, lambda leaf: Input(leaf.dtype, places.get(leaf.index, 0)))
    return Epilogue(tuple(outputs), tuple(epilogue.operands[index - 1] for index in found.kept)), tables


@dataclass(frozen=True)
class Tabulated:
    """Expressions some of whose parts are found in `tables`, the inputs behind the last one, and the inputs that they
    still read; 0 only where it is an operand.
    """

    outputs: tuple[Expr, ...]
    tables: Sequence[Table]
    kept: Sequence[int]


def tabulated(outputs: Sequence[Expr], inputs: Sequence[Tensor | None], worth: int = WORTH_A_TABLE) -> Tabulated | None:
    """The expressions with functions of one byte as tables that take so many operations; None where they have none.

    `Input(i)` is an element of `inputs[i]`, or of what a kernel computes where that is None.
    """
    functions = _functions(outputs, inputs, worth)
    if not functions:
        return None
    tables: list[Table] = []
    made: dict[int, Expr] = {}
    for expr in walk(outputs):
        if id(expr) in functions:
            place = Input(_U8, len(inputs) + len(tables))
            tables.append(_table(expr, functions[id(expr)], inputs))
            made[id(expr)] = Apply(expr.dtype, "tabulated", (made[id(functions[id(expr)])], place))
        elif isinstance(expr, Apply):
            made[id(expr)] = Apply(expr.dtype, expr.primitive, tuple(made[id(arg)] for arg in expr.args))
        else:
            made[id(expr)] = expr
    roots = tuple(made[id(root)] for root in outputs)
    read = sorted({leaf.index for leaf in walk(roots) if isinstance(leaf, Input)})
    return Tabulated(roots, tables, [index for index in read if index < len(inputs) and inputs[index] is not None])


def may_be_tabulated(outputs: Sequence[Expr]) -> bool:
    """Whether there is anything that might become a table, whatever is known of the inputs."""
    order = walk(outputs)
    sources = [expr for expr in order if expr.dtype in _BYTES]
    return any(isinstance(expr, Apply) and weight([expr]) >= WORTH_AMONG_BYTES for expr in sources) and len(sources) > 1


def _functions(outputs: Sequence[Expr], inputs: Sequence[Tensor | None], worth: int) -> dict[int, Expr]:
    """The bytes, by id, that are worth a table, and the byte that each of them is a function of.

    No input's contents are looked at for that.
    """
    order = walk(outputs)
    place = {id(expr): number for number, expr in enumerate(order)}
    known, sources = _sources(order, inputs)
    found: dict[int, Expr] = {}
    wanted = {id(root) for root in outputs}
    for expr in reversed(order):
        if id(expr) not in wanted or id(expr) in known:
            continue
        others = [order[number] for number in sorted(sources[id(expr)]) if number != place[id(expr)]]
        is_byte = isinstance(expr, Apply) and expr.dtype in _BYTES
        if is_byte and others and weight([expr], {id(others[0])}) >= worth:
            found[id(expr)] = others[0]
            wanted.add(id(others[0]))
        elif isinstance(expr, Apply):
            wanted.update(map(id, expr.args))
    return found


def _sources(order: Sequence[Expr], inputs: Sequence[Tensor | None]) -> tuple[set[int], dict[int, frozenset[int]]]:
    """The expressions, by id, that are known before the run; and of each other one the bytes, by their places in the
    order, of which it is a function."""
    known: set[int] = set()
    sources: dict[int, frozenset[int]] = {}
    for number, expr in enumerate(order):
        own = frozenset({number}) if expr.dtype in _BYTES else frozenset()
        if isinstance(expr, Constant) or (isinstance(expr, Input) and is_number(inputs[expr.index])):
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


def is_number(operand: Tensor | None) -> bool:
    """Whether an operand is one number, which is known."""
    return operand is not None and operand.size == 1 and operand.is_known


def _table(expr: Expr, source: Expr, inputs: Sequence[Tensor | None]) -> Table:
    """The results of all 256 bytes, at the places that these have as unsigned ones."""
    made: dict[int, Expr] = {id(source): Input(source.dtype, 0)}
    for one in walk([expr], made):
        if id(one) in made:
            continue
        if isinstance(one, Input):
            number = inputs[one.index]
            assert number is not None
            assert number.array is not None
            made[id(one)] = Constant(one.dtype, number.array.reshape(-1)[0].item())
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

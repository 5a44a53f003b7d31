"""A single long row, reduced by several threads: in pieces, whose results are combined, before elements are computed.

How a row is cut depends on its length alone, so the sums do not depend on the threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.kernel.dtypes import NARROW_FLOATS
from sardonyx.kernel.expr import Apply, Constant, Expr, Input, Reduce, RowIndex, RowLength, arguments, reduce, walk
from sardonyx.kernel.program import is_row_value

if TYPE_CHECKING:
    from sardonyx.compiler.native.rows.reduction import ReductionKernel

# Elements of a piece, at least, and how many pieces a row has at most.
PIECE = 16384
_MOST_PIECES = 64
_PIECE_MULTIPLE = 64


def can_be_cut(roots: Sequence[Expr]) -> bool:
    """Whether the reductions need no others, nor the place of an element, and their results can be stored unrounded."""
    order = walk(roots)
    reductions = [expr for expr in order if isinstance(expr, Reduce)]
    nested = any(isinstance(inner, Reduce) for one in reductions for inner in walk([one.arg]))
    narrow = any(one.dtype in NARROW_FLOATS for one in reductions)
    return bool(reductions) and not (nested or narrow or any(isinstance(expr, RowIndex) for expr in order))


class LongRow:
    """The kernels into which a reduction over one long row is cut."""

    def __init__(self, kernel: ReductionKernel) -> None:
        make, roots, dtypes = type(kernel), kernel.body.roots, kernel.dtypes
        self.roots = roots
        self.reductions = [expr for expr in walk(roots) if isinstance(expr, Reduce)]
        self.partial = make(self.reductions, dtypes)
        count = len(self.reductions)
        values = _met_by_elements(roots)
        self.values = [*(root for root in roots if is_row_value(root)), *values]
        known: dict[int, Expr] = {}
        # The length is the same for all pieces; combined, it is a value of the row as the others are.
        length = reduce("maximum", Input(np.dtype(np.int64), count))
        for expr in walk(roots):
            if isinstance(expr, RowLength):
                known[id(expr)] = length.cast(expr.dtype)
        for index, one in enumerate(self.reductions):
            known[id(one)] = reduce(one.kind, Input(one.dtype, index))
        partials = [one.dtype for one in self.reductions]
        self.final = make(_rewritten(self.values, known), [*partials, np.dtype(np.int64)])
        elements = [root for root in roots if not is_row_value(root)]
        leaves = {id(one): Input(one.dtype, len(dtypes) + index) for index, one in enumerate(values)}
        self.elements = (
            PointwiseKernel(_rewritten(elements, leaves), [*dtypes, *(one.dtype for one in values)])
            if elements
            else None
        )

    def bind(self, binder: Binder, inputs: Sequence[Tensor], length: int) -> list[Tensor]:
        """Add the steps and give the outputs, values of the row as single numbers; all inputs are contiguous, of one
        shape of `length` elements or of one element."""
        pieces = min(_MOST_PIECES, length // PIECE)
        size = length // (pieces * _PIECE_MULTIPLE) * _PIECE_MULTIPLE
        rest = length - pieces * size
        partials = [binder.new(one.dtype, (pieces + (rest > 0),)) for one in self.reductions]
        for first, rows, columns in ((0, pieces, size), (pieces, 1, rest)):
            if columns:
                views = [_piece(tensor, (rows, columns), first * size, length) for tensor in inputs]
                written = [one.reshaped((rows, 1), None, first * one.dtype.itemsize) for one in partials]
                self.partial.bind_into(binder, views, written, [1])
        count = binder.constant(np.array([length], np.int64))
        found = self.final.bind(binder, [*partials, count], [0])
        of_rows = iter(found[: sum(map(is_row_value, self.roots))])
        of_elements = iter(
            self.elements.bind(binder, [*inputs, *found[sum(map(is_row_value, self.roots)) :]])
            if self.elements is not None
            else ()
        )
        return [next(of_rows) if is_row_value(root) else next(of_elements) for root in self.roots]


def _piece(tensor: Tensor, shape: tuple[int, int], first: int, length: int) -> Tensor:
    """Elements from `first` on as rows of pieces; an operand of one element as it is."""
    if tensor.size != length:
        return tensor.reshaped((1, 1))
    return tensor.reshaped(shape, None, first * tensor.dtype.itemsize)


def _met_by_elements(roots: Sequence[Expr]) -> list[Expr]:
    """The values of the row, constants aside, that take part in what is computed for each element."""
    leaves = {id(expr) for expr in walk(roots) if is_row_value(expr)}
    found: dict[int, Expr] = {}
    for expr in walk([root for root in roots if id(root) not in leaves], leaves):
        if isinstance(expr, Apply) and id(expr) not in leaves:
            found.update((id(arg), arg) for arg in arguments(expr) if id(arg) in leaves)
    return [expr for expr in found.values() if not isinstance(expr, Constant)]


def _rewritten(roots: Sequence[Expr], known: Mapping[int, Expr]) -> list[Expr]:
    """The expressions with those in `known` (by id) replaced."""
    made: dict[int, Expr] = {}
    for expr in walk(roots, known):
        if id(expr) in known:
            made[id(expr)] = known[id(expr)]
        elif isinstance(expr, Apply):
            made[id(expr)] = Apply(expr.dtype, expr.primitive, tuple(made[id(arg)] for arg in expr.args))
        else:
            made[id(expr)] = expr
    return [made[id(root)] for root in roots]

"""MatMul, Gemm and FusedMatMul: any strides and batches, constant right-hand sides packed once, any epilogue."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor, row_major
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel, template
from sardonyx.compiler.native.products.dots_step import suits_dots
from sardonyx.compiler.native.products.gemm_step import multiply
from sardonyx.compiler.native.products.inner_products import by_constant, product_of, products_reason
from sardonyx.compiler.native.products.packed_constants import Packed, in_lines, in_panels, line_step
from sardonyx.compiler.native.rows.rows import common_shape
from sardonyx.kernel.expr import Expr, Input, substitute
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact

DType = np.dtype[Any]


class ProductKernel(NativeKernel):
    """alpha * A x B, an addend if there is a third input, an activation, and an epilogue.

    Parameters: `alpha`, `transA`, `transB`, `transBatchA`, `transBatchB`; `activation` is a function of an expression.
    """

    takes_epilogue = True
    rounded_inputs = (0,)
    spreads_rows = True

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._results: dict[tuple[DType, tuple[tuple[float, DType], ...]], Expr] = {}
        get = parameters.get
        self._for_a = bool(get("transA", 0)), bool(get("transBatchA", 0))
        self._for_b = bool(get("transB", 0)), bool(get("transBatchB", 0))

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return products_reason(inputs[:2])

    def bind(
        self, binder: Binder, a: Tensor, b: Tensor, third: Tensor | None = None, *, epilogue: Epilogue | None = None
    ) -> Sequence[Tensor | None]:
        return self._bind(binder, a, b, [] if third is None else [(1.0, third)], epilogue)

    def _bind(
        self, binder: Binder, a: Tensor, b: Tensor, addends: Sequence[tuple[float, Tensor]], epilogue: Epilogue | None
    ) -> Sequence[Tensor]:
        """Bind with the sum of factor * tensor over `addends` added before the epilogue."""
        for_b = self._for_b
        left = as_matrix(_oriented(a, *self._for_a), vector="row")
        right = as_matrix(_oriented(b, *for_b), vector="column")
        shape = product_shape(a, b, left, right)
        result = self._result(b.dtype, tuple([(factor, tensor.dtype) for factor, tensor in addends]))
        operands = [widened(tensor, shape) for _, tensor in addends]
        product = product_of(b.dtype, binder.target, binder.settings.precision)
        assert product is not None
        if _is_packed(b) and len(right.shape) == 2:
            product = by_constant(binder, product, math.prod(shape.batch) * shape.rows, *right.shape[::-1])
        second = self._right(binder, b, right, for_b, product)
        return add_product(binder, shape, left, second, result, operands, epilogue, product)

    def _result(self, dtype: DType, addends: tuple[tuple[float, DType], ...]) -> Expr:
        """The result over the product and addends with factors: the same expression each time, so that kernels are
        known again by it.
        """
        known = self._results.get((dtype, addends))
        if known is None:
            result: Expr = Input(dtype, 0)
            alpha = float(self.parameters.get("alpha", 1.0))
            if alpha != 1.0:
                result = result * alpha
            for index, (factor, other) in enumerate(addends, 1):
                addend: Expr = Input(other, index)
                result = result + (addend if factor == 1.0 else addend * factor)
            known = self._results[dtype, addends] = self.parameters.get("activation", lambda x: x)(result)
        return known

    def _right(
        self, binder: Binder, given: Tensor, right: Tensor, orientation: tuple[bool, bool], product: str
    ) -> Tensor | Packed:
        """The right-hand side if it is constant in panels, or of few columns one after the other."""
        if not _is_packed(given):
            return right
        if len(right.shape) == 2 and suits_dots(binder.target, product, *right.shape):

            def columns(array: Array) -> Array:
                view = oriented_array(array, *orientation)
                return in_lines(view[:, None] if view.ndim == 1 else view)

            lines = binder.derived(given, ("columns", orientation), columns)
            return lines.reshaped(right.shape, (1, line_step(right.shape[0], given.dtype)))

        def matrices(array: Array) -> Array:
            view = oriented_array(array, *orientation)
            return view[:, None] if view.ndim == 1 else view

        return in_panels(binder, given, orientation, matrices, product, right.shape)


def _is_packed(given: Tensor) -> bool:
    """Whether a right-hand side is constant, so that it is packed once."""
    return given.is_known and given.buffer.kind == "constant" and given.size > 0 and 0 not in given.strides


@template("matmul")
class MatMulKernel(ProductKernel):
    """alpha * A x B with NumPy's rules for ranks and batches."""


@template("gemm")
class GemmKernel(ProductKernel):
    """alpha * A x B + beta * C for matrices; C broadcasts to the product. Parameters as above, and `beta`."""

    def bind(
        self, binder: Binder, a: Tensor, b: Tensor, c: Tensor | None = None, *, epilogue: Epilogue | None = None
    ) -> Sequence[Tensor | None]:
        if len(a.shape) != 2 or len(b.shape) != 2:
            raise ValueError(f"Gemm needs matrices, not shapes {a.shape} and {b.shape}")
        beta = float(self.parameters.get("beta", 1.0))
        addends = [(beta, c)] if c is not None and beta != 0.0 else []
        return self._bind(binder, a, b, addends, epilogue)


@dataclass(frozen=True)
class ProductShape:
    """The product's shape as matrices, and as the operator's result (without the axis that a vector lacks)."""

    batch: tuple[int, ...]
    rows: int
    columns: int
    has_rows: bool
    has_columns: bool

    @property
    def result(self) -> tuple[int, ...]:
        return (*self.batch, *([self.rows] if self.has_rows else []), *([self.columns] if self.has_columns else []))


def add_product(
    binder: Binder,
    shape: ProductShape,
    left: Tensor,
    right: Tensor | Packed,
    result: Expr,
    operands: Sequence[Tensor],
    epilogue: Epilogue | None,
    product: str,
) -> Sequence[Tensor]:
    """Add the steps of a product whose value is `result` over the sums and `operands`, and then of the epilogue.

    `operands` broadcast to the matrices, those of the epilogue to the operator's result.
    """
    outputs: tuple[Expr, ...] = (result,)
    taken = list(operands)
    matrix = (*shape.batch, shape.rows, shape.columns)
    for operand in operands:
        if operand.size != 1 and common_shape([matrix, operand.shape]) != matrix:
            raise ValueError(f"an operand of shape {operand.shape} does not broadcast to the product's, {matrix}")
    if epilogue is not None:
        outputs = _applied(epilogue.outputs, result, len(taken))
        taken.extend(widened(operand, shape) for operand in epilogue.operands)
    results = [_new_result(binder, place, output.dtype, shape) for place, output in enumerate(outputs)]
    places = [tensor.reshaped(matrix, _rows_apart(tensor, matrix)) for tensor in results]
    multiply(binder, left, right, outputs, taken, places, product)
    return results


def _new_result(binder: Binder, place: int, dtype: DType, shape: ProductShape) -> Tensor:
    """The result at `place`, whose rows may lie apart; a column is contiguous."""
    is_matrix = shape.result[-1:] == (shape.columns,)
    return binder.result(place, dtype, shape.result) if is_matrix else binder.new(dtype, shape.result)


def _rows_apart(result: Tensor, matrix: Sequence[int]) -> tuple[int, ...] | None:
    """The strides of the matrices of a result whose rows lie apart; None where they do not."""
    if result.is_contiguous or len(result.shape) < 2:
        return None
    return row_major((*matrix[:-1], result.strides[-2]))


@functools.lru_cache(maxsize=1024)
def _applied(outputs: tuple[Expr, ...], result: Expr, operands: int) -> tuple[Expr, ...]:
    """The outputs of an epilogue over a result that has so many operands of its own."""

    def replaced(leaf: Input) -> Expr:
        return result if leaf.index == 0 else Input(leaf.dtype, leaf.index + operands)

    return tuple(substitute(outputs, replaced))


def _oriented(x: Tensor, swap: bool, rows_first: bool) -> Tensor:
    """`x` as the product reads it: its first axis moved in front of the last, then the last two swapped."""
    if not (swap or rows_first):
        return x
    axes = list(range(len(x.shape)))
    if rows_first and len(axes) > 2:
        axes = [*axes[1:-1], 0, axes[-1]]
    if swap and len(axes) > 1:
        axes[-2:] = axes[:-3:-1]
    return x.reshaped([x.shape[axis] for axis in axes], [x.strides[axis] for axis in axes])


def oriented_array(x: Array, swap: bool, rows_first: bool) -> Array:
    """The same for an array."""
    if rows_first and x.ndim > 2:
        x = np.moveaxis(x, 0, -2)
    return np.swapaxes(x, -1, -2) if swap and x.ndim > 1 else x


def as_matrix(x: Tensor, *, vector: str) -> Tensor:
    """A vector as a matrix of one row or one column; others as they are."""
    if not x.shape:
        raise ValueError("a matrix product needs inputs of rank 1 at least")
    if len(x.shape) > 1:
        return x
    size, stride = x.shape[0], x.strides[0]
    if vector == "row":
        return x.reshaped((1, size), (size * stride, stride))
    return x.reshaped((size, 1), (stride, 1))


def product_shape(a: Tensor, b: Tensor, left: Tensor, right: Tensor) -> ProductShape:
    """The shape of the product of two matrices (with batches) that stand for `a` and `b`."""
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"the inner dimensions of {a.shape} and {b.shape} differ: {left.shape[-1]} and {right.shape[-2]}"
        )
    try:
        batch = common_shape([left.shape[:-2], right.shape[:-2]])
    except ValueError:
        raise ValueError(f"the batch axes of {a.shape} and {b.shape} do not broadcast") from None
    return ProductShape(batch, left.shape[-2], right.shape[-1], len(a.shape) > 1, len(b.shape) > 1)


def widened(operand: Tensor, shape: ProductShape) -> Tensor:
    """An operand that broadcasts to the operator's result as one that broadcasts to the matrices."""
    sizes, strides = list(operand.shape), list(operand.strides)
    if not shape.has_columns:
        sizes, strides = [*sizes, 1], [*strides, 0]
    if not shape.has_rows:
        place = max(0, len(sizes) - 1)
        sizes, strides = [*sizes[:place], 1, *sizes[place:]], [*strides[:place], 0, *strides[place:]]
    return operand.reshaped(sizes, strides)

"""Products of matrices of bytes, zero points and all: MatMulInteger, and what scaled products are made of."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel, template
from sardonyx.compiler.llvm.kernels.products.gemm_product import bounded, byte_product, takes_bounded
from sardonyx.compiler.native.products.bounded_constants import in_bounded_words
from sardonyx.compiler.native.products.gemm_step import multiply
from sardonyx.compiler.native.products.matmul import add_product, as_matrix, product_shape
from sardonyx.compiler.native.products.packed_constants import Packed, in_panels, pack_b
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.expr import Expr, Input, bitwise_xor
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.runtime.memory import memory

# A one of a column, and the panel that it is packed in.
_BYTES_PER_ONE = 80

_I32 = np.dtype(np.int32)
_U8, _I8 = np.dtype(np.uint8), np.dtype(np.int8)
OFFSET = 128  # between a byte read as signed and as unsigned

# The result from the exact sums; operands that it needs are added to the list, `Input(i)` being the i-th from 1.
Finished = Callable[[Expr, list[Tensor]], Expr]


@dataclass(frozen=True, eq=False)
class _Right:
    """The right side as signed bytes, and the product that multiplies by it: what A's zero point is multiplied by,
    sum b - K q, in two parts, and q.

    `sums` is a row; `zero` is None where q is 0. Of a constant side the sums have q in them already.
    """

    matrix: Tensor | Packed
    sums: Tensor
    zero: Tensor | None
    has_zero_in_sums: bool
    product: str


def signed(b: Array) -> Array:
    """Bytes as signed ones: 128 is taken away from unsigned ones."""
    return (b ^ np.uint8(OFFSET)).view(np.int8) if b.dtype == _U8 else b


def _signed(b: Array, turned: bool) -> Array:
    """A constant right side as a matrix of signed bytes; `turned` reads it transposed."""
    return signed(b.T if turned else b[:, None] if b.ndim == 1 else b)


def _constant(binder: Binder, b: Tensor, zero_point: Tensor | None, product: str, turned: bool) -> _Right:
    """A constant right side: its panels, its zero points, and the sums of its columns."""
    point = None if zero_point is None else zero_point.array
    zero = np.zeros((), np.int64) if point is None else point.astype(np.int64)
    if zero.ndim == 1:  # one for each column
        zero = zero.reshape(1, -1)
    if b.dtype == _U8:
        zero = zero - OFFSET

    def sums(array: Array) -> Array:
        matrix = _signed(array, turned)
        total = matrix.sum(axis=-2, keepdims=True, dtype=np.int64) - matrix.shape[-2] * zero
        return np.asarray(total.astype(np.int32))

    shape = b.shape[::-1] if turned else (*b.shape, 1) if len(b.shape) == 1 else b.shape
    key: Hashable = ("signed bytes", turned)
    packed = None
    if takes_bounded(binder.target):
        packed = in_bounded_words(binder, b, key, lambda array: _signed(array, turned), shape)
        product = bounded(product) if packed is not None else product
    if packed is None:
        packed = in_panels(binder, b, key, lambda array: _signed(array, turned), product, shape)
    columns = binder.derived(b, ("sums of columns", turned, zero.shape, zero.tobytes()), sums)
    points = None if not zero.any() else np.broadcast_to(zero, columns.shape).astype(np.int32)
    return _Right(packed, columns, None if points is None else binder.constant(points), True, product)


class IntegerProduct(NativeKernel):
    """The sum of (A - its zero point) * (B - its zero point), exact in int32, and what becomes of it.

    With signed bytes b of B and unsigned a of A (128 is added or taken away where they are the other kind), zero points
    p and q: sum (a - p) (b - q) = sum a b - p (sum b - K q) - q sum a. The sums of columns of a constant B are
    constant; those of rows of A are needed only where q is not 0, and are its product with a column of ones.
    """

    takes_epilogue = True

    @staticmethod
    def _objection(a: Fact | None, b: Fact | None, a_zero: Fact | None, b_zero: Fact | None) -> str | None:
        """Why operands with these facts have no such product."""
        for fact in (a, b):
            if fact is None or fact.dtype is None or numpy_dtype(fact.dtype) not in (_U8, _I8):
                return "only products of bytes"
        if a_zero is not None and (a_zero.shape is None or len(a_zero.shape) > 1):
            return "zero points of every row of every batch"
        if b_zero is not None and (b_zero.shape is None or len(b_zero.shape) > 1):
            return "zero points of every column of every batch"
        return None

    def _bind(
        self,
        binder: Binder,
        a: Tensor,
        b: Tensor,
        zeros: tuple[Tensor | None, Tensor | None],
        epilogue: Epilogue | None,
        finished: Finished = lambda total, _: total,
        *,
        turned: bool = False,
        into: Tensor | None = None,
    ) -> Sequence[Tensor]:
        """Add the steps; with `turned`, B is a matrix that is read transposed. The result goes where `into` is, if that
        is given and there is no epilogue.
        """
        a_zero, b_zero = zeros
        right_b = b.reshaped(b.shape[::-1], b.strides[::-1]) if turned else b
        left, right = as_matrix(a, vector="row"), as_matrix(right_b, vector="column")
        shape = product_shape(a, right_b, left, right)
        for zero, count in ((a_zero, shape.rows), (b_zero, shape.columns)):
            if zero is not None and (1, *zero.shape)[-1] not in (1, count):
                raise ValueError(f"zero points of the shape {zero.shape} are neither one nor {count}")
        product = byte_product(binder.target, is_signed=a.dtype == _I8)
        known = b.is_known and b.buffer.kind == "constant" and (b_zero is None or b_zero.is_known)
        side = _constant(binder, b, b_zero, product, turned) if known else _runtime(binder, right, b_zero, product)
        operands: list[Tensor] = [side.sums]
        sums: Expr = Input(_I32, 1)
        total: Expr = Input(_I32, 0)
        q: Expr | None = None
        if side.zero is not None:
            operands.append(side.zero)
            q = Input(side.zero.dtype, len(operands)).cast(_I32)
            if b.dtype == _U8 and not known:
                q = q - OFFSET
            if not side.has_zero_in_sums:
                sums = sums - q * left.shape[-1]
        p = self._zero_of_rows(a, a_zero, operands)
        if p is not None:
            total = total - p * sums
        if q is not None:
            operands.append(_row_sums(binder, left, product))
            total = total - Input(_I32, len(operands)) * q
        result = finished(total, operands)
        if into is not None:
            multiply(binder, left, side.matrix, (result,), operands, [into], side.product)
            return [into]
        return add_product(binder, shape, left, side.matrix, result, operands, epilogue, side.product)

    @staticmethod
    def _zero_of_rows(a: Tensor, zero_point: Tensor | None, operands: list[Tensor]) -> Expr | int | None:
        """A's zero point, 128 higher where A is signed; None for 0."""
        offset = OFFSET if a.dtype == _I8 else 0
        if zero_point is None:
            return offset or None
        operands.append(zero_point.reshaped((zero_point.size, 1)))
        point = Input(zero_point.dtype, len(operands)).cast(_I32)
        return point + offset if offset else point


def _runtime(binder: Binder, right: Tensor, zero_point: Tensor | None, product: str) -> _Right:
    """A right side that is known in the run only: its bytes made signed, the sums of its columns by a row of ones."""
    zero = zero_point
    if right.dtype == _U8:
        flipped = PointwiseKernel([bitwise_xor(Input(_U8, 0), OFFSET)], [_U8]).bind(binder, [right])[0]
        right = replace(flipped, dtype=_I8)
        zero = zero_point or binder.constant(np.zeros(1, np.uint8))
    memory.require_tables(right.shape[-2], "ones for the sums of columns")
    ones = binder.constant(np.ones((1, right.shape[-2]), np.uint8))
    sums = binder.new(_I32, (*right.shape[:-2], 1, right.shape[-1]))
    multiply(binder, ones, right, (Input(_I32, 0),), [], [sums], byte_product(binder.target))
    return _Right(right, sums, None if zero is None else zero.reshaped((zero.size,)), False, product)


def _row_sums(binder: Binder, left: Tensor, product: str) -> Tensor:
    """The sums of A's rows as unsigned bytes, as a column."""
    memory.require_tables(_BYTES_PER_ONE * left.shape[-1], "ones for the sums of rows")
    ones = np.ones((left.shape[-1], 1), np.int8)
    sums = binder.new(_I32, (*left.shape[:-1], 1))
    packed = Packed(binder.constant(pack_b(binder.library, ones, product)), ones.shape)
    multiply(binder, left, packed, (Input(_I32, 0),), [], [sums], product)
    return sums


@template("matmul_integer")
class IntegerProductKernel(IntegerProduct):
    """MatMulInteger: A, B and the zero points of A (for all, or for each row) and of B (or for each column)."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return self._objection(*(*inputs, None, None)[:4])

    def bind(
        self,
        binder: Binder,
        a: Tensor,
        b: Tensor,
        a_zero: Tensor | None = None,
        b_zero: Tensor | None = None,
        *,
        epilogue: Epilogue | None = None,
    ) -> Sequence[Tensor | None]:
        return self._bind(binder, a, b, (a_zero, b_zero), epilogue)

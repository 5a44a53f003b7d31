"""MatMulInteger: products of bytes with a constant, zero points and all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.native.products.gemm_step import Packed, multiply
from sardonyx.compiler.native.products.matmul import add_product, as_matrix, product_shape
from sardonyx.compiler.native.products.packed_constants import pack_b
from sardonyx.compiler.native.template import Epilogue, NativeKernel, template
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.ops.framework.facts import Fact

_I32 = np.dtype(np.int32)
_U8, _I8 = np.dtype(np.uint8), np.dtype(np.int8)
_OFFSET = 128  # between a byte read as signed and as unsigned


class _Constant:
    """The right side as signed bytes: its panels, its zero points, and what A's zero point is multiplied by."""

    def __init__(self, binder: Binder, b: Array, zero_point: Array | None, product: str) -> None:
        matrix = b[:, None] if b.ndim == 1 else b
        zero = np.zeros((), np.int64) if zero_point is None else zero_point.astype(np.int64)
        if zero.ndim == 1:  # one for each column
            zero = zero.reshape(1, -1)
        if matrix.dtype == _U8:
            matrix, zero = (matrix ^ np.uint8(_OFFSET)).view(np.int8), zero - _OFFSET
        self.shape = matrix.shape
        self.panels = pack_b(binder.library, matrix, product)
        rows = matrix.shape[-2]
        sums = matrix.sum(axis=-2, keepdims=True, dtype=np.int64) - rows * zero
        self.sums = sums.astype(np.int32)
        self.zero = None if not zero.any() else np.broadcast_to(zero, sums.shape).astype(np.int32)


@template("matmul_integer")
class IntegerProductKernel(NativeKernel):
    """The sum of (A - its zero point) * (B - its zero point) in int32.

    With signed bytes b of B and unsigned a of A (128 is added or taken away where they are the other kind), zero points
    p and q: sum (a - p) (b - q) = sum a b - p (sum b - K q) - q sum a. The sums of columns of B are constant; those of
    rows of A are needed only where q is not 0, and are its product with a column of ones.
    """

    takes_epilogue = True
    known_inputs = (1, 3)

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._packed: tuple[Array, _Constant] | None = None

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        for fact in inputs[:2]:
            if fact is None or fact.dtype is None or numpy_dtype(fact.dtype) not in (_U8, _I8):
                return "only products of bytes"
        point = inputs[2] if len(inputs) > 2 else None
        if point is not None and (point.shape is None or len(point.shape) > 1):
            return "zero points of every row of every batch"
        return None

    def bind(
        self, binder: Binder, inputs: Sequence[Tensor | None], *, epilogue: Epilogue | None = None
    ) -> Sequence[Tensor | None]:
        a, b, a_zero, b_zero = (*inputs, None, None)[:4]
        assert a is not None
        assert b is not None
        left, right = as_matrix(a, vector="row"), as_matrix(b, vector="column")
        shape = product_shape(a, b, left, right)
        kind = "s8s8" if a.dtype == _I8 else "u8s8"
        product = f"{kind} tiles" if binder.target.has_amx else kind
        constant = self._constant(binder, b, b_zero, product)
        operands: list[Tensor] = [binder.constant(constant.sums)]
        zero: Expr | int = _OFFSET if a.dtype == _I8 else 0
        if a_zero is not None:
            operands.append(a_zero.reshaped((a_zero.size, 1)))
            point = Input(a_zero.dtype, len(operands)).cast(_I32)
            zero = point + zero if zero else point
        result: Expr = Input(_I32, 0)
        if isinstance(zero, Expr) or zero:
            result = result - zero * Input(_I32, 1)
        if constant.zero is not None:
            operands.append(self._row_sums(binder, left, product))
            sums = Input(_I32, len(operands))
            operands.append(binder.constant(constant.zero))
            result = result - sums * Input(_I32, len(operands))
        words = Packed(binder.constant(constant.panels), constant.shape)
        return add_product(binder, shape, left, words, result, operands, epilogue, product)

    def _constant(self, binder: Binder, b: Tensor, zero_point: Tensor | None, product: str) -> _Constant:
        assert b.array is not None
        if self._packed is None or self._packed[0] is not b.array:
            point = None if zero_point is None else zero_point.array
            self._packed = b.array, _Constant(binder, b.array, point, product)
        return self._packed[1]

    def _row_sums(self, binder: Binder, left: Tensor, product: str) -> Tensor:
        """The sums of A's rows, as a column."""
        ones = np.ones((left.shape[-1], 1), np.int8)
        sums = binder.new(_I32, (*left.shape[:-1], 1))
        packed = Packed(binder.constant(pack_b(binder.library, ones, product)), ones.shape)
        multiply(binder, left, packed, (Input(_I32, 0),), [], [sums], product)
        return sums

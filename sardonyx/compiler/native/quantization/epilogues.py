"""The epilogue of a product whose result is one matrix of contiguous rows: joined, and its operands as matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import Operand
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.kernel.expr import Expr, Input, substitute


def joined_epilogue(
    result: Expr, operands: Sequence[Tensor], epilogue: Epilogue | None
) -> tuple[tuple[Expr, ...], list[Tensor]]:
    """The expressions of a product that is `result` over `Input(0)`, its sums, and operands, and those operands.

    `Input(1 + i)` stands for the i-th operand; those of the epilogue follow the product's own.
    """
    if epilogue is None:
        return (result,), list(operands)
    first = len(operands)

    def replaced(leaf: Input) -> Expr:
        return result if leaf.index == 0 else Input(leaf.dtype, leaf.index + first)

    return tuple(substitute(epilogue.outputs, replaced)), [*operands, *epilogue.operands]


def as_matrix_operands(
    binder: Binder, operands: Sequence[Tensor], shape: Sequence[int]
) -> tuple[tuple[Operand, ...], list[Tensor]]:
    """How operands that broadcast to `shape` meet its rows, joined to one axis; those that do not fit are copied."""
    kinds, taken = [], []
    for operand in operands:
        if operand.size == 1:
            kinds.append(Operand("scalar", operand.dtype))
        elif operand.size == operand.shape[-1] == shape[-1] and operand.strides[-1] == 1:
            kinds.append(Operand("row", operand.dtype))
        else:
            operand = _whole(binder, operand, shape)
            kinds.append(Operand("full", operand.dtype))
        taken.append(operand)
    return tuple(kinds), taken


def _whole(binder: Binder, operand: Tensor, shape: Sequence[int]) -> Tensor:
    """The operand repeated to the whole shape, contiguous."""
    if operand.shape == tuple(shape) and operand.is_contiguous:
        return operand
    missing = len(shape) - len(operand.shape)
    if missing < 0 or np.broadcast_shapes(operand.shape, tuple(shape)) != tuple(shape):
        raise ValueError(f"an operand of shape {operand.shape} does not broadcast to {tuple(shape)}")
    pairs = zip(operand.shape, operand.strides, shape[missing:], strict=True)
    steps = [0] * missing + [0 if size != wanted else step for size, step, wanted in pairs]
    return contiguous(binder, operand.reshaped(shape, steps))

"""Further operands of kernels over windows, brought into a form that the kernels read."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed


def spread_over(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor repeated to a shape that it broadcasts to; ValueError where it does not."""
    missing = len(shape) - len(tensor.shape)
    sizes, strides = (1,) * missing + tensor.shape, (0,) * missing + tensor.strides
    if missing < 0 or any(size not in (1, wanted) for size, wanted in zip(sizes, shape, strict=True)):
        raise ValueError(f"shape {tensor.shape} does not broadcast to {tuple(shape)}")
    return tensor.reshaped(shape, [0 if size == 1 else step for size, step in zip(sizes, strides, strict=True)])


def in_places(binder: Binder, operand: Tensor, *, by_rows: bool, last: int | None) -> Tensor:
    """An operand [batch, *places, channels] whose elements lie together where vectors lie, or are repeated there.

    Vectors lie along the channels or, `by_rows`, along the places of the dimension `last`.
    """
    rank = len(operand.shape)
    axis = rank - 1 if not by_rows or last is None else last + 1
    if operand.strides[axis] in (0, 1):
        return operand
    if not by_rows:
        return contiguous(binder, operand)
    order = (0, rank - 1, *range(1, rank - 1))
    return transposed(contiguous(binder, transposed(operand, order)), (0, *range(2, rank), 1))

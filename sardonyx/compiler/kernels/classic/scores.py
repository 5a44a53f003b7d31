"""Scores after their post transforms, and the classes that win, as expressions over the scores of a row.

The meaning is that of `ops.ml.scores`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.native.movement.gather import Gather
from sardonyx.compiler.native.products.matmul import MatMulKernel
from sardonyx.compiler.native.rows.reduction import ReductionKernel
from sardonyx.kernel.expr import (
    Expr,
    Input,
    RowIndex,
    absolute,
    constant,
    exp,
    isnan,
    log,
    logical_or,
    maximum,
    reduce,
    sqrt,
    where,
)

F32 = np.dtype(np.float32)
I64 = np.dtype(np.int64)

# Scores nearer to 0 than this count as 0 for SOFTMAX_ZERO.
_ZERO = 1e-7


def logistic(x: Expr) -> Expr:
    """1 / (1 + exp(-x)), without overflow."""
    half = 1 / (1 + exp(-absolute(x)))
    return where(x < 0, 1 - half, half)


def probit(x: Expr) -> Expr:
    """The quantile of the normal distribution by Winitzki's approximation."""
    centred = 2 * x - 1
    logarithm = log((1 - centred) * (1 + centred))
    first = 2 / (3.14159 * 0.147) + 0.5 * logarithm
    root = sqrt(sqrt(first * first - logarithm / 0.147) - first)
    return 1.41421356 * where(centred < 0, -root, root)


def transformed(x: Expr, transform: str) -> Expr:
    """A score of a row by itself or among the others of the row (through `Reduce`)."""
    if transform == "LOGISTIC":
        return logistic(x)
    if transform == "PROBIT":
        return probit(x)
    if transform == "SOFTMAX":
        power = exp(x - reduce("maximum", x))
        return power / reduce("sum", power)
    if transform == "SOFTMAX_ZERO":
        most = reduce("maximum", x)
        counts = absolute(x) > _ZERO
        power = where(counts, exp(x - most), x * exp(-most))
        return power / reduce("sum", where(counts, power, 0.0))
    return x


def transformed_pair(first: Expr, second: Expr, transform: str) -> tuple[Expr, Expr]:
    """`transformed` for rows of two scores."""
    if transform not in ("SOFTMAX", "SOFTMAX_ZERO"):
        return transformed(first, transform), transformed(second, transform)
    most = maximum(first, second)
    powers, parts = [], []
    for score in (first, second):
        power = exp(score - most)
        if transform == "SOFTMAX_ZERO":
            counts = absolute(score) > _ZERO
            power = where(counts, power, score * exp(-most))
            parts.append(where(counts, power, 0.0))
        else:
            parts.append(power)
        powers.append(power)
    total = parts[0] + parts[1]
    return powers[0] / total, powers[1] / total


def alone(transform: str) -> str:
    """The post transform of one score by itself, which knows PROBIT only."""
    return transform if transform == "PROBIT" else "NONE"


def both_scores(score: Expr, transform: str, first: Expr) -> tuple[Expr, Expr]:
    """The scores of two classes from that of the second; `first` is the other one where no transform makes it."""
    if transform == "PROBIT":
        return probit(score), constant(0.0, score.dtype)
    if transform == "LOGISTIC":
        return logistic(-score), logistic(score)
    return first, score


def winner(score: Expr) -> Expr:
    """The number of the greatest score of a row, the first of equal ones; the first NaN where there is one."""
    index = RowIndex(I64)
    most = reduce("maximum", score)
    return reduce("minimum", where(logical_or(score.equals(most), isnan(score)), index, np.iinfo(np.int64).max))


def by_rows(binder: Binder, roots: Sequence[Expr], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Expressions over matrices whose rows are reduced; a value of the row loses that dimension."""
    return ReductionKernel(roots, [tensor.dtype for tensor in inputs]).bind(binder, inputs, (1,))


def by_elements(binder: Binder, roots: Sequence[Expr], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Expressions over elements."""
    return PointwiseKernel(roots, [tensor.dtype for tensor in inputs]).bind(binder, inputs)


def weighted_sums(binder: Binder, rows: Tensor, weights: Array, offsets: Array) -> Tensor:
    """rows @ weights + offsets, all float32; no offsets are none at all."""
    epilogue = None
    if offsets.size:
        epilogue = Epilogue((Input(F32, 0) + Input(F32, 1),), (binder.constant(offsets),))
    (sums,) = MatMulKernel({}).bind(binder, rows, binder.constant(weights), epilogue=epilogue)
    assert sums is not None
    return sums


def as_type(binder: Binder, tensor: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """The elements converted; itself where it has the type."""
    if tensor.dtype == dtype:
        return tensor
    return by_elements(binder, [Input(tensor.dtype, 0).cast(dtype)], [tensor])[0]


def rows_of(tensor: Tensor) -> Tensor:
    """The input as (rows, features): a vector is one row."""
    if len(tensor.shape) not in (1, 2):
        raise ValueError(f"the input must be one row of features or a matrix of rows, not of shape {tensor.shape}")
    if len(tensor.shape) == 2:
        return tensor
    return tensor.reshaped((1, *tensor.shape), (0, *tensor.strides))


def transform_rows(binder: Binder, scores: Tensor, transform: str, dtype: np.dtype[Any]) -> Tensor:
    """A matrix of scores after a post transform, each row by itself."""
    root = transformed(Input(scores.dtype, 0), transform).cast(dtype)
    if transform in ("SOFTMAX", "SOFTMAX_ZERO"):
        return by_rows(binder, [root], [scores])[0]
    if transform == "NONE":
        return as_type(binder, scores, dtype)
    return by_elements(binder, [root], [scores])[0]


def column(tensor: Tensor, index: int) -> Tensor:
    """A column of a matrix, as a matrix."""
    rows, step = tensor.shape[0], tensor.strides
    return tensor.reshaped((rows, 1), (step[0], 1), index * step[1] * tensor.dtype.itemsize)


def write_pair(
    binder: Binder, winners: Expr | None, pair: tuple[Expr, Expr], inputs: Sequence[Tensor]
) -> tuple[Tensor | None, Tensor]:
    """The numbers of the classes (rows,) and two scores (rows, 2), expressions over columns of matrices."""
    rows = inputs[0].shape[0]
    scores = binder.new(F32, (rows, 2))
    kernel = PointwiseKernel([score.cast(F32) for score in pair], [tensor.dtype for tensor in inputs])
    with binder.together():
        kernel.bind_into(binder, inputs, [column(scores, 0), column(scores, 1)])
    if winners is None:
        return None, scores
    (numbers,) = by_elements(binder, [winners], inputs)
    return numbers.reshaped((rows,), (1,)), scores


def labelled(binder: Binder, winners: Tensor, labels: Array) -> Tensor:
    """The labels (int64) of classes by number."""
    if np.array_equal(labels, np.arange(len(labels))):
        return winners
    return Gather({"axis": 0}).bind(binder, binder.constant(labels), winners)[0]

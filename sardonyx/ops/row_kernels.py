"""Lowering of operators that combine the elements of rows: the template ``reduction`` and expressions for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.kernel import expr as k
from sardonyx.kernel.dtypes import NARROW_FLOATS
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Expr, Input, RowIndex
from sardonyx.kernel.program import Arrangement, Reduction, Template

Shapes = Sequence[tuple[int, ...] | None]
Contents = Sequence[np.ndarray[Any, Any] | None]
Arrange = Callable[[Shapes, Contents], Arrangement]


def rows_template(
    operands: Sequence[np.dtype[Any] | None],
    outputs: Sequence[Expr | None],
    arrange: Arrange,
    run: Callable[..., Any],
    known: Sequence[int] = (),
) -> Template:
    """The kernel of a node as a reduction.

    `operands` are the dtypes of the node's inputs that the kernel reads, None for one that is absent or not read:
    ``Input(i)`` in `outputs` is the i-th of those that are given. `outputs` are the node's, None for one that is not
    wanted; one that shall be a value of each row reads inputs within a `Reduce` alone, scalars too (`is_row_value`).
    `arrange` gets the shapes and the known contents of all inputs of the node. The contents of the inputs `known`
    decide about the shapes.
    """
    positions = tuple(index for index, dtype in enumerate(operands) if dtype is not None)
    wanted = tuple(index for index, expr in enumerate(outputs) if expr is not None)
    dtypes = tuple(dtype for dtype in operands if dtype is not None)
    program = Reduction(dtypes, tuple(expr for expr in outputs if expr is not None))
    parameters = {
        "program": program,
        "operands": positions,
        "outputs": wanted,
        "arrange": arrange,
        "known": tuple(known),
    }
    return Template("reduction", parameters, run)


def is_computable(dtype: np.dtype[Any] | None) -> bool:
    """Whether expressions over elements of a dtype mean something: numbers and truth values, no strings."""
    return dtype is not None and (dtype.kind in "biuf" or dtype in NARROW_FLOATS)


def not_computable(dtypes: Sequence[np.dtype[Any] | None]) -> str:
    """Why nothing is computed with elements of dtypes of which one is not `is_computable`, or is missing."""
    others = [dtype for dtype in dtypes if dtype is not None and not is_computable(dtype)]
    names = {"strings" if dtype.kind == "O" else str(dtype) for dtype in others}
    return f"no kernel computes with {', '.join(sorted(names))}" if names else "an input is absent or no tensor"


def leaves(operands: Sequence[np.dtype[Any] | None]) -> list[Expr | None]:
    """An expression for each operand in the dtype in which it is computed; None for one that is absent."""
    found: list[Expr | None] = []
    number = 0
    for dtype in operands:
        if dtype is None:
            found.append(None)
        else:
            found.append(Input(dtype, number).cast(working_dtype(dtype)))
            number += 1
    return found


def softmax(x: Expr) -> Expr:
    """exp(x) / sum(exp(x)); never overflows."""
    raised = k.exp(x - k.reduce("bound", x))
    return raised * (1 / k.reduce("sum", raised))


def log_softmax(x: Expr) -> Expr:
    """The logarithm of `softmax`."""
    shifted = x - k.reduce("bound", x)
    return shifted - k.log(k.reduce("sum", k.exp(shifted)))


def index_of_extreme(x: Expr, *, largest: bool, last: bool) -> Expr:
    """The int32 index of the largest or smallest element, the first or the last of equals; of a NaN if there is one."""
    extreme = k.reduce("maximum" if largest else "minimum", x)
    found = x.equals(extreme)
    if x.dtype.kind not in "biu":
        found = k.logical_or(found, k.isnan(x))
    index = RowIndex(np.dtype(np.int32))
    if last:
        return k.reduce("maximum", k.where(found, index, -1))
    return k.reduce("minimum", k.where(found, index, np.iinfo(np.int32).max))


def hardmax(x: Expr) -> Expr:
    """1 for the first largest element, else 0."""
    index = RowIndex(np.dtype(np.int32))
    return k.where(index.equals(index_of_extreme(x, largest=True, last=False)), k.constant(1, x.dtype), 0)


def log_sum_exp(x: Expr) -> Expr:
    """The logarithm of the sum of exponentials, which do not overflow; minus infinity of nothing."""
    largest = k.reduce("maximum", x)
    offset = k.where(k.absolute(largest) < np.inf, largest, 0)
    return k.log(k.reduce("sum", k.exp(x - offset))) + offset


def standardized(x: Expr, epsilon: float, *, centred: bool = True) -> tuple[Expr, Expr, Expr]:
    """(x - mean) / sqrt(variance + epsilon), the mean, and the reciprocal root; without the mean unless `centred`."""
    mean = k.mean(x)
    values = x - mean if centred else x
    inverse = 1 / k.sqrt(k.mean(values * values) + epsilon)
    return values * inverse, mean, inverse


def affine(x: Expr, scale: Expr | None, bias: Expr | None) -> Expr:
    """x * scale + bias, of which either may be absent."""
    scaled = x if scale is None else x * scale.cast(x.dtype)
    return scaled if bias is None else scaled + bias.cast(x.dtype)


def given(shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape of an input that must be there."""
    if shape is None:
        raise ValueError("an input that the kernel reads is absent")
    return shape


def trailing(axis: int, rank: int) -> tuple[int, ...]:
    """The axes from `axis` on; ValueError where a tensor of that rank has no such axis."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is not one of the {rank} axes of the input")
    return tuple(range(axis % rank, rank))


def shortened(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """The shape with 1 in place of the axes."""
    return tuple(1 if axis in axes else size for axis, size in enumerate(shape))


def _broadcasts(one: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    if len(one) > len(shape):
        return False
    return all(size in (1, whole) for size, whole in zip(one, shape[len(shape) - len(one) :], strict=True))


def row_arrangement(
    shapes: Shapes, shape: tuple[int, ...], axes: Sequence[int], more: Sequence[tuple[int, ...]] = ()
) -> Arrangement:
    """Inputs as they are, which must broadcast to `shape`, that of the first output; `more` are those of the others."""
    inputs = tuple([one for one in shapes if one is not None])
    for one in inputs:
        if one != shape and not _broadcasts(one, shape):
            raise ValueError(f"an input of shape {one} does not broadcast to {shape}")
    return Arrangement(inputs, tuple(axes), (shape, *more))

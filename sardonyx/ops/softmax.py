"""Softmax, LogSoftmax and Hardmax; before opset 13 they work on the input flattened to a matrix at `axis`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.kernel.program import Arrangement, Host, Kernel
from sardonyx.ops import row_kernels
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Cost, Operator, Value, elements, operator
from sardonyx.ops.reduction import normalized_axes
from sardonyx.ops.row_kernels import Contents, Shapes, given, is_computable, not_computable, rows_template

# Operations for each element: the maximum, the difference, an exponential, the sum and the quotient.
_OPERATIONS = 18


def softmax(x: Array, axis: int | tuple[int, ...] = -1) -> Array:
    """exp(x) / sum(exp(x)) along an axis, in the dtype of `x`; never overflows."""
    if x.size == 0:
        return x.copy()
    result = np.exp(x - x.max(axis=axis, keepdims=True))
    result /= result.sum(axis=axis, keepdims=True)
    return np.asarray(result)


def log_softmax(x: Array, axis: int) -> Array:
    """The logarithm of `softmax`."""
    if x.size == 0:
        return x.copy()
    shifted = x - x.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def hardmax(x: Array, axis: int) -> Array:
    """1 for the first largest element along an axis, else 0."""
    result = np.zeros_like(x)
    if x.size:
        np.put_along_axis(result, np.expand_dims(np.argmax(x, axis=axis), axis), 1, axis=axis)
    return result


class Normalizing(Operator):
    """What the three share: `function` works along one axis."""

    axis: int = -1

    def function(self, x: Array, axis: int) -> Array:
        raise NotImplementedError

    def of_row(self, x: Expr) -> Expr:
        """The same as an expression over the elements of a row."""
        raise NotImplementedError

    def run(self, x: Array) -> Sequence[Value]:
        (axis,) = normalized_axes([self.axis], x.ndim) if x.ndim else (0,)
        wide = np.atleast_1d(x.astype(working_dtype(x.dtype), copy=False))
        with np.errstate(all="ignore"):
            return (self.function(wide, axis).astype(x.dtype, copy=False).reshape(x.shape),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        (x,) = inputs
        if x is None or not is_computable(x):
            return Host(self.run, not_computable([x]))
        result = self.of_row(Input(x, 0).cast(working_dtype(x)))
        return rows_template(inputs, [result.cast(x)], self.arranged, self.run)

    def arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        axes = normalized_axes([self.axis], len(shape)) if shape else (0,)
        return Arrangement((shape or (1,),), axes, (shape,))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        assert x is not None
        if x.shape:
            normalized_axes([self.axis], len(x.shape))
        return [Fact(x.type, x.shape)]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        count = elements(outputs[0])
        return Cost(None if count is None else _OPERATIONS * count, super().cost(inputs, outputs).bytes)


class Flattening(Normalizing):
    """The rule before opset 13: dimensions before `axis` make the rows, the others the columns."""

    axis: int = 1

    def run(self, x: Array) -> Sequence[Value]:
        axis = self.axis + x.ndim if self.axis < 0 else self.axis
        if not 0 <= axis <= x.ndim:
            raise ValueError(f"axis {self.axis} is out of range for a tensor of rank {x.ndim}")
        rows = math.prod(x.shape[:axis])
        matrix = x.astype(working_dtype(x.dtype), copy=False).reshape(rows, math.prod(x.shape[axis:]))
        with np.errstate(all="ignore"):
            return (self.function(matrix, 1).astype(x.dtype, copy=False).reshape(x.shape),)

    def arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        axis = self.axis + len(shape) if self.axis < 0 else self.axis
        if not 0 <= axis <= len(shape):
            raise ValueError(f"axis {self.axis} is out of range for a tensor of rank {len(shape)}")
        return Arrangement(((math.prod(shape[:axis]), math.prod(shape[axis:])),), (1,), (shape,))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        assert inputs[0] is not None
        return [Fact(inputs[0].type, inputs[0].shape)]


def _register(op_type: str, function: Any, of_row: Callable[[Expr], Expr]) -> None:
    """Both forms of an operator."""
    for base, since in ((Flattening, 1), (Normalizing, 13)):
        members: dict[str, Any] = {
            "function": lambda self, x, axis: function(x, axis),
            "of_row": lambda self, x: of_row(x),
            "__doc__": function.__doc__,
            "__module__": __name__,
        }
        operator(op_type, since=since)(type(op_type, (base,), members))


_register("Softmax", softmax, row_kernels.softmax)
_register("LogSoftmax", log_softmax, row_kernels.log_softmax)
_register("Hardmax", hardmax, row_kernels.hardmax)

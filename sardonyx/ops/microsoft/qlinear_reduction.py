"""Softmax, mean and sum of quantised tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.kernel import expr as k
from sardonyx.kernel.expr import Expr, Input
from sardonyx.kernel.program import Arrangement, Host, Kernel, Pointwise, Template
from sardonyx.ops.framework.facts import Dims, Fact
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.linear_quantization import Array, mean_of_integers, one, padded, quantize, quantize_mean
from sardonyx.ops.microsoft.qlinear_elementwise import are_numbers, quantities, rescaled, saturated, zero_like
from sardonyx.ops.microsoft.rules import DOMAIN, SameAsFirst, like
from sardonyx.ops.row_kernels import Arrange, Contents, Shapes, given, rows_template, trailing

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


@operator("QLinearSoftmax", domain=DOMAIN)
class QLinearSoftmax(SameAsFirst):
    """Softmax over `axis`, or over all axes from it on where `opset` is below 13; quantised."""

    inputs: ClassVar[str] = "X, X_scale, x_zero_point?, y_scale, y_zero_point"
    outputs: ClassVar[str] = "Y"
    axis: int = -1
    opset: int
    host_reason: ClassVar[str] = "a reduction and what follows it"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parts = quantities(inputs, (0, 1, 2), (None, 3, 4))
        target = inputs[4]
        if parts is None or target is None or not are_numbers(self.node, (1, 3, 4)):
            return Host(self.run, self.host_reason)
        x, y = parts
        real = x.number * x.scale  # the zero point of X cancels out: only differences matter
        powers = k.exp(real - k.reduce("maximum", real))
        result = saturated(rescaled(powers / k.reduce("sum", powers), y), target)
        return rows_template(inputs, [result], self._arranged, self.run)

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        axes = trailing(self.axis, len(shape))
        return Arrangement(
            (shape, *(() for one in shapes[1:] if one is not None)), axes[:1] if self.opset >= 13 else axes, (shape,)
        )

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, x_scale, _, y_scale, y_zero = inputs
        if not -x.ndim <= self.axis < max(x.ndim, 1):
            raise ValueError(f"axis {self.axis} is not one of the {x.ndim} axes of input 'X'")
        if x.size == 0:
            return (x,)
        axis = self.axis % x.ndim
        axes = axis if self.opset >= 13 else tuple(range(axis, x.ndim))
        # The zero point of X cancels out: only differences matter.
        real = x.astype(np.float32) * one(x_scale, "X_scale").astype(np.float32)
        powers = np.exp(real - real.max(axis=axes, keepdims=True))
        shares = powers / powers.sum(axis=axes, keepdims=True)
        return (quantize(shares, one(y_scale, "y_scale"), one(y_zero, "y_zero_point")),)


def reduced_shape(shape: Dims | None, axes: Sequence[int], keepdims: bool) -> Dims | None:
    """A shape without `axes`, or with 1 in their places."""
    if shape is None:
        return None
    rank = len(shape)
    for axis in axes:
        if not -rank <= axis < rank:
            raise ValueError(f"axis {axis} is not one of the {rank} axes of input 'data'")
    gone = {axis % rank for axis in axes} or set(range(rank))
    return tuple(1 if index in gone else dim for index, dim in enumerate(shape) if keepdims or index not in gone)


def quantized_means(inputs: Sequence[np.dtype[Any] | None], arrange: Arrange, run: Callable[..., Any]) -> Template:
    """The kernel of the means of rows of X, as `quantize_mean` has them: from sums of integers, which are exact.

    The inputs are X, its scale and zero point, and those of the result; `arrange` is about X and its zero point.
    """
    given = padded(inputs, 5)
    read = [given[0], None, given[2], None, None]
    number, *zero = (Input(dtype, index).cast(np.int32) for index, dtype in enumerate(filter(None, read)))
    total = k.reduce("sum", number - zero[0] if zero else number).cast(np.float32)
    rows = rows_template(read, [total / k.RowLength(np.dtype(np.float32))], arrange, run)
    places = [place for place, dtype in enumerate(inputs) if place in (1, 3, 4) and dtype is not None]
    dtypes = (np.dtype(np.float32), *(dtype for dtype in (inputs[place] for place in places) if dtype is not None))
    target = given[4] or given[0]
    assert target is not None
    result = rescaled_mean(*(Input(dtype, index) for index, dtype in enumerate(dtypes)))
    program = Pointwise(dtypes, (saturated(result, target),))
    return Template("quantized_rows", {"rows": rows.parameters, "program": program, "parameters": places}, run)


def rescaled_mean(mean: Expr, scale: Expr, y_scale: Expr, *zero_point: Expr) -> Expr:
    """The same as an expression, before it is limited."""
    rounded = k.rint(mean * (scale / y_scale))
    return rounded + zero_point[0].cast(np.float32) if zero_point else rounded


class Reduction(Operator):
    """A reduction over `axes`; over all axes where none is listed."""

    axes: tuple[int, ...]
    keepdims: int
    host_reason: ClassVar[str] = "a reduction"

    def over(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted({axis % rank for axis in self.axes})) if self.axes else tuple(range(rank))

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        axes = self.over(len(shape))
        kept = [1 if axis in axes else size for axis, size in enumerate(shape) if self.keepdims or axis not in axes]
        return Arrangement((shape, *(() for one in shapes[2:3] if one is not None)), axes, (tuple(kept),))


@operator("QLinearReduceMean", domain=DOMAIN)
class QLinearReduceMean(Reduction):
    """The mean of the real numbers that the data stand for, quantised: that of their integers is exact."""

    inputs: ClassVar[str] = "data, data_scale, data_zero_point?, reduced_scale, reduced_zero_point?"
    outputs: ClassVar[str] = "reduced"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parts = quantities(padded(inputs, 5), (0, 1, 2), (None, 3, 4))
        if parts is None or not are_numbers(self.node, (1, 2, 3, 4)):
            return Host(self.run, self.host_reason)
        return quantized_means(inputs, self._arranged, self.run)

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, scale, zero, y_scale, y_zero = padded(inputs, 5)
        mean = mean_of_integers(x, one(zero, "data_zero_point"), self.over(x.ndim), bool(self.keepdims))
        scales = one(scale, "data_scale"), one(y_scale, "reduced_scale")
        return (quantize_mean(mean, *scales, zero_like(y_zero, x, "reduced_zero_point")),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        return [like(x, reduced_shape(None if x is None else x.shape, self.axes, bool(self.keepdims)))]


@operator("ReduceSumInteger", domain=DOMAIN)
class ReduceSumInteger(Reduction):
    """The sum of 8-bit integers in 32 bits of the same signedness."""

    inputs: ClassVar[str] = "data"
    outputs: ClassVar[str] = "reduced"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        kinds = {"uint8": np.uint32, "int8": np.int32}
        (x,) = inputs
        if x is None or x.name not in kinds:
            return Host(self.run, self.host_reason)
        total = k.reduce("sum", Input(x, 0).cast(kinds[x.name]))
        return rows_template(inputs, [total], self._arranged, self.run)

    def run(self, *inputs: Any) -> Sequence[Array]:
        (x,) = inputs
        kind = np.uint32 if x.dtype == np.uint8 else np.int32
        return (np.asarray(x.sum(axis=self.over(x.ndim), keepdims=bool(self.keepdims), dtype=kind)),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        unsigned = x is not None and x.dtype == ir.DataType.UINT8
        kind = ir.TensorType(ir.DataType.UINT32 if unsigned else ir.DataType.INT32)
        return [Fact(kind, reduced_shape(None if x is None else x.shape, self.axes, bool(self.keepdims)))]

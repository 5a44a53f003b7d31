"""Normalisations: by batch statistics, per instance, group or layer, by root mean square, norm or neighbourhood."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel import expr as k
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Expr
from sardonyx.kernel.program import Arrangement, Host, Kernel, Template
from sardonyx.ops.framework.facts import Dim, Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Cost, Operator, Value, elements, operator
from sardonyx.ops.reduction import normalized_axes, reduced_shape
from sardonyx.ops.row_kernels import (
    Contents,
    Shapes,
    affine,
    given,
    is_computable,
    leaves,
    not_computable,
    row_arrangement,
    rows_template,
    shortened,
)
from sardonyx.ops.row_kernels import standardized as standardized_rows


def _wide(x: Array) -> Array:
    return x.astype(working_dtype(x.dtype), copy=False)


def _per_channel(parameter: Array, rank: int, dtype: np.dtype[Any]) -> Array:
    """A vector along dimension 1 of a tensor of that rank."""
    return parameter.astype(dtype, copy=False).reshape(1, -1, *(1,) * (rank - 2))


class Normalization(Operator):
    """An operator whose first output has the type and shape of the first input."""

    # Operations for each element: mean, difference, square, sum, scale and offset.
    operations = 8

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        assert inputs[0] is not None
        return [Fact(inputs[0].type, inputs[0].shape)]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        count = elements(outputs[0])
        return Cost(None if count is None else self.operations * count, super().cost(inputs, outputs).bytes)

    def rows(self, *inputs: Expr | None) -> Sequence[Expr | None]:
        """The outputs as expressions over rows, from the inputs in the dtypes in which they are computed."""
        raise NotImplementedError

    def arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        """The shapes under which inputs are read and outputs given."""
        raise NotImplementedError

    def lower_rows(self, inputs: Sequence[np.dtype[Any] | None], result: np.dtype[Any] | None = None) -> Kernel:
        """The kernel that `rows` and `arranged` describe; the first output has the dtype of the first input."""
        if not all(dtype is None or is_computable(dtype) for dtype in inputs) or inputs[0] is None:
            return Host(self.run, not_computable(inputs))
        first, *others = self.rows(*leaves(inputs))
        assert first is not None
        outputs = [first.cast(result or inputs[0]), *others]
        return rows_template(inputs, outputs[: max(1, self.wanted_outputs)], self.arranged, self.run)


def _check_channels(shape: tuple[int, ...], scale: tuple[int, ...]) -> None:
    if len(shape) < 1 or (len(shape) > 1 and scale != (shape[1],)):
        raise ValueError(f"scale has shape {scale}, expected one number for each channel of the input {shape}")


@operator("BatchNormalization")
class BatchNormalization(Normalization):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, with given statistics.

    Training (`training_mode` from opset 14 on, more than one output before) takes the batch's own statistics and gives
    the running ones: running * momentum + batch * (1 - momentum).
    """

    epsilon: float = 1e-5
    momentum: float = 0.9
    training_mode: int = 0
    spatial: int = 1

    operations = 2

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if not self.spatial:
            return Host(self.run, "each element has parameters of its own")
        if not self._trains:
            return self.lower_rows(inputs)
        dtypes = [dtype for dtype in inputs if dtype is not None and is_computable(dtype)]
        if len(dtypes) < len(inputs):
            return Host(self.run, not_computable(inputs))
        results = zip(self._training_rows(*leaves(dtypes)), (dtypes[0], *dtypes[3:], *dtypes[3:]), strict=True)
        outputs = [expr.cast(dtype) for expr, dtype in results]
        return rows_template(inputs, outputs[: max(1, self.wanted_outputs)], self._arranged_to_train, self.run)

    @property
    def _trains(self) -> bool:
        return bool(self.training_mode) or self.has_output(1)

    def rows(self, *inputs: Expr | None) -> Sequence[Expr | None]:
        x, scale, bias, mean, variance = (one for one in inputs if one is not None)
        factor = scale.cast(x.dtype) / k.sqrt(variance.cast(x.dtype) + self.epsilon)
        return [x * factor + (bias.cast(x.dtype) - mean.cast(x.dtype) * factor)]

    def arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        _check_channels(shape, given(shapes[1]))
        channels = (-1, *(1,) * (max(len(shape), 2) - 2))
        parameters = [(math.prod(given(one)), *channels[1:]) for one in shapes[1:]]
        return Arrangement((shape, *parameters), (), (shape,))

    def _training_rows(self, *inputs: Expr | None) -> Sequence[Expr]:
        """All five outputs over rows that are the channels of a batch."""
        x, scale, bias, mean, variance = (one for one in inputs if one is not None)
        _, batch_mean, _ = standardized_rows(x, self.epsilon)
        centred = x - batch_mean
        batch_variance = k.mean(centred * centred)
        factor = scale.cast(x.dtype) / k.sqrt(batch_variance + self.epsilon)
        # The old statistics are the same for all elements of a row.
        running = [
            k.reduce("maximum", old.cast(x.dtype)) * self.momentum + new * (1 - self.momentum)
            for old, new in ((mean, batch_mean), (variance, batch_variance))
        ]
        return [centred * factor + bias.cast(x.dtype), *running, batch_mean, batch_variance]

    def _arranged_to_train(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        if len(shape) < 2:
            raise ValueError(f"a batch to train with needs channels on axis 1, not the shape {shape}")
        channels = (shape[1], *(1,) * (len(shape) - 2))
        for name, one in zip(("scale", "B", "input_mean", "input_var"), shapes[1:], strict=True):
            if given(one) != (shape[1],):
                raise ValueError(f"input '{name}' has shape {one}, not a number for each channel of {shape}")
        axes = (0, *range(2, len(shape)))
        rows = [(shape[1],)] * max(0, self.wanted_outputs - 1)
        return Arrangement((shape, *(channels for _ in shapes[1:])), axes, (shape, *rows))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, mean, variance = inputs[0], inputs[3], inputs[4]
        assert x is not None
        assert mean is not None
        assert variance is not None
        means, variances = Fact(mean.type, mean.shape), Fact(variance.type, variance.shape)
        return [Fact(x.type, x.shape), means, variances, means, variances][: max(self.wanted_outputs, 1)]

    def run(self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Sequence[Value]:
        wide = _wide(x)
        if x.ndim < 1 or self.spatial:
            _check_channels(x.shape, scale.shape)
        if not self.spatial:
            return (self._normalized(wide, *(_wide(p)[None] for p in (scale, bias, mean, variance))).astype(x.dtype),)
        rank, dtype = max(x.ndim, 2), wide.dtype
        if self._trains:
            return self._train(x, scale, bias, mean, variance)
        parameters = [_per_channel(p, rank, dtype) for p in (scale, bias, mean, variance)]
        return (self._normalized(wide, *parameters).astype(x.dtype, copy=False),)

    def _normalized(self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
        factor = scale / np.sqrt(variance + np.asarray(self.epsilon, variance.dtype))
        return np.asarray(x * factor + (bias - mean * factor))

    def _train(self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Sequence[Value]:
        axes = (0, *range(2, x.ndim))
        wide = _wide(x)
        batch_mean, batch_variance = wide.mean(axis=axes), wide.var(axis=axes)
        parameters = [_per_channel(p, x.ndim, wide.dtype) for p in (scale, bias, batch_mean, batch_variance)]
        y = self._normalized(wide, *parameters).astype(x.dtype, copy=False)
        running = [
            (_wide(old) * self.momentum + new * (1 - self.momentum)).astype(old.dtype)
            for old, new in ((mean, batch_mean), (variance, batch_variance))
        ]
        return y, *running, batch_mean.astype(mean.dtype), batch_variance.astype(variance.dtype)


@operator("InstanceNormalization")
class InstanceNormalization(Normalization):
    """Each map of each item by its own mean and variance."""

    epsilon: float = 1e-5

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lower_rows(inputs)

    def rows(self, *inputs: Expr | None) -> Sequence[Expr | None]:
        x, scale, bias = inputs
        assert x is not None
        return [affine(standardized_rows(x, self.epsilon)[0], scale, bias)]

    def arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape, scale, bias = map(given, shapes)
        self._check(shape, scale, bias)
        space = (*shape[:2], math.prod(shape[2:]))
        return Arrangement((space, (*scale, 1), (*bias, 1)), (2,), (shape,))

    def _check(self, shape: tuple[int, ...], scale: tuple[int, ...], bias: tuple[int, ...]) -> None:
        if len(shape) < 3 or scale != (shape[1],) or bias != (shape[1],):
            raise ValueError(f"scale {scale} and bias {bias} must have one number for each channel of {shape}")

    def run(self, x: Array, scale: Array, bias: Array) -> Sequence[Value]:
        self._check(x.shape, scale.shape, bias.shape)
        wide = _wide(x)
        y = standardized(wide, tuple(range(2, x.ndim)), self.epsilon)
        y = y * _per_channel(scale, x.ndim, wide.dtype) + _per_channel(bias, x.ndim, wide.dtype)
        return (y.astype(x.dtype, copy=False),)


def standardized(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """(x - mean) / sqrt(variance + epsilon) over axes, in the dtype of `x`."""
    centred = x - x.mean(axis=axes, keepdims=True)
    variance = np.square(centred).mean(axis=axes, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + np.asarray(epsilon, x.dtype)))


class GroupNorm(Normalization):
    """Each group of channels of each item by its own mean and variance."""

    epsilon: float = 1e-5
    num_groups: int
    stash_type: int = 1

    def grouped(self, x: Array) -> Array:
        """The input as (N, groups, channels in a group, elements of a map), in the dtype to compute in."""
        return _wide(x).reshape(self.space(x.shape))

    def space(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """That shape; ValueError where the channels cannot be grouped."""
        if len(shape) < 2 or shape[1] % self.num_groups:
            raise ValueError(f"the channels of {shape} do not divide into {self.num_groups} groups")
        return shape[0], self.num_groups, shape[1] // self.num_groups, math.prod(shape[2:])

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lower_rows(inputs)

    def rows(self, *inputs: Expr | None) -> Sequence[Expr | None]:
        x, scale, bias = inputs
        assert x is not None
        return [affine(standardized_rows(x, self.epsilon)[0], scale, bias)]

    def arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape, scale, bias = map(given, shapes)
        space = self.space(shape)
        of_channels = self.version >= 21
        parameter = (*space[1:3], 1) if of_channels else (space[1], 1, 1)
        if any(one != (math.prod(parameter),) for one in (scale, bias)):
            owner = "channel" if of_channels else "group"
            raise ValueError(f"scale {scale} and bias {bias} must have one number for each {owner} of {shape}")
        return Arrangement((space, parameter, parameter), (2, 3), (shape,))


@operator("GroupNormalization", since=18)
class OldGroupNormalization(GroupNorm):
    """Scale and bias belong to the groups."""

    def run(self, x: Array, scale: Array, bias: Array) -> Sequence[Value]:
        groups = self.grouped(x)
        y = standardized(groups, (2, 3), self.epsilon)
        y = y * _per_channel(scale, 4, y.dtype) + _per_channel(bias, 4, y.dtype)
        return (y.reshape(x.shape).astype(x.dtype, copy=False),)


@operator("GroupNormalization", since=21)
class GroupNormalization(GroupNorm):
    """Scale and bias belong to the channels."""

    def run(self, x: Array, scale: Array, bias: Array) -> Sequence[Value]:
        y = standardized(self.grouped(x), (2, 3), self.epsilon).reshape(x.shape)
        y = y * _per_channel(scale, x.ndim, y.dtype) + _per_channel(bias, x.ndim, y.dtype)
        return (y.astype(x.dtype, copy=False),)


@operator("LayerNormalization", since=17)
class LayerNormalization(Normalization):
    """Everything from `axis` on by its own mean and variance; also gives the mean and 1 / standard deviation."""

    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        assert x is not None
        shape: tuple[Dim, ...] | None = None
        if x.shape is not None:
            (axis,) = normalized_axes([self.axis], len(x.shape))
            shape = reduced_shape(x.shape, range(axis, len(x.shape)), True)
        statistics = Fact(ir.TensorType(ir.DataType(self.stash_type)), shape)
        return [Fact(x.type, x.shape), statistics, statistics][: max(self.wanted_outputs, 1)]

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lower_rows(inputs)

    def rows(self, *inputs: Expr | None) -> Sequence[Expr | None]:
        x, scale, *bias = inputs
        assert x is not None
        y, mean, inverse = standardized_rows(x, self.epsilon)
        stash = numpy_dtype(ir.DataType(self.stash_type))
        statistics = [mean.cast(stash), inverse.cast(stash)]
        wanted = [one if self.has_output(index) else None for index, one in enumerate(statistics, 1)]
        return [affine(y, scale, bias[0] if bias else None), *wanted]

    def arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        axes = tuple(range(normalized_axes([self.axis], len(shape))[0], len(shape)))
        statistics = shortened(shape, axes)
        more = [statistics for index in (1, 2) if self.has_output(index)]
        return row_arrangement(shapes, shape, axes, more)

    def run(self, x: Array, scale: Array, bias: Array | None = None) -> Sequence[Value]:
        (axis,) = normalized_axes([self.axis], x.ndim)
        axes = tuple(range(axis, x.ndim))
        wide = _wide(x)
        mean = wide.mean(axis=axes, keepdims=True)
        centred = wide - mean
        variance = np.square(centred).mean(axis=axes, keepdims=True)
        inverse = 1 / np.sqrt(variance + np.asarray(self.epsilon, wide.dtype))
        y = centred * inverse * _wide(scale)
        if bias is not None:
            y += _wide(bias)
        stash = numpy_dtype(ir.DataType(self.stash_type))
        return y.astype(x.dtype, copy=False), mean.astype(stash, copy=False), inverse.astype(stash, copy=False)


@operator("RMSNormalization")
class RMSNormalization(Normalization):
    """x / sqrt(mean of squares + epsilon) * scale, over everything from `axis` on."""

    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1

    operations = 5

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lower_rows(inputs, inputs[1])

    def rows(self, *inputs: Expr | None) -> Sequence[Expr | None]:
        x, scale = inputs
        assert x is not None
        return [affine(standardized_rows(x, self.epsilon, centred=False)[0], scale, None)]

    def arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        axes = tuple(range(normalized_axes([self.axis], len(shape))[0], len(shape)))
        return row_arrangement(shapes, shape, axes)

    def run(self, x: Array, scale: Array) -> Sequence[Value]:
        (axis,) = normalized_axes([self.axis], x.ndim)
        wide = _wide(x)
        squares = np.square(wide).mean(axis=tuple(range(axis, x.ndim)), keepdims=True)
        y = wide / np.sqrt(squares + np.asarray(self.epsilon, wide.dtype)) * _wide(scale)
        return (y.astype(scale.dtype, copy=False),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, scale = inputs[0], inputs[1]
        assert x is not None
        assert scale is not None
        return [Fact(scale.type, x.shape)]


@operator("LpNormalization")
class LpNormalization(Normalization):
    """x divided by its Lp norm along an axis; zeros stay zeros."""

    axis: int = -1
    p: int = 2

    operations = 3

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lower_rows(inputs)

    def rows(self, *inputs: Expr | None) -> Sequence[Expr | None]:
        (x,) = inputs
        assert x is not None
        total = k.reduce("sum", x * x if self.p == 2 else k.absolute(x))
        norm = k.sqrt(total) if self.p == 2 else total
        return [x / k.where(norm.equals(0), 1, norm)]

    def arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        self._check()
        shape = given(shapes[0])
        return Arrangement((shape,), normalized_axes([self.axis], len(shape)), (shape,))

    def _check(self) -> None:
        if self.p not in (1, 2):
            raise ValueError(f"p must be 1 or 2, not {self.p}")

    def run(self, x: Array) -> Sequence[Value]:
        self._check()
        (axis,) = normalized_axes([self.axis], x.ndim)
        wide = _wide(x)
        norm = np.linalg.norm(wide, ord=self.p, axis=axis, keepdims=True)
        return ((wide / np.where(norm == 0, np.ones_like(norm), norm)).astype(x.dtype, copy=False),)


@operator("MeanVarianceNormalization")
class MeanVarianceNormalization(Normalization):
    """(x - mean) / (standard deviation + 1e-9) over axes."""

    axes: tuple[int, ...] = (0, 2, 3)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lower_rows(inputs)

    def rows(self, *inputs: Expr | None) -> Sequence[Expr | None]:
        (x,) = inputs
        assert x is not None
        centred = x - k.mean(x)
        return [centred / (k.sqrt(k.mean(centred * centred)) + 1e-9)]

    def arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        return Arrangement((shape,), normalized_axes(self.axes, len(shape)), (shape,))

    def run(self, x: Array) -> Sequence[Value]:
        axes = normalized_axes(self.axes, x.ndim)
        wide = _wide(x)
        centred = wide - wide.mean(axis=axes, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(axis=axes, keepdims=True))
        return ((centred / (deviation + np.asarray(1e-9, wide.dtype))).astype(x.dtype, copy=False),)


def neighbours(size: int, channels: int) -> tuple[int, int]:
    """How many channels before and behind one `size` neighbouring ones take; no more than there are."""
    if size < 1:
        raise ValueError(f"size must be at least 1 channel, not {size}")
    most = max(channels - 1, 0)
    return min((size - 1) // 2, most), min(size // 2, most)


@operator("LRN")
class LRN(Normalization):
    """x / (bias + alpha / size * sum of squares of `size` neighbouring channels) ** beta."""

    alpha: float = 0.0001
    beta: float = 0.75
    bias: float = 1.0
    size: int

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        x = inputs[0]
        if x is None or not is_computable(x) or x.kind in "biu":
            return Host(self.run, f"no kernel normalises {x} by neighbouring channels")
        parameters = {"size": self.size, "alpha": self.alpha, "beta": self.beta, "bias": self.bias}
        return Template("local_response", parameters, self.run)

    def run(self, x: Array) -> Sequence[Value]:
        wide = _wide(x)
        squares = np.square(wide)
        total = np.zeros_like(wide)
        channels = x.shape[1]
        before, behind = neighbours(self.size, channels)
        for offset in range(-before, behind + 1):
            low, high = max(0, -offset), min(channels, channels - offset)
            if low < high:
                total[:, low:high] += squares[:, low + offset : high + offset]
        y = wide / (self.bias + self.alpha / self.size * total) ** self.beta
        return (y.astype(x.dtype, copy=False),)

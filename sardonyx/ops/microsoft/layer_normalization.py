"""Layer and RMS normalisation as onnxruntime names them, alone and fused with a residual or a gate.

`LayerNormalization` before opset 17 and `SimplifiedLayerNormalization` live in the default domain, although ONNX
defines neither: that is where onnxruntime's optimizers put them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.kernel import expr as k
from sardonyx.kernel.expr import Expr
from sardonyx.kernel.program import Arrangement, Host, Kernel
from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.operator import Cost, Operator, elements, nbytes, operator
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rules import DOMAIN, Array, SameAsFirst, divided, like, same, wide
from sardonyx.ops.row_kernels import (
    Contents,
    Shapes,
    affine,
    given,
    is_computable,
    leaves,
    row_arrangement,
    rows_template,
    shortened,
    standardized,
    trailing,
)

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


def normalized(x: Array, axes: int, epsilon: float, centred: bool) -> tuple[Array, Array, Array]:
    """The last `axes` axes of `x` divided by their root mean square, after subtracting the mean where `centred`.

    Also the mean and the reciprocal deviation, those axes kept with size 1. All in the working precision of `x`.
    """
    values = wide(x)
    over = tuple(range(values.ndim - axes, values.ndim))
    mean = values.mean(axis=over, keepdims=True)
    if centred:
        values = values - mean
    square = np.mean(values * values, axis=over, keepdims=True)
    inverse = 1 / np.sqrt(square + square.dtype.type(epsilon))
    return values * inverse, mean, inverse


class Normalization(Operator):
    """Common to the operators that normalise their first input: shapes and cost."""

    host_reason: ClassVar[str] = "a reduction and what follows it"

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [same(inputs[0])]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        count = elements(outputs[0]) if outputs else None
        sizes = [nbytes(fact) for fact in (*filter(None, inputs), *outputs)]
        moved = None if any(size is None for size in sizes) else math.fsum(size or 0.0 for size in sizes)
        return Cost(None if count is None else 8 * count, moved)


def _statistics(mean: Expr, inverse: Expr) -> list[Expr]:
    return [mean.cast(np.float32), inverse.cast(np.float32)]


class AxisNormalization(Normalization):
    """Normalisation of the axes from `axis` on; outputs Y and the statistics."""

    inputs: ClassVar[str] = "X, Scale, B?"
    outputs: ClassVar[str] = "Y, Mean?, InvStdDev?"
    centred: ClassVar[bool] = True
    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        dtype = inputs[1]
        if dtype is None or not all(one is None or is_computable(one) for one in inputs):
            return Host(self.run, self.host_reason)
        x, scale, bias = (*leaves(inputs), None)[:3]
        assert x is not None
        y, *statistics = standardized(x, self.epsilon, centred=self.centred)
        more = _statistics(*statistics)[0 if self.centred else 1 :]
        kept = [one if self.has_output(index) else None for index, one in enumerate(more, 1)]
        outputs = [affine(y, scale, bias).cast(dtype), *kept]
        return rows_template(inputs, outputs[: max(1, self.wanted_outputs)], self._arranged, self.run)

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        if not -len(shape) <= self.axis < len(shape):
            raise ValueError(f"axis {self.axis} is not one of the {len(shape)} axes of input 'X'")
        axes = trailing(self.axis, len(shape))
        statistics = [shortened(shape, axes) for index in (1, 2) if self.has_output(index)]
        return row_arrangement(shapes, shape, axes, statistics)

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, scale = inputs[0], inputs[1]
        bias = inputs[2] if len(inputs) > 2 else None
        if not -x.ndim <= self.axis < x.ndim:
            raise ValueError(f"axis {self.axis} is not one of the {x.ndim} axes of input 'X'")
        count = -self.axis if self.axis < 0 else x.ndim - self.axis
        y, mean, inverse = normalized(x, count, self.epsilon, self.centred)
        y = y * wide(scale)
        if bias is not None:
            y = y + wide(bias)
        statistics = (mean, inverse) if self.centred else (inverse,)
        return (y.astype(scale.dtype), *(item.astype(np.float32) for item in statistics))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, scale = inputs[0], inputs[1]
        y = like(scale, None if x is None else x.shape)
        if x is None or x.shape is None:
            return [y]
        if not -len(x.shape) <= self.axis < len(x.shape):
            raise ValueError(f"axis {self.axis} is not one of the {len(x.shape)} axes of input 'X'")
        first = self.axis % len(x.shape)
        statistics = tensor(ir.DataType.FLOAT, (*x.shape[:first], *[1] * (len(x.shape) - first)))
        return [y, statistics, statistics]


@operator("LayerNormalization", since=1)
class LayerNormalization(AxisNormalization):
    """(X - mean) / sqrt(variance + epsilon) * Scale + B, before ONNX had the operator in opset 17."""


@operator("SimplifiedLayerNormalization", since=1)
class SimplifiedLayerNormalization(AxisNormalization):
    """X / sqrt(mean(X^2) + epsilon) * scale; the second output is the reciprocal root."""

    inputs: ClassVar[str] = "X, scale"
    outputs: ClassVar[str] = "Y, inv_std_var?"
    centred: ClassVar[bool] = False


class SkipNormalization(Normalization):
    """Normalisation of input + skip + bias over the last axis; the fourth output is that sum."""

    inputs: ClassVar[str]
    outputs: ClassVar[str] = "output, mean?, inv_std_var?, input_skip_bias_sum?"
    centred: ClassVar[bool] = True
    epsilon: float = 1e-12

    def lower_sum(self, inputs: Sequence[np.dtype[Any] | None], beta: int | None, bias: int) -> Kernel:
        """The kernel; `beta` and `bias` say which inputs they are."""
        dtype = inputs[0]
        if dtype is None or not all(one is None or is_computable(one) for one in inputs):
            return Host(self.run, self.host_reason)
        read = [*leaves(inputs), None, None]
        x, skip, gamma = read[:3]
        assert x is not None
        assert skip is not None
        total = affine(x + skip.cast(x.dtype), None, read[bias])
        y, *statistics = standardized(total, self.epsilon, centred=self.centred)
        outputs = [affine(y, gamma, None if beta is None else read[beta]).cast(dtype), *_statistics(*statistics)]
        outputs.append(total.cast(dtype))
        wanted = [one if index == 0 or self.has_output(index) else None for index, one in enumerate(outputs)]
        return rows_template(inputs, wanted[: max(1, self.wanted_outputs)], self._arranged, self.run)

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        for place, one in enumerate(shapes):
            if place > 1 and one is not None and one != shape[-1:]:
                name = self.inputs.replace("?", "").split(", ")[place]
                raise ValueError(f"input '{name}' is expected to have shape {shape[-1:]}, got {one}")
        statistics = [(*shape[:-1], 1) for index in (1, 2) if self.has_output(index)]
        more = [*statistics, *([shape] if self.has_output(3) else [])]
        return row_arrangement(shapes, shape, (len(shape) - 1,), more)

    def normalize(self, x: Array, skip: Array, gamma: Array, beta: Array | None, bias: Array | None) -> Sequence[Array]:
        for name, vector in (("gamma", gamma), ("beta", beta), ("bias", bias)):
            if vector is not None and vector.shape != x.shape[-1:]:
                raise ValueError(f"input '{name}' is expected to have shape {x.shape[-1:]}, got {vector.shape}")
        total = wide(x) + wide(skip)
        if bias is not None:
            total = total + wide(bias)
        if total.shape != x.shape:
            raise ValueError(f"input 'skip' of shape {skip.shape} does not fit 'input' of shape {x.shape}")
        y, mean, inverse = normalized(total, 1, self.epsilon, self.centred)
        y = y * wide(gamma)
        if beta is not None:
            y = y + wide(beta)
        return y.astype(x.dtype), mean.astype(np.float32), inverse.astype(np.float32), total.astype(x.dtype)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        statistics = tensor(ir.DataType.FLOAT, None if x is None or x.shape is None else (*x.shape[:-1], 1))
        return [same(x), statistics, statistics, same(x)]


@operator("SkipLayerNormalization", domain=DOMAIN)
class SkipLayerNormalization(SkipNormalization):
    """LayerNormalization(input + skip + bias)."""

    inputs: ClassVar[str] = "input, skip, gamma, beta?, bias?"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lower_sum(inputs, beta=3, bias=4)

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, skip, gamma, beta, bias = padded(inputs, 5)
        return self.normalize(x, skip, gamma, beta, bias)


@operator("SkipSimplifiedLayerNormalization", domain=DOMAIN)
class SkipSimplifiedLayerNormalization(SkipNormalization):
    """RMS normalisation of input + skip + bias."""

    inputs: ClassVar[str] = "input, skip, gamma, bias?"
    centred: ClassVar[bool] = False

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lower_sum(inputs, beta=None, bias=3)

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, skip, gamma, bias = padded(inputs, 4)
        return self.normalize(x, skip, gamma, None, bias)


@operator("GatedRMSNorm", domain=DOMAIN)
class GatedRMSNorm(SameAsFirst):
    """RMS normalisation of each group of C elements, times scale (C) and an activated gate; all in float32."""

    inputs: ClassVar[str] = "X, scale, gate"
    outputs: ClassVar[str] = "Y"
    activation: str = "silu"
    epsilon: float = 1e-5
    host_reason: ClassVar[str] = "a reduction and what follows it"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        dtype = inputs[0]
        if dtype is None or not all(map(is_computable, inputs)) or self.activation not in ("silu", "swish", "sigmoid"):
            return Host(self.run, self.host_reason)
        x, scale, gate = leaves(inputs)
        assert x is not None
        assert gate is not None
        z = gate.cast(x.dtype)
        opened = k.sigmoid(z)
        if self.activation != "sigmoid":
            opened = opened * z
        y = affine(standardized(x, self.epsilon, centred=False)[0], scale, None) * opened
        return rows_template(inputs, [y.cast(dtype)], self._arranged, self.run)

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape, scale, gate = map(given, shapes)
        width = math.prod(scale)
        if width == 0 or shape[-1] % width:
            raise ValueError(
                f"the last dimension of 'X', {shape[-1]}, must be a multiple of the size of 'scale', {width}"
            )
        if gate != shape:
            raise ValueError(f"input 'gate' is expected to have shape {shape}, got {gate}")
        groups = (*shape[:-1], shape[-1] // width, width)
        return Arrangement((groups, (width,), groups), (len(shape),), (shape,))

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, scale, gate = inputs
        width = scale.size
        if width == 0 or x.shape[-1] % width:
            raise ValueError(
                f"the last dimension of 'X', {x.shape[-1]}, must be a multiple of the size of 'scale', {width}"
            )
        groups, _, _ = normalized(x.reshape(*x.shape[:-1], -1, width), 1, self.epsilon, centred=False)
        z = wide(gate)
        opened = 1 / (1 + np.exp(-z))
        if self.activation in ("silu", "swish"):
            opened = opened * z
        elif self.activation != "sigmoid":
            raise ValueError(f"attribute 'activation' must be silu, swish or sigmoid, not '{self.activation}'")
        return (((groups * wide(scale)).reshape(x.shape) * opened).astype(x.dtype),)


@operator("BranchwiseRMSNorm", domain=DOMAIN)
class BranchwiseRMSNorm(SameAsFirst):
    """RMS normalisation of each of C branches of H elements alone, optionally scaled; all in float32."""

    inputs: ClassVar[str] = "X, scale?"
    outputs: ClassVar[str] = "Y"
    num_branches: int = 0
    epsilon: float = 1e-5
    host_reason: ClassVar[str] = "a reduction and what follows it"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        dtype = inputs[0]
        if dtype is None or not all(one is None or is_computable(one) for one in inputs):
            return Host(self.run, self.host_reason)
        x, scale = (*leaves(inputs), None)[:2]
        assert x is not None
        y = affine(standardized(x, self.epsilon, centred=False)[0], scale, None)
        return rows_template(inputs, [y.cast(dtype)], self._arranged, self.run)

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        grouped = shape
        if self.num_branches:
            if shape[-1] % self.num_branches:
                raise ValueError(
                    f"the last dimension of 'X', {shape[-1]}, is no multiple of {self.num_branches} branches"
                )
            grouped = (*shape[:-1], self.num_branches, shape[-1] // self.num_branches)
        read = [grouped]
        for one in shapes[1:]:
            if one is not None:
                size = math.prod(one)
                read.append((size,) if size == grouped[-1] else grouped[-2:])
        if any(math.prod(one) != math.prod(given(shape)) for one, shape in zip(read[1:], shapes[1:], strict=False)):
            raise ValueError(f"input 'scale' of shape {shapes[1]} does not fit branches of shape {grouped[-2:]}")
        return Arrangement(tuple(read), (len(grouped) - 1,), (shape,))

    def run(self, *inputs: Any) -> Sequence[Array]:
        x = inputs[0]
        grouped = x
        if self.num_branches:
            grouped = divided(x, self.num_branches, "X")
        y, _, _ = normalized(grouped, 1, self.epsilon, centred=False)
        if len(inputs) > 1 and inputs[1] is not None:
            scale = wide(inputs[1])
            y = y * (scale.reshape(grouped.shape[-2:]) if scale.size != grouped.shape[-1] else scale.reshape(-1))
        return (y.reshape(x.shape).astype(x.dtype),)

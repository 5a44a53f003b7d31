"""Convolutions: Conv, ConvTranspose, ConvInteger, QLinearConv.

The core is `correlate`: a matrix product over windows laid out as columns, with shorter ways for kernels of one
element (no columns) and for one input channel per group (no matrix product).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.program import Host, Kernel, Template
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import Dim, Fact, tensor, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Cost, Operator, Value, elements, operator
from sardonyx.ops.quantization import requantize
from sardonyx.ops.windows import WindowAttributes, Windows
from sardonyx.runtime.memory import memory


def correlate(x: Array, w: Array, windows: Windows, groups: int) -> Array:
    """Cross-correlation of x (N, C, ...) with w (M, C / groups, ...): (N, M, ...), in the dtype of both."""
    batch, channels = x.shape[:2]
    filters = w.shape[0]
    padded = windows.pad(x, 0)
    output = (batch, filters, *windows.output)
    if 0 in output or 0 in w.shape:
        return np.zeros(output, x.dtype)
    if w.shape[1] == 1 and groups == channels and channels > 1:
        return _depthwise(padded, w, windows)
    matrix = w.reshape(groups, filters // groups, -1)
    result = np.empty((batch, groups, filters // groups, math.prod(windows.output)), x.dtype)
    for item in range(batch):
        columns = _columns(padded[item], windows, groups)
        np.matmul(matrix, columns, out=result[item])
    return result.reshape(output)


def _columns(padded: Array, windows: Windows, groups: int) -> Array:
    """The windows of one item (C, ...) as columns: (groups, C / groups * taps, windows)."""
    channels = padded.shape[0]
    if math.prod(windows.kernel) == 1:
        only = windows.read(padded, (0,) * len(windows.kernel))
        return only.reshape(groups, channels // groups, -1)
    shape = (channels, math.prod(windows.kernel), *windows.output)
    memory.require(math.prod(shape) * padded.itemsize, "the windows of a convolution")
    columns = np.empty(shape, padded.dtype)
    for index, tap in enumerate(windows.taps()):
        columns[:, index] = windows.read(padded, tap)
    return columns.reshape(groups, channels // groups * math.prod(windows.kernel), -1)


def _depthwise(padded: Array, w: Array, windows: Windows) -> Array:
    """One input channel for each group: a sum of shifted, scaled copies."""
    batch, channels = padded.shape[:2]
    multiplier = w.shape[0] // channels
    ones = (1,) * len(windows.kernel)
    weights = w.reshape(channels, multiplier, *windows.kernel)
    result = np.zeros((batch, channels, multiplier, *windows.output), padded.dtype)
    product = np.empty_like(result)
    for tap in windows.taps():
        at_tap: tuple[Any, ...] = (slice(None), slice(None), *tap)
        factor = weights[at_tap].reshape(channels, multiplier, *ones)
        np.multiply(windows.read(padded, tap)[:, :, None], factor, out=product)
        result += product
    return result.reshape(batch, channels * multiplier, *windows.output)


def _check(x_shape: Sequence[Any], w_shape: Sequence[Any], groups: int) -> None:
    """ValueError where the shapes of the input and the weights contradict each other; symbols are not judged."""
    if len(x_shape) != len(w_shape) or len(x_shape) < 3:
        raise ValueError(f"input {tuple(x_shape)} and weights {tuple(w_shape)} need the same rank, at least 3")
    channels, filters, depth = x_shape[1], w_shape[0], w_shape[1]
    if all(isinstance(dim, int) for dim in (channels, depth)) and channels != depth * groups:
        raise ValueError(
            f"the input has {channels} channels, the weights {tuple(w_shape)} with group {groups} need {depth * groups}"
        )
    if isinstance(filters, int) and filters % groups:
        raise ValueError(f"{filters} filters do not divide into {groups} groups")


class Convolution(Operator):
    """Attributes and shape rule that the convolutions share."""

    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] | None = None
    group: int = 1
    kernel_shape: tuple[int, ...] | None = None
    pads: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None

    def attributes(self, kernel: Sequence[int]) -> WindowAttributes:
        if self.group < 1:
            raise ValueError(f"group must be at least 1, not {self.group}")
        if self.kernel_shape is not None and tuple(self.kernel_shape) != tuple(kernel):
            raise ValueError(f"kernel_shape {self.kernel_shape} is not that of the weights, {tuple(kernel)}")
        return WindowAttributes.of(kernel, self.strides, self.dilations, self.pads, self.auto_pad)

    def infer_convolution(self, x: Fact | None, w: Fact | None) -> tuple[Dim, ...] | None:
        """The output's shape from those of the input and the weights."""
        if x is None or w is None or x.shape is None:
            return None
        if w.shape is None:
            return None
        _check(x.shape, w.shape, self.group)
        kernel = [dim for dim in w.shape[2:] if isinstance(dim, int)] or list(self.kernel_shape or ())
        if len(kernel) != len(x.shape) - 2:
            return (x.shape[0], w.shape[0], *(unknown_dim() for _ in x.shape[2:]))
        return (x.shape[0], w.shape[0], *self.attributes(kernel).infer(x.shape[2:]))

    def convolution_cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact], weights: int) -> Cost:
        """Two operations for each multiply-add; `weights` is the weights' place among the inputs."""
        w, y = inputs[weights], outputs[0]
        moved = super().cost(inputs, outputs).bytes
        count, size = elements(y), None if w is None else elements(w)
        if w is None or w.shape is None or count is None or size is None or not isinstance(w.shape[0], int):
            return Cost(None, moved)
        return Cost(2.0 * count * size / max(w.shape[0], 1), moved)


@operator("Conv")
class Conv(Convolution):
    """Cross-correlation in any number of spatial dimensions, with groups, strides, dilations and a bias."""

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if type(self).run is not Conv.run:  # a class that makes more of it than a convolution
            return Host(self.run, f"the kernel computes Conv, not what {self.op_type} of {self.domain} makes of it")
        return self.template()

    def template(self, **parameters: Any) -> Template:
        """The native convolution, with what a class makes more of it."""
        return Template("convolution", {"group": self.group, "attributes": self.attributes, **parameters}, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        assert x is not None
        return [Fact(x.type, self.infer_convolution(x, inputs[1]))]

    def run(self, x: Array, w: Array, bias: Array | None = None) -> Sequence[Value]:
        _check(x.shape, w.shape, self.group)
        windows = self.attributes(w.shape[2:]).windows(x.shape[2:])
        wide = working_dtype(x.dtype)
        y = correlate(x.astype(wide, copy=False), w.astype(wide, copy=False), windows, self.group)
        if bias is not None:
            y += bias.astype(wide, copy=False).reshape(-1, *(1,) * (x.ndim - 2))
        return (y.astype(x.dtype, copy=False),)

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        return self.convolution_cost(inputs, outputs, 1)


def cut_too_much(axis: int) -> ValueError:
    """The error of a transposed convolution whose pads leave less than nothing."""
    return ValueError(f"the pads cut more than the result has on spatial axis {axis}")


@operator("ConvTranspose")
class ConvTranspose(Convolution):
    """The gradient of a convolution with respect to its input: every input element spreads a scaled kernel."""

    output_padding: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {"group": self.group, "attributes": self.attributes, "place": self.place}
        return Template("transposed_convolution", parameters, self.run)

    def place(self, axis: int, length: int, attributes: WindowAttributes) -> tuple[int, int]:
        """Where the output begins in the full result, and its length, along one spatial dimension."""
        count = len(attributes.kernel)
        stride = attributes.strides[axis]
        extra = self.output_padding[axis] if self.output_padding else 0
        extent = (attributes.kernel[axis] - 1) * attributes.dilations[axis] + 1
        full = stride * (length - 1) + extra + extent
        if self.output_shape:
            wanted = self.output_shape[-count:][axis]
        elif attributes.auto_pad.startswith("SAME"):
            wanted = length * stride
        elif attributes.auto_pad == "VALID":
            return 0, full
        else:
            begin, end = attributes.pads[axis], attributes.pads[axis + count]
            return begin, full - begin - end
        total = max(full - wanted, 0)
        # "If (auto_pads == SAME_UPPER): pads[start_i] = total_padding[i]/2 … Else: pads[start_i] =
        # total_padding[i] - (total_padding[i]/2)"
        return (total // 2 if attributes.auto_pad == "SAME_UPPER" else total - total // 2), wanted

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, w = inputs[0], inputs[1]
        assert x is not None
        assert w is not None
        if x.shape is None or w.shape is None:
            return [Fact(x.type, None)]
        if len(x.shape) != len(w.shape) or len(x.shape) < 3:
            raise ValueError(f"an input of rank {len(x.shape)} and weights of rank {len(w.shape)} do not fit")
        kernel = [dim for dim in w.shape[2:] if isinstance(dim, int)]
        filters = w.shape[1] * self.group if self.group != 1 else w.shape[1]
        if len(kernel) != len(x.shape) - 2:
            return [Fact(x.type, (x.shape[0], filters, *(unknown_dim() for _ in x.shape[2:])))]
        attributes = self.attributes(kernel)
        sizes: list[Dim] = []
        for axis, length in enumerate(x.shape[2:]):
            if isinstance(length, int):
                sizes.append(self.place(axis, length, attributes)[1])
            elif self.output_shape:
                sizes.append(self.output_shape[-len(kernel) :][axis])
            else:
                # The output's length is linear in the input's.
                at_zero = self.place(axis, 0, attributes)[1]
                sizes.append(dims.add(dims.multiply(length, attributes.strides[axis]), at_zero))
        return [Fact(x.type, (x.shape[0], filters, *sizes))]

    def run(self, x: Array, w: Array, bias: Array | None = None) -> Sequence[Value]:
        if x.ndim != w.ndim or x.ndim < 3 or x.shape[1] != w.shape[0] or x.shape[1] % self.group:
            raise ValueError(
                f"input {x.shape} and weights {w.shape} with group {self.group} do not fit: dimension 1 of the input "
                "must be dimension 0 of the weights and divide into the groups"
            )
        attributes = self.attributes(w.shape[2:])
        wide = working_dtype(x.dtype)
        batch, channels, *size = x.shape
        filters, kernel = w.shape[1], w.shape[2:]
        places = [self.place(axis, length, attributes) for axis, length in enumerate(size)]
        for axis, (_, length) in enumerate(places):
            if length < 0:
                raise cut_too_much(axis)
        spread = [
            (length - 1) * s + (k - 1) * d + 1
            for length, s, k, d in zip(size, attributes.strides, kernel, attributes.dilations, strict=True)
        ]
        room = [max(begin + length, whole) for (begin, length), whole in zip(places, spread, strict=True)]
        each = filters * math.prod(kernel)
        summed = batch * self.group * filters * (math.prod(room) + math.prod(kernel) * math.prod(size))
        memory.require(summed * np.dtype(wide).itemsize, "the sums of a transposed convolution")
        matrix = w.reshape(self.group, channels // self.group, each).astype(wide, copy=False).swapaxes(1, 2)
        points = x.reshape(batch, self.group, channels // self.group, math.prod(size)).astype(wide, copy=False)
        columns = (matrix @ points).reshape(batch, self.group * filters, *kernel, *size)
        full = np.zeros((batch, self.group * filters, *room), wide)
        windows = Windows(tuple(room), kernel, attributes.strides, attributes.dilations, (), (), tuple(size))
        for tap in windows.taps():
            view = windows.read(full, tap)
            at_tap: tuple[Any, ...] = (slice(None), slice(None), *tap)
            view += columns[at_tap]
        inner: tuple[Any, ...] = (..., *(slice(begin, begin + length) for begin, length in places))
        y = full[inner]
        if bias is not None:
            y = y + bias.astype(wide, copy=False).reshape(-1, *(1,) * len(size))
        return (np.ascontiguousarray(y).astype(x.dtype, copy=False),)

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        x, w = inputs[0], inputs[1]
        moved = super().cost(inputs, outputs).bytes
        points, size = None if x is None else elements(x), None if w is None else elements(w)
        if points is None or size is None or w is None or w.shape is None or not isinstance(w.shape[0], int):
            return Cost(None, moved)
        return Cost(2.0 * points * size / max(w.shape[0], 1), moved)


def _integers(x: Array, zero_point: Array | None, axis: int | None = None) -> Array:
    """x - zero_point in float64, where sums of 8-bit products are exact; the zero point lies along `axis`."""
    wide = x.astype(np.float64)
    if zero_point is None:
        return wide
    zero = zero_point.astype(np.float64)
    if zero.size == 1:
        return wide - zero.reshape(())
    return wide - zero.reshape(*(1,) * (axis or 0), -1, *(1,) * (x.ndim - 1 - (axis or 0)))


@operator("ConvInteger")
class ConvInteger(Convolution):
    """Conv of 8-bit integers into int32; the weights' zero point may differ per filter."""

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Template("convolution_integer", {"group": self.group, "attributes": self.attributes}, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType.INT32, self.infer_convolution(inputs[0], inputs[1]))]

    def run(
        self, x: Array, w: Array, x_zero_point: Array | None = None, w_zero_point: Array | None = None
    ) -> Sequence[Value]:
        _check(x.shape, w.shape, self.group)
        windows = self.attributes(w.shape[2:]).windows(x.shape[2:])
        y = correlate(_integers(x, x_zero_point), _integers(w, w_zero_point, 0), windows, self.group)
        return (y.astype(np.int64).astype(np.int32),)

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        return self.convolution_cost(inputs, outputs, 1)


@operator("QLinearConv")
class QLinearConv(Convolution):
    """Conv of quantised tensors: the int32 sums, with the bias, are scaled to the output's quantisation."""

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Template("convolution_quantized", self._parameters(), self.run)

    def _parameters(self) -> dict[str, Any]:
        return {"group": self.group, "attributes": self.attributes}

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        zero_point = inputs[7]
        assert zero_point is not None
        return [Fact(zero_point.type, self.infer_convolution(inputs[0], inputs[3]))]

    def run(
        self,
        x: Array,
        x_scale: Array,
        x_zero_point: Array,
        w: Array,
        w_scale: Array,
        w_zero_point: Array,
        y_scale: Array,
        y_zero_point: Array,
        bias: Array | None = None,
    ) -> Sequence[Value]:
        _check(x.shape, w.shape, self.group)
        windows = self.attributes(w.shape[2:]).windows(x.shape[2:])
        sums = correlate(_integers(x, x_zero_point), _integers(w, w_zero_point, 0), windows, self.group)
        ones = (1,) * (x.ndim - 2)
        if bias is not None:
            sums += bias.astype(np.float64).reshape(-1, *ones)
        scale = (
            x_scale.astype(np.float32).reshape(()) * w_scale.astype(np.float32) / y_scale.astype(np.float32).reshape(())
        )
        return (requantize(sums, scale.reshape(-1, *ones) if scale.size > 1 else scale.reshape(()), y_zero_point),)

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        return self.convolution_cost(inputs, outputs, 3)


__all__ = ["Conv", "ConvInteger", "ConvTranspose", "Convolution", "QLinearConv", "correlate"]

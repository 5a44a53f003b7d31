"""Convolution as a matrix product: a row of A for each place of the output, a column of B for each filter.

The input is brought into channels-last order, with its padding; a window is then a few runs of neighbouring channels,
and along the last dimension even one. Where windows overlap, or lie apart, a copy puts each of them into one row
("im2col"); a window of one run needs none. The result lies in channels-last order too and is handed on as a view in
ONNX's order, so that a chain of convolutions stays channels-last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.pad import Frame, framed
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.products.gemm_step import Packed, multiply, product_of
from sardonyx.compiler.native.products.packed_constants import pack_b
from sardonyx.compiler.native.template import Epilogue, NativeKernel, template
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.expr import Expr, Input, substitute
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.windows import WindowAttributes, Windows

# Groups with fewer channels than this leave the registers of a product empty.
_FEWEST_CHANNELS = 4
# With fewer channels than this a window is copied from ONNX's order, whose runs go along the last dimension.
_FEW_CHANNELS = 16


@template("convolution")
class ConvolutionKernel(NativeKernel):
    """Parameters: `group`, and `attributes`, from the kernel's sizes to its `WindowAttributes`."""

    takes_epilogue = True
    known_inputs = (1,)

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.group: int = parameters["group"]
        self.attributes: Callable[[Sequence[int]], WindowAttributes] = parameters["attributes"]

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        x, w = inputs[0], inputs[1]
        if x is None or w is None or x.dtype is None or w.shape is None or x.rank is None or x.rank < 3:
            return "the type or the rank of the input is not known before the run"
        if product_of(numpy_dtype(x.dtype)) is None:
            return f"no kernel for products of {numpy_dtype(x.dtype)}"
        if not all(isinstance(dim, int) and dim > 0 for dim in w.shape):
            return "the size of the weights is not known before the run, or 0"
        filters = w.shape[0]
        assert isinstance(filters, int)
        if self.group > 1 and filters // self.group < _FEWEST_CHANNELS:
            return f"a depthwise convolution ({filters} filters in {self.group} groups) has no kernel"
        return None

    def bind(
        self, binder: Binder, inputs: Sequence[Tensor | None], *, epilogue: Epilogue | None = None
    ) -> Sequence[Tensor | None]:
        x, w = inputs[0], inputs[1]
        assert x is not None
        assert w is not None
        bias = inputs[2] if len(inputs) > 2 else None
        if len(x.shape) != len(w.shape) or x.shape[1] != w.shape[1] * self.group or w.shape[0] % self.group:
            raise ValueError(f"input {x.shape} and weights {w.shape} with group {self.group} do not fit")
        windows = self.attributes(w.shape[2:]).windows(x.shape[2:])
        by_channels = _is_channels_last(x) or (x.shape[1] >= _FEW_CHANNELS and not _is_tiling(windows))
        rows = _rows_by_channels(binder, x, windows, self.group) if by_channels else None
        if rows is None:
            by_channels = False
            rows = _rows_in_order(binder, x, windows, self.group)
        return self._multiplied(binder, rows, self._panels(binder, w, by_channels), bias, windows, epilogue)

    def _panels(self, binder: Binder, w: Tensor, by_channels: bool) -> Packed:
        """The weights as panels [group, K, filters], K in the order of the rows."""
        filters, channels = w.shape[0] // self.group, w.shape[1]
        taps = math.prod(w.shape[2:])
        product = product_of(w.dtype)
        assert product is not None

        def panels(array: Array) -> Array:
            matrix: Array = array.reshape(self.group, filters, channels, taps)
            if by_channels:
                matrix = np.ascontiguousarray(matrix.transpose(0, 1, 3, 2))
            matrix = matrix.reshape(self.group, filters, taps * channels).transpose(0, 2, 1)
            return pack_b(binder.library, matrix, product)

        packed = binder.derived(w, ("panels of filters", self.group, by_channels, product), panels)
        return Packed(packed, (self.group, taps * channels, filters))

    def _multiplied(
        self,
        binder: Binder,
        rows: Tensor,
        panels: Packed,
        bias: Tensor | None,
        windows: Windows,
        epilogue: Epilogue | None,
    ) -> list[Tensor]:
        """The product of rows [batch, group, places, K] with the panels, as tensors in ONNX's order."""
        batch, filters = rows.shape[0], panels.shape[-1]
        result: Expr = Input(rows.dtype, 0)
        operands: list[Tensor] = []
        if bias is not None:
            result = result + Input(bias.dtype, 1)
            operands.append(bias.reshaped((self.group, 1, filters), (filters * bias.strides[0], 0, bias.strides[0])))
        outputs: tuple[Expr, ...] = (result,)
        shape = (batch, self.group * filters, *windows.output)
        if epilogue is not None:
            first = len(operands)
            whole = result

            def replaced(leaf: Input) -> Expr:
                return whole if leaf.index == 0 else Input(leaf.dtype, leaf.index + first)

            outputs = tuple(substitute(epilogue.outputs, replaced))
            operands.extend(self._as_rows(binder, operand, shape) for operand in epilogue.operands)
        last = (batch, *windows.output, self.group * filters)
        made = [binder.new(output.dtype, last) for output in outputs]
        product = product_of(rows.dtype)
        assert product is not None
        multiply(binder, rows, panels, outputs, operands, [self._grouped(tensor) for tensor in made], product)
        order = (0, len(shape) - 1, *range(1, len(shape) - 1))
        return [transposed(tensor, order) for tensor in made]

    def _grouped(self, tensor: Tensor) -> Tensor:
        """A contiguous channels-last tensor as [batch, group, places, filters of a group]."""
        batch, channels = tensor.shape[0], tensor.shape[-1]
        places, filters = math.prod(tensor.shape[1:-1]), channels // self.group
        return tensor.reshaped((batch, self.group, places, filters), (places * channels, filters, channels, 1))

    def _as_rows(self, binder: Binder, operand: Tensor, shape: tuple[int, ...]) -> Tensor:
        """An operand that broadcasts to the result in ONNX's order, as one that broadcasts to the product."""
        last = transposed(_broadcast(operand, shape), (0, *range(2, len(shape)), 1))
        strides, sizes = list(last.strides[1:-1]), list(last.shape[1:-1])
        # The places must be one axis: a step that counts for all of them, or a copy.
        while len(sizes) > 1 and (strides[-2] == sizes[-1] * strides[-1] or sizes[-2] == 1):
            sizes[-2:], strides[-2:] = [sizes[-2] * sizes[-1]], [strides[-1]]
        if len(sizes) > 1:
            return self._grouped(contiguous(binder, last))
        filters = shape[1] // self.group
        step = last.strides[-1]
        return operand.reshaped(
            (shape[0], self.group, sizes[0], filters), (last.strides[0], filters * step, strides[0], step)
        )


def _broadcast(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor repeated to a shape that it broadcasts to."""
    missing = len(shape) - len(tensor.shape)
    sizes, strides = (1,) * missing + tensor.shape, (0,) * missing + tensor.strides
    if missing < 0 or any(size not in (1, wanted) for size, wanted in zip(sizes, shape, strict=True)):
        raise ValueError(f"shape {tensor.shape} does not broadcast to {tuple(shape)}")
    return tensor.reshaped(
        shape,
        [0 if size == 1 and wanted != 1 else step for size, wanted, step in zip(sizes, shape, strides, strict=True)],
    )


def _is_channels_last(x: Tensor) -> bool:
    return x.strides[1] == 1 and x.shape[1] > 1


def _is_tiling(windows: Windows) -> bool:
    """Whether the windows lie side by side, as patches do."""
    return windows.kernel == windows.strides and not any((*windows.begin, *windows.end)) and max(windows.kernel) > 1


def _behind(windows: Windows) -> tuple[int, ...]:
    """The padding behind the data that the last window needs."""
    reach = [
        (count - 1) * stride + (kernel - 1) * dilation + 1
        for count, stride, kernel, dilation in zip(
            windows.output, windows.strides, windows.kernel, windows.dilations, strict=True
        )
    ]
    return tuple(
        max(0, end, needed - size - begin)
        for end, needed, size, begin in zip(windows.end, reach, windows.size, windows.begin, strict=True)
    )


def _padded(binder: Binder, x: Tensor, windows: Windows) -> Tensor:
    """The input with zeros around it; negative padding cuts."""
    behind = _behind(windows)
    cut = tuple((max(0, -begin), max(0, -end)) for begin, end in zip(windows.begin, windows.end, strict=True))
    added = tuple((max(0, begin), end) for begin, end in zip(windows.begin, behind, strict=True))
    none = ((0, 0),)
    return framed(binder, x, Frame((*none, *cut, *none), (*none, *added, *none)), "constant", None)


def _rows_by_channels(binder: Binder, x: Tensor, windows: Windows, group: int) -> Tensor | None:
    """[batch, group, places, taps * channels] from the input in channels-last order."""
    spatial = len(windows.size)
    last = transposed(x, (0, *range(2, spatial + 2), 1))
    data = _padded(binder, last, windows)
    if not data.is_contiguous:
        data = contiguous(binder, data)
    batch, channels = data.shape[0], data.shape[-1]
    each = channels // group
    steps = data.strides[1:-1]
    over = [stride * step for stride, step in zip(windows.strides, steps, strict=True)]
    within = [dilation * step for dilation, step in zip(windows.dilations, steps, strict=True)]
    places = math.prod(windows.output)
    one_run = group == 1 and all(size == 1 for size in windows.kernel[:-1]) and (
        windows.kernel[-1] == 1 or windows.dilations[-1] == 1
    )  # fmt: skip
    flat = _one_step(windows.output, over)
    if one_run and flat is not None:
        width = windows.kernel[-1] * channels
        return data.reshaped((batch, 1, places, width), (data.strides[0], 0, flat, 1))
    view = data.reshaped(
        (batch, *windows.output, group, *windows.kernel, each),
        (data.strides[0], *over, each, *within, 1),
    )
    rows = contiguous(binder, view)
    width = math.prod(windows.kernel) * each
    return rows.reshaped((batch, group, places, width), (places * group * width, width, group * width, 1))


def _rows_in_order(binder: Binder, x: Tensor, windows: Windows, group: int) -> Tensor:
    """[batch, group, places, channels * taps] from the input in ONNX's order."""
    spatial = len(windows.size)
    order = (0, *range(2, spatial + 2), 1)
    last = _padded(binder, transposed(x, order), windows)
    batch, channels = last.shape[0], last.shape[-1]
    each = channels // group
    steps, step = last.strides[1:-1], last.strides[-1]
    over = [stride * one for stride, one in zip(windows.strides, steps, strict=True)]
    within = [dilation * one for dilation, one in zip(windows.dilations, steps, strict=True)]
    view = last.reshaped(
        (batch, *windows.output, group, each, *windows.kernel),
        (last.strides[0], *over, each * step, step, *within),
    )
    rows = contiguous(binder, view)
    places, width = math.prod(windows.output), math.prod(windows.kernel) * each
    return rows.reshaped((batch, group, places, width), (places * group * width, width, group * width, 1))


def _one_step(sizes: Sequence[int], steps: Sequence[int]) -> int | None:
    """The step of several axes as one, where they are evenly spaced."""
    found = steps[-1]
    count = sizes[-1]
    for size, step in zip(sizes[-2::-1], steps[-2::-1], strict=True):
        if size != 1 and step != count * found:
            return None
        count *= size
    return found

"""Deformable convolution: the windows, each tap read where it was moved, and their product with the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Address, Array, Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel, template
from sardonyx.compiler.llvm.kernels.sampling.deformed import DeformedSpec, emit_deformed_columns
from sardonyx.compiler.llvm.types import type_of
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.products.gemm_step import multiply
from sardonyx.compiler.native.products.inner_products import product_of
from sardonyx.compiler.native.products.packed_constants import Packed, in_panels
from sardonyx.compiler.native.rows.rows import elements_per_chunk
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.expr import Input
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.windows import WindowAttributes, Windows

# Spatial dimensions for which the combinations of neighbours are written out.
_MOST_DIMENSIONS = 3


@template("deformable_convolution")
class DeformableConvolution(NativeKernel):
    """Parameters: `group`; `offset_group`; `attributes`, from the kernel's sizes to its `WindowAttributes`; `check`,
    which raises ValueError where the shapes of input, weights, offset and mask do not fit the windows.
    """

    takes_epilogue = True

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.group: int = parameters["group"]
        self.offset_group: int = parameters["offset_group"]
        self.attributes: Callable[[Sequence[int]], WindowAttributes] = parameters["attributes"]
        self.check: Callable[..., None] = parameters["check"]

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        x = inputs[0]
        if x is None or x.dtype is None or x.rank is None:
            return "the type or the rank of the input is not known before the run"
        if product_of(numpy_dtype(x.dtype)) is None:
            return f"no kernel for products of {numpy_dtype(x.dtype)}"
        return f"more than {_MOST_DIMENSIONS} spatial dimensions" if x.rank > _MOST_DIMENSIONS + 2 else None

    def bind(
        self,
        binder: Binder,
        x: Tensor,
        w: Tensor,
        offset: Tensor,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        epilogue: Epilogue | None = None,
    ) -> Sequence[Tensor | None]:
        windows = self.attributes(w.shape[2:]).windows(x.shape[2:])
        self.check(x.shape, w.shape, offset.shape, None if mask is None else mask.shape, windows)
        product = "f64" if x.dtype == np.float64 else "f32"
        call = ConvolutionCall(x, w, bias, windows, self.group, epilogue, product)
        finish = call.finish(binder)
        results = call.results(binder, finish)
        if results[0].size:
            columns = self._columns(binder, call, offset, mask)
            operands = [call.by_groups(tensor) for tensor in finish.operands]
            made = [call.by_groups(tensor) for tensor in results]
            multiply(binder, columns, self._weights(binder, call), finish.outputs, operands, made, product)
        return call.handed_on(results)

    def _columns(self, binder: Binder, call: ConvolutionCall, offset: Tensor, mask: Tensor | None) -> Tensor:
        """The windows as [batch, group, places, taps * channels of a group]."""
        x, windows = contiguous(binder, call.channels_last), call.windows
        offset = contiguous(binder, offset)
        mask = None if mask is None else contiguous(binder, mask)
        own, taps, batch = call.channels // call.group, call.taps, call.batch
        piece = math.gcd(own, call.channels // self.offset_group)
        width = taps * own
        dtype = _working(x.dtype)
        columns = binder.new(dtype, (batch, call.places, call.group, taps, own))
        type_ = type_of(x.dtype)
        assert type_ is not None
        count = batch * call.places
        per_chunk = elements_per_chunk(count, taps * call.channels * dtype.itemsize, 16 * taps * call.channels)
        spatial = zip(windows.size, x.strides[1:-1], windows.output, windows.strides, strict=True)
        binder.step(
            emit_deformed_columns,
            DeformedSpec(type_, len(windows.size), mask is not None),
            [
                *(x, offset, 0 if mask is None else mask, columns, _tap_table(binder, windows), count, per_chunk),
                *(call.places, self.offset_group, taps, call.channels, own, piece),
                *(call.channels // self.offset_group // piece, x.strides[0]),
                *(number for axis in spatial for number in axis),
            ],
            reads=(x, offset) if mask is None else (x, offset, mask),
            writes=(columns,),
            chunks=-(-count // per_chunk),
            flops=2.0 * columns.size * 2 ** len(windows.size),
            detail=f"{count} windows of {taps} taps, {call.channels} channels",
        )
        shape = (batch, call.group, call.places, width)
        return columns.reshaped(shape, (call.places * call.group * width, width, call.group * width, 1))

    def _weights(self, binder: Binder, call: ConvolutionCall) -> Tensor | Packed:
        """The weights as [group, taps * channels of a group, filters of a group], in panels where they are constant."""
        group, taps, filters, own = call.group, call.taps, call.filters // call.group, call.w.shape[1]
        dtype = _working(call.w.dtype)
        shape = (group, taps * own, filters)

        def matrices(array: Array) -> Array:
            by_taps = array.astype(dtype).reshape(group, filters, own, taps).transpose(0, 1, 3, 2)
            return by_taps.reshape(group, filters, taps * own).transpose(0, 2, 1)

        if call.has_constant_weights:
            return in_panels(binder, call.w, ("moved taps", group), matrices, call.product, shape)
        w = contiguous(binder, call.w)
        if w.dtype != dtype:
            (w,) = PointwiseKernel((Input(w.dtype, 0).cast(dtype),), (w.dtype,)).bind(binder, [w])
        by_taps = transposed(w.reshaped((group, filters, own, taps)), (0, 3, 2, 1))
        return contiguous(binder, by_taps).reshaped(shape)


def _working(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What is computed with."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _tap_table(binder: Binder, windows: Windows) -> Address:
    """Where the taps of a window lie from its start, padding included: a number for each dimension."""
    places = [
        [tap * dilation - begin for tap, dilation, begin in zip(taps, windows.dilations, windows.begin, strict=True)]
        for taps in windows.taps()
    ]
    return Address(binder.constant(np.array(places, np.int64)).buffer)

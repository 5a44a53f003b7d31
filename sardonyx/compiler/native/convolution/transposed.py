"""Transposed convolution: every element of the input spreads a scaled kernel over the result.

With strides of 1 it is a convolution by the turned kernel. Otherwise one matrix product gives, for each element of the
input, all taps of all filters (a row of "columns"), and each element of the result gathers those that fall on it; where
kernels do not overlap, products are written to their places at once. One filter for one channel needs no product: the
elements are scaled while they are gathered. Everything lies channels-last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel, template
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.sampling.overlaps import SPATIAL
from sardonyx.compiler.native.convolution.convolution import convolve
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall, Finish
from sardonyx.compiler.native.convolution.line_sums import fills_lines, sum_lines
from sardonyx.compiler.native.convolution.overlaps import (
    Spread,
    add_overlaps,
    integers,
    is_tiling,
    row_steps,
)
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.products.gemm_step import multiply
from sardonyx.compiler.native.products.inner_products import product_of, products_reason
from sardonyx.compiler.native.products.left_rows import OverlappingRows
from sardonyx.compiler.native.products.packed_constants import Packed, in_panels
from sardonyx.compiler.native.products.words import as_words
from sardonyx.kernel.expr import Input
from sardonyx.ops.convolution import cut_too_much
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.windows import WindowAttributes, Windows


@template("transposed_convolution")
class TransposedConvolution(NativeKernel):
    """Parameters: `group`; `attributes`, from the kernel's sizes to its `WindowAttributes`; `place`, from an axis, the
    input's length on it and those attributes to where the result begins among all that is added to, and its length.
    """

    takes_epilogue = True
    writes_slices = True

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.group: int = parameters["group"]
        self.attributes: Callable[[Sequence[int]], WindowAttributes] = parameters["attributes"]
        self.place: Callable[[int, int, WindowAttributes], tuple[int, int]] = parameters["place"]

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        reason = products_reason(inputs[:2])
        if reason is not None:
            return reason
        ranks = [fact.rank for fact in inputs[:2] if fact is not None]
        fits = all(rank is not None and rank <= SPATIAL + 2 for rank in ranks)
        return None if fits else f"more than {SPATIAL} spatial dimensions"

    def bind(
        self, binder: Binder, x: Tensor, w: Tensor, bias: Tensor | None = None, *, epilogue: Epilogue | None = None
    ) -> Sequence[Tensor | None]:
        spreads = self._spreads(x, w)
        filters = w.shape[1] * self.group
        if bias is not None and bias.shape != (filters,):
            raise ValueError(f"the bias has the shape {bias.shape}, but there are {filters} filters")
        precision = binder.settings.precision if self.group == 1 else "float32"
        product = product_of(x.dtype, binder.target, precision)
        assert product is not None
        windows = _turned_windows(spreads)
        is_convolution = min(x.size, w.size) > 0 and _is_convolution(spreads, windows)
        turned = _turned(binder, w, self.group, copied=is_convolution)
        call = ConvolutionCall(x, turned, bias, windows, self.group, epilogue, product)
        if is_convolution:
            return convolve(binder, call)
        if fills_lines(binder, call, spreads):
            return sum_lines(binder, call, _taps_as_rows(binder, w), spreads)
        finish = call.finish(binder)
        in_tiles = self.group == 1 and x.size > 0 and len(spreads) <= 2 and is_tiling(spreads)
        results = call.results(binder, finish) if in_tiles else call.new_results(binder, finish)
        if x.size == 0:
            spreads = [replace(one, length=0) for one in spreads]
        if results[0].size:
            if in_tiles:
                self._write_tiles(binder, call, w, spreads, finish, results)
            elif w.shape[0] == self.group and w.shape[1] == 1 and self.group > 1:
                self._gather_scaled(binder, call, w, spreads, finish, results)
            else:
                self._gather_products(binder, call, w, spreads, finish, results)
        return call.handed_on(results)

    def _spreads(self, x: Tensor, w: Tensor) -> list[Spread]:
        """The spatial dimensions; ValueError where the shapes do not fit."""
        rank = len(x.shape)
        if rank != len(w.shape) or rank < 3 or x.shape[1] != w.shape[0] or x.shape[1] % self.group:
            raise ValueError(
                f"input {x.shape} and weights {w.shape} with group {self.group} do not fit: dimension 1 of the input "
                "must be dimension 0 of the weights and divide into the groups"
            )
        attributes = self.attributes(w.shape[2:])
        spreads = []
        for axis, (length, taps) in enumerate(zip(x.shape[2:], w.shape[2:], strict=True)):
            begin, output = self.place(axis, length, attributes)
            if output < 0:
                raise cut_too_much(axis)
            dilation = attributes.dilations[axis]
            # A single element never moves: any stride will do, and this one shows where kernels do not overlap.
            stride = attributes.strides[axis] if length > 1 else (taps - 1) * dilation + 1
            spreads.append(Spread(length, output, taps, stride, dilation, begin))
        return spreads

    def _write_tiles(
        self,
        binder: Binder,
        call: ConvolutionCall,
        w: Tensor,
        spreads: Sequence[Spread],
        finish: Finish,
        results: Sequence[Tensor],
    ) -> None:
        """Products written where they belong: an element's taps along the last dimension lie together in the result,
        unless places lie apart there.

        A product for each tap along the first dimension, where there are two, over rows of [batch, height, width]; and
        for each one along the last dimension where places lie apart.
        """
        *rows, across = spreads
        down = rows[0] if rows else Spread(1, 1, 1, 1, 1, 0)
        x = contiguous(binder, call.channels_last)
        batch, filters = x.shape[0], w.shape[1]
        each = across.taps if all(tensor.strides[-2] == filters for tensor in results) else 1
        # Taps of their own are done line by line where their weights stay in a cache: the input comes but once then.
        by_lines = each < across.taps and w.nbytes <= binder.target.caches.l2 // 2

        def axes(of_taps: Sequence[int], of_lines: Sequence[int]) -> tuple[int, ...]:
            return (*of_lines, *of_taps) if by_lines else (*of_taps, *of_lines)

        taps = down.taps, across.taps // each
        lines, width = (*axes(taps, (batch, down.length)), across.length), each * filters

        def tiles(tensor: Tensor) -> Tensor:
            place = tensor.strides[-2]
            line = across.output * place
            steps = axes((line, place), (down.output * line, down.taps * line))
            return tensor.reshaped((*lines, width), (*steps, across.taps * place, 1))

        operands: list[Tensor] = []
        for index, operand in enumerate(finish.operands):
            if any(operand.strides[:-1]):
                operands.append(tiles(contiguous(binder, operand)))
                continue
            if operand.strides[-1] == 0:
                row = operand.reshaped((1,), (0,))
            elif index == 0 and call.bias is not None and call.bias.is_known and call.bias.buffer.kind == "constant":
                row = binder.derived(call.bias, ("a bias for each tap", each), lambda bias: np.tile(bias, each))
            else:
                row = contiguous(binder, operand.reshaped((each, filters), (0, 1))).reshaped((width,))
            operands.append(row.reshaped((*lines, width), (0, 0, 0, 0, 0, row.strides[0])))
        x = x.reshaped((batch, down.length, across.length, x.shape[-1]))
        read, size_k = _as_rows(binder, x, w, call.product)
        shape, steps = (*lines, size_k), (*axes((0, 0), read.strides[:2]), read.strides[2])
        multiply(
            binder,
            x.reshaped(shape, (*steps, 1)) if read is x else OverlappingRows(read, steps, shape),
            self._rows_of_taps(binder, w, (*axes(taps, (1, 1)), size_k, width), call.product),
            finish.outputs,
            operands,
            [tiles(tensor) for tensor in results],
            call.product,
        )

    def _rows_of_taps(self, binder: Binder, w: Tensor, shape: tuple[int, ...], product: str) -> Tensor | Packed:
        """The weights in a shape [rows of the kernel or parts of them..., K, taps of a part * filters], where K are the
        channels, and zeros behind them."""
        (channels, filters), (size_k, width) = w.shape[:2], shape[-2:]
        parts = math.prod(shape[:-2])
        taps, order = (channels, filters, parts, width // filters), (2, 0, 3, 1)

        def matrices(array: Array) -> Array:
            by_taps = array.reshape(taps).transpose(order).reshape(parts, channels, width)
            return np.pad(by_taps, ((0, 0), (0, size_k - channels), (0, 0)))

        if w.is_known and w.buffer.kind == "constant":
            return in_panels(binder, w, ("rows of taps", parts, size_k), matrices, product, shape)
        return contiguous(binder, transposed(contiguous(binder, w).reshaped(taps), order)).reshaped(shape)

    def _gather_products(
        self,
        binder: Binder,
        call: ConvolutionCall,
        w: Tensor,
        spreads: Sequence[Spread],
        finish: Finish,
        results: Sequence[Tensor],
    ) -> None:
        """The product of the input's elements with all taps, [batch, places, group, taps, filters], and its sums."""
        group, x = self.group, contiguous(binder, call.channels_last)
        batch, channels = x.shape[0], x.shape[-1]
        places, own = math.prod(x.shape[1:-1]), channels // group
        filters, taps = w.shape[1], math.prod(w.shape[2:])
        width = taps * filters
        columns = binder.new(_wide(x.dtype), (batch, places, group, taps, filters))
        if x.size:
            multiply(
                binder,
                x.reshaped((1, group, batch * places, own), (0, own, channels, 1)),
                self._taps_by_filters(binder, w, call.product),
                (Input(x.dtype, 0).cast(columns.dtype),),
                (),
                [columns.reshaped((1, group, batch * places, width), (0, width, group * width, 1))],
                call.product,
            )
        steps = row_steps(x.shape[1:-1], group * width)
        read = [(step, 0) for step in steps], [(step, 0) for step in row_steps(w.shape[2:], filters)]
        add_overlaps(binder, columns, None, spreads, read, (batch, group, filters), width, finish, results)

    def _taps_by_filters(self, binder: Binder, w: Tensor, product: str) -> Tensor | Packed:
        """The weights as [1, group, channels of a group, taps * filters of it], in panels where they are constant."""
        channels, filters = w.shape[:2]
        taps, own = math.prod(w.shape[2:]), channels // self.group

        shape = (1, self.group, own, taps * filters)

        def matrices(array: Array) -> Array:
            by_taps = array.reshape(self.group, own, filters, taps).swapaxes(2, 3)
            return by_taps.reshape(shape[1:])

        if w.is_known and w.buffer.kind == "constant":
            return in_panels(binder, w, ("taps", self.group), matrices, product, shape)
        w = contiguous(binder, w)
        by_taps = w.reshaped((channels, taps, filters), (filters * taps, 1, taps))
        return contiguous(binder, by_taps).reshaped(shape)

    def _gather_scaled(
        self,
        binder: Binder,
        call: ConvolutionCall,
        w: Tensor,
        spreads: Sequence[Spread],
        finish: Finish,
        results: Sequence[Tensor],
    ) -> None:
        """The input's own elements, each scaled by the weight of the channel and tap."""
        x = contiguous(binder, call.channels_last)
        channels, taps = x.shape[-1], math.prod(w.shape[2:])
        if w.is_known and w.buffer.kind == "constant":
            scales = binder.derived(
                w,
                "taps of channels",
                lambda array: np.ascontiguousarray(array.reshape(channels, taps).T),
            )
        else:
            scales = contiguous(binder, contiguous(binder, w).reshaped((taps, channels), (1, taps)))
        elements = [(step, 0) for step in row_steps(x.shape[1:-1], channels)]
        read = elements, [(0, step) for step in row_steps(w.shape[2:], channels)]
        add_overlaps(binder, x, scales, spreads, read, (x.shape[0], 1, channels), 0, finish, results)


@template("transposed_convolution_with_pads")
class TransposedConvolutionWithPads(NativeKernel):
    """The same with the pads as third input, in front of the bias. Parameter beside the others: `with_pads`, from pads
    to what has the `attributes` and the `place` for them.
    """

    takes_epilogue = True
    known_inputs = (2,)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return TransposedConvolution(self.parameters).declines(inputs, outputs)

    def bind(
        self,
        binder: Binder,
        x: Tensor,
        w: Tensor,
        pads: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        epilogue: Epilogue | None = None,
    ) -> Sequence[Tensor | None]:
        parameters = dict(self.parameters)
        if pads is not None:
            known = self.parameters["with_pads"](integers(pads))
            parameters.update(attributes=known.attributes, place=known.place)
        return TransposedConvolution(parameters).bind(binder, x, w, bias, epilogue=epilogue)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _as_rows(binder: Binder, x: Tensor, w: Tensor, product: str) -> tuple[Tensor, int]:
    """A contiguous input with its channels last as rows that products by several matrices read, and their K: rows of
    words, which are made once for all of them, where the product has several elements in one."""
    depth = PRODUCTS[product].depth
    if depth == 1 or not (w.is_known and w.buffer.kind == "constant"):
        return x, x.shape[-1]
    words = as_words(binder, x, product)
    return words, words.shape[-1] * depth


def _turned_windows(spreads: Sequence[Spread]) -> Windows:
    """The windows of a convolution with stride 1 over the input whose elements lie a stride apart."""
    size, kernel, strides, dilations, begin, end, output = zip(
        *(
            (
                (max(one.length, 1) - 1) * one.stride + 1,
                one.taps,
                1,
                one.dilation,
                (one.taps - 1) * one.dilation - one.begin,
                one.output + one.begin - (max(one.length, 1) - 1) * one.stride - 1,
                one.output,
            )
            for one in spreads
        ),
        strict=True,
    )
    return Windows(size, kernel, strides, dilations, begin, end, output)


def _is_convolution(spreads: Sequence[Spread], windows: Windows) -> bool:
    """Whether the windows are those of the input itself, with padding that is none or more."""
    return all(one.stride == 1 for one in spreads) and min(*windows.begin, *windows.end, *windows.output) >= 0


def _taps_as_rows(binder: Binder, w: Tensor) -> Tensor:
    """The weights as [filters * taps, channels]."""
    channels, rows = w.shape[0], math.prod(w.shape[1:])
    if w.is_known and w.buffer.kind == "constant":
        return binder.derived(w, "taps as rows", lambda array: np.ascontiguousarray(array.reshape(channels, rows).T))
    return contiguous(binder, transposed(contiguous(binder, w).reshaped((channels, rows)), (1, 0)))


def _turned(binder: Binder, w: Tensor, group: int, *, copied: bool) -> Tensor:
    """Weights [channels, filters / group, …] as those of a convolution, [filters, channels / group, …], taps turned.

    Their contents are only there where they are `copied`.
    """
    channels, filters, *kernel = w.shape
    own = channels // group
    shape = (group * filters, own, *kernel)

    def turn(array: Array) -> Array:
        by_filters = np.swapaxes(array.reshape(group, own, filters, *kernel), 1, 2)
        return np.ascontiguousarray(np.flip(by_filters, tuple(range(3, by_filters.ndim)))).reshape(shape)

    if not copied:
        return Tensor(w.dtype, shape, (0,) * len(shape), w.buffer)
    if w.is_known and w.buffer.kind == "constant":
        return binder.derived(w, ("turned kernels", group), turn)
    w = contiguous(binder, w)
    taps = math.prod(kernel)
    backwards = w.reshaped(
        (group, filters, own, taps),
        (own * filters * taps, taps, filters * taps, -1),
        (taps - 1) * w.dtype.itemsize,
    )
    return contiguous(binder, backwards).reshaped(shape)

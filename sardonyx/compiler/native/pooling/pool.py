"""Pools: elements of windows combined, in the layout in which the input lies.

The vectors lie along the channels where those lie together, else along the last dimension; an input that lies
otherwise is copied channels-last.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel, template
from sardonyx.compiler.llvm.expression import supported
from sardonyx.compiler.llvm.kernels.windows.folds import Combine, Locate
from sardonyx.compiler.llvm.kernels.windows.frame import DIMENSIONS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.windows.channel_windows import bind_channel_windows
from sardonyx.compiler.native.windows.operands import in_places, spread_over
from sardonyx.compiler.native.windows.row_strips import bind_row_strips, longest, ns_of_strips, strips_fit
from sardonyx.compiler.native.windows.row_windows import bind_row_windows
from sardonyx.compiler.native.windows.window_call import Slide, WindowCall
from sardonyx.compiler.native.windows.window_tiles import bind_window_tiles, tiles_fit
from sardonyx.kernel.canonical import canonical
from sardonyx.kernel.cost import weight
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Expr, Input, substitute
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.windows import WindowAttributes, Windows
from sardonyx.runtime.memory import memory

# Dimensions that kernels slide windows over at most.
_MOST_SLID = len(DIMENSIONS)
# What it takes to make the number of elements of a window.
_BYTES_PER_COUNT = 24
# From the total of a window, how many elements it has and the node's further inputs to the result.
Result = Callable[..., Expr]


def _input_reason(x: Fact | None) -> str | None:
    """Why an input of this type and rank has no kernel."""
    if x is None or x.dtype is None or x.rank is None:
        return "the type or the rank of the input is not known before the run"
    return f"windows over more than {_MOST_SLID} dimensions" if x.rank > 2 + _MOST_SLID else None


@template("pool")
class PoolKernel(NativeKernel):
    """A pool of ONNX.

    Parameters: `attributes` of the windows; `kind`, the `Reduce` that combines elements; `element`, an expression of
    one over ``Input(0)``; `result`, what makes the result of the total, the number of elements and the further inputs,
    scalars; `counts`, whether elements are counted in the `padding` too, only `inside`, or need not be counted ("");
    `channels_last`, whether the channels are the last axis.
    """

    takes_epilogue = True

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.attributes: WindowAttributes = parameters["attributes"]
        self.kind: str = parameters["kind"]
        self.element: Expr = parameters["element"]
        self.result: Result = parameters["result"]
        self.counts: str = parameters["counts"]
        self.channels_last: bool = parameters["channels_last"]
        self.hands_on = self.kind == "maximum"
        self.writes_slices = self.reads_slices = not self.channels_last

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return _input_reason(inputs[0]) or supported([self.element])

    def bind(
        self, binder: Binder, x: Tensor, *others: Tensor | None, epilogue: Epilogue | None = None
    ) -> Sequence[Tensor | None]:
        if len(x.shape) < 3:
            raise ValueError(f"a pool needs an input of rank 3 at least (N, C, ...), not {x.shape}")
        rank = len(x.shape)
        last = x if self.channels_last else transposed(x, (0, *range(2, rank), 1))
        whole = self.attributes.windows(last.shape[1:-1], weighs=False)
        windows = whole.trimmed()
        shape = (x.shape[0], *windows.output, last.shape[-1])
        element = self.element
        if self.hands_on:  # x may be rounded
            element = Input(x.dtype, 0).cast(working_dtype(x.dtype))
        total = Input(working_dtype(x.dtype), 0)
        operands: list[Tensor] = []
        count: Expr | None = None
        if self.counts:
            operands.append(_counts(binder, whole, total.dtype, include_padding=self.counts == "padding"))
            count = Input(total.dtype, 1)
        further = [tensor for tensor in others if tensor is not None]
        leaves = [Input(tensor.dtype, 1 + len(operands) + index) for index, tensor in enumerate(further)]
        outputs: tuple[Expr, ...] = (self.result(total, count, *leaves),)
        operands = [*operands, *further]
        if epilogue is not None:
            order = None if self.channels_last else (0, *range(2, rank), 1)
            outputs = _followed(outputs[0], epilogue, 1 + len(operands))
            operands += [_ordered(operand, rank, order) for operand in epilogue.operands]
        made = pool(binder, last, windows, Combine(self.kind, canonical([element])), outputs, operands, shape)
        return made if self.channels_last else [transposed(one, (0, rank - 1, *range(1, rank - 1))) for one in made]


@template("located_pool")
class LocatedPoolKernel(NativeKernel):
    """MaxPool with the places of the maxima: parameters are the `attributes` of the windows and `storage_order`."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return _input_reason(inputs[0])

    def bind(self, binder: Binder, x: Tensor) -> Sequence[Tensor | None]:
        rank = len(x.shape)
        if rank < 3:
            raise ValueError(f"a pool needs an input of rank 3 at least (N, C, ...), not {x.shape}")
        attributes: WindowAttributes = self.parameters["attributes"]
        windows = attributes.windows(x.shape[2:], weighs=False).trimmed()
        last = _channels_together(binder, transposed(x, (0, *range(2, rank), 1)))
        numbers, step = [1] * (rank - 2), 1
        axes = range(rank - 2) if self.parameters["storage_order"] else reversed(range(rank - 2))
        for axis in axes:
            numbers[axis], step = step, step * windows.size[axis]
        shape = (x.shape[0], *windows.output, x.shape[1])
        outputs = (Input(x.dtype, 0), Input(np.dtype(np.int64), 1))
        results = tuple(binder.new(output.dtype, shape) for output in outputs)
        taps = float(math.prod(windows.kernel))
        bind_channel_windows(
            binder, WindowCall(last, windows, Locate(), outputs, (), results, 4 * taps, numbers=tuple(numbers))
        )
        return [transposed(one, (0, rank - 1, *range(1, rank - 1))) for one in results]


def pool(
    binder: Binder,
    x: Tensor,
    windows: Windows,
    fold: Combine,
    outputs: tuple[Expr, ...],
    operands: Sequence[Tensor],
    shape: tuple[int, ...],
) -> list[Tensor]:
    """The outputs over the combination of windows of `x` [batch, *sizes, channels] and over operands.

    The result has `shape` [batch, *places, channels], and the operands broadcast to it. It lies in memory as `x` does,
    unless that is copied because windows over small maps are faster with the channels together.
    """
    taps = sum(windows.kernel)  # the kernels go over rows first, then along them
    operations = float(taps * (1 + weight(fold.element.roots)) + weight(outputs))
    slide = Slide.of(windows)
    steps = slide.each(x.strides[1:-1], 0)
    by_rows = x.strides[-1] != 1 and steps[-1] == 1 and slide.output[-1] > 1
    if by_rows and x.shape[-1] > 1:
        by_rows = _ns_by_rows(binder.target, slide, fold, shape) <= _ns_by_channels(binder.target, slide, x, shape)
    if not by_rows:
        x = _channels_together(binder, x)
    if by_rows:
        made = [_in_rows(binder, output.dtype, shape) for output in outputs]
    else:
        made = [binder.result(place, output.dtype, shape) for place, output in enumerate(outputs)]
    read = tuple(
        in_places(binder, spread_over(operand, shape), by_rows=by_rows, last=slide.dimensions[-1])
        for operand in operands
    )
    call = WindowCall(x, windows, fold, outputs, read, tuple(made), operations)
    if by_rows and strips_fit(binder.target, slide, fold, call.lanes(binder.target, longest(slide))):
        bind_row_strips(binder, call)
    elif by_rows:
        bind_row_windows(binder, call)
    elif tiles_fit(binder.target, call):
        bind_window_tiles(binder, call)
    else:
        bind_channel_windows(binder, call)
    return made


# Nanoseconds for a row of windows and for combining two vectors in it; for combining two where channels lie together;
# bytes a nanosecond that copies move, and that windows read and write.
_ROW_NS, _IN_ROW_NS, _AMONG_CHANNELS_NS = 5.6, 0.66, 0.3
_COPIED, _MOVED = 50.0, 60.0


def _ns_by_rows(target: Target, slide: Slide, fold: Combine, shape: Sequence[int]) -> float:
    """How long a pool takes that goes along the rows of maps: a rough figure."""
    lanes = min(target.lanes(F32), longest(slide))
    if strips_fit(target, slide, fold, lanes):
        return ns_of_strips(target, slide, shape[0] * shape[-1], lanes)
    rows = shape[0] * shape[-1] * math.prod(slide.output[:-1])
    over, along = -(-slide.size[-1] // lanes), -(-slide.output[-1] // lanes)
    combined = over * math.prod(slide.kernel[:-1]) + along * slide.kernel[-1]
    return rows * (_ROW_NS + _IN_ROW_NS * combined)


def _ns_by_channels(target: Target, slide: Slide, x: Tensor, shape: Sequence[int]) -> float:
    """The same with the channels together, what is copied before and perhaps after it included."""
    lanes = min(target.lanes(F32), 1 << (shape[-1].bit_length() - 1))
    nbytes = x.nbytes + math.prod(shape) * x.dtype.itemsize
    columns = slide.stride[-1] * math.prod(slide.kernel[:-1]) + slide.kernel[-1]
    combining = math.prod(shape) / lanes * columns * _AMONG_CHANNELS_NS
    return nbytes / _COPIED + max(nbytes / _MOVED, combining)


def _channels_together(binder: Binder, x: Tensor) -> Tensor:
    """The tensor [..., channels], copied unless neighbouring channels lie together."""
    return x if x.strides[-1] == 1 or x.shape[-1] == 1 else contiguous(binder, x)


def _in_rows(binder: Binder, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Tensor:
    """A new value [batch, *places, channels] that lies with the channels before the places."""
    rank = len(shape)
    return transposed(binder.new(dtype, (shape[0], shape[-1], *shape[1:-1])), (0, *range(2, rank), 1))


def _counts(binder: Binder, windows: Windows, dtype: np.dtype[Any], *, include_padding: bool) -> Tensor:
    """The number of elements of each window, [1, *places, 1]; one place on an axis where all have the same there."""
    axes = windows.counts(include_padding)
    memory.require_tables(_BYTES_PER_COUNT * math.prod(map(len, axes)), "the sizes of windows")
    total = functools.reduce(np.multiply.outer, axes)
    return binder.constant(np.ascontiguousarray(total.astype(dtype).reshape((1, *total.shape, 1))))


def _ordered(operand: Tensor, rank: int, order: Sequence[int] | None) -> Tensor:
    """An operand of the epilogue with its axes in the order of channels-last tensors."""
    missing = rank - len(operand.shape)
    whole = operand.reshaped((*(1 for _ in range(missing)), *operand.shape), (*(0,) * missing, *operand.strides))
    return whole if order is None else transposed(whole, order)


def _followed(result: Expr, epilogue: Epilogue, first: int) -> tuple[Expr, ...]:
    """The epilogue over the result's own inputs, its operands from the input `first` on."""

    def replaced(leaf: Input) -> Expr:
        return result if leaf.index == 0 else Input(leaf.dtype, leaf.index - 1 + first)

    return tuple(substitute(epilogue.outputs, replaced))

"""Sums of what falls on each place of a result: the last part of transposed convolutions, and all of Col2Im."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Address, Array, Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.sampling.elements import working_type
from sardonyx.compiler.llvm.kernels.sampling.line_overlaps import MOST_VECTORS, LineOverlapSpec, emit_line_overlaps
from sardonyx.compiler.llvm.kernels.sampling.overlaps import SPATIAL, OverlapSpec, emit_overlaps
from sardonyx.compiler.llvm.types import Type, type_of
from sardonyx.compiler.native.convolution.convolution_call import Finish
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import reshaped, transposed
from sardonyx.compiler.native.products.inner_products import product_of
from sardonyx.compiler.native.rows.rows import elements_per_chunk
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.canonical import canonical
from sardonyx.kernel.expr import Input
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.windows import Windows
from sardonyx.runtime.memory import memory

# What it takes to sort what falls on the places of a result.
_BYTES_PER_ENTRY = 120


@dataclass(frozen=True)
class Spread:
    """One spatial dimension: element i adds tap t to place ``i * stride + t * dilation - begin`` of the result."""

    length: int
    output: int
    taps: int
    stride: int
    dilation: int
    begin: int

    def entries(self) -> tuple[Array, Array, Array]:
        """The elements and the taps that fall on the result, by place and then by element; and where those of each
        place begin, with the end of the last one.
        """
        memory.require_tables(
            _BYTES_PER_ENTRY * (self.length * self.taps + self.output), "the places that elements are added to"
        )
        elements, taps = (numbers.ravel() for numbers in np.indices((self.length, self.taps)))
        places = elements * self.stride + taps * self.dilation - self.begin
        inside = np.flatnonzero((places >= 0) & (places < self.output))
        order = inside[np.argsort(places[inside], kind="stable")]
        counts = np.bincount(places[inside], minlength=self.output)
        return elements[order], taps[order], np.concatenate([[0], np.cumsum(counts)])


def row_steps(sizes: Sequence[int], innermost: int) -> list[int]:
    """The steps of dimensions in row-major order, the last of which steps by `innermost` elements."""
    return [innermost * math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


Steps = Sequence[tuple[int, int]]


def add_overlaps(
    binder: Binder,
    columns: Tensor,
    weights: Tensor | None,
    spreads: Sequence[Spread],
    steps: tuple[Steps, Steps],
    sizes: tuple[int, int, int],
    group_step: int,
    finish: Finish,
    results: Sequence[Tensor],
) -> None:
    """Add the step that sums, for each place of the results, what falls on it.

    `steps` are, for each spatial dimension, those of an element and of a tap: in the columns and in the weights.
    `sizes` are the batch, the groups and the filters of a group, `group_step` is between groups of the columns.
    Results are contiguous, [batch, *places, filters of all groups].
    """
    batch, groups, filters = sizes
    whole = SPATIAL - len(spreads)
    outputs = [1] * whole + [one.output for one in spreads]
    item, weight_item = columns.dtype.itemsize, 0 if weights is None else weights.dtype.itemsize
    # Dimensions that are filled up have one place with one entry.
    starts: list[Array] = [np.tile([0, 1], whole) + np.repeat(np.arange(whole), 2)]
    entries: list[Array] = [np.zeros((whole, 2), np.int64)]
    before, reached = whole, 1
    for one, (element, weight_element), (tap, weight_tap) in zip(spreads, *steps, strict=True):
        elements, taps, ends = one.entries()
        read = [elements * element + taps * tap, elements * weight_element + taps * weight_tap]
        entries.append(np.stack(read, 1) * (item, weight_item))
        starts.append(ends + before)
        before += len(elements)
        reached *= max(1, len(elements) // max(1, one.output))
    table = binder.constant(np.concatenate([*starts, *(one.ravel() for one in entries)]).astype(np.int64))
    types = [_type(tensor.dtype) for tensor in finish.operands]
    spec = OverlapSpec(
        _type(columns.dtype),
        None if weights is None else _type(weights.dtype),
        tuple((type_, tensor.strides[-1] != 0) for type_, tensor in zip(types, finish.operands, strict=True)),
        canonical(finish.outputs),
    )
    rows, width = batch * outputs[0] * outputs[1], outputs[2] * groups * filters
    nbytes = width * (results[0].dtype.itemsize + reached * item)
    per_chunk = elements_per_chunk(rows, nbytes, 2 * width * reached)
    reads = (columns, *(() if weights is None else (weights,)), *finish.operands)
    binder.step(
        emit_overlaps,
        spec,
        [
            *(columns, 0 if weights is None else weights, Address(table.buffer), rows, per_chunk, *outputs),
            *(groups, filters, math.prod(columns.shape[1:]) * item, group_step * item),
            *(word for tensor in finish.operands for word in _operand_words(tensor, whole, filters)),
            *results,
        ],
        reads=reads,
        writes=tuple(results),
        chunks=-(-rows // per_chunk),
        flops=float(rows * width * reached),
        detail=f"{rows} rows of {outputs[2]} places, {groups * filters} filters, {reached} terms each",
    )


def _operand_words(tensor: Tensor, whole: int, filters: int) -> list[Any]:
    """The address and the steps of an operand [batch, *places, filters]: batch, z, y, x, group."""
    item = tensor.dtype.itemsize
    batch, *places, last = tensor.strides
    return [tensor, *(step * item for step in (batch, *(0 for _ in range(whole)), *places, last * filters))]


def _type(dtype: np.dtype[Any]) -> Type:
    found = type_of(dtype)
    assert found is not None
    return found


@template("col2im")
class Col2Im(NativeKernel):
    """Blocks put back into an image. Parameter: ``windows``, from the shapes of input, image and block to what the
    blocks fill. Where blocks move by few steps along the last dimension, whole lines are added; blocks side by side are
    copied; otherwise the columns are brought into channels-last order first.
    """

    known_inputs = (1, 2)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        data, _, block = inputs
        dtype = None if data is None or data.dtype is None else numpy_dtype(data.dtype)
        if dtype is None or product_of(dtype) is None:
            return f"no kernel adds up blocks of {dtype}"
        if block is not None and block.shape is not None and (len(block.shape) != 1 or block.shape[0] not in (1, 2, 3)):
            return f"more than {SPATIAL} spatial dimensions"
        return None

    def bind(self, binder: Binder, data: Tensor, image: Tensor, block: Tensor) -> Sequence[Tensor]:
        windows: Windows = self.parameters["windows"](data.shape, integers(image), integers(block))
        taps, places = math.prod(windows.kernel), math.prod(windows.output)
        batch, channels = data.shape[0], data.shape[1] // taps
        spreads = [
            Spread(length, output, kernel, stride, dilation, begin)
            for length, output, kernel, stride, dilation, begin in zip(
                windows.output,
                windows.size,
                windows.kernel,
                windows.strides,
                windows.dilations,
                windows.begin,
                strict=True,
            )
        ]
        shape = (batch, channels, *windows.size)
        if math.prod(shape) == 0:
            return [binder.new(data.dtype, shape)]
        finish = Finish((Input(data.dtype, 0),), ())
        if has_line_sums(spreads) and places:
            made = binder.new(data.dtype, shape)
            add_lines(binder, contiguous(binder, data), spreads, channels, finish, [made])
            return [made]
        if is_tiling(spreads):
            return [_tiles(binder, data, shape, windows)]
        made = binder.new(data.dtype, (batch, *windows.size, channels))
        by_taps = reshaped(binder, data, (batch, channels, taps, places))
        columns = contiguous(binder, transposed(by_taps, (0, 3, 2, 1)))
        steps = (
            [(step, 0) for step in row_steps(windows.output, taps * channels)],
            [(step, 0) for step in row_steps(windows.kernel, channels)],
        )
        add_overlaps(binder, columns, None, spreads, steps, (batch, 1, channels), 0, finish, [made])
        return [transposed(made, (0, len(windows.size) + 1, *range(1, len(windows.size) + 1)))]


def is_tiling(spreads: Sequence[Spread]) -> bool:
    """Whether every place of the result belongs to one element and one tap."""
    return all(
        one.taps == one.stride
        and one.begin == 0
        and one.output == one.length * one.stride
        and (one.dilation == 1 or one.taps == 1)
        for one in spreads
    )


def _tiles(binder: Binder, data: Tensor, shape: Sequence[int], windows: Windows) -> Tensor:
    """Blocks side by side: elements in another order."""
    rank = len(windows.size)
    parts = reshaped(binder, data, (*shape[:2], *windows.kernel, *windows.output))
    pairs = (place for axis in range(rank) for place in (2 + rank + axis, 2 + axis))
    return contiguous(binder, transposed(parts, (0, 1, *pairs))).reshaped(tuple(shape))


def has_line_sums(spreads: Sequence[Spread]) -> bool:
    """Whether `add_lines` takes windows that move like this along the last dimension."""
    return spreads[-1].stride in (1, 2, MOST_VECTORS) and spreads[-1].length > 0


def add_lines(
    binder: Binder,
    columns: Tensor,
    spreads: Sequence[Spread],
    filters: int,
    finish: Finish,
    results: Sequence[Tensor],
) -> None:
    """Add the step that sums columns [batch, filters, *taps, *places], contiguous, line by line.

    Results are contiguous, [batch, filters, *places].
    """
    item, whole = columns.dtype.itemsize, SPATIAL - len(spreads)
    lengths, kernel, outputs = zip(*((one.length, one.taps, one.output) for one in spreads), strict=True)
    *elements, _ = row_steps(lengths, item)
    *taps, tap_step = row_steps(kernel, math.prod(lengths) * item)
    line = spreads[-1]
    shifts = _phase_shifts(line)
    # Starts of the phases, then those of the places along z and y: dimensions that are filled up have one place with
    # one entry.
    starts: list[Array] = [np.cumsum([0, *(2 * len(phase) for phase in shifts)])]
    entries: list[Array] = [
        np.array([word for phase in shifts for shift, tap in phase for word in (shift, tap * tap_step)], np.int64),
        np.zeros(whole, np.int64),
    ]
    before = len(entries[0])
    for _ in range(whole):
        starts.append(np.array([before, before + 1]))
        before += 1
    reached = line.taps / line.stride
    for one, element, tap in zip(spreads[:-1], elements, taps, strict=True):
        places, tap_numbers, ends = one.entries()
        entries.append(places * element + tap_numbers * tap)
        starts.append(ends + before)
        before += len(places)
        reached *= max(1, len(places) / max(1, one.output))
    table = binder.constant(np.concatenate([*starts, *entries]).astype(np.int64))
    width = line.output
    lines = results[0].size // width
    per_chunk = elements_per_chunk(lines, int(width * item * (1 + reached)), int(width * reached))
    least, most = (pick((shift for phase in shifts for shift, _ in phase), default=0) for pick in (min, max))
    first = min(max(0, -least), width // line.stride)
    operands = [_by_filters(binder, tensor) for tensor in finish.operands]
    lanes = binder.target.lanes(working_type(_type(columns.dtype)))
    vectors = min(MOST_VECTORS // line.stride, -(-width // (line.stride * lanes)))
    binder.step(
        emit_line_overlaps,
        LineOverlapSpec(
            _type(columns.dtype),
            max(1, vectors),
            line.stride,
            tuple((_type(tensor.dtype), tensor.strides[-1] != 0) for tensor in operands),
            canonical(finish.outputs),
        ),
        [
            *(columns, Address(table.buffer), lines, per_chunk, *([1] * whole), *outputs, filters),
            *(line.length, math.prod(kernel) * math.prod(lengths) * item),
            *(first, max(first, min(line.length - most, width // line.stride))),
            *(word for tensor in operands for word in _line_words(tensor, whole)),
            *results,
        ],
        reads=(columns, *operands),
        writes=tuple(results),
        chunks=-(-lines // per_chunk),
        flops=float(results[0].size * reached),
        detail=f"{lines} lines of {width}, {reached:g} terms each",
    )


def _phase_shifts(line: Spread) -> list[list[tuple[int, int]]]:
    """For each place of the first ones, a stride long: the taps that reach it, and the element that does, which may lie
    outside."""
    return [
        [
            ((place + line.begin - tap * line.dilation) // line.stride, tap)
            for tap in range(line.taps)
            if (place + line.begin - tap * line.dilation) % line.stride == 0
        ]
        for place in range(line.stride)
    ]


def _by_filters(binder: Binder, operand: Tensor) -> Tensor:
    """An operand [batch, *places, filters] as [batch, filters, *places], which steps by one element along lines."""
    rank = len(operand.shape)
    by_filters = transposed(operand, (0, rank - 1, *range(1, rank - 1)))
    return by_filters if by_filters.strides[-1] in (0, 1) else contiguous(binder, by_filters)


def _line_words(tensor: Tensor, whole: int) -> list[Any]:
    """The address and the steps of an operand [batch, filters, *places]: batch, filter, z, y."""
    item = tensor.dtype.itemsize
    batch, filters, *places = tensor.strides
    return [tensor, *(step * item for step in (batch, filters, *(0 for _ in range(whole)), *places[:-1]))]


def integers(tensor: Tensor) -> list[int]:
    """The numbers that a tensor with known contents holds."""
    assert tensor.array is not None
    return [int(number) for number in tensor.array.ravel()]

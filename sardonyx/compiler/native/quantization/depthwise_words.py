"""Depthwise convolution of bytes by words while binding: groups of lines, tiles, blocks, weights and tables."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np

from sardonyx.compiler.binding import Argument, Array, Binder, Tensor
from sardonyx.compiler.llvm.kernels.quantization.depthwise_words import (
    DEPTH,
    DepthwiseWordsSpec,
    argument_names,
    emit_depthwise_words,
    scratch_bytes,
)
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.quantization.byte_windows import Finish, signed_weights

_I8 = np.dtype(np.int8)

# Work of a chunk, in operations that count padding.
_CHUNK_FLOPS = 1e6

# Sums of a tile, where there are 32 registers; half of that where there are 16. Lines of a group; vectors of a block.
_SUMS = 18
_MOST_LINES = 4
_MOST_VECTORS = 4

# Windows of more columns write out too much code; what words of a group and a block may take of the first cache.
_MOST_TAPS = 9
_SHARE_OF_L1 = 0.6


def takes(target: Target, call: ConvolutionCall) -> bool:
    """Whether a depthwise convolution is done by words: whole vectors of channels, on machines that multiply words."""
    fits = target.architecture == "x86_64" and target.vector_bits >= 256 and call.channels >= target.lanes(I32)
    return fits and call.windows.kernel[-1] <= _MOST_TAPS


def bind(binder: Binder, call: ConvolutionCall, padding: Tensor, init: Array, finish: Finish) -> None:
    """Add the step of a convolution in which every channel has one filter."""
    windows, lanes = call.windows, binder.target.lanes(I32)
    image = call.channels_last
    if image.strides[-1] != 1:
        image = contiguous(binder, image)
    lines = _lines_of(call)
    rows, width = math.prod(windows.kernel[:-1]), windows.output[-1]
    slots = rows if lines == 1 else rows + (lines - 1) * windows.strides[0]
    budget = _SUMS if binder.target.registers >= 32 else _SUMS // 2
    padded = (width - 1) * windows.strides[-1] + (windows.kernel[-1] - 1) * windows.dilations[-1] + 1
    words = -(-slots // DEPTH)
    vectors = _vectors_of(call.channels, lanes, padded * words, int(_SHARE_OF_L1 * binder.target.caches.l1))
    spec = DepthwiseWordsSpec(
        windows.kernel[-1],
        windows.strides[-1],
        windows.dilations[-1],
        slots,
        lines,
        _places_of(width, max(1, budget // lines)),
        vectors,
        image.dtype == _I8,
        finish.epilogue,
    )
    pack = partial(_words, slots=slots, lines=lines, stride=windows.strides[0])
    weights = binder.derived(call.w, ("depthwise words", slots, lines, windows.strides[0]), pack)
    groups = _groups(call, image, slots, lines)
    table, begin = binder.constant(groups), binder.constant(init)
    blocks = -(-call.channels // (lanes * vectors))
    items = len(groups) * blocks
    block = max(1, min(-(-items // 2), round(_CHUNK_FLOPS * items / call.flops)))
    inner = max(0, min(windows.size[-1], padded - windows.begin[-1]))
    values: dict[str, Argument] = {"image": image, "padding": padding, "weights": weights, "init": begin}
    values |= {"groups": table, "channels": call.channels, "step": image.strides[-2]}
    values |= {"before": min(padded, windows.begin[-1]), "inner": inner, "padded": padded, "width": width}
    values |= {"blocks": blocks, "items": items, "block": block, **finish.arguments(call.filters)}
    binder.step(
        emit_depthwise_words,
        spec,
        [values[name] for name in argument_names(spec)],
        reads=(image, padding, weights, begin, table, *finish.operands),
        writes=finish.results,
        chunks=-(-items // block),
        scratch=scratch_bytes(lanes, spec, padded),
        flops=call.flops,
        detail=f"{call.batch * call.places} places x {call.taps} taps, {call.channels} channels apart, "
        f"tiles of {lines} x {spec.places} x {vectors}",
        arithmetic="int8",
    )


def _lines_of(call: ConvolutionCall) -> int:
    """Lines of a group: as many as the words of one line serve."""
    windows = call.windows
    if len(windows.kernel) != 2 or windows.dilations[0] != 1:
        return 1
    rows, stride = windows.kernel[0], windows.strides[0]
    spare = -(-rows // DEPTH) * DEPTH - rows
    return max(1, min(1 + spare // stride, _MOST_LINES, windows.output[0]))


def _places_of(width: int, most: int) -> int:
    """Places of a tile: as many as leave few to be computed twice, in few tiles."""
    return min(range(1, min(width, most) + 1), key=lambda places: -(-width // places) * (places + 1))


def _vectors_of(channels: int, lanes: int, words: int, nbytes: int) -> int:
    """Vectors of a block: as many as leave the fewest channels to be computed twice, in the nearest cache."""

    def computed(vectors: int) -> tuple[int, int]:
        size = lanes * vectors
        return -(-channels // size) * size, -vectors

    fitting = [one for one in range(1, _MOST_VECTORS + 1) if lanes * one <= channels]
    near = [one for one in fitting if lanes * one * words * I32.nbytes <= nbytes]
    return min(near or fitting[:1], key=computed)


def _words(w: Array, slots: int, lines: int, stride: int) -> Array:
    """Weights [channels, 1, *kernel] as [taps][words][lines][channels] in words of four lines of the image."""
    channels, taps = len(w), w.shape[-1]
    rows = signed_weights(w).reshape(channels, -1, taps)
    placed = np.zeros((channels, lines, -(-slots // DEPTH) * DEPTH, taps), np.int8)
    for line in range(lines):
        placed[:, line, line * stride : line * stride + rows.shape[1]] = rows
    words = np.ascontiguousarray(placed.reshape(channels, lines, -1, DEPTH, taps).transpose(4, 2, 1, 0, 3))
    return words.view(np.int32).reshape(taps, words.shape[1], lines, channels)


def _groups(call: ConvolutionCall, image: Tensor, slots: int, lines: int) -> Array:
    """For each group its first line, and where lines of its slots begin in the image, -1 outside of it."""
    windows = call.windows
    outer = range(len(windows.kernel) - 1)
    offsets = [_axis_offsets(call, image, axis, slots if lines > 1 else windows.kernel[axis]) for axis in outer]
    sizes = windows.output[:-1]
    firsts = [range(size) for size in sizes]
    if lines > 1:
        (size,) = sizes
        firsts = [[min(first, size - lines) for first in range(0, size, lines)]]  # type: ignore[list-item]
    table = []
    for item, place in itertools.product(range(call.batch), itertools.product(*firsts)):
        number = 0
        for size, one in zip(sizes, place, strict=True):
            number = number * size + one
        starts = np.full(1, item * image.strides[0], np.int64)
        for axis, one in zip(outer, place, strict=True):
            steps = offsets[axis][one]
            starts = np.where((starts[:, None] < 0) | (steps < 0), -1, starts[:, None] + steps).reshape(-1)
        table.append([item * math.prod(sizes) + number, *starts])
    return np.array(table, np.int64)


def _axis_offsets(call: ConvolutionCall, image: Tensor, axis: int, count: int) -> Array:
    """By window along an outer axis, where `count` lines from its first one on lie, -1 for one outside."""
    windows = call.windows
    starts = np.arange(windows.output[axis], dtype=np.int64)[:, None] * windows.strides[axis] - windows.begin[axis]
    places = starts + np.arange(count) * windows.dilations[axis]
    inside = (places >= 0) & (places < windows.size[axis])
    return np.where(inside, places * image.strides[1 + axis], -1)

"""Windows over channels-last tensors while binding: the tile, the vectors, and how the work is cut into chunks."""

from __future__ import annotations

import math
from dataclasses import replace

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.llvm.kernels.windows.channels import ChannelSpec, emit_channel_windows
from sardonyx.compiler.llvm.kernels.windows.folds import WATCHES, Combine, Fold, Locate, holds_weights
from sardonyx.compiler.llvm.kernels.windows.frame import Along
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.movement.copy import copy_into
from sardonyx.compiler.native.windows.window_call import Slide, WindowCall, written_out

# Taps of a row that are written out at most, and neighbouring windows that are computed at once.
_MOST_TAPS = 32
_MOST_PLACES = 16
# What a tile costs besides its columns or products.
_TILE_COST = 2
# Places this many bytes apart, or a multiple, share few sets of a cache; an input of such places is copied with some
# bytes more between them where each is read so often.
_CONFLICT, _ROOM_BETWEEN, _WORTH_COPYING = 2048, 64, 25
# Vectors of channels of a block, at least: memory is read in runs of them.
_FEWEST_VECTORS = 4


def bind_channel_windows(binder: Binder, call: WindowCall) -> None:
    """Add the step. The channels of the input and of the results lie together, and there is at least one of each."""
    first = call.results[0]
    if first.size == 0:
        return
    target, slide, fold = binder.target, Slide.of(call.windows), call.fold
    call = apart(binder, call, slide)
    channels = first.shape[-1]
    lanes = lanes_of(target, call)
    kernel, stride, dilation, output = (
        numbers[-1] for numbers in (slide.kernel, slide.stride, slide.dilation, slide.output)
    )
    taps = written_out(kernel, _MOST_TAPS)
    in_turns = taps < kernel
    along = tile(target, fold, (taps, stride, dilation), output, in_turns=in_turns)
    finish = call.finish(slide, by_rows=False, flushes=binder.settings.precision == "bfloat16")
    sure = (0, 0) if in_turns else sure_columns(slide, along)
    spec = ChannelSpec(call.x.dtype.name, lanes, along, fold, finish, in_turns, sure)
    words = {**slide.words(kernel // taps), **slide.taps(binder), **call.matrices(slide, by_rows=False)}
    if call.weights is not None:
        words["weights"] = call.weights
    if isinstance(fold, Locate):
        words |= dict(zip(("number_d", "number_h", "number_w"), slide.each(call.numbers, 0), strict=True))
        words["map"] = math.prod(slide.size)
    block = _block(target, slide, channels, lanes, call.x.dtype.itemsize)
    blocks = -(-channels // block)
    rows = first.shape[0] * output_rows(slide)
    per_chunk = max(1, call.elements_per_chunk // max(1, output * min(block, channels)))
    items = rows * blocks
    words |= {"blocks": blocks, "block": block, "channels": channels}
    detail = (
        f"{'x'.join(map(str, slide.output))} windows of {'x'.join(map(str, slide.kernel))} over "
        f"{channels} channels, {along.places} at once, vectors of {lanes}"
    )
    call.add_step(binder, emit_channel_windows, spec, words, items, per_chunk, detail)


def apart(binder: Binder, call: WindowCall, slide: Slide) -> WindowCall:
    """The call over an input whose places do not meet in few sets of a cache."""
    x = call.x
    step = slide.each(x.strides[1:-1], 0)[-1] * x.dtype.itemsize
    reads = call.taps / math.prod(slide.stride)
    if step == 0 or step % _CONFLICT or reads < _WORTH_COPYING:
        return call
    return with_room(binder, call)


def with_room(binder: Binder, call: WindowCall) -> WindowCall:
    """The call over a copy of its input with some bytes more from one place to the next."""
    x = call.x
    pitch = x.shape[-1] + _ROOM_BETWEEN // x.dtype.itemsize
    room = binder.new(x.dtype, (*x.shape[:-1], pitch))
    apart = room.reshaped(x.shape, room.strides)
    copy_into(binder, x, apart)
    return replace(call, x=apart)


def output_rows(slide: Slide) -> int:
    """Rows of windows of one item of the batch."""
    return math.prod(slide.output[:-1])


def lanes_of(target: Target, call: WindowCall) -> int:
    """Channels of a vector: those of a register, or fewer where there are not as many."""
    return call.lanes(target, call.results[0].shape[-1])


def tile(target: Target, fold: Fold, row: tuple[int, int, int], output: int, *, in_turns: bool) -> Along:
    """How many windows are computed at once: as many as fit the registers and leave little of a row to the last tile.

    `row` is the taps written out, their stride and dilation.
    """
    best, least = Along(1, *row), math.inf
    for places in range(1, min(_MOST_PLACES, output) + 1):
        along = Along(places, *row)
        columns = len(along.columns)
        if isinstance(fold, Combine):
            registers, work = columns + WATCHES + 3 + (places if in_turns else 0), columns + places
        elif isinstance(fold, Locate):
            registers, work = 3 * places + 6, 4 * places * along.taps
        else:
            held = along.taps if holds_weights(target, fold, along.taps) else 1
            registers, work = places + held + 2, places * along.taps * fold.channels
        cost = -(-output // places) * (work + _TILE_COST)
        if (registers <= target.registers or places == 1) and cost <= least:
            best, least = along, cost
    return best


def sure_columns(slide: Slide, along: Along) -> tuple[int, int]:
    """The columns of a tile, first and last (excluded), that are no padding wherever the tile is in its row."""
    begin, size = slide.each(slide.windows.begin, 0)[-1], slide.size[-1]
    rightmost = (slide.output[-1] - along.places) * along.stride - begin
    first, last = max(0, begin), min(along.columns[-1] + 1, size - rightmost)
    return (first, last) if first < last else (0, 0)


def _block(target: Target, slide: Slide, channels: int, lanes: int, itemsize: int) -> int:
    """Channels of a block: so many that the rows which a row of windows reads stay in the nearest cache."""
    taps = min(slide.kernel[0], slide.size[0]) * min(slide.kernel[1], slide.size[1])
    room = target.caches.l1 // 2 // max(1, taps * slide.size[2] * itemsize)
    vectors = max(_FEWEST_VECTORS, room // lanes)
    count = -(-channels // (vectors * lanes))
    return -(-channels // (count * lanes)) * lanes

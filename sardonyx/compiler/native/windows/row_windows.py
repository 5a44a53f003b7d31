"""Windows over tensors in ONNX's order while binding: which rows an item takes, and what a thread lays out for it."""

from __future__ import annotations

import math

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.llvm.kernels.windows.folds import Correlate, Locate
from sardonyx.compiler.llvm.kernels.windows.rows import RowSpec, emit_row_windows
from sardonyx.compiler.native.windows.window_call import Slide, WindowCall

# Windows of a row that an item takes at most: longer rows are cut.
_MOST_PLACES = 2048
# Vectors of windows that are computed at once.
MOST_VECTORS = 8
# A laid out part of a row has room for this many elements more, so that rows do not share sets of the cache.
_MULTIPLE = 16
# A row that is laid out is of use for so many operations for each of its elements that it pays to keep it for others.
_BYTES = 8


def bind_row_windows(binder: Binder, call: WindowCall) -> None:
    """Add the step. The last dimension that matters lies together in the input and in the results.

    Tensors are [batch, *sizes, channels], as for the other kernel; weights lie as [channels, taps].
    """
    first, fold = call.results[0], call.fold
    if first.size == 0:
        return
    assert not isinstance(fold, Locate)
    slide = Slide.of(call.windows)
    channels, output = first.shape[-1], slide.output
    kernel, stride, dilation = slide.kernel[-1], slide.stride[-1], slide.dilation[-1]
    pieces = -(-output[-1] // _MOST_PLACES)
    piece = -(-output[-1] // pieces)
    lanes = call.lanes(binder.target, piece)
    vectors = 1 << (max(1, min(MOST_VECTORS, piece // lanes)).bit_length() - 1)
    finish = call.finish(slide, by_rows=True)
    spec = RowSpec(call.x.dtype.name, lanes, vectors, stride, fold, finish)
    length = (piece - 1) * stride + (kernel - 1) * dilation + 1
    part = -(-length // (stride * _MULTIPLE)) * _MULTIPLE + _MULTIPLE
    wanted = call.elements_per_chunk
    row = stride * part * _BYTES
    room = binder.target.caches.l1 // row
    if isinstance(fold, Correlate):
        rows, span = _rows(slide, room)
        scratch = row * slide.kernel[0] * span
    else:
        rows, span = _evened(output[1], min(room, wanted // piece)), 1
        scratch = row * rows
    words = {**slide.words(kernel), **slide.taps(binder), **call.matrices(slide, by_rows=True)}
    words["x_c"] = words["x_step"]
    if call.weights is not None:
        words |= {"weights": call.weights, "of_map": call.taps}
    blocks = -(-output[1] // rows)
    items = first.shape[0] * channels * output[0] * blocks * pieces
    per_chunk = max(1, wanted // (rows * piece))
    words |= {"maps": channels, "rows": rows, "blocks": blocks}
    words |= {"piece": piece, "pieces": pieces, "span": span, "part": part, "dilation_w": dilation}
    detail = (
        f"{'x'.join(map(str, output))} windows of {'x'.join(map(str, slide.kernel))} over {channels} maps, "
        f"{rows} rows of {piece} at once"
    )
    call.add_step(binder, emit_row_windows, spec, words, items, per_chunk, detail, scratch)


def _rows(slide: Slide, room: int) -> tuple[int, int]:
    """Rows of windows of an item, and the rows of the input that they read: as many as there is room for."""
    reach = (slide.kernel[1] - 1) * slide.dilation[1] + 1
    fitting = (room // slide.kernel[0] - reach) // slide.stride[1] + 1
    rows = _evened(slide.output[1], fitting)
    return rows, (rows - 1) * slide.stride[1] + reach


def _evened(count: int, most: int) -> int:
    """The size of equal parts of at most so many."""
    parts = math.ceil(count / max(1, min(count, most)))
    return math.ceil(count / parts)

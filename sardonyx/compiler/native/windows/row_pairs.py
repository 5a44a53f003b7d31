"""Pools with a stride of 2 over tensors in ONNX's order while binding: where they fit, and how the work is cut."""

from __future__ import annotations

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.llvm.kernels.windows.folds import Combine
from sardonyx.compiler.llvm.kernels.windows.frame import Along
from sardonyx.compiler.llvm.kernels.windows.row_pairs import STRIDE, RowPairSpec, emit_row_pairs
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.windows.window_call import Slide, WindowCall

# The taps are all written out: so many of them at most.
_MOST_TAPS = 25


def pairs_fit(target: Target, call: WindowCall) -> bool:
    """Whether rows are combined in pairs of vectors: of pools over two dimensions, with masks for the ends of rows."""
    slide = Slide.of(call.windows)
    if not target.has_masks or not isinstance(call.fold, Combine) or call.taps > _MOST_TAPS or not slide.is_flat:
        return False
    return (slide.stride[-1], slide.dilation[-1]) == (STRIDE, 1) and slide.output[-1] > 1


def bind_row_pairs(binder: Binder, call: WindowCall) -> None:
    """Add the step for pools that fit; the last dimension lies together in the input and in the results."""
    first, fold = call.results[0], call.fold
    if first.size == 0:
        return
    assert isinstance(fold, Combine)
    slide = Slide.of(call.windows)
    channels = first.shape[-1]
    _, lines, places = slide.output
    lanes = call.lanes(binder.target, places)
    down = Along(1, slide.kernel[1], slide.stride[1], slide.dilation[1])
    finish = call.finish(slide, by_rows=True)
    spec = RowPairSpec(call.x.dtype.name, lanes, down, slide.kernel[-1], fold, finish)
    words = call.matrices(slide, by_rows=True)
    words["x_c"] = words["x_step"]
    begin = slide.each(slide.windows.begin, 0)
    for place, of in ((1, "h"), (2, "w")):
        words |= {f"size_{of}": slide.size[place], f"out_{of}": slide.output[place], f"begin_{of}": begin[place]}
    wanted = call.elements_per_chunk
    bands = -(-lines // max(1, min(lines, wanted // places)))
    band = -(-lines // bands)
    items = first.shape[0] * channels * bands
    per_chunk = max(1, wanted // (band * places))
    words |= {"maps": channels, "band": band, "bands": bands}
    detail = f"{lines}x{places} windows of {down.taps}x{spec.taps} over {channels} maps, pairs of vectors of {lanes}"
    call.add_step(binder, emit_row_pairs, spec, words, items, per_chunk, detail)

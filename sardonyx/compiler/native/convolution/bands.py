"""A convolution 1x1 and the depthwise one that alone reads it as one step, in bands of lines.

Where channels are expanded and the windows that slide over them read each of them once, the map between the two is the
largest of a model; here a few lines of it lie in scratch. Lines that the windows of two bands read are made twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np

from sardonyx.compiler.binding import Argument, Array, Binder, Tensor
from sardonyx.compiler.bound_step import Buffer
from sardonyx.compiler.choice.gemm_choice import asks_for_results
from sardonyx.compiler.llvm.kernels.convolution.bands import BandSpec, emit_bands
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.rows.row_access import types_within
from sardonyx.compiler.llvm.kernels.windows import finish as finishing
from sardonyx.compiler.llvm.kernels.windows.folds import Correlate
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, I64
from sardonyx.compiler.native.convolution.algorithm import rates, words_ns
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall, Finish, one_item
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.products.packed_constants import pack_b
from sardonyx.compiler.native.products.words import as_words
from sardonyx.compiler.native.windows.channel_windows import tile
from sardonyx.compiler.native.windows.window_call import Slide
from sardonyx.kernel.canonical import canonical
from sardonyx.kernel.expr import Expr, Input, walk
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.threads.processors import thread_pool_size

# Taps of a line of windows are written out, and vectors of channels of a block: these many at most.
_MOST_TAPS, _MOST_VECTORS = 8, 3
# Lines are cut into so many bands at most.
_MOST_BANDS = 16
# The share of a chunk that threads wait for one whose core was taken meanwhile.
_DISTURBANCE = 0.25
# What a load of the product costs beside it, in multiply-adds, a word of the input more where a tile has one vector
# that uses it, and a cache line that comes from the second cache.
_LOAD, _USED_ONCE, _FAR_LINE = 0.15, 0.5, 1.0
# Nanoseconds for each vector that is made, finished and stored, and for each tile.
_VECTOR_NS, _TILE_NS = 0.5, 12.0
# The share of the multiply-adds' peak that the windows reach, whose lines are near.
_SHARE_OF_WINDOWS = 0.6
# The ring takes at most this share of the second cache.
_SHARE_OF_L2 = 0.5
# What tiles touch again and again stays in the nearest cache up to this share of it: lines of the ring pass by, too.
_SHARE_OF_L1 = 0.9

# A session's coarser products take less time than the exact ones of this kernel: they are given up only where what
# they make takes more than this share of the last cache.
_SHARE_OF_L3 = 1 / 3

_LINE = 64
_FLOAT32, _BFLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
# The products that there is code for, and of which types their input may be.
_PRODUCTS = {"f32": (_FLOAT32,), "bf16": (_FLOAT32, _BFLOAT16)}


@dataclass(frozen=True)
class _Cut:
    """How the work is cut.

    A tile of the product has `rows` places of `vectors` vectors of channels, which are one of the `blocks`; a band has
    so many lines of windows, and there are `bands` of them.
    """

    rows: int
    vectors: int
    blocks: int
    band: int
    bands: int


@dataclass(frozen=True)
class _Lines:
    """The lines in the ring: where the product begins in one, its places, all places; and how many lines there are."""

    first: int
    made: int
    reach: int
    count: int

    @staticmethod
    def of(slide: Slide) -> _Lines:
        reach = [
            (places - 1) * stride + (taps - 1) * apart + 1
            for places, stride, taps, apart in zip(
                (1, slide.output[2]), slide.stride[1:], slide.kernel[1:], slide.dilation[1:], strict=True
            )
        ]
        first = slide.each(slide.windows.begin, 0)[2]
        made = max(0, min(slide.size[2], reach[1] - first))
        return _Lines(first, made, max(reach[1], first + made), min(slide.size[1], reach[0]))


def takes(made: Sequence[Expr], outputs: Sequence[Expr]) -> bool:
    """Whether the kernel has code for these epilogues: of one vector's lanes float32, between the two nothing else."""
    if len(made) != 1 or made[0].dtype != _FLOAT32:
        return False
    if any(expr.dtype != _FLOAT32 for expr in walk(made) if isinstance(expr, Input)):
        return False
    return all(one.bits <= F32.bits for one in types_within([*made, *outputs]))


def made_by(call: ConvolutionCall) -> Tensor:
    """What a call would make, in ONNX's order: a stand-in without memory."""
    batch, channels, *sizes = call.result_shape
    shape = (batch, *sizes, channels)
    rank = len(shape)
    whole = Tensor(call.w.dtype, shape, (), Buffer(math.prod(shape) * call.w.dtype.itemsize))
    return transposed(whole.reshaped(shape), (0, rank - 1, *range(1, rank - 1)))


def predict(binder: Binder, first: ConvolutionCall, second: ConvolutionCall) -> float | None:
    """Nanoseconds that both take on one thread, or None where this cannot do it."""
    target = binder.target
    return min((_predicted(target, call, second) for call in _able(target, first, second)), default=None)


def bind(binder: Binder, first: ConvolutionCall, second: ConvolutionCall) -> Sequence[Tensor]:
    """Add the step and give the outputs of the second call, in ONNX's order."""
    target, slide = binder.target, Slide.of(second.windows)
    item = one_item(second)
    able = _able(target, one_item(first), item)
    chosen = able[0] if len(able) == 1 else min(able, key=lambda call: _predicted(target, call, item))
    first = replace(first, product=chosen.product)
    middle, finish = first.finish(binder), second.finish(binder)
    results = second.results(binder, finish)
    cut = _best_cut(target, first, second, slide, thread_pool_size(binder.settings.threads))
    row = (slide.kernel[-1], slide.stride[-1], slide.dilation[-1])
    along = tile(target, Correlate(F32), row, slide.output[-1], in_turns=False)
    spread = tuple(operand.strides[-1] == 0 for operand in middle.operands)
    spec = BandSpec(
        cut.rows,
        cut.vectors,
        canonical(middle.outputs),
        spread,
        along,
        _finish_form(slide, finish),
        asks_for_results(target, sum(tensor.nbytes for tensor in results), in_strips=True),
        first.product,
    )
    lanes = target.lanes(F32)
    panel = cut.vectors * lanes
    panels, taps = _panels(binder, first, panel), _taps(binder, second, cut.vectors, lanes)
    words: dict[str, Argument] = {"b": panels, "weights": taps, "depth": _depth(first), "channels": second.filters}
    words |= {"blocks": cut.blocks, "band": cut.band, "bands": cut.bands}
    words |= _geometry(slide, panel)
    words["ring_start"] = ring_start = -(-slide.kernel[1] * I64.nbytes // _LINE) * _LINE
    x = first.channels_last
    if first.product != "f32":
        x = as_words(binder, x, first.product)
    _, x_h, x_w = slide.each(x.strides[1:-1], 0)
    words |= {"x": x, "x_n": x.strides[0], "x_h": x_h, "x_w": x_w}
    words |= {f"middle{index}": operand for index, operand in enumerate(middle.operands)}
    named = {f"operand{index}": operand for index, operand in enumerate(finish.operands)}
    named |= {f"output{index}": result for index, result in enumerate(results)}
    for name, tensor in named.items():
        words |= {name: tensor, **slide.strides(name, tensor)}
        words[f"{name}_step"] = words[f"{name}_w"]
    binder.step(
        emit_bands,
        spec,
        [words[name] for name in spec.argument_names()],
        reads=(x, panels, taps, *middle.operands, *finish.operands),
        writes=results,
        chunks=second.batch * cut.bands * cut.blocks,
        scratch=ring_start + _ring_bytes(slide, panel),
        flops=first.flops + second.flops,
        arithmetic="" if first.product == "f32" else first.product,
        detail=f"{first.channels} channels to {second.filters} {first.product}, {panel} at once, "
        f"tile {cut.rows}x{cut.vectors}; {'x'.join(map(str, slide.output))} windows of "
        f"{'x'.join(map(str, slide.kernel))}, {along.places} at once, in bands of {cut.band} lines",
    )
    return second.handed_on(results)


def _able(target: Target, first: ConvolutionCall, second: ConvolutionCall) -> list[ConvolutionCall]:
    """The first call with each product that it may be made with."""
    calls = [replace(first, product=product) for product in dict.fromkeys((first.product, "f32"))]
    return [one for one in calls if _is_possible(target, one, second, is_coarser_allowed=first.product != "f32")]


def _predicted(target: Target, first: ConvolutionCall, second: ConvolutionCall) -> float:
    """Nanoseconds that both take on one thread."""
    slide = Slide.of(second.windows)
    cut = _best_cut(target, first, second, slide, threads=1)
    words = 0.0 if first.x.dtype == _BFLOAT16 else words_ns(target, first.product, first.x.nbytes)
    tile_ns = _tile_time(target, first, cut.rows, cut.vectors)
    return words + _time(target, second, _Lines.of(slide).made, cut, _made_lines(slide, cut.band), tile_ns)


def _is_possible(target: Target, first: ConvolutionCall, second: ConvolutionCall, *, is_coarser_allowed: bool) -> bool:
    """Whether the first call is a product of places and the second one slides windows over each of its channels."""
    if first.product not in _PRODUCTS or first.x.dtype not in _PRODUCTS[first.product]:
        return False
    if first.group != 1 or first.taps != 1 or not first.is_channels_last:
        return False
    if first.windows.size != first.windows.output or any((*first.windows.begin, *first.windows.end)):
        return False
    if second.w.shape[1] != 1 or second.filters != second.channels or second.filters < target.lanes(F32):
        return False
    if not (first.has_constant_weights and second.has_constant_weights) or 0 in second.result_shape:
        return False
    if second.windows.kernel[-1] > _MOST_TAPS or len(second.windows.kernel) > 2:
        return False
    exact = first.product == "f32" and is_coarser_allowed
    if exact and math.prod(first.result_shape[1:]) * F32.nbytes <= _SHARE_OF_L3 * target.caches.l3:
        return False
    bias = () if first.bias is None else (first.bias,)
    others = () if first.epilogue is None else first.epilogue.operands
    if not all(_is_of_channels(one, len(first.x.shape)) for one in others) or any(one.strides[0] != 1 for one in bias):
        return False
    slide = Slide.of(second.windows)
    return _Lines.of(slide).made > 0 and _ring_bytes(slide, target.lanes(F32)) <= _SHARE_OF_L2 * target.caches.l2


def _is_of_channels(operand: Tensor, rank: int) -> bool:
    """Whether an operand in ONNX's order is one number for each channel, or for all of them."""
    missing = rank - len(operand.shape)
    sizes, strides = (1,) * missing + operand.shape, (0,) * missing + operand.strides
    return math.prod(sizes) == sizes[1] and (sizes[1] == 1 or strides[1] == 1)


def _ring_bytes(slide: Slide, panel: int) -> int:
    return _Lines.of(slide).count * _pitch(slide, panel) * F32.nbytes


def _pitch(slide: Slide, panel: int) -> int:
    """Elements from line to line in the ring: a cache line more than there are, so that lines do not meet in sets."""
    return _Lines.of(slide).reach * panel + _LINE // F32.nbytes


def _geometry(slide: Slide, panel: int) -> dict[str, int]:
    """The arguments that say where windows and lines are."""
    lines = _Lines.of(slide)
    _, begin, _ = slide.each(slide.windows.begin, 0)
    return {
        "out_h": slide.output[1],
        "out_w": slide.output[2],
        "size_h": slide.size[1],
        "begin_h": begin,
        "taps_h": slide.kernel[1],
        "stride_h": slide.stride[1],
        "dilation_h": slide.dilation[1],
        "first_w": lines.first,
        "made_w": lines.made,
        "reach_w": lines.reach,
        "pitch": _pitch(slide, panel),
        "ring": lines.count,
    }


def _finish_form(slide: Slide, finish: Finish) -> finishing.Finish:
    forms = tuple(
        finishing.OperandForm(operand.dtype.name, operand.strides[-1] != 0, slide.strides("", operand)["_w"] != 0)
        for operand in finish.operands
    )
    flushes = any(output.dtype == _BFLOAT16 for output in finish.outputs)
    return finishing.Finish(canonical(finish.outputs), forms, flushes)


def _best_cut(target: Target, first: ConvolutionCall, second: ConvolutionCall, slide: Slide, threads: int) -> _Cut:
    """The cut with which so many threads are done first: it changes no result, and one thread needs no chunks to share.

    The thread with most chunks is waited for, and some share of a chunk besides, as cores are disturbed.
    """
    lanes, lines = target.lanes(F32), slide.output[1]
    bands = sorted({-(-lines // count) for count in range(1, min(_MOST_BANDS, lines) + 1)})
    made = {band: _made_lines(slide, band) for band in bands}
    places = _Lines.of(slide).made
    best, least = _Cut(1, 1, 1, lines, 1), math.inf
    for vectors in range(1, min(_MOST_VECTORS, second.filters // lanes) + 1):
        if vectors > 1 and _ring_bytes(slide, vectors * lanes) > _SHARE_OF_L2 * target.caches.l2:
            break
        rows = _best_rows(target, first, places, vectors)
        tile_ns = _tile_time(target, first, rows, vectors)
        for band in bands:
            cut = _Cut(rows, vectors, -(-second.filters // (vectors * lanes)), band, -(-lines // band))
            chunks = second.batch * cut.bands * cut.blocks
            waits = _DISTURBANCE if threads > 1 else 0.0
            end = _time(target, second, places, cut, made[band], tile_ns) * (-(-chunks // threads) + waits) / chunks
            if end < least:
                best, least = cut, end
    return best


def _best_rows(target: Target, first: ConvolutionCall, made: int, vectors: int) -> int:
    """Places of a tile of so many vectors, of lines with so many places."""
    # Beside the sums: the vectors of the filters, a spread word and, where it is not added at once, a product.
    most = (target.registers - vectors - (1 if target.has_fma else 2)) // vectors
    tried = range(1, min(max(1, most), made) + 1)
    return min(tried, key=lambda rows: -(-made // rows) * _tile_time(target, first, rows, vectors))


def _tile_time(target: Target, first: ConvolutionCall, rows: int, vectors: int) -> float:
    """Nanoseconds for a tile of the product: multiplications, between which its rows and columns are loaded."""
    lanes, words = target.lanes(F32), _depth(first)
    touched = (vectors * lanes + rows) * words + rows * vectors * lanes
    near = _SHARE_OF_L1 * target.caches.l1 / F32.nbytes
    loads = _LOAD * (rows + vectors) + (_USED_ONCE * rows if vectors == 1 else 0.0)
    if touched > near:
        loads += _FAR_LINE * vectors * lanes / (_LINE / F32.nbytes)
    if words * math.prod(first.windows.size) > near:
        loads += _FAR_LINE * rows / (_LINE / F32.nbytes)
    product = 2.0 * lanes * words * (rows * vectors + loads) / rates().flops(target)
    return product + rows * vectors * _VECTOR_NS + _TILE_NS


def _time(target: Target, second: ConvolutionCall, places: int, cut: _Cut, made: int, tile_ns: float) -> float:
    """Nanoseconds for the arithmetic on one thread, where the bands of an item make so many lines of the product, each
    of so many places, and a tile takes `tile_ns`."""
    tiles = second.batch * made * cut.blocks * -(-places // cut.rows)
    computed = cut.blocks * cut.vectors * target.lanes(F32) / second.filters
    windows = second.flops * computed / (_SHARE_OF_WINDOWS * rates().flops(target))
    return tiles * tile_ns + windows


def _made_lines(slide: Slide, band: int) -> int:
    """Lines of the product that all bands of so many lines of windows make."""
    _, begin, _ = slide.each(slide.windows.begin, 0)
    total, stride, lines = 0, slide.stride[1], slide.output[1]
    for line in range(0, lines, band):
        top = line * stride - begin
        bottom = (min(lines, line + band) - 1) * stride - begin + (slide.kernel[1] - 1) * slide.dilation[1] + 1
        total += max(0, min(bottom, slide.size[1]) - max(top, 0))
    return total


def _starts(channels: int, panel: int) -> list[int]:
    """The first channel of each block."""
    return [min(first, channels - panel) for first in range(0, channels, panel)]


def _panels(binder: Binder, call: ConvolutionCall, panel: int) -> Tensor:
    """The filters of the product as [blocks, words of channels, panel]."""
    library, product = binder.library, call.product

    def packed(array: Array) -> Array:
        columns = array.reshape(array.shape[:2]).T
        blocks = np.ascontiguousarray(np.stack([columns[:, at : at + panel] for at in _starts(array.shape[0], panel)]))
        return blocks if product == "f32" else pack_b(library, blocks, product, panel)

    return binder.derived(call.w, ("blocks of filters", panel, product), packed)


def _depth(call: ConvolutionCall) -> int:
    """Words of the channels of a place."""
    return PRODUCTS[call.product].words(call.channels)


def _taps(binder: Binder, call: ConvolutionCall, vectors: int, lanes: int) -> Tensor:
    """The filters of the windows as [blocks * vectors, taps, lanes]."""

    def arranged(array: Array) -> Array:
        taps = array.reshape(array.shape[0], -1).T
        starts = [first + at * lanes for first in _starts(array.shape[0], vectors * lanes) for at in range(vectors)]
        return np.ascontiguousarray(np.stack([taps[:, first : first + lanes] for first in starts]))

    return binder.derived(call.w, ("taps of blocks", vectors, lanes), arranged)

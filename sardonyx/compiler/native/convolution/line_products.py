"""Convolution of an input with few channels, read line by line as it lies: first layers, in ONNX's order or not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Address, Argument, Array, Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import panel_columns, tile_shape
from sardonyx.compiler.llvm.kernels.convolution.lines import OUTER, LinesSpec, argument_names, emit_lines
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import BATCH_DIMS, Addressing, Operand, TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS, Product
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.convolution.algorithm import Algorithm, rates
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall, Finish, evenly_spaced
from sardonyx.compiler.native.convolution.window_copies import columns
from sardonyx.compiler.native.products.inner_products import product_of
from sardonyx.compiler.native.products.packed_constants import Packed, in_panels
from sardonyx.light_dataclass import dataclass

# The code is written out for each tap of a line, or for those of all channels at one place: not for too many of them.
_MOST_TAPS = 24
# Places of a chunk at most, so that its lines stay in the nearest cache.
_MOST_PLACES = 480
# Lines of the result that a thread claims at once, at most; and how many claims there are at least.
_MOST_CLAIMED, _LEAST_CLAIMS = 8, 32
_SHARE_OF_PEAK = 0.8
# Nanoseconds for a vector of a line that is copied, and of the result.
_VECTOR_NS = 0.35

_LINE = 64


@dataclass(frozen=True)
class _Lines:
    """How the input is read: elements of a place along a line, taps and strides counted in elements.

    The taps of a line are those of `parts` parts.
    """

    unit: int
    part_taps: int
    stride: int
    dilation: int
    channels_first: bool  # lines of one channel
    parts: int = 1

    @property
    def taps(self) -> int:
        return self.part_taps * self.parts


def predict(binder: Binder, call: ConvolutionCall) -> float | None:
    """The product, and copies of the lines for each line of the result."""
    lines = _lines_of(call)
    if lines is None or not call.has_constant_weights or 0 in (math.prod(call.result_shape), call.w.size):
        return None
    target, product = binder.target, PRODUCTS[_product(call, lines)]
    length = call.windows.output[-1] * lines.stride + lines.taps
    copied = call.flops / (2.0 * call.filters * lines.taps * call.windows.output[-1]) * length
    if (
        _line_count(call, lines) * min(length, _MOST_PLACES * lines.stride) * _element_bytes(product)
        > target.caches.l2 / 2
    ):
        return None
    rate, lanes = rates(), target.lanes(product.word)
    if lines.parts > 1 and call.channels >= lanes:  # the channels of a place fill vectors: see `window_products`
        return None
    panel = panel_columns(target, product.name, call.filters)
    padded = -(-call.filters // panel) * panel / call.filters
    padded *= product.depth * -(-lines.part_taps // product.depth) / lines.part_taps
    vectors = copied / lanes + call.batch * call.places * -(-call.filters // lanes)
    return call.flops * padded / (_SHARE_OF_PEAK * rate.flops(target, product.name)) + vectors * _VECTOR_NS


def bind(binder: Binder, call: ConvolutionCall) -> Sequence[Tensor]:
    """Add the step."""
    finish = call.finish(binder)
    results = call.results(binder, finish)
    lines = _lines_of(call)
    assert lines is not None
    name = _product(call, lines)
    tile, product = tile_shape(binder.target, name, call.filters), PRODUCTS[name]
    kinds = tuple(Operand(_addressing(tensor), tensor.dtype) for tensor in finish.operands)
    lanes = binder.target.lanes(product.word)
    epilogue, flushes = TileEpilogue(kinds, finish.outputs), binder.settings.precision == "bfloat16"
    spec = LinesSpec(
        name,
        lines.part_taps,
        lines.stride,
        lines.dilation,
        tile.rows,
        tile.vectors,
        epilogue,
        flushes,
        lines.parts,
        0 < call.filters % (tile.vectors * lanes) <= lanes < tile.vectors * lanes,
    )
    weights = _weights(binder, call, lines, name)
    values = _geometry(call, lines, binder.target, product) | _matrices(finish, results)
    values |= {"x": call.x, "b": weights.words}
    tile_bytes = tile.rows * tile.vectors * binder.target.lanes(product.accumulator) * product.accumulator.nbytes
    start = values["tile_scratch"]
    assert isinstance(start, int)
    outer = call.batch * math.prod(call.windows.output[:-1])
    binder.step(
        emit_lines,
        spec,
        [*(values[name] for name in argument_names(spec)), *_table(call, lines)],
        reads=(call.x, weights.words, *finish.operands),
        writes=tuple(results),
        chunks=outer * _segments(call)[1],
        claim=_claim(outer) if values["shared"] else 1,
        scratch=start + tile_bytes,
        flops=call.flops,
        detail=f"{lines.taps} taps of {_line_count(call, lines)} lines {name}, tile {spec.rows}x{spec.vectors}",
        arithmetic=name if name == _PAIRS else "",
    )
    return call.handed_on(results)


LINE_PRODUCTS = Algorithm("line products", predict, bind)


def _product(call: ConvolutionCall, lines: _Lines) -> str:
    """The inner product: of pairs in a session of that precision, where taps lie together and words are so much fewer
    that it is worth rounding what enters a network."""
    is_rounded = call.product == _PAIRS and call.x.dtype == np.float32 and lines.dilation == 1
    if is_rounded and PRODUCTS[_PAIRS].words(lines.part_taps) <= _WORTH_ROUNDING * lines.part_taps:
        return _PAIRS
    return product_of(call.x.dtype) or call.product


_PAIRS, _WORTH_ROUNDING = "bf16", 0.6


def _element_bytes(product: Product) -> int:
    """Bytes of an element of a line in scratch."""
    return product.word.nbytes // product.depth


def _weights(binder: Binder, call: ConvolutionCall, lines: _Lines, product: str) -> Packed:
    """The filters in panels, K by lines and then their taps, as many as come together for each part of a line."""
    by_channels, depth = not lines.channels_first, PRODUCTS[product].depth
    if lines.part_taps % depth == 0:
        found = columns(binder, call, by_channels, product)
        assert isinstance(found, Packed)
        return found
    filters, channels = call.filters, call.channels

    def matrices(array: Array) -> Array:
        matrix: Array = array.reshape(filters, channels, call.taps)
        matrix = matrix.transpose(0, 2, 1) if by_channels else matrix
        parts = matrix.reshape(filters, -1, lines.part_taps).transpose(1, 2, 0)
        # The last word begins with the tap before, as `LinesSpec.word_taps` has it.
        return np.ascontiguousarray(np.insert(parts, lines.part_taps - 1, 0, axis=1)).reshape(1, -1, filters)

    shape = (1, call.taps * channels // lines.part_taps * (lines.part_taps + 1), filters)
    return in_panels(binder, call.w, ("filters by lines", by_channels, lines.part_taps), matrices, product, shape)


def _lines_of(call: ConvolutionCall) -> _Lines | None:
    """How to read the input; None where its lines do not lie in one piece, or have too many taps."""
    windows, x = call.windows, call.x
    taps, stride, dilation = windows.kernel[-1], windows.strides[-1], windows.dilations[-1]
    if call.group > 1 or len(windows.size) > OUTER + 1:
        return None
    if x.strides[-1] == 1 and not call.is_channels_last:
        found = _Lines(1, taps, stride, dilation, True)
    elif x.strides[1] == 1 and x.strides[-1] == call.channels and dilation == 1:
        parts = 1 if taps * call.channels <= _MOST_TAPS else taps
        found = _Lines(call.channels, taps // parts * call.channels, stride * call.channels, 1, False, parts)
    else:
        return None
    return found if found.part_taps <= _MOST_TAPS else None


def _taps_outside(call: ConvolutionCall) -> list[tuple[int, ...]]:
    """The taps of the dimensions outside of lines, `OUTER` of them."""
    kernel = (*(1 for _ in range(OUTER + 1 - len(call.windows.kernel))), *call.windows.kernel[:-1])
    return list(itertools.product(*map(range, kernel)))


def _line_count(call: ConvolutionCall, lines: _Lines) -> int:
    return len(_taps_outside(call)) * (call.channels if lines.channels_first else 1)


def _taps_around(call: ConvolutionCall) -> int:
    """Taps along the dimension before that of lines."""
    return call.windows.kernel[-2] if len(call.windows.kernel) > 1 else 1


def _shared_taps(call: ConvolutionCall) -> int:
    """How many of these read lines of the input that others read for the line of the result before."""
    windows = call.windows
    if len(windows.kernel) < 2 or windows.strides[-2] % windows.dilations[-2]:
        return 0
    return max(0, _taps_around(call) - windows.strides[-2] // windows.dilations[-2])


def _claim(lines: int) -> int:
    """Lines of the result that a thread does one after the other, where it keeps what they share: as many claims are
    left as a few threads need."""
    return max(1, min(_MOST_CLAIMED, lines // _LEAST_CLAIMS))


def _segments(call: ConvolutionCall) -> tuple[int, int]:
    """Places of a piece of a line of the result, and how many pieces it has."""
    width = call.windows.output[-1]
    count = -(-width // _MOST_PLACES)
    span = -(-width // count)
    return span, -(-width // span)


def _geometry(call: ConvolutionCall, lines: _Lines, target: Target, product: Product) -> dict[str, Argument]:
    """The arguments that say where lines lie and how many there are; see `argument_names`."""
    windows = call.windows
    span, segments = _segments(call)
    length = (span - 1) * lines.stride + (lines.taps - 1) * lines.dilation + 1
    lanes = target.lanes(product.word)
    line_words = -(-(length + lanes) // lanes) * lanes
    values: dict[str, Argument] = {
        "filters": call.filters,
        "lines": _line_count(call, lines),
        "width": windows.output[-1],
        "span": span,
        "segments": segments,
        "item_step": call.x.strides[0],
        "line_first": -windows.begin[-1] * lines.unit,
        "line_size": windows.size[-1] * lines.unit,
        "around": _taps_around(call),
        "shared": _shared_taps(call) if segments == 1 else 0,
        "line_words": line_words,
    }
    copied = -(-_line_count(call, lines) * line_words * _element_bytes(product) // _LINE) * _LINE
    order = -(-_line_count(call, lines) * np.dtype(np.int64).itemsize // _LINE) * _LINE
    values |= {"order_scratch": copied, "tile_scratch": copied + order}
    missing = OUTER + 1 - len(windows.size)
    for dim in range(OUTER):
        at = dim - missing
        there = at >= 0
        values |= {
            f"outer{dim}": windows.output[at] if there else 1,
            f"step{dim}": windows.strides[at] * call.x.strides[2 + at] if there else 0,
            f"first{dim}": -windows.begin[at] if there else 0,
            f"stride{dim}": windows.strides[at] if there else 0,
            f"size{dim}": windows.size[at] if there else 1,
        }
    return values


def _table(call: ConvolutionCall, lines: _Lines) -> list[int]:
    """The lines in the order of K: where each starts from a place's first element, and its taps in places."""
    windows, x = call.windows, call.x
    missing = OUTER + 1 - len(windows.size)
    words: list[int] = []
    for channel in range(call.channels if lines.channels_first else 1):
        for taps in _taps_outside(call):
            places = [0] * OUTER
            start = channel * x.strides[1]
            for dim in range(missing, OUTER):
                at = dim - missing
                places[dim] = taps[dim] * windows.dilations[at]
                start += (places[dim] - windows.begin[at]) * x.strides[2 + at]
            words += [start, *places]
    return words


def _matrices(finish: Finish, results: Sequence[Tensor]) -> dict[str, Argument]:
    """Addresses and strides of the operands and results."""
    values: dict[str, Argument] = {}
    for kind, tensors in (("operand", finish.operands), ("output", results)):
        for index, tensor in enumerate(tensors):
            values[f"{kind}{index}"] = Address(tensor.buffer, tensor.offset)
            values[f"{kind}{index}_stride"] = _place_step(tensor)
            values.update((f"{kind}{index}_batch{axis}", 0) for axis in range(BATCH_DIMS))
            values[f"{kind}{index}_batch0"] = tensor.strides[0]
    return values


def _place_step(tensor: Tensor) -> int:
    step = evenly_spaced(tensor.shape[1:-1], tensor.strides[1:-1])
    assert step is not None
    return step


def _addressing(operand: Tensor) -> Addressing:
    """How an operand [batch, *places, filters] is read."""
    if operand.strides[-1] == 0 and operand.shape[-1] != 1:
        return "column" if _place_step(operand) else "scalar"
    return "full" if _place_step(operand) else "row"

"""Convolution as a matrix product in tiles of AMX that reads windows where they lie, in a padded input.

With its channels last and zeros around it, an input has a window's part of each line in one piece, and the next
place's window begins as many words further on as a place has, from one end of the map to the other. So a tile of
sixteen rows is read like any other, line of the window by line, and nothing is copied but the input, once. Rows that
begin behind the last window of a line are multiplied for nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import panel_columns
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE
from sardonyx.compiler.native.convolution.algorithm import Algorithm, rates, tiles_ns, weights_ns, words_ns
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.convolution.window_products import contiguous_places, panels_by_taps
from sardonyx.compiler.native.products.gemm_step import multiply
from sardonyx.compiler.native.products.left_rows import RunGeometry, RunRows
from sardonyx.compiler.native.products.packed_constants import panels_product
from sardonyx.compiler.native.products.words import as_framed_words, row_words

# Spatial dimensions of an input.
_DIMENSIONS = 2
# The share of the peak that products reach.
_SHARE_OF_PEAK = 0.9
# Nanoseconds for the steps that put zeros around an input.
_FRAME_NS = 2000.0


def predict(binder: Binder, call: ConvolutionCall) -> float | None:
    """The product with the rows that are left out, and the input's way into its frame."""
    product, windows = PRODUCTS[call.product], call.windows
    if not product.in_tiles or call.group > 1 or len(windows.size) != _DIMENSIONS or max(windows.strides) > 1:
        return None
    if call.taps == 1 or call.places == 1 or not call.has_constant_weights or 0 in call.result_shape:
        return None
    rate, panel = rates(), panel_columns(binder.target, call.product, call.filters)
    channels = product.elements(product.words(call.channels))
    rows = -(-_rows(call) // SIDE) * SIDE
    flops = 2.0 * call.batch * rows * call.taps * channels * -(-call.filters // panel) * panel
    nbytes = call.batch * math.prod(windows.size) * channels * product.packed_a.nbytes * product.parts
    ns = flops / (_SHARE_OF_PEAK * rate.flops(binder.target, call.product)) + _FRAME_NS
    ns += 2 * nbytes / rate.bytes_of(binder.target, nbytes) + words_ns(binder.target, call.product, call.x.nbytes)
    ns += weights_ns(binder.target, call.w.size * PRODUCTS[panels_product(call.product)].packed_b.nbytes)
    ns += tiles_ns(call.product, call.batch * rows * call.filters)
    if not call.is_channels_last:
        ns += call.x.nbytes / rate.bytes_of(binder.target, call.x.nbytes)
    return ns


def bind(binder: Binder, call: ConvolutionCall) -> Sequence[Tensor]:
    """Add the steps."""
    finish = call.finish(binder)
    results = call.results(binder, finish)
    rows = _run_rows(binder, call)
    channels = rows.shape[-1] // call.taps
    multiply(
        binder,
        rows,
        panels_by_taps(binder, call, channels),
        finish.outputs,
        [call.by_groups(operand) for operand in finish.operands],
        [call.by_groups(tensor) for tensor in results],
        call.product,
    )
    return call.handed_on(results)


RUN_PRODUCTS = Algorithm("run products", predict, bind)


def _pitch(call: ConvolutionCall) -> int:
    """Places of a line of the input with what windows read around it."""
    windows = call.windows
    return windows.begin[-1] + windows.size[-1] + max(0, windows.read_behind()[-1])


def _rows(call: ConvolutionCall) -> int:
    """Rows from the first window to the last one."""
    lines, places = call.windows.output
    return (lines - 1) * _pitch(call) + places


def _run_rows(binder: Binder, call: ConvolutionCall) -> RunRows:
    """The windows of the input, which is brought into a frame of zeros."""
    windows, product = call.windows, PRODUCTS[call.product]
    x = contiguous_places(binder, call.channels_last)
    words, pitch, rows = row_words(binder, x, call.product), _pitch(call), _rows(call)
    taps = [range(0, size * apart, apart) for size, apart in zip(windows.kernel, windows.dilations, strict=True)]
    if windows.dilations[-1] == 1:
        starts, run_words = [tap * pitch * words for tap in taps[0]], windows.kernel[-1] * words
    else:
        starts = [(down * pitch + across) * words for down, across in itertools.product(*taps)]
        run_words = words
    # Tiles are read whole, also behind the last window.
    read = (-(-rows // SIDE) * SIDE - 1) * words + starts[-1] + run_words
    lines = max(windows.begin[0] + windows.size[0] + windows.read_behind()[0], -(-read // (pitch * words)))
    below = lines - windows.begin[0] - windows.size[0]
    behind = pitch - windows.begin[1] - windows.size[1]
    added = ((windows.begin[0], below), (windows.begin[1], behind))
    whole = as_framed_words(binder, x, call.product, added)
    geometry = RunGeometry(tuple(starts), run_words, pitch, windows.output[-1])
    steps = (whole.strides[0], 0, words)
    shape = (call.batch, 1, call.places, call.taps * product.elements(words))
    return RunRows(whole, geometry, rows, steps, shape)

"""Convolution 3x3 of bytes by minimal filtering while binding: where it is exact and faster, its filters and steps."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from sardonyx.compiler.binding import Argument, Array, Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import panel_columns, panels_of, tile_shape
from sardonyx.compiler.llvm.kernels.products.gemm_strassen import emit_stamp
from sardonyx.compiler.llvm.kernels.quantization.byte_filtering import (
    PRODUCT,
    ByteFilteringSpec,
    argument_names,
    emit_byte_filtering,
)
from sardonyx.compiler.llvm.kernels.quantization.filtering_transforms import (
    BITS_LEFT,
    OF_ONES,
    OUTPUTS,
    POINTS,
    TAPS,
)
from sardonyx.compiler.llvm.types import I16
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.quantization.byte_filtering_choice import Cut, Sizes, choose, cut_of
from sardonyx.compiler.native.quantization.byte_windows import Finish, padded_image, signed_weights

_HIGHEST = 255

# Of fewer channels or filters than this the transforms cost more than they save.
_FEWEST = 16


def is_faster(binder: Binder, call: ConvolutionCall, init: Array) -> bool:
    """Whether the call can be done so, exactly, in less time than by all products."""
    windows = call.windows
    if not binder.settings.winograd or binder.target.architecture != "x86_64" or binder.target.has_amx:
        return False
    if windows.kernel != (TAPS, TAPS) or windows.strides != (1, 1) or windows.dilations != (1, 1) or call.group != 1:
        return False
    if min(call.channels, call.filters) < _FEWEST:
        return False
    return choose(binder.target, _sizes(call)) is not None and _fits(binder, call, init)


def _sizes(call: ConvolutionCall) -> Sizes:
    lines, columns = call.windows.output
    return Sizes(call.batch, call.channels, call.filters, lines, columns)


def _fits(binder: Binder, call: ConvolutionCall, init: Array) -> bool:
    """Whether the sums that start from `init` [filters], in 64 bits, are of so few bits that outputs are exact."""

    def ends(array: Array) -> Array:
        weights = signed_weights(array).reshape(len(array), -1)
        positive = np.maximum(weights, 0).sum(axis=1, dtype=np.int64)
        return np.stack([weights.sum(axis=1, dtype=np.int64) - positive, positive])

    lowest, highest = np.asarray(binder.derived(call.w, ("sums of either sign",), ends).array) * _HIGHEST
    most = 1 << (BITS_LEFT - 1)
    start = init.astype(np.int64)
    return bool((start + lowest >= -most).all() and (start + highest < most).all())


def bind(binder: Binder, call: ConvolutionCall, padding: Tensor, init: Array, finish: Finish) -> None:
    """Add the steps; sums start from `init` [filters]."""
    target, windows = binder.target, call.windows
    cut = cut_of(target, _sizes(call))
    beyond = [-(-size // OUTPUTS) * OUTPUTS - size for size in windows.output]
    lanes = target.lanes(I16)
    image = padded_image(binder, call, padding, -(-call.channels // lanes) * lanes - call.channels, beyond)
    tile = tile_shape(target, PRODUCT)
    spec = ByteFilteringSpec(tile.rows, tile.vectors, finish.epilogue)
    panel = panel_columns(target, PRODUCT)
    taps = binder.derived(call.w, ("taps of pairs of channels", panel), partial(_taps, panel=panel))
    starts = np.zeros(panels_of(call.filters, panel) * panel, np.int64)
    starts[: call.filters] = OF_ONES * init.astype(np.int64)
    begin = binder.constant(starts.astype(np.int32))
    stamp = binder.new(np.dtype(np.int64), (1,))
    binder.step(emit_stamp, (), [stamp], reads=(), writes=(stamp,))
    values: dict[str, Argument] = {"image": image, "taps": taps, "init": begin, "stamp": stamp, **vars(cut)}
    values |= dict(zip(("x_batch", "x_row", "x_column"), image.strides, strict=False))
    values |= dict(zip(("out_height", "out_width"), windows.output, strict=True))
    values |= {"channels": call.channels, "words": -(-call.channels // 2), "filters": call.filters}
    values |= finish.arguments(call.filters)
    for index, operand in enumerate(finish.operands):
        values[f"operand{index}_batch0"] = operand.strides[0] * call.places
    for index in range(len(finish.results)):
        values[f"output{index}_batch0"] = call.filters * call.places
    binder.step(
        emit_byte_filtering,
        spec,
        [values[name] for name in argument_names(spec)],
        reads=(image, taps, begin, stamp, *finish.operands),
        writes=finish.results,
        chunks=cut.chunks,
        scratch=cut.scratch,
        flops=2.0 * POINTS * cut.all_tiles * call.channels * call.filters,
        detail=partial(_detail, call, cut),
        arithmetic="int8",
    )


def _taps(w: Array, panel: int) -> Array:
    """Weights [filters, channels, 3, 3] as [panels][pairs of channels][taps][panel][2], zeros behind the last ones."""
    filters, channels = w.shape[:2]
    panels, words = panels_of(filters, panel), -(-channels // 2)
    whole = np.zeros((panels * panel, words * 2, TAPS * TAPS), np.int8)
    whole[:filters, :channels] = signed_weights(w).reshape(filters, channels, -1)
    return np.ascontiguousarray(whole.reshape(panels, panel, words, 2, TAPS * TAPS).transpose(0, 2, 4, 1, 3))


def _detail(call: ConvolutionCall, cut: Cut) -> str:
    """The sizes, the tiles, and how the work is cut into chunks."""
    sizes = f"{math.prod(call.windows.output)} places, {call.channels} channels, {call.filters} filters"
    return (
        f"tiles of {OUTPUTS}x{OUTPUTS}, {sizes}, {cut.all_tiles} tiles, {cut.tile_block} tiles and {cut.group} panels "
        f"a chunk, tile {cut.tile_rows} rows, k {2 * cut.k_block}"
    )

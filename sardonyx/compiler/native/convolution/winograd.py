"""Convolution 3x3 of stride 1 or 2 by Winograd's minimal filtering: the steps of calls that it takes."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial

import numpy as np

from sardonyx.compiler.binding import Address, Argument, Array, Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import asks_ahead, panel_columns, panels_of, tile_shape
from sardonyx.compiler.kernels.convolution.winograd_filters import FiltersSpec, emit_winograd_filters
from sardonyx.compiler.llvm.kernels.convolution.winograd import WinogradSpec, argument_names, emit_winograd
from sardonyx.compiler.llvm.kernels.convolution.winograd_parts import CHANNELS
from sardonyx.compiler.llvm.kernels.convolution.winograd_transforms import TAPS, Scheme
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import BATCH_DIMS, Addressing, Operand, TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.native.convolution.algorithm import rates
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.convolution.winograd_choice import Cut, Sizes, choose
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.products.packed_constants import pack_b
from sardonyx.compiler.native.products.strassen_step import emit_stamp
from sardonyx.kernel.expr import Expr
from sardonyx.runtime.memory.constant_memory import constant_empty

# Elements of a block of channels when filters are transformed: a few kilobytes of each filter.
_FILTER_BLOCK = 64
# Fewer bytes than this are made by one thread.
_SMALL = 1 << 20


def predicted_ns(binder: Binder, call: ConvolutionCall) -> float:
    """The kernel's time, and that of a copy where the channels of a pixel do not lie together."""
    _, _, time = choose(binder.target, sizes_of(call), call.product)
    copied = 0 if call.is_channels_last else call.x.nbytes
    return time + 2 * copied / rates().bytes_of(binder.target, copied)


def bind(binder: Binder, call: ConvolutionCall) -> Sequence[Tensor]:
    """Add the steps, for the tiles and the cut that are predicted to be the fastest."""
    scheme, cut, _ = choose(binder.target, sizes_of(call), call.product)
    return bind_cut(binder, call, scheme, cut)


def sizes_of(call: ConvolutionCall) -> Sizes:
    """The sizes of a call that the algorithm takes."""
    lines, columns = call.windows.output
    return Sizes(call.batch, call.channels, call.filters, lines, columns, call.windows.strides[0])


def bind_cut(binder: Binder, call: ConvolutionCall, scheme: Scheme, cut: Cut) -> Sequence[Tensor]:
    """Add the steps by this scheme, cut as told."""
    finish = call.finish(binder)
    results = call.results(binder, finish)
    operands = [call.by_groups(operand) for operand in finish.operands]
    x = call.channels_last
    if x.strides[-1] != 1:
        x = contiguous(binder, x)
    tile = tile_shape(binder.target, call.product)
    spec = WinogradSpec(
        scheme.stride,
        scheme.outputs,
        call.product,
        tile.rows,
        tile.vectors,
        shares_requests=cut.tile_block > cut.tile_rows,
        from_taps=cut.from_taps,
        asks_for_tiles=asks_ahead(binder.target),
        flushes=binder.settings.precision == "bfloat16",
        is_ragged=call.channels % CHANNELS > 0,
        epilogue=_epilogue(finish.outputs, operands),
    )
    packed = binder.derived(
        call.w,
        ("Winograd's filters", scheme.stride, scheme.outputs, call.product, cut.from_taps),
        partial(packed_filters, binder.library, scheme=scheme, product=call.product, as_taps=cut.from_taps),
    )
    weights = call.w
    if not weights.is_contiguous:
        weights = binder.derived(weights, ("in one piece",), np.ascontiguousarray)
    stamp = binder.new(np.dtype(np.int64), (1,))
    binder.step(emit_stamp, (), [stamp], reads=(), writes=(stamp,))
    windows = call.windows
    values: dict[str, Argument] = {
        **vars(cut),
        **dict(zip(("x_batch", "x_row", "x_column"), x.strides[:-1], strict=True)),
        **dict(zip(("height", "width"), windows.size, strict=True)),
        **dict(zip(("top", "left"), windows.begin, strict=True)),
        **dict(zip(("out_height", "out_width"), windows.output, strict=True)),
        "x": x,
        "packed": packed,
        "weights": weights,
        "stamp": stamp,
        "x_ahead": _rows_ahead(binder, (x,), scheme.size * cut.tile_block, scheme.points * cut.group),
        "y_ahead": _rows_ahead(binder, (*finish.operands, *results), scheme.outputs * cut.tile_block, scheme.points),
        "channels": call.channels,
        "filters": call.filters,
    }
    for kind, matrices in (("operand", operands), ("output", map(call.by_groups, results))):
        for index, tensor in enumerate(matrices):
            values.update(_matrix(f"{kind}{index}", tensor))
    binder.step(
        emit_winograd,
        spec,
        [values[name] for name in argument_names(spec)],
        reads=(x, packed, weights, stamp, *finish.operands),
        writes=tuple(results),
        read_first=finish.operands,
        chunks=cut.chunks,
        scratch=cut.scratch,
        flops=2.0 * scheme.points * cut.all_tiles * call.channels * call.filters,
        nbytes=float(sum(tensor.nbytes for tensor in (x, packed, *finish.operands, *results))),
        detail=partial(_detail, call, scheme, cut),
    )
    return call.handed_on(results)


def packed_filters(
    library: KernelLibrary, array: Array, scheme: Scheme, product: str = "f32", *, as_taps: bool = False
) -> Array:
    """Filters [filters, channels, 3, 3] as `emit_winograd` reads them: transformed in float64, rounded once, or as they
    are."""
    filters, channels = array.shape[:2]
    panel = panel_columns(library.target)
    vectors, numbers = tile_shape(library.target).vectors, scheme.filters
    size = panels_of(filters, panel) * panel
    if as_taps:
        panel, vectors, numbers = panel // vectors, 1, TAPS * TAPS
    panels, blocks = size // panel, -(-channels // _FILTER_BLOCK)
    packed = constant_empty(size * numbers * channels, np.dtype(np.float32))
    source = np.ascontiguousarray(array, np.float32)
    spec = FiltersSpec(scheme.stride, scheme.outputs, vectors, as_taps)
    words = (source, packed, filters, channels, _FILTER_BLOCK, blocks)
    threads = min(os.cpu_count() or 1, panels * blocks) if packed.nbytes > _SMALL else 1
    library.run(emit_winograd_filters, spec, words, panels * blocks, threads)
    if PRODUCTS[product].in_tiles:
        return pack_b(library, packed.reshape(panels * numbers, channels, panel), product)
    return packed


def _rows_ahead(binder: Binder, tensors: Sequence[Tensor], rows: int, turns: int) -> int:
    """Rows to ask for in each of so many turns; none where the second cache may hold the tensors."""
    return -(-rows // turns) if sum(tensor.nbytes for tensor in tensors) > binder.target.caches.l2 else 0


# Whether an operand has rows (places) and columns (filters) of its own.
_ADDRESSING: dict[tuple[bool, bool], Addressing] = {
    (True, True): "full",
    (True, False): "column",
    (False, True): "row",
    (False, False): "scalar",
}


def _epilogue(outputs: tuple[Expr, ...], operands: Sequence[Tensor]) -> TileEpilogue:
    kinds = tuple(
        Operand(_ADDRESSING[bool(operand.strides[2]), bool(operand.strides[3])], operand.dtype) for operand in operands
    )
    return TileEpilogue(kinds, outputs)


def _matrix(name: str, tensor: Tensor) -> dict[str, Argument]:
    """The words of a tensor [images, 1, places, filters]."""
    words: dict[str, Argument] = {f"{name}_batch{axis}": 0 for axis in range(BATCH_DIMS)}
    words[name] = Address(tensor.buffer, tensor.offset)
    words[f"{name}_stride"], words[f"{name}_batch0"] = tensor.strides[2], tensor.strides[0]
    return words


def _detail(call: ConvolutionCall, scheme: Scheme, cut: Cut) -> str:
    """The sizes, the tiles, and how the work is cut into chunks."""
    sizes = f"{math.prod(call.windows.output)} places, {call.channels} channels, {call.filters} filters"
    return (
        f"tiles of {scheme.outputs}x{scheme.outputs}, stride {scheme.stride}, {sizes}, {cut.all_tiles} tiles, "
        f"{cut.tile_block} tiles and {cut.group} panels a chunk, "
        + ("filters from taps" if cut.from_taps else f"tile {cut.tile_rows} rows" + " of AMX" * cut.in_tiles)
        + f", k {cut.k_block}"
    )

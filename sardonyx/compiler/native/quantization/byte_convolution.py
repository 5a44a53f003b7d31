"""Convolution of bytes while binding: the image with its padding, the runs of a window, and how the work is cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sardonyx.compiler.binding import Argument, Array, Binder, Tensor
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import Addressing, Operand, TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.quantization.byte_convolution import (
    LINE_DIMS,
    ByteConvolutionSpec,
    argument_names,
    emit_byte_convolution,
)
from sardonyx.compiler.llvm.kernels.quantization.byte_depthwise import ByteDepthwiseSpec, emit_byte_depthwise
from sardonyx.compiler.llvm.kernels.quantization.byte_depthwise import argument_names as depthwise_names
from sardonyx.compiler.llvm.types import I32
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall, evenly_spaced
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.quantization import byte_filtering, byte_tiles, depthwise_words
from sardonyx.compiler.native.quantization.byte_tables import with_tables
from sardonyx.compiler.native.quantization.byte_windows import (
    Finish,
    Panels,
    Runs,
    offsets_of,
    padded_image,
    signed_weights,
    tile_of,
)
from sardonyx.kernel.cost import weight
from sardonyx.kernel.expr import Expr, Input, substitute
from sardonyx.light_dataclass import dataclass

_I8, _U8, _I32 = np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int32)

PRODUCT = "u8s8"

# Work of a chunk, in multiplications and additions of bytes; how many of these take as long as an operation of the
# epilogue; and what the image of a chunk may take of the second cache.
_CHUNK_WORK = 16e6
_OF_EPILOGUE = 4
_IMAGE_L2 = 0.4
_DEPTHWISE_CHUNK = 1e6
# Neighbouring places that share the load of a depthwise weight, where there are 32 registers.
_PLACES = 8
# A line that is longer than this many tiles is cut into pieces.
_MOST_TILES = 8


def convolved(
    binder: Binder,
    call: ConvolutionCall,
    padding: Tensor,
    result: Expr,
    operands: Sequence[Tensor],
    init: Array,
) -> list[Tensor]:
    """Add the steps of a convolution of unsigned bytes with constant weights; the outputs are in ONNX's order.

    `result` is over `Input(0)`, the sums in int32 that start from `init` [filters], and `Input(1 + i)`, operand i,
    [..., filters] of places; the epilogue of the call follows it. `padding` is the byte around the image.
    """
    epilogue, tables = with_tables(binder, call.epilogue)
    call = replace(call, epilogue=epilogue)
    taken = call.finish(binder)
    outputs = _followed(taken.outputs, result, len(operands))
    results = [binder.new(output.dtype, (call.batch, *call.windows.output, call.filters)) for output in outputs]
    if math.prod(call.result_shape) == 0:
        return call.handed_on(results)
    matrices = [_matrix(binder, operand, call) for operand in (*operands, *taken.operands)]
    kinds = [Operand(_addressing(matrix), matrix.dtype) for matrix in matrices]
    tables = [table.reshaped(table.shape, (0,)) for table in tables]  # whole for each row and item
    kinds += [Operand("table", table.dtype) for table in tables]
    finish = Finish(TileEpilogue(tuple(kinds), outputs), [*matrices, *tables], results)
    is_depthwise = call.w.shape[1] == 1 and call.filters == call.group > 1
    if is_depthwise and depthwise_words.takes(binder.target, call):
        depthwise_words.bind(binder, call, padding, init, finish)
    elif is_depthwise:
        _bind_depthwise(binder, call, padding, init, finish)
    elif byte_filtering.is_faster(binder, call, init):
        byte_filtering.bind(binder, call, padding, init, finish)
    else:
        _bind_panels(binder, call, padding, init, finish)
    return call.handed_on(results)


def _bind_panels(binder: Binder, call: ConvolutionCall, padding: Tensor, init: Array, finish: Finish) -> None:
    """Add the steps of a convolution whose filters are multiplied panel by panel."""
    runs = Runs.of(call, PRODUCT)
    if byte_tiles.is_faster(binder.target, call, runs):
        tiled = Runs.of(call, byte_tiles.PRODUCT)
        image = padded_image(binder, call, padding, tiled.slack)
        places = byte_tiles.places_of(call, image, tiled)
        if places is not None:
            byte_tiles.bind(binder, call, image, tiled, places, init, finish)
            return
    else:
        image = padded_image(binder, call, padding, runs.slack)
    panels = Panels.of(binder, call, runs, init)
    tile = tile_of(binder.target, panels.product, call.filters // call.group)
    spec = ByteConvolutionSpec(panels.product, tile.rows, tile.vectors, finish.epilogue)
    offsets = offsets_of(binder, runs.taps, image)
    lines = _Lines.of(call, image)
    cut = _Cut.of(binder, _work(call, finish), lines, tile.rows, panels)
    values: dict[str, Argument] = {"image": image, "offsets": offsets, **panels.arguments}
    values |= {"taps": len(runs.taps), "filters": call.filters // call.group}
    values |= {"groups": call.group, "group_step": call.w.shape[1]}
    values |= {**vars(cut), **lines.arguments, **finish.arguments(call.filters)}
    binder.step(
        emit_byte_convolution,
        spec,
        [values[name] for name in argument_names(spec)],
        reads=(image, panels.weights, panels.begin, offsets, *finish.operands),
        writes=finish.results,
        chunks=cut.blocks * cut.panel_groups * call.group,
        scratch=spec.rows * panels.lanes * _I32.itemsize,
        flops=call.flops,
        detail=f"{call.batch * call.places} places x {len(runs.taps)} runs of {runs.nbytes} x {call.filters} filters"
        f"{f' in {call.group} groups' if call.group > 1 else ''}, tiles of {cut.tile} x {tile.vectors}",
        arithmetic="int8",
    )


def _work(call: ConvolutionCall, finish: Finish) -> float:
    """What a convolution and its epilogue take, in operations of bytes: of few channels the epilogue takes longer."""
    places = call.batch * call.places * call.filters
    return call.flops + float(_OF_EPILOGUE * weight(finish.epilogue.outputs) * places)


def _bind_depthwise(binder: Binder, call: ConvolutionCall, padding: Tensor, init: Array, finish: Finish) -> None:
    """Add the steps of a convolution in which every channel has one filter."""
    lanes = binder.target.lanes(I32)
    channels = -(-call.channels // lanes) * lanes
    spec = ByteDepthwiseSpec(_PLACES if binder.target.registers >= 32 else _PLACES // 2, finish.epilogue)
    taps = Runs.of(call, PRODUCT).taps
    image = padded_image(binder, call, padding, slack=channels - call.channels)
    weights = binder.derived(call.w, ("taps", channels), lambda array: _by_taps(array, channels))
    starts = np.zeros(channels, np.int32)
    starts[: call.channels] = init
    begin, offsets = binder.constant(starts), offsets_of(binder, taps, image)
    lines = _Lines.of(call, image)
    block = max(1, round(_DEPTHWISE_CHUNK * lines.count / call.flops))
    values: dict[str, Argument] = {"image": image, "weights": weights, "init": begin, "offsets": offsets}
    values |= {"taps": len(taps), "filters": call.channels, "padded": channels, "items": lines.count, "block": block}
    values |= {**lines.arguments, **finish.arguments(call.filters)}
    binder.step(
        emit_byte_depthwise,
        spec,
        [values[name] for name in depthwise_names(spec)],
        reads=(image, weights, begin, offsets, *finish.operands),
        writes=finish.results,
        chunks=-(-lines.count // block),
        scratch=spec.rows * lanes * _I32.itemsize,
        flops=call.flops,
        detail=f"{call.batch * call.places} places x {len(taps)} taps, {call.channels} channels apart",
    )


def _by_taps(w: Array, channels: int) -> Array:
    """Depthwise weights [channels, 1, *kernel] as [taps][channels] in int32, with zeros up to whole vectors."""
    matrix = np.zeros((w[0].size, channels), np.int32)
    matrix[:, : len(w)] = signed_weights(w).reshape(len(w), -1).T
    return matrix


def _followed(outputs: Sequence[Expr], result: Expr, count: int) -> tuple[Expr, ...]:
    """The epilogue's expressions after `result`, which has `count` operands of its own."""

    def replaced(leaf: Input) -> Expr:
        return result if leaf.index == 0 else Input(leaf.dtype, leaf.index + count)

    return tuple(substitute(outputs, replaced))


def _matrix(binder: Binder, operand: Tensor, call: ConvolutionCall) -> Tensor:
    """An operand [batch, *places, filters] as [batch * places, filters] with strides of 0 where it is repeated."""
    shape = (call.batch, *call.windows.output, call.filters)
    missing = len(shape) - len(operand.shape)
    sizes, steps = (1,) * missing + operand.shape, (0,) * missing + operand.strides
    strides = [step if size == wanted else 0 for size, step, wanted in zip(sizes, steps, shape, strict=True)]
    rows = evenly_spaced(shape[:-1], strides[:-1])
    if rows is None or strides[-1] not in (0, 1):
        whole = contiguous(binder, operand.reshaped(shape, strides))
        return whole.reshaped((math.prod(shape[:-1]), shape[-1]))
    return operand.reshaped((math.prod(shape[:-1]), shape[-1]), (rows, strides[-1]))


def _addressing(matrix: Tensor) -> Addressing:
    rows, columns = matrix.strides
    if matrix.shape[1] == 1:
        columns = 0
    if columns == 0:
        return "column" if rows else "scalar"
    return "full" if rows else "row"


@dataclass(frozen=True)
class _Lines:
    """The places of the output as lines: places of one, their step in the image, and the dimensions over lines."""

    width: int
    step: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    @staticmethod
    def of(call: ConvolutionCall, image: Tensor) -> _Lines:
        """The last dimension, and those before it that are evenly spaced with it."""
        windows = call.windows
        over = [stride * step for stride, step in zip(windows.strides, image.strides[1:-1], strict=True)]
        axes = [(call.batch, image.strides[0]), *zip(windows.output, over, strict=True)]
        width, step = axes.pop()
        while axes:
            size, outer = axes[-1]
            if size != 1 and width != 1 and outer != width * step:
                break
            width, step = width * size, (outer if width == 1 else step)
            axes.pop()
        axes = [axis for axis in axes if axis[0] != 1]
        axes = [(1, 0)] * (LINE_DIMS - len(axes)) + axes
        return _Lines(width, step, tuple(size for size, _ in axes), tuple(outer for _, outer in axes))

    @property
    def count(self) -> int:
        return math.prod(self.sizes)

    @property
    def arguments(self) -> dict[str, Argument]:
        """Those of the kernels."""
        steps = {f"line_step{axis}": self.steps[axis] for axis in range(LINE_DIMS)}
        return {"width": self.width, "step": self.step, "size1": self.sizes[1], "size2": self.sizes[2], **steps}


@dataclass(frozen=True)
class _Cut:
    """How the work is divided; the names are those of the kernel's arguments."""

    piece: int
    pieces: int
    tile: int
    items: int
    block: int
    blocks: int
    panels: int
    panel_groups: int

    @staticmethod
    def of(binder: Binder, work: float, lines: _Lines, rows: int, weights: Panels) -> _Cut:
        """Tiles of equal height, and chunks of about equal work, as `_work` counts it, whose image stays in the second
        cache; of bounded words those of the chunk's panels do."""
        panels, share = weights.count, int(_IMAGE_L2 * binder.target.caches.l2)
        tiles = -(-lines.width // rows)
        tile = -(-lines.width // tiles)
        piece = tile * min(tiles, _MOST_TILES)
        pieces = -(-lines.width // piece)
        items = lines.count * pieces
        item_work = work / weights.groups / items
        item_bytes = piece * max(1, lines.step)
        fits, most = max(1, share // item_bytes), panels
        if PRODUCTS[weights.product].is_bounded:
            fits, most = items, max(1, share * panels // (weights.group_words * _I32.itemsize))
        wanted = min(_CHUNK_WORK, max(_CHUNK_WORK / 4, work / 8))
        group = min(panels, most, max(1, round(wanted / (item_work / panels * min(fits, items)))))
        block = min(items, fits, max(1, round(wanted / (item_work / panels * group))))
        blocks, panel_groups = -(-items // block), -(-panels // group)
        return _Cut(
            piece, pieces, tile, items, -(-items // blocks), blocks, -(-panels // panel_groups), panel_groups
        )  # fmt: skip

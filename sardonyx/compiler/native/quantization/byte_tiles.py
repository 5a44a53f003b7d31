"""Convolution of bytes in tiles of AMX while binding: whether it pays, which places are rows of tiles, the chunks."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Argument, Array, Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import panels_of
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE
from sardonyx.compiler.llvm.kernels.quantization.byte_tiles import (
    HIGH,
    LINES_OF_STEP,
    PANEL,
    ByteTilesSpec,
    argument_names,
    emit_byte_tiles,
)
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.convolution.algorithm import rates
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.quantization.byte_windows import Finish, Panels, Runs, offsets_of
from sardonyx.light_dataclass import dataclass

PRODUCT = "u8s8 tiles"

# Work of a chunk, and what its part of the image or of the weights may take of the second cache.
_CHUNK_FLOPS = 32e6
_SHARE_OF_L2 = 0.4


def is_faster(target: Target, call: ConvolutionCall, runs: Runs) -> bool:
    """Whether tiles are multiplied in less time than vectors by `runs`, what is there to fill them counted."""
    if not target.has_amx or call.batch * call.places < SIDE:
        return False
    return _nanoseconds(target, call, Runs.of(call, PRODUCT), PANEL) < _nanoseconds(target, call, runs, 1)


def _nanoseconds(target: Target, call: ConvolutionCall, runs: Runs, panel: int) -> float:
    """Those of the multiplications, and of an image that is copied because more is read than there is."""
    columns = call.group * panels_of(call.filters // call.group, panel) * panel
    flops = 2.0 * call.batch * call.places * len(runs.taps) * (runs.nbytes + runs.slack) * columns
    ns = flops / rates().flops(target, runs.product)
    return ns + (call.x.nbytes / rates().bytes_of(target, call.x.nbytes) if runs.slack else 0.0)


def bind(
    binder: Binder, call: ConvolutionCall, image: Tensor, runs: Runs, places: Places, init: Array, finish: Finish
) -> None:
    """Add the step of a convolution whose windows are rows of tiles."""
    panels = Panels.of(binder, call, runs, init)
    tables = [binder.constant(table) for table in (places.pairs, places.stretches)]
    offsets = offsets_of(binder, runs.taps, image)
    cut = _Cut.of(binder.target, call, runs, len(places.pairs), panels.count)
    values: dict[str, Argument] = {"image": image, "weights": panels.weights, "init": panels.begin, "offsets": offsets}
    values |= {"taps": len(runs.taps), "words": runs.words, "filters": call.filters // call.group}
    values |= {"groups": call.group, "group_step": call.w.shape[1], "weights_step": panels.group_words}
    values |= {"step": places.step, "places": tables[0], "stretches": tables[1]}
    values |= {**vars(cut), **finish.arguments(call.filters)}
    spec = ByteTilesSpec(finish.epilogue)
    binder.step(
        emit_byte_tiles,
        spec,
        [values[name] for name in argument_names(spec)],
        reads=(image, panels.weights, panels.begin, offsets, *tables, *finish.operands),
        writes=finish.results,
        chunks=cut.blocks * cut.panel_groups * call.group,
        scratch=HIGH * SIDE * PANEL * np.dtype(np.int32).itemsize,
        flops=call.flops,
        detail=f"{call.batch * call.places} places x {len(runs.taps)} runs of {runs.nbytes} x {call.filters} filters"
        f"{f' in {call.group} groups' if call.group > 1 else ''}, {len(places.pairs)} pairs of tiles",
        arithmetic="int8 tiles",
    )


@dataclass(frozen=True, eq=False)
class Places:
    """Bytes between the rows of a tile, and the tables of the kernel."""

    step: int
    pairs: Array
    stretches: Array


def places_of(call: ConvolutionCall, image: Tensor, runs: Runs) -> Places | None:
    """The windows of the image as rows of tiles; None where they are too few, or not in the order of their places."""
    windows = call.windows
    over = [stride * step for stride, step in zip(windows.strides, image.strides[1:-1], strict=True)]
    axes = ((call.batch, image.strides[0]), *zip(windows.output, over, strict=True))
    size = sum((count - 1) * step for count, step in zip(image.shape, image.strides, strict=True)) + 1 + runs.slack
    last_tap = sum(tap * step for tap, step in zip(runs.taps[-1], image.strides[1:-1], strict=True))
    before_last_group = (call.group - 1) * call.w.shape[1]
    return _tiled(axes, size - before_last_group - last_tap - runs.nbytes - runs.slack)


@functools.lru_cache(maxsize=256)
def _tiled(axes: Sequence[tuple[int, int]], last: int) -> Places | None:
    """Tiles of places along `axes` (sizes and steps in bytes), no row of which begins behind byte `last`.

    A tile begins at the first place that is in none yet, and has all those in it that lie a multiple of the step behind
    it. Where its last rows would lie behind the image, it begins so many rows earlier.
    """
    starts = np.zeros(1, np.int64)
    for count, apart in axes:
        starts = (starts[:, None] + np.arange(count) * apart).reshape(-1)
    if len(starts) < SIDE or (np.diff(starts) <= 0).any():
        return None
    step = int(np.diff(starts).min())
    listed: list[int] = starts.tolist()
    tiles: list[tuple[int, list[tuple[int, int, int]]]] = []
    place = 0
    while place < len(listed):
        begin = listed[place]
        shift = max(0, -(-(begin + (SIDE - 1) * step - last) // step))
        if begin < shift * step:
            return None
        end = bisect.bisect_right(listed, begin + (SIDE - 1 - shift) * step, place)
        found: list[tuple[int, int, int]] = []
        while place < end and (listed[place] - begin) % step == 0:
            row = shift + (listed[place] - begin) // step
            _add(found, row, place, 1)
            place += 1
        tiles.append((begin - shift * step, found))
    return _tables(step, tiles)


def _add(stretches: list[tuple[int, int, int]], row: int, place: int, count: int) -> None:
    """Add rows to a list of stretches, to its last one where they follow it."""
    if stretches:
        first, to, rows = stretches[-1]
        if (first + rows, to + rows) == (row, place):
            stretches[-1] = (first, to, rows + count)
            return
    stretches.append((row, place, count))


def _tables(step: int, tiles: Sequence[tuple[int, Sequence[tuple[int, int, int]]]]) -> Places:
    """The tables of pairs and of stretches."""
    pairs: list[tuple[int, int, int, int]] = []
    stretches: list[tuple[int, int, int]] = []
    for number in range(0, len(tiles), HIGH):
        both = tiles[number : number + HIGH]
        found: list[tuple[int, int, int]] = []
        for which, (_, rows) in enumerate(both):
            for row, place, count in rows:
                _add(found, row + which * SIDE, place, count)
        second = both[1][0] if len(both) == HIGH else -1
        pairs.append((both[0][0], second, len(stretches), len(stretches) + len(found)))
        stretches += found
    return Places(step, np.array(pairs, np.int64), np.array(stretches, np.int64))


@dataclass(frozen=True)
class _Cut:
    """How the work is divided; the names are those of the kernel's arguments."""

    pairs: int
    block: int
    blocks: int
    lines: int
    panels: int
    panel_groups: int

    @staticmethod
    def of(target: Target, call: ConvolutionCall, runs: Runs, pairs: int, panels: int) -> _Cut:
        """Chunks of about equal work, whose part of the image stays in the second cache.

        All pairs meet a panel before the next where panels are as many: weights come from afar, a panel at a time.
        """
        most_bytes = _SHARE_OF_L2 * target.caches.l2
        words = runs.words * len(runs.taps)
        fits = max(1, int(most_bytes / max(1, call.x.nbytes // call.group // pairs)))
        wanted = min(_CHUNK_FLOPS, max(_CHUNK_FLOPS / 8, call.flops / 8))
        cells = max(1, round(wanted / (2.0 * HIGH * SIDE * PANEL * 4 * words)))
        if pairs <= panels:
            block = min(pairs, fits)
            group = min(panels, max(1, cells // block))
        else:
            group = min(panels, cells, max(1, int(most_bytes / (4 * words * PANEL))))
            block = min(pairs, fits, max(1, cells // group))
        blocks, panel_groups = -(-pairs // block), -(-panels // group)
        block, group = -(-pairs // blocks), -(-panels // panel_groups)
        return _Cut(pairs, block, blocks, -(-LINES_OF_STEP // block), group, panel_groups)

"""Small windows in tiles or strips while binding: their lines and places, and how the work is cut."""

from __future__ import annotations

import math

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.choice.gemm_choice import asks_for_results
from sardonyx.compiler.llvm.emitters import emitter
from sardonyx.compiler.llvm.kernels.windows.folds import WATCHES, Combine, Fold, Locate
from sardonyx.compiler.llvm.kernels.windows.frame import Along
from sardonyx.compiler.llvm.kernels.windows.tiles import TileSpec, emit_window_tiles
from sardonyx.compiler.llvm.library import Emit
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.windows.channel_windows import apart, lanes_of, sure_columns, tile
from sardonyx.compiler.native.windows.window_call import Slide, WindowCall
from sardonyx.light_dataclass import dataclass

emit_channel_strips = emitter("windows.channel_strips", "emit_channel_strips")

# The taps of a kernel are all written out: so many of them at most.
_MOST_TAPS = 25
# The share of the registers that the weights of a line take at most: the rest is for the sums, and the code's own.
_SHARE_OF_REGISTERS = 0.25
# Lines of a tile at most: more of them scatter what is read and written over too many places of memory.
_MOST_LINES = 2
# The share of the nearest cache for what a tile reads and writes, with all channels of a block.
_SHARE_OF_L1 = 0.6
# Lines of a band at least: what windows of two bands read comes to the nearest cache twice.
_FEWEST_LINES = 8
# Vectors of channels that an item goes down a strip for, one after the other.
_VECTORS_OF_STRIP = 4


def tiles_fit(target: Target, call: WindowCall) -> bool:
    """Whether windows are computed in tiles: of pools and depthwise convolutions over two dimensions, with few taps.

    Windows of one line gain nothing from strips, whose many items cost more than they save.
    """
    slide, fold = Slide.of(call.windows), call.fold
    if isinstance(fold, Locate) or not slide.is_flat or slide.kernel[1] == 1 or math.prod(slide.kernel) > _MOST_TAPS:
        return False
    if isinstance(fold, Combine):
        return True
    is_depthwise = fold.channels == fold.filters == 1
    return is_depthwise and slide.kernel[-1] <= _SHARE_OF_REGISTERS * target.registers


def bind_window_tiles(binder: Binder, call: WindowCall) -> None:
    """Add the step for windows that fit; the channels of the input and of the results lie together."""
    fold, slide, target = call.fold, Slide.of(call.windows), binder.target
    assert not isinstance(fold, Locate)
    channels, lanes = call.results[0].shape[-1], lanes_of(target, call)
    _, lines, places = slide.output
    _, down, across = (Along(1, *one) for one in zip(slide.kernel, slide.stride, slide.dilation, strict=True))
    if _in_strips(target, slide, fold):
        along = _strip(target, down, across, places)
        block = min(_VECTORS_OF_STRIP * lanes, -(-channels // lanes) * lanes)
        add_tiles(binder, call, emit_channel_strips, Tiles(lanes, down, along, block, "strips"))
        return
    along = tile(target, fold, (across.taps, across.stride, across.dilation), max(1, places), in_turns=False)
    down = Along(_lines(target, fold, down, along, lines), down.taps, down.stride, down.dilation)
    block = _block(target, down, along, channels, lanes, call.x.dtype.itemsize)
    add_tiles(binder, call, emit_window_tiles, Tiles(lanes, down, along, block, "tiles"))


@dataclass(frozen=True)
class Tiles:
    """How windows are cut: elements of a vector, windows of a tile down and along, channels of a block, and the name
    of all this."""

    lanes: int
    down: Along
    along: Along
    block: int
    name: str


def add_tiles(binder: Binder, call: WindowCall, emit: Emit, tiles: Tiles) -> None:
    """Add the step of a kernel whose specification is a `TileSpec`."""
    first, fold = call.results[0], call.fold
    if first.size == 0:
        return
    assert not isinstance(fold, Locate)
    target, slide = binder.target, Slide.of(call.windows)
    call = apart(binder, call, slide)
    down, along, block = tiles.down, tiles.along, tiles.block
    channels = first.shape[-1]
    _, lines, places = slide.output
    spec = TileSpec(
        call.x.dtype.name,
        fold,
        tiles.lanes,
        down,
        along,
        lines % down.places,
        sure_columns(slide, along),
        call.finish(slide, by_rows=False, flushes=binder.settings.precision == "bfloat16"),
        # Nearer than that it costs more than it saves.
        asks_ahead=call.x.nbytes > target.caches.l2,
        asks_results=asks_for_results(target, sum(one.nbytes for one in call.results), in_strips=True),
    )
    words = call.matrices(slide, by_rows=False)
    if call.weights is not None:
        words["weights"] = call.weights
    begin = slide.each(slide.windows.begin, 0)
    for place, of in ((1, "h"), (2, "w")):
        words |= {f"size_{of}": slide.size[place], f"out_{of}": slide.output[place], f"begin_{of}": begin[place]}
    blocks, strips = -(-channels // block), -(-places // along.places)
    line = along.places * min(block, channels)
    band = _band(lines, call.elements_per_chunk // line, down.places)
    bands = -(-lines // band)
    per_chunk = max(1, call.elements_per_chunk // (band * line))
    items = first.shape[0] * blocks * strips * bands
    words |= {"band": band, "bands": bands, "strips": strips}
    words |= {"blocks": blocks, "block": block, "channels": channels}
    detail = (
        f"{lines}x{places} windows of {down.taps}x{along.taps} over {channels} channels, "
        f"{tiles.name} of {down.places}x{along.places}, vectors of {tiles.lanes}"
    )
    call.add_step(binder, emit, spec, words, items, per_chunk, detail)


def _in_strips(target: Target, slide: Slide, fold: Fold) -> bool:
    """Whether lines are combined as they pass by: of pools whose windows share most of their lines."""
    if not isinstance(fold, Combine) or slide.stride[1] != 1 or slide.dilation[1] != 1:
        return False
    return slide.kernel[1] - 1 + slide.kernel[-1] <= target.registers // 3


def _strip(target: Target, down: Along, across: Along, places: int) -> Along:
    """The windows of a strip: as many as registers hold, with the lines that wait for those below."""
    best = Along(1, across.taps, across.stride, across.dilation)
    for count in range(2, places + 1):
        along = Along(count, across.taps, across.stride, across.dilation)
        if count * (down.taps - 1) + len(along.columns) + WATCHES > target.registers:
            break
        if -(-places // count) < -(-places // best.places):
            best = along
    return best


def _lines(target: Target, fold: Fold, down: Along, along: Along, lines: int) -> int:
    """The lines of a tile: as many as the registers hold, with their values and the weights that a line meets."""
    fitting = 1
    for count in range(2, min(_MOST_LINES, lines) + 1):
        tall = Along(count, down.taps, down.stride, down.dilation)
        readers = max(len(tall.readers(line)) for line in tall.columns)
        if isinstance(fold, Combine):
            registers = count * (len(along.columns) + WATCHES)
        else:
            registers = count * along.places + readers * along.taps
        if registers + 2 <= target.registers:
            fitting = count
    return fitting


def _block(target: Target, down: Along, along: Along, channels: int, lanes: int, itemsize: int) -> int:
    """Channels of a block: so many that what a tile reads stays in the nearest cache for the tile below."""
    reads = len(down.columns) * len(along.columns) + down.places * along.places
    vectors = max(1, int(_SHARE_OF_L1 * target.caches.l1) // (reads * lanes * itemsize))
    count = -(-channels // (vectors * lanes))
    return -(-channels // (count * lanes)) * lanes


def _band(lines: int, wanted: int, multiple: int) -> int:
    """Lines of a band: about as many as wanted, in equal parts that are multiples of those of a tile."""
    bands = max(1, lines // max(_FEWEST_LINES, wanted))
    return -(-lines // (bands * multiple)) * multiple

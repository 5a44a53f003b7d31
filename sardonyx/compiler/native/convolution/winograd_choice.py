"""Whether Winograd's algorithm is worth it for a convolution, with which tiles, and how that is cut into chunks.

Nothing here depends on the number of threads. The scheme decides about rounding, and whether filters are transformed
while they are multiplied; how the tiles are cut does not.
"""

from __future__ import annotations

import functools

from sardonyx.compiler.choice.gemm_choice import asks_ahead, panel_columns, tile_shape
from sardonyx.compiler.choice.tuned import tuned
from sardonyx.compiler.llvm.kernels.convolution.tile_results import products_of_tile
from sardonyx.compiler.llvm.kernels.convolution.winograd_parts import CHANNELS, PRODUCT, WORDS
from sardonyx.compiler.llvm.kernels.convolution.winograd_taps import TAPS_SCHEME, TILES_AT_ONCE
from sardonyx.compiler.llvm.kernels.convolution.winograd_transforms import SCHEMES, TAPS, Scheme
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32
from sardonyx.compiler.native.convolution.algorithm import rates
from sardonyx.light_dataclass import dataclass

_LINE = 64
_FLOAT = 4

# Chunks that keep a few threads busy to the end.
_ENOUGH_CHUNKS = 8
# Blocks of tiles that are considered, in tiles.
_BLOCKS = (4, 6, 8, 12, 16, 20, 24, 30, 36, 48, 60, 72, 96, 128, 192)
# The registers that products with filters from taps take, see `winograd_taps`.
_REGISTERS = 32
# Products in tiles wait for what lies behind the second cache: this share of it is for a block.
_NEAR_SHARE = 0.22
# Of products in tiles, channels at once: so much of a panel of filters stays in the nearest cache.
_CHANNELS_IN_TILES = 128
# A step of the micro-kernel takes as many cycles as it has rows, but no less than a multiply-add's latency.
_LEAST_CYCLES = 4


@dataclass(frozen=True)
class Sizes:
    """A convolution 3x3: images, channels, filters, lines and columns of the result, and the stride."""

    images: int
    channels: int
    filters: int
    lines: int
    columns: int
    stride: int = 1


@dataclass(frozen=True)
class Cut:
    """Sizes of a chunk and of what it keeps in scratch: see `winograd.argument_names`; `from_taps` where filters are
    transformed while they are multiplied, `in_tiles` where products are in tiles of AMX."""

    all_tiles: int
    tiles: int
    tiles_across: int
    tile_block: int
    group: int
    groups: int
    tile_rows: int
    k_block: int
    v_stride: int
    v_apart: int
    o_apart: int
    run: int
    v_scratch: int
    m_scratch: int
    o_scratch: int
    mark_scratch: int
    scratch: int
    from_taps: bool = False
    in_tiles: bool = False

    @property
    def blocks(self) -> int:
        return -(-self.all_tiles // self.tile_block)

    @property
    def chunks(self) -> int:
        return self.blocks * self.groups


@dataclass(frozen=True)
class Costs:
    """The numbers of the cost model; the defaults were measured on AVX-512 machines.

    share          of the peak that the micro-kernel reaches
    call           cycles to begin and to end the micro-kernel
    into, out      cycles for a product of a vector of a tile, to transform the pixels and to make the outputs
    of_taps        cycles to transform the taps of a channel of a vector of filters for a column of points
    l2, l3, memory bytes a nanosecond that are read from there, for one thread
    of_tile        cycles to multiply a tile of AMX's rows with a panel, the parts of its 32 channels
    into_parts     as `into`, for pixels that are written as parts
    exposed        the part of the time for reading filters that is not hidden behind multiplying
    near, far      the part of the time for tiles and products that is not, in the second cache and behind it
    kept           the share of the second cache that keeps what a block goes over again and again
    """

    share: float = 0.98
    call: float = 30.0
    into: float = 3.0
    out: float = 3.3
    of_taps: float = 8.0
    of_tile: float = 330.0
    into_parts: float = 5.0
    l2: float = 200.0
    l3: float = 100.0
    memory: float = 40.0
    exposed: float = 0.3
    near: float = 0.1
    far: float = 0.4
    kept: float = 0.3

    def bytes_of(self, target: Target, nbytes: float) -> float:
        """Bytes a nanosecond from where so many of them stay between two uses."""
        if nbytes <= target.caches.l2 / 2:
            return self.l2
        return self.l3 if nbytes <= target.caches.l3 / 2 else self.memory


@dataclass(frozen=True)
class FarCosts(Costs):
    """The same where memory is far: measured on an Intel server, in units of the same clock."""

    l2: float = 130.0
    l3: float = 30.0
    memory: float = 20.0


def costs_of(target: Target) -> Costs:
    """The numbers for a machine."""
    return tuned("winograd far", FarCosts) if asks_ahead(target) else tuned("winograd", Costs)


def choose(target: Target, sizes: Sizes, product: str = "f32") -> tuple[Scheme, Cut, float]:
    """The scheme, the cut, and the predicted nanoseconds on one thread."""
    return _choose(target, sizes, PRODUCTS[product].in_tiles, costs_of(target), rates().ghz)


@functools.lru_cache(256)
def _choose(target: Target, sizes: Sizes, in_tiles: bool, costs: Costs, ghz: float) -> tuple[Scheme, Cut, float]:
    found = [
        (predicted(target, sizes, scheme, cut, costs, ghz), scheme, cut)
        for scheme in SCHEMES.values()
        if scheme.stride == sizes.stride
        for cut in cuts(target, sizes, scheme, in_tiles=in_tiles)
    ]
    # Several threads wait for the last chunk: half a chunk's time on the average.
    time, scheme, cut = min(found, key=lambda one: one[0] * (1 + 0.5 / one[2].chunks))
    return scheme, cut, time


def cuts(target: Target, sizes: Sizes, scheme: Scheme, *, in_tiles: bool = False) -> list[Cut]:
    """The cuts that are considered, from small blocks of tiles to large ones."""
    across, down = -(-sizes.columns // scheme.outputs), -(-sizes.lines // scheme.outputs)
    every = sizes.images * across * down
    if in_tiles:
        blocks = dict.fromkeys(_whole(-(-every // -(-every // most)), SIDE) for most in _BLOCKS if most >= SIDE)
        found = [cut_of(target, sizes, scheme, block, in_tiles=True) for block in blocks]
        return [cut for cut in found if cut is found[0] or cut.scratch <= _NEAR_SHARE * target.caches.l2]
    blocks = dict.fromkeys(-(-every // -(-every // most)) for most in _BLOCKS)
    found = [cut_of(target, sizes, scheme, block) for block in blocks]
    if every <= TILES_AT_ONCE and scheme == TAPS_SCHEME and target.registers >= _REGISTERS and asks_ahead(target):
        found.append(cut_of(target, sizes, scheme, TILES_AT_ONCE, from_taps=True))
    return found


@dataclass(frozen=True)
class _Tiles:
    """How transformed tiles lie: their `rows` come together, `stride` elements from those to the next ones, `apart`
    from a point to the next one. The micro-kernel takes `k_block` channels."""

    rows: int
    stride: int
    apart: int
    k_block: int


def _tiles(target: Target, channels: int, points: int, *, from_taps: bool, in_tiles: bool) -> _Tiles:
    lanes, panel = target.lanes(F32), panel_columns(target)
    if in_tiles:
        block = _even_part(channels, _CHANNELS_IN_TILES)
        apart = _odd_lines(-(-channels // CHANNELS) * WORDS)
        return _Tiles(SIDE, points * apart, apart, _whole(block, CHANNELS))
    most_k = max(64, 2 * target.caches.l1 // (panel * _FLOAT))
    if from_taps:  # those of a vector of filters stay in the nearest cache from one column of points to the next
        most_k = 3 * target.caches.l1 // (4 * lanes * TAPS * TAPS * _FLOAT)
    apart = _whole(channels, lanes)
    apart = _odd_lines(apart) if from_taps else apart  # a column of points is read at once
    return _Tiles(1, _odd_lines(points * apart), apart, _even_part(channels, most_k))


def cut_of(
    target: Target, sizes: Sizes, scheme: Scheme, tile_block: int, *, from_taps: bool = False, in_tiles: bool = False
) -> Cut:
    """The cut into blocks of so many tiles, of `TILES_AT_ONCE` where filters are transformed from their taps."""
    panel = panel_columns(target)
    across, down = -(-sizes.columns // scheme.outputs), -(-sizes.lines // scheme.outputs)
    every = sizes.images * across * down
    tile_block = TILES_AT_ONCE if from_taps else min(tile_block, every)
    blocks, panels = -(-every // tile_block), -(-sizes.filters // panel)
    groups = min(panels, -(-_ENOUGH_CHUNKS // blocks))
    group = -(-panels // groups)
    tiles = _tiles(target, sizes.channels, scheme.points, from_taps=from_taps, in_tiles=in_tiles)
    room = _whole(tile_block, tiles.rows)
    rows = SIDE if in_tiles else tile_shape(target).rows
    outputs_bytes = scheme.outputs * scheme.outputs * panel * _FLOAT
    run = min(tile_block, -(-across // -(-across * outputs_bytes // (target.caches.l1 // 2))))
    o_apart = _odd_lines(run * scheme.outputs * panel)
    v_scratch = _odd_lines(_whole(sizes.channels, target.lanes(F32))) * _FLOAT  # behind a pixel of zeros
    m_scratch = v_scratch + room // tiles.rows * tiles.stride * _FLOAT
    o_scratch = m_scratch + room * products_of_tile(scheme.points, panel) * _FLOAT
    mark_scratch = o_scratch + scheme.outputs * o_apart * _FLOAT
    return Cut(
        all_tiles=every,
        tiles=across * down,
        tiles_across=across,
        tile_block=tile_block,
        group=group,
        groups=-(-panels // group),
        tile_rows=rows if in_tiles else _even_part(tile_block, rows),
        k_block=tiles.k_block,
        v_stride=tiles.stride,
        v_apart=tiles.apart,
        o_apart=o_apart,
        run=run,
        v_scratch=v_scratch,
        m_scratch=m_scratch,
        o_scratch=o_scratch,
        mark_scratch=mark_scratch,
        scratch=mark_scratch + _LINE,
        from_taps=from_taps,
        in_tiles=in_tiles,
    )


def predicted(target: Target, sizes: Sizes, scheme: Scheme, cut: Cut, costs: Costs, ghz: float) -> float:
    """Nanoseconds on one thread: the products, the transforms, and the filters' way from the caches or memory."""
    lanes, panel, points = target.lanes(F32), panel_columns(target), scheme.points
    panels = -(-sizes.filters // panel)
    if cut.from_taps:
        columns = cut.blocks * sizes.channels * (panels * panel // lanes) * scheme.size
        products = columns * (scheme.size * TILES_AT_ONCE / 2 + costs.of_taps)
    else:
        products = panels * points * _panel_cycles(sizes, cut, costs)
    into = costs.into_parts if cut.in_tiles else costs.into
    transforms = cut.all_tiles * points * (-(-sizes.channels // lanes) * into + -(-sizes.filters // lanes) * costs.out)
    time = _with_filters(target, _filter_bytes(sizes, scheme, cut, panels * panel), products / ghz, cut, costs)
    return time + cut.blocks * panels * _again(target, cut, costs) + transforms / ghz


def _filter_bytes(sizes: Sizes, scheme: Scheme, cut: Cut, columns: int) -> float:
    """Of so many filters, as they are kept."""
    numbers = TAPS * TAPS if cut.from_taps else scheme.filters
    channels = PRODUCT.words(sizes.channels) if cut.in_tiles else sizes.channels
    return float(numbers * channels * columns * _FLOAT)


def _with_filters(target: Target, filters: float, busy: float, cut: Cut, costs: Costs) -> float:
    """Nanoseconds to multiply, and to read so many bytes of filters for each block: from memory once, and then from the
    cache that holds them. Tiles of AMX wait for filters beyond the second cache, as they are done too soon to hide
    it."""
    first, others = filters / costs.memory, (cut.blocks - 1) * filters / costs.bytes_of(target, filters)
    if cut.in_tiles:
        near = filters <= target.caches.l2 / 2
        return busy + first + (costs.exposed if near else 0.55) * others
    reads = first + others
    return max(busy, reads) + costs.exposed * min(busy, reads)


def _panel_cycles(sizes: Sizes, cut: Cut, costs: Costs) -> float:
    """Cycles of the micro-kernel for all tiles, at one point, and a panel of filters."""
    last = cut.all_tiles - (cut.blocks - 1) * cut.tile_block
    calls = cut.blocks * -(-cut.tile_block // cut.tile_rows) * -(-sizes.channels // cut.k_block)
    if cut.in_tiles:
        turns = (cut.blocks - 1) * -(-cut.tile_block // SIDE) + -(-last // SIDE)
        return turns * -(-sizes.channels // CHANNELS) * costs.of_tile + calls * costs.call
    steps = (cut.blocks - 1) * _row_cycles(cut.tile_block, cut.tile_rows) + _row_cycles(last, cut.tile_rows)
    return sizes.channels * steps / costs.share + calls * costs.call


def _again(target: Target, cut: Cut, costs: Costs) -> float:
    """Nanoseconds that a panel of filters takes longer because a block's tiles and products are in farther caches."""
    behind = max(0.0, 1 - costs.kept * target.caches.l2 / cut.scratch)
    nbytes = cut.m_scratch + 2 * (cut.mark_scratch - cut.m_scratch)
    return nbytes * (costs.near * (1 - behind) / costs.l2 + costs.far * behind / costs.l3)


def _row_cycles(tiles: int, rows: int) -> int:
    """Cycles of the micro-kernel for a step of all rows of a block, two multiply-adds of a vector in each."""
    whole, rest = divmod(tiles, rows)
    return whole * max(rows, _LEAST_CYCLES) + (max(rest, _LEAST_CYCLES) if rest else 0)


def _whole(count: int, unit: int) -> int:
    """The count rounded up to a multiple."""
    return -(-count // unit) * unit


def _even_part(count: int, most: int) -> int:
    """The size of the fewest parts that have at most so many each."""
    return -(-count // -(-count // most))


def _odd_lines(count: int) -> int:
    """At least `count` elements, an odd number of cache lines: such distances spread over all sets of a cache."""
    per_line = _LINE // _FLOAT
    lines = -(-count // per_line)
    return (lines + (lines % 2 == 0)) * per_line

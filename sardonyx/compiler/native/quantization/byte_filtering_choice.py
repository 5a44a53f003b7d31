"""Whether minimal filtering is worth it for a convolution of bytes, and how its tiles are cut into chunks.

Nothing here depends on the number of threads, and results have the same bits whatever is chosen.
"""

from __future__ import annotations

import functools

from sardonyx.compiler.choice.gemm_choice import panel_columns, tile_shape
from sardonyx.compiler.llvm.kernels.convolution.tile_results import products_of_tile
from sardonyx.compiler.llvm.kernels.products.gemm_product import takes_bounded
from sardonyx.compiler.llvm.kernels.quantization.byte_filtering import PRODUCT
from sardonyx.compiler.llvm.kernels.quantization.filtering_transforms import OUTPUTS, POINTS, POINTS_OF_PART, TAPS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I16, I32
from sardonyx.light_dataclass import dataclass

_LINE = 64
_WORD = 4

# Chunks that keep a few threads busy to the end.
_ENOUGH_CHUNKS = 8
# Shares of the second cache that transformed tiles with their sums, and transformed filters, may take.
_TILES = 0.5
_FILTERS = 0.2

# Bits that a unit of the machines on which costs were measured takes at once.
_UNITS = 256
# The share of the other algorithm's time that this one must stay below.
_MARGIN = 0.95
# A tile of fewer rows in the micro-kernel takes the time of so many.
_LEAST_ROWS = 2


@dataclass(frozen=True)
class Sizes:
    """A convolution: images, channels, filters, lines and columns of the result."""

    images: int
    channels: int
    filters: int
    lines: int
    columns: int


@dataclass(frozen=True)
class Cut:
    """Sizes of a chunk and of what it keeps in scratch: see `byte_filtering.argument_names`."""

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
    b_apart: int
    o_apart: int
    run: int
    v_scratch: int
    b_scratch: int
    m_scratch: int
    o_scratch: int
    mark_scratch: int
    scratch: int

    @property
    def blocks(self) -> int:
        return -(-self.all_tiles // self.tile_block)

    @property
    def chunks(self) -> int:
        return self.blocks * self.groups


@dataclass(frozen=True)
class Costs:
    """Cycles by which both algorithms are compared, measured where units are 256 bits wide.

    word          a word of four bytes for a vector of filters and a place, in the product of all
    pair          a word of two channels for a vector of filters and a tile, at a point
    of_filters    a word for a vector of filters, transformed to all points
    into, out     a vector of a tile's channels, and of its outputs
    call          the micro-kernel's beginning and end
    fixed         the steps beside
    """

    word: float
    pair: float
    of_filters: float = 65.0
    into: float = 90.0
    out: float = 110.0
    call: float = 30.0
    fixed: float = 5000.0


def costs_of(target: Target) -> Costs:
    """Those of a machine."""
    if target.has_vnni:
        word, pair = 1.05, 1.05
    elif takes_bounded(target):
        word, pair = 1.2, 0.67
    else:
        word, pair = (2.9, 1.4) if target.vector_bits > _UNITS else (1.8, 0.75)
    if target.vector_bits <= _UNITS:
        return Costs(word, pair)
    if target.takes_turns:  # a vector passes the units twice
        return Costs(word, pair, *(2 * cycles for cycles in (Costs.of_filters, Costs.into, Costs.out)))
    return Costs(word / 2, pair / 2)


@functools.lru_cache(256)
def choose(target: Target, sizes: Sizes) -> Cut | None:
    """The cut for the sizes; None where the product of all bytes is predicted to take less time."""
    cut, costs = cut_of(target, sizes), costs_of(target)
    return cut if _cycles(target, sizes, cut, costs) < _MARGIN * _direct_cycles(target, sizes, costs) else None


def _direct_cycles(target: Target, sizes: Sizes, costs: Costs) -> float:
    """Those of the product of all bytes of windows, in runs along lines."""
    words = TAPS * -(-TAPS * sizes.channels // _WORD)
    vectors = -(-sizes.filters // target.lanes(I32))
    return sizes.images * sizes.lines * sizes.columns * words * vectors * costs.word


def _cycles(target: Target, sizes: Sizes, cut: Cut, costs: Costs) -> float:
    """Those of the products at the points, and of the transforms."""
    tile, panels = tile_shape(target, PRODUCT), -(-sizes.filters // panel_columns(target, PRODUCT))
    vectors, words = panels * tile.vectors, -(-sizes.channels // 2)
    last = cut.all_tiles - (cut.blocks - 1) * cut.tile_block
    turns = (cut.blocks - 1) * -(-cut.tile_block // cut.tile_rows) + -(-last // cut.tile_rows)
    calls = POINTS * panels * turns * -(-words // cut.k_block)
    rows = max(cut.all_tiles, _LEAST_ROWS * turns)
    products = POINTS * rows * words * vectors * costs.pair + calls * costs.call
    filters = cut.blocks * vectors * words * costs.of_filters
    into = -(-sizes.channels // target.lanes(I16)) * costs.into
    return products + filters + cut.all_tiles * (into + vectors * costs.out) + costs.fixed


def cut_of(target: Target, sizes: Sizes) -> Cut:
    """The cut of a convolution of these sizes into blocks whose tiles and filters stay in the second cache."""
    panel, tile = panel_columns(target, PRODUCT), tile_shape(target, PRODUCT)
    across, down = -(-sizes.columns // OUTPUTS), -(-sizes.lines // OUTPUTS)
    every, words = sizes.images * across * down, -(-sizes.channels // 2)
    v_apart = _odd_lines(_whole(sizes.channels, target.lanes(I16)) // 2)
    v_stride, of_tile = _odd_lines(POINTS * v_apart), products_of_tile(POINTS, panel)
    most = max(tile.rows, int(_TILES * target.caches.l2) // ((v_stride + of_tile) * _WORD))
    tile_block = min(every, most) if every <= most else _block(every, most, tile.rows)
    of_word = POINTS_OF_PART * panel * _WORD
    k_block = _even_part(words, max(32, int(_FILTERS * target.caches.l2) // of_word))
    blocks, panels = -(-every // tile_block), -(-sizes.filters // panel)
    group = -(-panels // min(panels, -(-_ENOUGH_CHUNKS // blocks)))
    run = min(tile_block, _even_part(across, max(1, target.caches.l1 // 2 // (OUTPUTS * OUTPUTS * panel * _WORD))))
    o_apart = _odd_lines(run * OUTPUTS * panel)
    b_scratch = tile_block * v_stride * _WORD
    b_apart = _odd_lines(k_block * panel)
    m_scratch = b_scratch + POINTS_OF_PART * b_apart * _WORD
    o_scratch = m_scratch + tile_block * of_tile * _WORD
    mark_scratch = o_scratch + OUTPUTS * o_apart * _WORD
    return Cut(
        all_tiles=every,
        tiles=across * down,
        tiles_across=across,
        tile_block=tile_block,
        group=group,
        groups=-(-panels // group),
        tile_rows=_even_part(tile_block, tile.rows),
        k_block=k_block,
        v_stride=v_stride,
        v_apart=v_apart,
        b_apart=b_apart,
        o_apart=o_apart,
        run=run,
        v_scratch=0,
        b_scratch=b_scratch,
        m_scratch=m_scratch,
        o_scratch=o_scratch,
        mark_scratch=mark_scratch,
        scratch=mark_scratch + _LINE,
    )


def _block(every: int, most: int, rows: int) -> int:
    """Tiles of a block, at most so many: those that take the fewest turns of the micro-kernel of `rows`, in as few even
    blocks as may be."""
    turns = {
        size: every // size * -(-size // rows) + -(-(every % size) // rows) for size in range(most // 2 + 1, most + 1)
    }
    return min(turns, key=lambda size: (turns[size], -(-every // size), size))


def _whole(count: int, unit: int) -> int:
    """The count rounded up to a multiple."""
    return -(-count // unit) * unit


def _even_part(count: int, most: int) -> int:
    """The size of the fewest parts that have at most so many each."""
    return -(-count // -(-count // most))


def _odd_lines(count: int) -> int:
    """At least `count` words, an odd number of cache lines: such distances spread over all sets of a cache."""
    per_line = _LINE // _WORD
    lines = -(-count // per_line)
    return (lines + (lines % 2 == 0)) * per_line

"""How a matrix product is cut into blocks of rows, K and panels: a cost model of the caches, and of threads that end.

Nothing here changes results: every element is accumulated in the order of K whatever is chosen.
"""

from __future__ import annotations

import copy
import math
from functools import partial

from sardonyx.compiler.choice.gemm_choice import Blocking, Problem, asks_ahead, panels_of, tile_shape
from sardonyx.compiler.llvm.kernels.products.gemm_micro import BUSY
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE
from sardonyx.compiler.llvm.target import Target
from sardonyx.light_dataclass import dataclass

# Bytes of scratch are laid out in cache lines.
_LINE = 64


def _lines(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


def blocks_of(total: int, most: int, unit: int) -> tuple[int, int]:
    """`total` in equal blocks of at most `most`, multiples of `unit`: (block, how many); one block of nothing."""
    count = max(1, -(-total // max(most, unit)))
    block = -(-max(1, -(-total // count)) // unit) * unit
    return block, max(1, -(-total // block))


@dataclass(frozen=True)
class Tuning:
    """The numbers of the cost model that a machine may want otherwise; the defaults were measured on AVX-512 machines.

    panel_l1           a block of K of one panel takes at most this many nearest caches, and a quarter of the second
    rows_l2            A's block of rows and K takes at most this share of the second cache
    swept_l2           a B of at most this share of the second cache is swept for each tile of rows
    group_columns      columns of a chunk at most, so that partial sums stay in the second cache
    chunk_flops        work of a chunk: the least and the most that is wished for
    chunk_bytes        bytes of B of a chunk that is bound by memory
    bad_stride         A is copied where its rows are a multiple of so many bytes apart; 0 for never
    prefetch           bytes ahead that a product of few rows, or one that is swept, asks for; twice as many where
                       memory is far
    """

    panel_l1: float = 5.0
    rows_l2: float = 0.4
    swept_l2: float = 0.85
    group_columns: int = 512
    chunk_flops: tuple[float, float] = (1e6, 16e6)
    chunk_bytes: int = 512 << 10
    bad_stride: int = 0
    prefetch: int = 8 << 10


@dataclass
class Cut:
    """Elements of K, rows and panels of a block; whether sums are kept from one block of K to the next, whether all
    rows are few, and whether all of B is read for each tile of rows."""

    k_block: int
    row_block: int
    group: int
    keeps_tiles: bool
    is_few: bool
    is_swept: bool


class BlockingChoice:
    """The blocking of one problem by a micro-kernel of vectors."""

    def __init__(self, target: Target, problem: Problem, tuning: Tuning) -> None:
        self.problem, self.tuning = problem, tuning
        self.product = PRODUCTS[problem.product]
        self.tile = tile_shape(target, problem.product, problem.n)
        self.caches = target.caches
        self.is_far = asks_ahead(target)
        self.lanes = target.lanes(self.product.word)
        lanes = target.lanes(self.product.accumulator)
        self.panel = self.tile.vectors * lanes
        self.panels = max(1, panels_of(problem.n, self.panel))
        self.word = self.product.word.nbytes
        self.left_word = self.word * self.product.left_words  # bytes of A that meet a word of B
        self.line = _LINE // self.word
        # Lanes behind N are multiplied as well.
        self.columns = -(-problem.n // lanes) * lanes
        self.target = target

    def of(self, problem: Problem) -> BlockingChoice:
        """The choice for another problem of the same product."""
        if problem is self.problem:
            return self
        if problem.n != self.problem.n:
            return type(self)(self.target, problem, self.tuning)
        found = copy.copy(self)
        found.problem = problem
        return found

    def blocking(self) -> Blocking:
        problem, panel = self.problem, self.panel
        cut = self._cut()
        row_blocks = max(1, -(-problem.m // cut.row_block))
        groups = -(-self.panels // cut.group)
        a_copy = self._a_copy(cut)
        a_bytes = _lines(a_copy * self._copied_lines(cut) * self.word)
        b_bytes = 0 if problem.b == "packed" else _lines(self.product.words(cut.k_block) * panel * self.word)
        tile_stride = self._tile_stride(cut)
        tile_bytes = _lines(self._kept_rows(cut) * tile_stride * self.product.accumulator.nbytes)
        return Blocking(
            row_block=cut.row_block,
            strip=self._strip(cut),
            tile_rows=self.tile.rows if cut.is_swept or row_blocks > 1 else self._tile_rows(),
            k_block=cut.k_block,
            group=cut.group,
            row_blocks=row_blocks,
            groups=groups,
            chunks=problem.batch * row_blocks * groups if problem.m and problem.n else 0,
            a_copy=a_copy,
            b_copy=int(self._copies_b()),
            b_scratch=a_bytes,
            tile_scratch=a_bytes + b_bytes,
            tile_stride=tile_stride,
            tile_keep=int(cut.keeps_tiles),
            prefetch=self._prefetch(cut),
            scratch=a_bytes + b_bytes + tile_bytes,
        )

    def _cut(self) -> Cut:
        """The blocks of K, rows and panels."""
        problem, depth = self.problem, self.product.depth
        few = problem.m <= self.tile.rows  # B is read once: blocks of K would only store tiles in between
        swept = self._is_swept()
        whole = (few and problem.b != "columns") or swept
        most_bytes = min(int(self.tuning.panel_l1 * self.caches.l1), self.caches.l2 // 4)
        most_k = problem.k if whole else max(64, most_bytes // (self.panel * self.word // depth))
        k_block, k_blocks = blocks_of(problem.k, most_k, max(depth * self.product.unit, 4, problem.k_unit))
        if swept and not few and problem.a != "windows":
            row_block, group = self._swept_chunk()
        else:
            row_block, _ = blocks_of(problem.m, self._most_rows(k_block, swept), self.tile.rows)
            group = self.panels if swept and not few else self._group(row_block, k_blocks)
        return Cut(k_block, row_block, group, k_blocks > 1, few, swept)

    def _strip(self, cut: Cut) -> int:
        """Rows that see all panels before the next."""
        return self.tile.rows if cut.is_swept else cut.row_block

    def _tile_stride(self, cut: Cut) -> int:
        """Elements from row to row of the sums that are kept, or of a tile that is stored in pieces."""
        return self.panel * (cut.group if cut.keeps_tiles else _MOST_PANELS)

    def _kept_rows(self, cut: Cut) -> int:
        """Rows of sums, `_tile_stride` apart, that scratch holds."""
        return cut.row_block if cut.keeps_tiles else self.tile.rows

    def _copied_lines(self, cut: Cut) -> int:
        """Lines of the copy of A's block."""
        return cut.row_block if self.problem.a != "columns" else self._lines_along(cut)

    def _lines_along(self, cut: Cut) -> int:
        """Words of A along a block of K."""
        return -(-cut.k_block // self.product.depth) * self.product.left_words

    def _tile_rows(self) -> int:
        """Rows of a tile where one block has them all: fewer than there could be, and all about equal, where the last
        tile would have so few that each step of K takes as long as with more, or where it would be the second one and
        memory is far, so that each asks for its part of what follows while it multiplies."""
        rows, most = self.problem.m, self.tile.rows
        last = rows % most
        waits = 0 < last * self.tile.vectors < BUSY
        is_low = self.is_far and most < rows <= most + most // 2
        if rows <= most or not (waits or is_low):
            return most
        return -(-rows // -(-rows // most))

    def _prefetch(self, cut: Cut) -> int:
        """Words ahead: a fixed distance where B is read line after line, the next panel where tiles of rows share one.

        What is swept comes from afar for the first tile of rows only, but asking again costs nothing.
        """
        if cut.is_few or cut.is_swept:
            return self.tuning.prefetch // self.word * (2 if self.is_far else 1)
        return self.panel * self.product.words(self.problem.k)

    def _copies_b(self) -> bool:
        """Whether panels of a row-major B are worth copying: many rows read them, or their lines collide in caches."""
        problem = self.problem
        if problem.b != "rows":
            return False
        collides = problem.b_stride_bytes % _COLLIDING == 0 and problem.k > _COLLIDING_LINES
        return problem.m >= 4 * self.tile.rows or (problem.m > self.tile.rows and collides)

    def _is_swept(self) -> bool:
        problem, share = self.problem, self.tuning.swept_l2
        if self.product.is_bounded:  # each vector of B meets all rows of a tile, so that it comes in time from anywhere
            return True
        nbytes = self.columns * self.word * problem.k // self.product.depth
        if problem.a == "windows" or self.is_far:  # rows that are put together lie beside it; what leaves comes late
            share = min(share, _SWEPT_AT_MOST)
        return problem.b != "columns" and not self._copies_b() and nbytes <= share * self.caches.l2

    def _flops(self, rows: int, columns: int) -> float:
        """The work of so many rows and columns; storing a result takes as long as some multiplications."""
        return 2.0 * rows * columns * (self.problem.k + _K_OF_STORE)

    def _chunk_flops(self) -> float:
        """Work of a chunk: an eighth of all, within limits."""
        least, most = self.tuning.chunk_flops
        return min(most, max(least, self.problem.batch * self._flops(self.problem.m, self.columns) / 8))

    def _swept_chunk(self) -> tuple[int, int]:
        """Rows and panels of a chunk that is swept; lines of C are written whole where cuts between rows do as well."""
        tile = self.tile.rows
        tiles = max(1, -(-self.problem.m // tile))
        wished = self._flops(self.problem.m, self.columns) / self._chunk_flops() / self.problem.batch
        least = max(1, round(wished))
        most_groups = 1 if self.product.copies_a else min(self.panels, _MORE_CHUNKS * least)
        best, soonest = (tiles * tile, self.panels), math.inf
        if least == 1:
            return best
        nbytes = self.columns * self.word * self.problem.k // self.product.depth
        share = _BOUNDED_WHOLE if self.product.is_bounded else _SWEPT_WHOLE
        fewest_groups = -(-nbytes // int(share * self.caches.l2))
        most_groups = max(most_groups, fewest_groups) if self.product.is_bounded else most_groups
        fewest_groups = min(most_groups, fewest_groups)
        for groups in range(max(1, fewest_groups), most_groups + 1):
            fewest = min(tiles, -(-least // groups))
            for blocks in range(fewest, min(tiles, self._most_tried(fewest)) + 1):
                chunk = -(-tiles // blocks) * tile, -(-self.panels // groups)
                end = self._end(*chunk)
                if end < soonest - _GAIN:
                    best, soonest = chunk, end
            if soonest < _EVEN:
                break
        return best

    @staticmethod
    def _most_tried(fewest: int) -> int:
        """How many blocks are tried instead of so many: more of them leave less to wait for."""
        return _MORE_CHUNKS * fewest if fewest <= _MANY else fewest

    def _end(self, row_block: int, group: int) -> float:
        """When two threads have done such chunks, where 1 is half of the work; other even numbers of threads, about.

        Each begins with a half of the chunks, as they follow each other; of an odd number the last one is left over.
        """
        # Conditions in place of min and max, whose calls would be a quarter of what a choice takes.
        size_m, size_n, batch = self.problem.m, self.columns, self.problem.batch
        columns = group * self.panel
        rows = row_block if row_block < size_m else size_m or 1
        columns = columns if columns < size_n else size_n or 1
        row_blocks, groups = -(-size_m // rows), -(-size_n // columns)
        last_rows = size_m - (row_blocks - 1) * rows
        last_columns = size_n - (groups - 1) * columns

        count, area = batch * row_blocks * groups, size_m * size_n
        left_over = last_rows * last_columns if count % _THREADS else 0
        # The work of the first half of the chunks: whole items, whole groups of one, and blocks of rows of a group.
        whole, blocks = divmod(count // _THREADS, row_blocks)
        items, before = divmod(whole, groups)
        across = columns if before < groups - 1 else last_columns
        first = items * area + before * columns * size_m + blocks * rows * across
        second = batch * area - first - left_over
        sooner, later = (first, second) if first < second else (second, first)
        end = later if later > sooner + left_over else sooner + left_over
        return _THREADS * end / (batch * area or 1)

    def _most_rows(self, k_block: int, swept: bool) -> int:
        """Rows of a block at most, a multiple of the tile's."""
        if swept and self.problem.a == "windows":  # what is put together is used from the nearest cache
            most = self.caches.l1 // 2 // max(1, k_block * self.left_word // self.product.depth)
        else:
            most = int(self.tuning.rows_l2 * self.caches.l2) // (k_block * self.left_word // self.product.depth)
        return max(1, most // self.tile.rows) * self.tile.rows

    def _group(self, row_block: int, k_blocks: int) -> int:
        """Panels of a chunk, such that all chunks have about the same number."""
        tuning, rows = self.tuning, max(1, min(row_block, self.problem.m))
        if rows <= _MOST_PANELS:
            panel_bytes = self.panel * max(1, self.problem.k) * self.word // self.product.depth
            enough = max(1, tuning.chunk_bytes // (panel_bytes * _MOST_PANELS)) * _MOST_PANELS
            if self.problem.threads > 1 and self.panels <= enough and self.panels * panel_bytes > _WORTH_SHARING:
                enough = -(-self.panels // _THREADS)
        else:
            enough = max(1, round(self._chunk_flops() / self._flops(rows, self.panel)))
        most = max(1, tuning.group_columns // self.panel)
        if self.is_far and (k_blocks > 1 or rows < self.problem.m):  # every group reads A from afar
            enough = max(enough, math.ceil(_COLUMNS_OF_A_ROW * rows / self.panel))
        if self.problem.a == "windows":  # every group puts them together anew
            enough = max(enough, LEAST_PANELS_OF_WINDOWS)
        count = -(-self.panels // min(most, enough))
        if count > 1 and rows > _MOST_PANELS and self.problem.a != "windows":
            tried = range(count, min(self._most_tried(count), self.panels) + 1)
            groups = dict.fromkeys([-(-self.panels // count) for count in tried])
            if len(groups) > 1:
                return min(groups, key=partial(self._end, row_block))
        return -(-self.panels // count)

    def _a_copy(self, cut: Cut) -> int:
        """The row stride in words of the copy of A's block; 0 where A is read as it lies."""
        problem, tuning = self.problem, self.tuning
        if problem.a in ("runs", "tiles"):
            return 0
        if problem.a == "words":
            return self._spread(self.product.words(cut.k_block)) if self.product.in_tiles and problem.m % SIDE else 0
        if problem.a == "windows":
            # Up to a vector more than there is gets written.
            return self._spread(self.product.words(cut.k_block) * self.product.left_words + self.lanes - 1)
        wanted = tuning.bad_stride and problem.a_stride_bytes % tuning.bad_stride == 0 and not cut.is_few
        if not (self.product.copies_a or wanted):
            return 0
        if self.product.in_tiles:
            return self.product.words(cut.k_block)
        return self._spread(self._lines_along(cut) if problem.a == "rows" else cut.row_block)

    def _spread(self, words: int) -> int:
        """The stride of rows with so many words: an odd number of cache lines spreads them over all sets."""
        stride = max(1, -(-words // self.lanes)) * self.lanes
        return stride + self.line if stride // self.line % 2 == 0 else stride


# Lines a multiple of this many bytes apart share few sets of the caches, which hold so many of them.
_COLLIDING = 2048
_COLLIDING_LINES = 64
# Threads among which the chunks of a product are to be shared without a rest.
_THREADS = 2
# Bytes of B that a single row reads in the time in which two threads meet and share them.
_WORTH_SHARING = 128 << 10
# More chunks than wished for are tried up to twice as many; so many are even enough as they are.
_MORE_CHUNKS = 2
_MANY = 16
# More chunks are worth it where the threads end so much sooner; and cuts between columns, too, where they do not end
# nearly at once.
_GAIN = 0.01
_EVEN = 1.06
# The share of the second cache up to which a chunk sweeps all of B, where there are several chunks.
_SWEPT_WHOLE = 0.75
# The same of bounded words, beside which there is where they begin.
_BOUNDED_WHOLE = 0.4
# Storing a result of a product whose K is small takes as long as so many multiplications.
_K_OF_STORE = 4
# The share of the second cache that B takes at most where it is swept for windows, or where memory is far.
_SWEPT_AT_MOST = 0.5
# Panels for which a chunk puts windows together, at least, where there are as many.
LEAST_PANELS_OF_WINDOWS = 4
# Columns of a chunk for each of its rows, at least, where those do not stay in the second cache with all of K.
_COLUMNS_OF_A_ROW = 1.5
# Panels that are multiplied at once for few rows, at most.
_MOST_PANELS = 4

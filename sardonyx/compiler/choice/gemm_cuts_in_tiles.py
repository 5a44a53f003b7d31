"""How a matrix product in tiles of AMX is cut into blocks."""

from __future__ import annotations

import math

from sardonyx.compiler.choice.gemm_choice import Problem
from sardonyx.compiler.choice.gemm_cuts import LEAST_PANELS_OF_WINDOWS, BlockingChoice, Cut, blocks_of
from sardonyx.compiler.llvm.kernels.products.gemm_parts import kept_products
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE


class BlockingInTiles(BlockingChoice):
    """The blocking of a product in tiles, which are so fast that the way from the second cache counts as well.

    A block of K of a panel stays in the nearest cache while all rows of a chunk meet it. The results of those rows stay
    in the second cache with their part of A until all of K is done.
    """

    def _cut(self) -> Cut:
        problem, depth = self.problem, self.product.depth
        few = problem.m <= _FEW_TILES * SIDE
        line, unit = self.panel * self.word * self.product.parts, depth * self.product.unit
        share = _PANEL_L1 if self.product.parts == 1 else _PANEL_OF_PARTS_L1
        most_k = problem.k if few else int(share * self.caches.l1) * depth // line
        if self.product.parts > 1:
            most_k = most_k // unit * unit
        k_block, k_blocks = blocks_of(problem.k, most_k, max(unit, problem.k_unit))
        row_block, group = self._rows_and_panels(k_block, k_blocks)
        return Cut(k_block, row_block, group, k_blocks > 1, few, is_swept=False)

    def _strip(self, cut: Cut) -> int:
        # What is finished at once is written beside what was, while that is near. Panels that are copied are so once.
        whole = cut.keeps_tiles or self.problem.b != "packed"
        return cut.row_block if whole else min(cut.row_block, _STRIP_TILES * SIDE)

    def _copies_b(self) -> bool:
        return self.problem.b in ("rows", "panels")

    def _tile_rows(self) -> int:
        return SIDE

    def _tile_stride(self, cut: Cut) -> int:
        return self.panel

    def _kept_rows(self, cut: Cut) -> int:
        return cut.row_block * cut.group if cut.keeps_tiles else self.tile.rows

    def _copied_lines(self, cut: Cut) -> int:
        return SIDE if self.problem.a == "words" else cut.row_block

    def _rows_and_panels(self, k_block: int, k_blocks: int) -> tuple[int, int]:
        """Rows and panels of a chunk."""
        problem, l2 = self.problem, self.caches.l2
        across = self.panel * self.word  # bytes of a row of a tile of results
        most_rows = int(_ROWS_L2 * l2) // max(1, k_block * self.word * self.product.parts // self.product.depth)
        if k_blocks > 1:  # as many rows as columns read A and B the fewest times
            most_rows = min(most_rows, math.isqrt(int(_RESULTS_L2 * l2) // self.word))
        row_block, row_blocks = blocks_of(problem.m, most_rows, SIDE)
        by_rows = shares_rows(problem)
        if by_rows:
            row_block, _ = blocks_of(problem.m, -(-problem.m // _blocks_to_share(problem, row_blocks)), SIDE)
        most = self.panels
        if k_blocks > 1:
            most = max(1, int(_RESULTS_L2 * l2) // (row_block * across))
        enough = self.panels
        if problem.threads > 1 and not by_rows:
            wished = problem.batch * self._flops(max(problem.m, _ROWS_OF_READING), self.columns) / _CHUNKS_IN_TILES
            least, most_flops = (flops / len(kept_products(self.product.parts)) for flops in _CHUNK_FLOPS_IN_TILES)
            wished = min(most_flops, max(least, wished))
            rows = max(_ROWS_OF_READING, min(row_block, problem.m))
            enough = max(1, round(wished / self._flops(rows, self.panel)))
            if problem.a == "windows":  # every group puts them together anew
                enough = max(enough, LEAST_PANELS_OF_WINDOWS)
        count = -(-self.panels // min(most, enough))
        return row_block, -(-self.panels // count)


def shares_rows(problem: Problem) -> bool:
    """Whether threads share the rows of A alone, and chunks multiply them by all columns: where numbers are taken in
    parts, so that A's way into tiles is long, and each thread has rows enough to take B apart for them."""
    by_parts = PRODUCTS[problem.product].parts > 1
    return by_parts and problem.threads > 1 and problem.batch == 1 and problem.m >= problem.threads * _ROWS_OF_PARTS


def _blocks_to_share(problem: Problem, fewest: int) -> int:
    """Blocks of rows, at least so many, of which each thread gets the same number."""
    wished = min(_CHUNKS_IN_TILES, problem.m // _ROWS_OF_PARTS)
    return problem.threads * max(1, wished // problem.threads, -(-fewest // problem.threads))


# Rows for which a chunk takes B apart, at least, where there are others.
_ROWS_OF_PARTS = 192
# Rows up to which all of K is multiplied at once, in tiles, and those that meet all panels before the next; the shares
# of the caches that a block of K of a panel, A's rows and the results of a chunk take; chunks wished for by several
# threads, and their least and most work.
_FEW_TILES = 2
_STRIP_TILES = 4
_PANEL_L1 = 0.7
_PANEL_OF_PARTS_L1 = 0.55
_ROWS_L2 = 0.25
_RESULTS_L2 = 0.35
_CHUNKS_IN_TILES = 8
_CHUNK_FLOPS_IN_TILES = (8e6, 160e6)
# Rows that are multiplied by B in the time in which it comes from memory.
_ROWS_OF_READING = 32

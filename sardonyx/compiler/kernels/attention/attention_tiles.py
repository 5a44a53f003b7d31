"""The products of attention in tiles of AMX: panels of pairs of bfloat16, all of two vectors, met by sixteen rows.

What the tiles multiply besides, behind the last key or the last column, is not read; weights and values behind the last
key are zeros as far as a tile goes.
"""

from __future__ import annotations

from sardonyx.compiler.kernels.attention.attention_frame import Block, Frame, RowTable
from sardonyx.compiler.kernels.attention.attention_products import Blocks
from sardonyx.compiler.kernels.attention.attention_softmax import add_sum, weigh_row
from sardonyx.compiler.kernels.attention.attention_spec import SCORES_STRIDE
from sardonyx.compiler.llvm.builder import Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Rows, Tile
from sardonyx.compiler.llvm.kernels.products.gemm_parts import multiply_by_vectors
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE, multiply_in_tiles
from sardonyx.compiler.llvm.types import I64


class TileBlocks(Blocks):
    """Scores and weighted sums by tile registers."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame)
        self.is_whole = True

    def padded(self, count: Value) -> Value:
        """Rows that the tiles for `count` rows touch."""
        return (count + (SIDE - 1)) & -SIDE

    def scores(self, here: Block, count: Value, low: Value, high: Value) -> None:
        """The products of the rows of queries and the keys [low, high), where `low` begins a panel."""
        k, frame = self.k, self.frame
        if frame.is_fused:
            with k.loop(0, self.padded(count)) as row:
                frame.maximum(row).store(k.constant(frame.compute.vector(frame.lanes), float("-inf")))
        words = k.constant(I64, frame.product.words(frame.spec.head_size))
        is_large = frame.is_large("queries", "keys") if frame.product.parts > 1 else None
        with k.loop(low // frame.panel, (high + (frame.panel - 1)) // frame.panel) as panel:
            keys = self.key_panels.offset(panel * (self.key_words * frame.panel))
            with k.loop(0, count, SIDE) as row:
                queries = frame.queries.offset(row * frame.query_stride)
                scores = frame.score_row(row).offset(panel * frame.panel)
                tile = Tile(scores, self._constant(SCORES_STRIDE), frame.panel)
                self._multiply_tile(is_large, queries, keys, words, tile, True)
                if frame.is_fused:
                    self._finish(here, scores, panel, row)

    def _finish(self, here: Block, scores: Pointer, panel: Value, first: Value) -> None:
        """What is added to the scores of a tile, and their maxima, while they are near."""
        k, frame, lanes = self.k, self.frame, self.frame.lanes
        columns = self.columns.offset(panel * frame.panel)

        def rows(vectors: int) -> None:
            added = [columns.load(vector * lanes, lanes) for vector in range(vectors)] if frame.spec.folded else []
            with k.loop(0, SIDE) as row:
                line = scores.offset(row * SCORES_STRIDE)
                found = [line.load(vector * lanes, lanes) for vector in range(vectors)]
                if added:
                    found = [score + one for score, one in zip(found, added, strict=True)]
                    for vector, score in enumerate(found):
                        line.store(score, vector * lanes)
                best = frame.maximum(first + row).load(0, lanes)
                for score in found:
                    best = k.faster_larger(score, best)
                frame.maximum(first + row).store(best)

        wide = here.count - panel * frame.panel > lanes
        with k.when(wide):
            rows(2)
        with k.otherwise(wide):
            rows(1)

    def values(self, here: Block, table: RowTable, count: Value, low: Value, high: Value) -> None:
        """Add the products of the weights of the keys [low, high), some at a time, and their values to what the rows
        have."""
        k, frame, product = self.k, self.frame, self.frame.product
        row_words = product.words(frame.spec.keys_in_tiles)
        is_large = frame.is_large("values") if product.parts > 1 else None
        with k.loop(low, high, frame.spec.keys_in_tiles) as first:
            end = minimum(k, high, first + frame.spec.keys_in_tiles)
            with k.loop(0, count) as row:
                weigh_row(frame, table, row, first, end)
            words = product.words_before(product.padded(end - first))
            with k.loop(0, -(-self.value_vectors // 2)) as panel, k.loop(0, count, SIDE) as row:
                values = self._value_panel(panel).offset(product.words_before(first) * frame.panel)
                result = table.accumulator(row).offset(panel * frame.panel)
                tile = Tile(result, self._constant(frame.accumulator_stride), frame.panel)
                self._multiply_tile(is_large, frame.weights.offset(row * row_words), values, words, tile, False)
        with k.loop(0, count) as row:
            add_sum(frame, table, row)

    def _multiply_tile(
        self, is_large: Value | None, left: Pointer, right: Pointer, words: Value, tile: Tile, is_fresh: bool
    ) -> None:
        """The product of rows in tiles and a panel, by vectors where numbers are large."""
        k, product = self.k, self.frame.product
        rows = Rows(left, self._constant(SIDE), True, SIDE)
        if is_large is None:
            multiply_in_tiles(k, product, rows, right, words, tile, is_fresh)
            return
        with k.when(is_large):
            multiply_by_vectors(k, product, rows, right, words, tile, self.frame.panel, is_fresh)
        with k.otherwise(is_large):
            multiply_in_tiles(k, product, rows, right, words, tile, is_fresh)

    def _value_width(self, panel: int) -> int:
        return self.frame.panel

    def _constant(self, number: int) -> Value:
        return self.k.constant(I64, number)

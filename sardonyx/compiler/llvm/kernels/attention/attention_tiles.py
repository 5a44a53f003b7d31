"""The products of attention in tiles of AMX: panels of pairs of bfloat16, all of two vectors, met by sixteen rows.

What the tiles multiply besides, behind the last key or the last column, is not read; weights and values behind the last
key are zeros as far as a tile goes.
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Pointer, Value
from sardonyx.compiler.llvm.kernels.attention.attention_frame import Block, Frame, RowTable
from sardonyx.compiler.llvm.kernels.attention.attention_products import Blocks
from sardonyx.compiler.llvm.kernels.attention.attention_spec import SCORES_STRIDE
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Rows, Tile
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE, multiply_in_tiles
from sardonyx.compiler.llvm.types import I64


class TileBlocks(Blocks):
    """Scores and weighted sums by tile registers."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame)
        self.is_whole = True

    def prepare(self, here: Block) -> None:
        """As `Blocks` does, with zeros behind the last values."""
        super().prepare(here)
        k, frame = self.k, self.frame
        begin = (here.count + (self.depth - 1)) // self.depth
        zeros = k.constant(frame.product.word.vector(frame.lanes), 0)
        with k.loop(begin, (begin + (SIDE - 1)) & -SIDE) as word:
            for vector in range(self.value_vectors):
                panel, place = divmod(vector, 2)
                self._value_panel(panel).offset(word * frame.panel).store(zeros, place * frame.lanes)

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
        with k.loop(low // frame.panel, (high + (frame.panel - 1)) // frame.panel) as panel:
            keys = self.key_panels.offset(panel * (self.padded_head * frame.panel))
            with k.loop(0, count, SIDE) as row:
                queries = Rows(frame.queries.offset(row * frame.query_stride), self._constant(frame.query_stride), True)
                scores = frame.score_row(row).offset(panel * frame.panel)
                tile = Tile(scores, self._constant(SCORES_STRIDE), frame.panel)
                multiply_in_tiles(k, frame.product, queries, keys, words, tile, True)
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
        """Add the products of the weights of the keys [low, high) and their values to what the rows have."""
        k, frame = self.k, self.frame
        first = low // self.depth
        words = (k.larger(high - low, 0) + (self.depth * SIDE - 1)) // (self.depth * SIDE) * SIDE
        with k.loop(0, -(-self.value_vectors // 2)) as panel:
            values = self._value_panel(panel).offset(first * frame.panel)
            with k.loop(0, count, SIDE) as row:
                left = k.pointer(frame.score_row(row).address, frame.product.word).offset(first)
                result = table.accumulator(row).offset(panel * frame.panel)
                tile = Tile(result, self._constant(frame.accumulator_stride), frame.panel)
                weights = Rows(left, self._constant(SCORES_STRIDE), True)
                multiply_in_tiles(k, frame.product, weights, values, words, tile, False)

    def _value_width(self, panel: int) -> int:
        return self.frame.panel

    def _constant(self, number: int) -> Value:
        return self.k.constant(I64, number)

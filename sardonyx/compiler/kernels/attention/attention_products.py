"""The products of attention over blocks of rows: keys and values packed into panels, tiles held in registers.

A panel of keys is [head size][2 vectors of keys], the transpose of how they lie in memory; a panel of values is
[keys][2 vectors of columns]. The last panel has one vector where one is enough. Where the product takes several
elements at once, a word of it holds so many of the head, or of the keys.
"""

from __future__ import annotations

from sardonyx.compiler.kernels.attention.attention_frame import Block, Frame, RowTable
from sardonyx.compiler.kernels.attention.attention_softmax import Bias
from sardonyx.compiler.kernels.attention.attention_spec import SCORES_STRIDE, key_words, round_up, tile_rows
from sardonyx.compiler.llvm.builder import Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_packing import transpose
from sardonyx.compiler.llvm.narrow_floats import widened
from sardonyx.compiler.llvm.types import I64

# Steps of the inner dimension that are written out in the body of a micro-kernel's loop.
_UNROLL = 2


class Blocks:
    """Scores and weighted sums by register tiles."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.k, self.given = frame, frame.k, frame.given
        self.tile = tile_rows(frame.k.target, frame.spec)
        self.is_whole = False  # whether the last panel of keys, too, has two vectors
        self.depth = frame.product.depth
        self.key_panels = frame.scratch(self.given["keys_at"], frame.product.word)
        self.value_panels = frame.scratch(self.given["values_at"], frame.product.word)
        self.columns = frame.scratch(self.given["columns_at"])
        self.key_words = key_words(frame.spec, frame.lanes)
        self.value_vectors = round_up(frame.spec.value_size, frame.lanes) // frame.lanes

    def prepare(self, here: Block) -> None:
        """Pack a block of keys and values, and the biases that all rows share."""
        self.frame.watch_anew("keys", "values")
        self._pack_keys(here)
        if not self.frame.spec.reads_values:
            self._pack_values(here)
        if here.biases:
            self._add_up_biases(here)

    def _add_up_biases(self, here: Block) -> None:
        """What is added to the scores of each key; -inf behind the last one."""
        k, frame, lanes = self.k, self.frame, self.frame.lanes
        biases = [Bias(frame, number) for number in range(len(here.biases))]
        with k.loop(0, here.count, lanes) as at:
            mask = k.lanes_below(here.count - at, lanes)
            total: Value = k.constant(frame.compute.vector(lanes), 0.0)
            for bias, address in zip(biases, here.biases, strict=True):
                total = total + bias.values(k.pointer(address, bias.scalar), at, mask)
            self.columns.store(k.select(mask, total, float("-inf")), at)

    def padded(self, count: Value) -> Value:
        """Rows that the tiles for `count` rows touch."""
        main = self._main_rows(count)
        return self.k.larger(main, (count + (self.tile.rest - 1)) & -self.tile.rest)

    def _main_rows(self, count: Value) -> Value:
        """Rows that the main micro-kernel takes: the last tile may be short by less than one of the others."""
        return (count + (self.tile.rest - 1)) // self.tile.main * self.tile.main

    # Packing

    def _pack_keys(self, here: Block) -> None:
        k, frame, lanes, depth, product = self.k, self.frame, self.frame.lanes, self.depth, self.frame.product
        size, elements = frame.spec.head_size, self.frame.lanes * self.depth
        with k.loop(0, here.count, lanes) as at:
            panel = at // frame.panel
            wide = here.count - panel * frame.panel > lanes
            step = k.select(wide, k.constant(I64, frame.panel), k.constant(I64, lanes))
            if self.is_whole:
                step = k.constant(I64, frame.panel)
            place = self.key_panels.offset(panel * (self.key_words * frame.panel) + at % frame.panel)
            rows = [
                here.keys.offset(minimum(k, at + lane, here.count - 1) * self.given["key_row"]) for lane in range(lanes)
            ]

            def square(column: Value | int, mask: Value | None, place: Pointer = place, step: Value = step,
                       rows: list[Pointer] = rows) -> None:  # fmt: skip
                found = [row.offset(column).load(0, elements, mask) for row in rows]
                frame.watch("keys", found)
                parts = zip(*[frame.words(widened(values, frame.compute)) for values in found], strict=True)
                line = place.offset(step * (column // depth * product.parts if depth > 1 else column))
                for part, vectors in enumerate(parts):
                    for lane, vector in enumerate(transpose(k, vectors)):
                        line.offset(step * (part * product.unit + lane)).store(vector)

            whole = size - size % elements
            with k.loop(0, whole, elements) as column:
                square(column, None)
            if whole < size:
                square(whole, k.lanes_below(k.constant(I64, size - whole), elements))

    def _pack_values(self, here: Block) -> None:
        k, frame, lanes, depth, product = self.k, self.frame, self.frame.lanes, self.depth, self.frame.product
        together = depth * product.unit  # keys that words come with

        def pack(at: Value, is_whole: bool) -> None:
            word = at // depth if depth > 1 else at
            first = word // frame.apart * (depth * frame.apart) + word % frame.apart if frame.apart > 1 else at
            keys = [first + step * frame.apart for step in range(depth)]
            for column, mask in frame.pieces(frame.spec.value_size):
                panel, vector = column // (2 * lanes), column % (2 * lanes)
                width = self._value_width(panel) if isinstance(panel, int) else 2 * lanes
                found = []
                for key in keys:
                    there = mask
                    if not is_whole:
                        there = k.splat(key < here.count, lanes)
                        there = there if mask is None else there & mask
                    values = here.values.offset(key * self.given["value_row"]).load(column, lanes, there)
                    found.append(widened(values, frame.compute))
                frame.watch("values", found)
                place = self._value_panel(panel).offset(product.place(at) * width)
                for part, line in enumerate(found if depth == 1 else frame.value_words(*found)):
                    place.store(line, part * product.unit * width + vector)

        whole = here.count // together * together if depth > 1 else here.count
        with k.loop(0, whole, depth) as at:
            pack(at, True)
        if depth > 1:
            with k.loop(whole, product.padded(here.count), depth) as at:
                pack(at, False)

    def _value_panel(self, panel: Value | int) -> Pointer:
        words = self.frame.product.words_before(self.given["room"])
        return self.value_panels.offset(words * (self.frame.panel * panel) if isinstance(panel, int)
                                        else words * panel * self.frame.panel)  # fmt: skip

    def _value_width(self, panel: int) -> int:
        return self.frame.lanes * min(2, self.value_vectors - 2 * panel)

    # Products

    def scores(self, here: Block, count: Value, low: Value, high: Value) -> None:
        """The products of the rows of queries and the keys [low, high), where `low` begins a panel."""
        k, frame = self.k, self.frame
        if frame.is_fused:
            for row in range(frame.rows):
                frame.maximum(row).store(k.constant(frame.compute.vector(frame.lanes), float("-inf")))
        first, end = low // frame.panel, (high + (frame.panel - 1)) // frame.panel
        with k.loop(first, end) as panel:
            keys = self.key_panels.offset(panel * (self.key_words * frame.panel))
            scores = frame.scores.offset(panel * frame.panel)
            columns = self.columns.offset(panel * frame.panel)
            wide = here.count - panel * frame.panel > frame.lanes

            def tiles(vectors: int, keys: Pointer = keys, scores: Pointer = scores, columns: Pointer = columns) -> None:
                for rows, row in self._tiles(count):
                    self._multiply(
                        rows,
                        vectors,
                        frame.queries.offset(row * frame.query_stride),
                        frame.query_stride,
                        keys,
                        k.constant(I64, -(-frame.spec.head_size // self.depth)),
                        scores.offset(row * SCORES_STRIDE),
                        SCORES_STRIDE,
                        columns=columns,
                        first_row=row,
                    )

            with k.when(wide):
                tiles(2)
            with k.otherwise(wide):
                tiles(1)

    def values(self, here: Block, table: RowTable, count: Value, low: Value, high: Value) -> None:
        """Add the products of the weights of the keys [low, high) and their values to what the rows have."""
        k, frame = self.k, self.frame
        depth = self.depth
        steps = k.larger(high - low, 0)
        first = low
        if depth > 1:
            steps, first = (steps + (depth - 1)) // depth, low // depth

        def panel_tiles(panel: Value | int, vectors: int) -> None:
            step: Value | int = vectors * frame.lanes
            values = self._value_panel(panel)
            if frame.spec.reads_values:
                step, values = self.given["value_row"], here.values.offset(panel * frame.panel)
            values = values.offset(first * step)
            for rows, row in self._tiles(count):
                self._multiply(
                    rows,
                    vectors,
                    k.pointer(frame.score_row(row).address, frame.product.word).offset(first),
                    SCORES_STRIDE,
                    values,
                    steps,
                    table.accumulator(row).offset(panel * frame.panel),
                    frame.accumulator_stride,
                    right_stride=step,
                )

        whole, rest = divmod(self.value_vectors, 2)
        if whole:
            with k.loop(0, whole) as panel:
                panel_tiles(panel, 2)
        if rest:
            panel_tiles(whole, 1)

    def _tiles(self, count: Value):  # type: ignore[no-untyped-def]
        """Loops over the tiles of `count` rows: the rows of each, and its first row."""
        k = self.k
        main = self._main_rows(count)
        with k.loop(0, main, self.tile.main) as row:
            yield self.tile.main, row
        with k.loop(main, count, self.tile.rest) as row:
            yield self.tile.rest, row

    def _multiply(
        self,
        rows: int,
        vectors: int,
        left: Pointer,
        left_stride: int,
        right: Pointer,
        steps: Value,
        result: Pointer,
        result_stride: int,
        *,
        right_stride: Value | int | None = None,
        columns: Pointer | None = None,
        first_row: Value | None = None,
    ) -> None:
        """result += left @ right over `steps`: a tile of rows and vectors; `right` is packed where it has no stride.

        With `columns`, the result is that of scores: it starts from 0, what every row adds comes last, and the maxima
        of the rows from `first_row` on take part.
        """
        k, lanes, product = self.k, self.frame.lanes, self.frame.product
        wide = self.frame.compute.vector(lanes)
        places = [(row, vector) for row in range(rows) for vector in range(vectors)]
        is_new = columns is not None
        right_step = vectors * lanes if right_stride is None else right_stride
        accumulators = {
            (row, vector): k.variable(wide, 0.0 if is_new else result.load(row * result_stride + vector * lanes, lanes))
            for row, vector in places
        }

        def step(at: Value, ahead: int) -> None:
            line = right.offset((at + ahead) * right_step)
            loaded = [line.load(vector * lanes, lanes) for vector in range(vectors)]
            words = left.offset(at)
            for row in range(rows):
                word = words.load(row * left_stride + ahead)
                for vector in range(vectors):
                    variable = accumulators[row, vector]
                    variable.set(product.multiply(k, word, loaded[vector], variable.get()))

        whole = steps & -_UNROLL
        with k.loop(0, whole, _UNROLL) as at:
            for ahead in range(_UNROLL):
                step(at, ahead)
        with k.loop(whole, steps) as at:
            step(at, 0)
        added = None
        if columns is not None and self.frame.spec.folded:
            added = [columns.load(vector * lanes, lanes) for vector in range(vectors)]
        maxima = self.frame.maximum(first_row) if self.frame.is_fused and first_row is not None else None
        for row in range(rows):
            totals = [accumulators[row, vector].get() for vector in range(vectors)]
            if added is not None:
                totals = [total + one for total, one in zip(totals, added, strict=True)]
            for vector, total in enumerate(totals):
                result.store(total, row * result_stride + vector * lanes)
            if maxima is not None:
                best = maxima.load(row * lanes, lanes)
                for total in totals:
                    best = k.faster_larger(total, best)
                maxima.store(best, row * lanes)

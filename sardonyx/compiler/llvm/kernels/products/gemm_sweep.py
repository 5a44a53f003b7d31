"""The sweep of a product's kernel: one tile of whole height after the other along a row of B's panels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from sardonyx.compiler.llvm.builder import Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_frame import Block, Chunk, Frame
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Panels, Request, Rows, multiply_tile
from sardonyx.compiler.llvm.types import BOOL, I64

# Lanes of a vector that two rows may share: two words are put into one register for each multiplication saved.
_LEAST_HALVED = 8


class Sweep:
    """Strips of rows as high as a tile, by packed panels that hold all of K; what is finished needs no scratch."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.k, self.given, self.spec, self.product = frame.k, frame.given, frame.spec, frame.product
        self.lanes, self.panel = frame.lanes, frame.panel

    def strip(self, chunk: Chunk, block: Block, begin: Value) -> None:
        """A tile of whole height for each panel, with as little between two of them as there can be.

        Where K is small, writing C is all there is to do: at the speed of the caches if a tile's stores go on while
        the next tile is computed, and if nothing else is stored in between.
        """
        k, given = self.k, self.given
        whole = minimum(k, given["n"] // self.panel, chunk.last_panel)
        row = chunk.row_start + begin
        below = replace(
            chunk,
            row_start=k.constant(I64, 0),
            operands=tuple(place.below(row) for place in chunk.operands),
            outputs=tuple(place.below(row) for place in chunk.outputs),
        )
        rows = self.frame.rows_from(block, begin)
        joined = self.frame.joins(chunk, whole - 1)
        asked, behind = self._strip_behind(below, block, rows)
        far = given["far"].differs(0)
        with k.loop(chunk.first_panel, whole - joined.to(I64)) as panel:
            with k.when(far & (asked ^ True)):
                self.frame.writer(below, panel * self.panel, [None] * self.spec.vectors).ask_ahead(
                    below.row_start, k.constant(I64, self.spec.rows)
                )
            self._tile(below, block, rows, panel, self.spec.vectors, requests=behind(panel))
        if self.frame.joined_rows:
            with k.when(joined):
                for halved in self._halved(given["n"] - whole * self.panel, self.frame.joined_rows):
                    with k.loop(0, self.spec.rows, self.frame.joined_rows) as half:
                        part = self.frame.rows_from(block, begin + half)
                        self._joined_tile(below, block, part, whole - 1, half, halved)
        with k.when((joined ^ True) & (whole < chunk.last_panel)):
            left = given["n"] - whole * self.panel
            narrow = left <= self.lanes if self.spec.vectors > 1 else k.constant(BOOL, False)
            with k.when(narrow):
                self._tile(below, block, rows, whole, 1, left)
            with k.otherwise(narrow):
                for halved in self._halved(left - (self.panel - self.lanes), self.spec.rows):
                    self._tile(below, block, rows, whole, self.spec.vectors, left, halved)

    def _halved(self, left: Value, rows: int) -> Iterator[bool]:
        """The code for a last vector of which `left` columns exist: for at most half of it, which pairs of the `rows`
        of a tile can share, and for more."""
        k = self.k
        if rows % 2 or self.lanes < _LEAST_HALVED:
            yield False
            return
        few = left <= self.lanes // 2
        with k.when(few):
            yield True
        with k.otherwise(few):
            yield False

    def _tile(
        self,
        chunk: Chunk,
        block: Block,
        rows: Rows,
        panel: Value,
        vectors: int,
        left: Value | None = None,
        halved: bool = False,
        requests: tuple[Request, ...] | None = None,
    ) -> None:
        """The product of `rows` and some vectors of a panel, of which `left` columns exist (None: all)."""
        k, product, spec = self.k, self.product, self.spec
        start = chunk.b.offset(panel * self.frame.words(self.given["k"]) * self.panel)
        # A vector alone is bound by what it loads, and of so few columns B is small.
        ahead = self.given["prefetch"] if vectors == spec.vectors else None
        if requests is None:
            requests = self.frame.rows_behind(block, rows)
        b = Panels((start,), vectors, (None,) * vectors, self.panel, ahead, requests, halved=halved)
        values = multiply_tile(k, product, rows, self.frame.with_begins(b), spec.rows, block.words, 1)
        masks = [None if left is None else k.lanes_below(left - at * self.lanes, self.lanes) for at in range(vectors)]
        tall = [[values[row, 0, vector] for vector in range(vectors)] for row in range(spec.rows)]
        self.frame.writer(chunk, panel * self.panel, masks).over_registers(tall, chunk.row_start)

    def _joined_tile(self, chunk: Chunk, block: Block, rows: Rows, panel: Value, row: Value, halved: bool) -> None:
        """A tile of some rows, a whole panel and the vector behind it, finished in registers; `row` counts from the
        chunk's."""
        k, vectors = self.k, self.spec.vectors
        requests = self.frame.rows_behind(block, rows, self.frame.joined_rows)
        values = self.frame.joined(chunk, block, rows, panel, None, requests, halved)
        tile = [[values[row, vector, 0] for vector in range(vectors + 1)] for row in range(self.frame.joined_rows)]
        left = self.given["n"] - (panel + 1) * self.panel
        masks = [*[None] * vectors, k.lanes_below(left, self.lanes)]
        self.frame.writer(chunk, panel * self.panel, masks).over_registers(tile, row)

    def _strip_behind(
        self, chunk: Chunk, block: Block, rows: Rows
    ) -> tuple[Value, Callable[[Value], tuple[Request, ...]]]:
        """What the tile of a whole panel asks for, and whether C is asked for, which it is where memory is far: in the
        first half of a strip's panels a part of A's rows behind it, in the second half a part of C's, whose lines are
        read before they are written.

        Rows of C that lie together are one piece as A's are, if the strip has all their columns.
        """
        k, given = self.k, self.given
        requests = self.frame.rows_behind(block, rows)
        if not (self.spec.few_prefetch and requests):
            return k.constant(BOOL, False), lambda panel: requests
        out, height, lines, one = chunk.outputs[0], self.spec.rows, requests[0].lines, k.constant(I64, 1)
        count, words = chunk.last_panel - chunk.first_panel, block.words * lines
        is_whole = given["groups"].equals(1) & (out.stride < given["n"] * 2) & (words > 0) & (count > 1)
        half = k.select(is_whole, count // 2, count)
        a_bytes = -(-height * self.frame.left_bytes // lines)
        a_part = k.select(self.frame.are_together(block, rows), (half + (a_bytes - 1)) // half, 0)
        turns = k.select(is_whole, (count - half) * words, one)
        c_part = out.stride * (height * out.start.scalar.nbytes) // turns + 1
        a, c = rows.start.offset(rows.stride * height), out.start.offset(out.stride * height)

        def of(panel: Value) -> tuple[Request, ...]:
            turn = panel - chunk.first_panel
            is_a = turn < half
            part = k.select(is_a, a_part, c_part)
            first = k.select(is_a, a.address, c.address)
            start = k.advance(first, k.select(is_a, turn, turn - half) * part * words, 1)
            return (Request(k.pointer(start, self.product.word), lines, part),)

        return is_whole, of

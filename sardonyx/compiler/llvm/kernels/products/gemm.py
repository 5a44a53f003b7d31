"""Matrix multiplication with an epilogue: C = epilogue(A x B), for any sizes, strides and batches.

One kernel serves every form. A is read with one of its two strides equal to 1; B comes as packed panels of
`panel` columns (`gemm_packing`), as panels of float32 that are taken into parts in their turn, or as it lies in memory,
row-major or transposed. The grid is cut into chunks of a batch, a block of rows and a group of panels; within a chunk
the loops are

    for a block of K:                      A's block is copied beside the other scratch where its strides are bad
        for a panel of B:                  it stays in the nearest caches, while
            for a tile of rows of A:       the micro-kernel runs along K with the tile in registers
                store the tile, or after the last block of K apply the epilogue to it

(K. Goto, R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34, 2008, with the loops of
the BLIS framework.) Every element is accumulated in the order of K whatever the blocking, the number of rows or the
chunks, so results have the same bits for every one of these choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sardonyx.compiler.llvm.builder import Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_batches import BatchItem
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import fits_registers
from sardonyx.compiler.llvm.kernels.products.gemm_frame import Block, Chunk, Frame
from sardonyx.compiler.llvm.kernels.products.gemm_in_tiles import GemmInTiles, RowsInTiles
from sardonyx.compiler.llvm.kernels.products.gemm_micro import (
    BUSY,
    Panels,
    Registers,
    Request,
    Rows,
    Tile,
    multiply_tile,
    store_tile,
)
from sardonyx.compiler.llvm.kernels.products.gemm_packing import (
    copy_columns,
    copy_rows,
    copy_tiles,
    pack_columns,
    pack_numbers,
    pack_rows,
)
from sardonyx.compiler.llvm.kernels.products.gemm_parts import elements_of_b
from sardonyx.compiler.llvm.kernels.products.gemm_spec import GemmSpec
from sardonyx.compiler.llvm.kernels.products.gemm_sweep import Sweep
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE, configure, release
from sardonyx.compiler.llvm.kernels.products.gemm_windows import WindowCopy
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I64
from sardonyx.light_dataclass import dataclass


def emit_gemm(target: Target, spec: GemmSpec) -> str:
    """The kernel of `spec`; its arguments are `argument_names`, a chunk is a batch's block of rows of a panel group.

    Chunks count blocks of rows fastest, then groups of panels, then batches.
    """
    return _Gemm(target, spec).text()


# Layouts of A that hold words.
_OF_WORDS = ("words", "tiles", "runs")

# Numbers of heights of tiles are below this; with several panels at once, or one vector, multiples of it are added.
_PANEL_CASE = 100


@dataclass(frozen=True)
class _Place:
    """Which tile: the number of its (first) panel, the columns from there to B's end, how many panels it takes, its
    first row within the chunk, and its rows."""

    panel: Value
    left: Value
    width: Value
    row: Value
    rows: Value


class _Gemm:
    """The kernel while it is written, loop by loop from the outside."""

    def __init__(self, target: Target, spec: GemmSpec) -> None:
        frame = self.frame = Frame(target, spec)
        k = self.k = frame.k
        self.spec, self.product, self.given = spec, frame.product, frame.given
        self.lanes, self.panel, self.scratch = frame.lanes, frame.panel, frame.scratch
        self.sweep = Sweep(frame)
        self.windows = WindowCopy(k, self.product, self.given, frame.table)
        self.in_tiles = GemmInTiles(k, self.product, self.given, frame.table, self.scratch)
        # Few rows leave registers for several panels at once: how many, by the number of rows, most first. Where fewer
        # panels are left, those rows that would wait for their own sums take as many as there are.
        self.wide: dict[int, list[int]] = {}
        for rows in range(1, 1 if self.product.in_tiles else spec.rows):
            waits = rows * spec.vectors < BUSY
            counts = (4, 3, 2) if waits else (4, 2)
            spare = 3 if self.product.is_bounded else 1
            fits = [count for count in counts if (rows + 1) * count * spec.vectors + spare <= target.registers]
            if fits:
                self.wide[rows] = fits if waits else fits[:1]

    def text(self) -> str:
        k = self.k
        if self.product.in_tiles:
            configure(k)
        with k.loop(k["begin"], k["end"]) as number:
            chunk = self._chunk(number)
            start, more = k.variable(I64, 0), k.variable(BOOL, True)
            with k.loop_while(more.get):  # once at least: without K the result is the epilogue of 0
                block = self._block(chunk, start.get())
                self._panels(chunk, block)
                following = block.k_start + self.given["k_block"]
                start.set(following)
                more.set(following < self.given["k"])
        if self.product.in_tiles:
            release(k)
        return k.finish()

    def _chunk(self, number: Value) -> Chunk:
        k, given, spec = self.k, self.given, self.spec
        row_start = number % given["row_blocks"] * given["row_block"]
        rest = number // given["row_blocks"]
        first = rest % given["groups"] * given["group"]
        batch = rest // given["groups"]
        item = BatchItem(k, given, batch)
        if spec.a == "windows":
            a = item.start("a", self.windows.scalar)
        else:
            a = item.start("a", self.product.word if spec.a in _OF_WORDS else self.product.stored_a)
            a = a.offset(row_start if spec.a == "columns" else row_start * given["a_stride"])
        return Chunk(
            a=a,
            b=item.start("b", self.product.word if spec.b == "packed" else self.product.stored_b),
            rows=minimum(k, given["m"] - row_start, given["row_block"]),
            row_start=row_start,
            first_panel=first,
            last_panel=minimum(k, first + given["group"], (given["n"] + (self.panel - 1)) // self.panel),
            operands=item.operands(spec.epilogue),
            outputs=item.outputs(spec.epilogue, self.product.accumulator),
        )

    def _block(self, chunk: Chunk, k_start: Value) -> Block:
        """The block of K from `k_start` on, with A's part copied to scratch where that is asked for."""
        k, given, product = self.k, self.given, self.product
        elements = minimum(k, given["k"] - k_start, given["k_block"])
        words, final = self.frame.words(elements), given["k"] <= k_start + given["k_block"]
        if self.spec.a == "words":
            before = product.words_before(k_start) * product.left_words
            start = chunk.a if product.is_bounded else chunk.a.offset(before)
            rows = Rows(start, given["a_stride"], True)
            if product.in_tiles:
                self.in_tiles.copy_rest(RowsInTiles(rows, chunk.rows, words, None, True))
            return Block(k_start, elements, words, rows, k_start.equals(0), final)
        if self.spec.a == "tiles":
            start = chunk.a.offset(self.product.words_before(k_start) * SIDE)
            return Block(k_start, elements, words, Rows(start, given["a_stride"], True, SIDE), k_start.equals(0), final)
        if self.spec.a == "runs":
            rows, runs = Rows(chunk.a, given["a_stride"], True), self.in_tiles.runs(self.product.words_before(k_start))
            return Block(k_start, elements, words, rows, k_start.equals(0), final, runs)
        if self.spec.a == "windows":
            first, stride = product.words_before(k_start) * product.left_words, given["a_copy"]
            count = words * product.left_words
            self.windows.copy(chunk.a, chunk.row_start, chunk.rows, first, count, self.scratch, stride)
            return Block(k_start, elements, words, Rows(self.scratch, stride, True), k_start.equals(0), final)
        along_k = self.spec.a == "rows"
        source = chunk.a.offset(k_start if along_k else k_start * given["a_stride"])
        scratch, stride = self.scratch, given["a_copy"]

        def copy() -> None:
            if product.parts > 1:
                copy_tiles(k, product, source, given["a_stride"], chunk.rows, elements, scratch, stride)
            elif along_k:
                copy_rows(k, product, source, given["a_stride"], chunk.rows, elements, scratch, stride)
            else:
                copy_columns(k, product, source, given["a_stride"], elements, chunk.rows, scratch, stride)

        if product.copies_a:
            copy()
            rows = Rows(scratch, stride, along_k, SIDE if product.parts > 1 else 1)
        else:
            wanted = stride.differs(0)
            with k.when(wanted):
                copy()
            address = k.select(wanted, scratch.address, source.address)
            rows = Rows(k.pointer(address, product.word), k.select(wanted, stride, given["a_stride"]), along_k)
        return Block(k_start, elements, words, rows, k_start.equals(0), final)

    def _panels(self, chunk: Chunk, block: Block) -> None:
        """Every panel of the group for a strip of rows after the other; several at once for few rows."""
        k = self.k
        with k.loop(0, chunk.rows, self.given["strip"]) as begin:
            self._strip(chunk, block, begin, minimum(k, begin + self.given["strip"], chunk.rows))

    def _strip(self, chunk: Chunk, block: Block, begin: Value, end: Value) -> None:
        """The rows from `begin` to `end`; those of one whole tile that sees all of K at once are swept."""
        k = self.k
        if self.product.in_tiles or self.spec.b != "packed" or not fits_registers(self.spec.epilogue):
            self._tiles(chunk, block, begin, end)
            return
        swept = (end - begin).equals(self.spec.rows) & block.fresh & block.final
        with k.when(swept):
            self.sweep.strip(chunk, block, begin)
        with k.otherwise(swept):
            self._tiles(chunk, block, begin, end)

    def _joined_tiles(self, chunk: Chunk, block: Block, panel: Value, left: Value, begin: Value, end: Value) -> None:
        """Tiles of a whole panel and the vector behind it for some rows, kept in scratch until K ends."""
        k = self.k
        with k.loop(begin, end, self.frame.joined_rows) as row:
            tile = replace(self._kept(chunk, panel, row), panel=self.lanes)
            before = tile.unless(k, block.fresh, self.spec.vectors + 1)
            store_tile(tile, self.frame.joined(chunk, block, self.frame.rows_from(block, row), panel, before))
            at = _Place(panel, left, k.constant(I64, 2), row, k.constant(I64, self.frame.joined_rows))
            with k.when(block.final), k.loop(0, 2) as which:
                self._epilogue(chunk, at, which, tile)

    def _kept(self, chunk: Chunk, panel: Value, row: Value) -> Tile:
        """Where the tile of a panel and the rows from `row` on lies in scratch."""
        k, given = self.k, self.given
        before = panel - chunk.first_panel
        if self.product.in_tiles:  # each tile in one piece
            kept = (before * given["row_block"] + row) * self.panel
        else:
            kept = before * self.panel + row * given["tile_stride"]
        base = k.pointer(k.advance(k["scratch"], given["tile_scratch"], 1), self.product.accumulator)
        return Tile(base.offset(kept * given["tile_keep"]), given["tile_stride"], self.panel)

    def _tiles(self, chunk: Chunk, block: Block, begin: Value, end: Value) -> None:
        """The tiles of some rows with each panel, or with several panels at once for few rows."""
        k = self.k
        number, first = k.variable(I64, chunk.first_panel), k.variable(I64, begin)
        least, most = self._panels_at_once(end - begin)
        with k.loop_while(lambda: number.get() < chunk.last_panel):
            panel = number.get()
            left = self.given["n"] - panel * self.panel
            there = minimum(k, minimum(k, left // self.panel, chunk.last_panel - panel), most)
            width = k.select(there >= least, there, 1)
            if self.frame.joined_rows:
                with k.when(self.frame.joins(chunk, panel) & (end - begin > self.spec.rows)):
                    whole = (end - begin) // self.frame.joined_rows * self.frame.joined_rows
                    self._joined_tiles(chunk, block, panel, left, begin, begin + whole)
                    first.set(begin + whole)
            b = self._panel_of_b(chunk, block, panel, left, width, end - begin)
            with k.loop(first.get(), end, self.given["tile_rows"]) as row:
                rows = minimum(k, end - row, self.given["tile_rows"])
                following = self._following(b, block, row - begin, end - begin)
                self._tile(chunk, block, replace(b, requests=following), _Place(panel, left, width, row, rows))
            number.set(panel + width)

    def _panels_at_once(self, rows: Value) -> tuple[Value, Value]:
        """The least and the most panels, more than one, that are multiplied at once for so many rows; 1 for none."""
        k = self.k
        least, most = k.constant(I64, 1), k.constant(I64, 1)
        if self.spec.b in ("columns", "panels") or (self.spec.b == "rows" and self.product.copies_b):  # one by one
            return least, most
        for height, counts in self.wide.items():
            is_height = rows.equals(height)
            least, most = k.select(is_height, counts[-1], least), k.select(is_height, counts[0], most)
        return least, most

    def _panel_of_b(self, chunk: Chunk, block: Block, panel: Value, left: Value, width: Value, rows: Value) -> Panels:
        """Where the micro-kernel reads the panel from for so many rows, having copied it where it cannot be read as it
        lies: higher tiles load no vectors by a mask, which takes the place of multiplications in the machine."""
        k, given, product, spec = self.k, self.given, self.product, self.spec
        if spec.b == "packed":
            start = chunk.b.offset(panel * self.frame.words(given["k"]) * self.panel)
            start = start.offset(self.product.words_before(block.k_start) * self.panel)
            b = Panels((start,), spec.vectors, (None,) * spec.vectors, self.panel, given["prefetch"])
            return replace(b, requests=(self.in_tiles.panel_ahead(b),)) if product.in_tiles else b
        copied = k.pointer(k.advance(k["scratch"], given["b_scratch"], 1), product.word)
        column, stride = panel * self.panel, given["b_stride"]
        if spec.b == "panels":
            pack_numbers(k, product, self._numbers(chunk, panel, block.k_start), stride, block.elements, copied)
            is_last = panel + 1 >= chunk.last_panel
            following = k.select(is_last, chunk.first_panel, panel + 1)
            k_start = k.select(is_last, block.k_start + given["k_block"], block.k_start)
            ahead = self.in_tiles.panels_ahead(self._numbers(chunk, following, k_start), stride)
            return Panels((copied,), spec.vectors, (None,) * spec.vectors, self.panel, requests=ahead)
        if spec.b == "columns":
            source = chunk.b.offset(column * stride).offset(block.k_start)
            pack_columns(k, product, source, stride, block.elements, left, spec.vectors, copied)
            return Panels((copied,), spec.vectors, (None,) * spec.vectors, self.panel)
        source = chunk.b.offset(block.k_start * stride).offset(column)
        masks = [k.lanes_below(left - vector * self.lanes, self.lanes) for vector in range(spec.vectors)]
        masked_rows = max(self.wide, default=0) if k.target.has_masks else 0
        wanted = given["b_copy"].differs(0) | ((left < self.panel) & (rows > masked_rows))
        wanted = wanted & width.equals(1)
        if product.copies_b:
            wanted = k.constant(BOOL, True)
        with k.when(wanted):
            pack_rows(k, product, source, stride, block.elements, masks, copied)
        start = k.pointer(k.select(wanted, copied.address, source.address), product.word)
        loads = tuple(masks) if k.target.has_masks and not product.copies_b else (None,) * spec.vectors
        return Panels((start,), spec.vectors, loads, k.select(wanted, self.panel, stride))

    def _numbers(self, chunk: Chunk, panel: Value, k_start: Value) -> list[Pointer]:
        """Where the vectors of a panel begin in the panels of numbers that B lies in, which may be of other widths."""
        k, given = self.k, self.given
        width, starts = given["b_stride"], []
        for vector in range(self.spec.vectors):
            column = minimum(k, panel * self.panel + vector * self.lanes, (given["n"] - 1) // self.lanes * self.lanes)
            start = chunk.b.offset(column // width * width * given["k"] + column % width)
            starts.append(start.offset(k_start * width))
        return starts

    def _following(self, b: Panels, block: Block, row: Value, rows: Value) -> tuple[Request, ...]:
        """Asks for what lies `prefetch` words ahead, a part of it while each tile of the `rows` is multiplied.

        A core waits for few lines at once: all of a panel, asked for during one tile, holds up what that tile reads.
        """
        k, height, word = self.k, self.given["tile_rows"], self.product.word
        if b.prefetch is None or self.product.in_tiles:
            return b.requests
        turns = (rows + (height - 1)) // height
        apart = (turns + (self.panel * word.nbytes - 1)) // turns
        start = b.starts[0].offset(b.prefetch)
        part = k.advance(start.address, row // height * apart * block.words, 1)
        return (Request(k.pointer(part, word), 1, apart),)

    def _tile(self, chunk: Chunk, block: Block, b: Panels, at: _Place) -> None:
        """One tile: the micro-kernel of its height, and after the last block of K its epilogue."""
        k, product = self.k, self.product
        tile = self._kept(chunk, at.panel, at.row)
        a = self.frame.rows_from(block, at.row)
        if self.spec.a != "runs":
            with k.when(block.final & self.given["far"].differs(0)):
                whole = [None] * self.spec.vectors
                self.frame.writer(chunk, at.panel * self.panel, whole).ask_ahead(chunk.row_start + at.row, at.rows)
        if product.in_tiles:
            rows = RowsInTiles(block.a, chunk.rows, block.words, block.runs, self.spec.a == "words")
            self.in_tiles.multiply(rows, at.row, b, tile, block.fresh)
            pending = block.final
            if product.parts > 1:
                with k.when(pending):
                    self._mend(chunk, at, tile)
        else:
            pending = self._multiply(chunk, block, a, b, at, tile)
        with k.when(pending), k.loop(0, at.width) as which:
            self._epilogue(chunk, at, which, tile)

    def _mend(self, chunk: Chunk, at: _Place, tile: Tile) -> None:
        """What infinities need of a tile of all K."""
        words = self.frame.words(self.given["k"])
        a = Rows(chunk.a, self.given["a_stride"], True, SIDE if self.spec.a == "tiles" else 1)
        runs = self.in_tiles.runs(self.k.constant(I64, 0)) if self.spec.a == "runs" else None
        rows = RowsInTiles(a, chunk.rows, words, runs, False)
        starts = self._numbers(chunk, at.panel, self.k.constant(I64, 0))
        right = elements_of_b(self.k, self.product, starts, self.given["b_stride"], self.given["k"])
        self.in_tiles.mend(rows, at.row, right, tile)

    def _multiply(self, chunk: Chunk, block: Block, a: Rows, b: Panels, at: _Place, tile: Tile) -> Value:
        """The tile's sums, to scratch or finished: whether the epilogue is still to come."""
        k, product, spec, rows = self.k, self.product, self.spec, at.rows
        # A vector alone is multiplied by whole tiles only: lower ones are few, and take a panel's time at most.
        narrow = (at.left <= self.lanes) & rows.equals(spec.rows)
        heights = range(1, spec.rows + 1)
        cases = {height: (height, 1) for height in heights}  # height and panels by selector; no panel is one vector
        cases |= {count * _PANEL_CASE + few: (few, count) for few, counts in self.wide.items() for count in counts}
        selector = k.select(at.width > 1, rows + at.width * _PANEL_CASE, rows)
        if spec.vectors > 1:
            cases[_PANEL_CASE] = (spec.rows, 0)
            selector = k.select(narrow, _PANEL_CASE, selector)
        a = a.sharing(k)
        before = tile.unless(k, block.fresh, max(count for _, count in cases.values()))
        for case in k.choose(selector, list(cases)):
            height, count = cases[case]
            if count == 0:
                panels = Panels(b.starts, 1, b.masks[:1], b.stride, b.prefetch)
            else:
                panels = b if count == 1 else self._several(b, count)
            if height not in self.wide:
                panels = replace(panels, prefetch=None, masks=(None,) * len(panels.masks))
            elif count == 1 and spec.few_prefetch:  # most are the last of many rows, and ask for their part alone
                panels = replace(panels, prefetch=None)
            else:
                panels = replace(panels, prefetch=b.prefetch if spec.few_prefetch else None, requests=())
            if height == spec.rows:
                panels = replace(panels, requests=(*panels.requests, *self.frame.rows_behind(block, a)))
            unroll = spec.unroll if case == spec.rows else 1
            panels = self.frame.with_begins(panels)
            values = multiply_tile(k, product, a, panels, height, block.words, unroll, before)
            if height == spec.rows and fits_registers(spec.epilogue):
                self._finish(chunk, block, at, values, tile)
            else:
                store_tile(tile, values)
        pending = block.final
        if fits_registers(spec.epilogue):
            done = rows.equals(spec.rows) & ((at.left >= self.panel) | narrow)
            pending = pending & (done ^ True)
        return pending

    def _finish(self, chunk: Chunk, block: Block, at: _Place, values: Registers, tile: Tile) -> None:
        """The epilogue of a tile of full height that is still in registers, or its way to scratch.

        The tile is whole, or has one vector per row, of which a mask may cut a part.
        """
        k, spec = self.k, self.spec
        vectors = range(1 + max(vector for _, _, vector in values))
        narrow = len(vectors) < spec.vectors
        masks = [k.lanes_below(at.left, self.lanes)] if narrow else [None for _ in vectors]
        now = block.final if narrow else block.final & (at.left >= self.panel)
        rows = [[values[row, 0, vector] for vector in vectors] for row in range(spec.rows)]
        with k.when(now):
            self.frame.writer(chunk, at.panel * self.panel, masks).over_registers(rows, chunk.row_start + at.row)
        with k.otherwise(now):
            store_tile(tile, values)

    def _epilogue(self, chunk: Chunk, at: _Place, which: Value, tile: Tile) -> None:
        """The epilogue of one panel of a tile in scratch.

        It is written twice: whole, and vector by vector with masks, whose stores may cost more.
        """
        k = self.k
        first, left = (at.panel + which) * self.panel, at.left - which * self.panel
        part = tile.start.offset(which * self.panel)

        def write(column: Value, place: Pointer, masks: Sequence[Value | None]) -> None:
            writer, first = self.frame.writer(chunk, column, masks), chunk.row_start + at.row
            if self.spec.a == "runs":
                self.in_tiles.write_windows(writer, place, tile.stride, first, at.rows)
            else:
                writer.over_rows(place, tile.stride, first, at.rows)

        whole = left >= self.panel
        with k.when(whole):
            write(first, part, [None] * self.spec.vectors)
        with k.otherwise(whole), k.loop(0, left, self.lanes) as column:
            write(first + column, part.offset(column), [k.lanes_below(left - column, self.lanes)])

    def _several(self, b: Panels, count: int) -> Panels:
        """`count` panels from the first on."""
        if self.spec.b == "packed":
            apart: Value | int = self.frame.words(self.given["k"]) * self.panel
        else:
            apart = self.panel
        starts = tuple(b.starts[0].offset(apart * number) if number else b.starts[0] for number in range(count))
        return Panels(starts, b.vectors, (None,) * b.vectors, b.stride, b.prefetch)

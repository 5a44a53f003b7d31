"""Matrix multiplication with an epilogue for few columns: every element of C is a dot product of two lines in memory.

The micro-kernel of `gemm` spreads a word of A over the lanes of a row of C; where C has few columns most lanes are
idle, and a word is loaded for each multiplication. Here lanes run along K, which takes as many multiplications as
there are numbers, and one sum over the lanes for each element of C. A's rows and B's columns are contiguous.

    for a tile of rows of A:
        for some columns of B:     all pairs are summed in registers, a vector for each, whose lanes are added up
        apply the epilogue

One row by many columns is the same with the sides exchanged: the columns are A's rows, and the row is the only column.
What a tile gives is then a part of the row of C.

The sums depend on K and the width of vectors alone, so results have the same bits for any rows, chunks or threads.
"""

from __future__ import annotations

from dataclasses import field

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_batches import BATCH_NAMES, BatchItem
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, PTR
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class DotsSpec:
    """The structure of a kernel: C has `columns` columns, of which `rows` rows and `across` columns are summed at once.

    The product is one whose words are what tensors hold. `asks_ahead`: the next rows of A are asked for ahead of time.
    `turned`: C is one row, of an element for each row of A, and B has one column.
    """

    product: str
    columns: int
    rows: int
    across: int
    asks_ahead: bool = False
    turned: bool = False
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)

    def parts(self) -> tuple[tuple[int, int, int], ...]:
        """The columns in parts of `across` or one less: (first column, last column, columns of a part)."""
        count = -(-self.columns // self.across)
        most = -(-self.columns // count)
        split = (self.columns - count * (most - 1)) * most
        parts = (0, split, most), (split, self.columns, most - 1)
        return tuple(part for part in parts if part[0] < part[1])


def argument_names(spec: DotsSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order; a chunk is `row_block` of the m rows of a batch.

    There are `row_blocks` of them. Strides, in elements, are those between rows of A and between columns of B.
    """
    names = ("a", "b", "m", "k", "a_stride", "b_stride", *BATCH_NAMES, "row_block", "row_blocks")
    return (*names, *spec.epilogue.argument_names())


def scratch_bytes(target: Target, spec: DotsSpec) -> int:
    """Bytes of scratch: the sums of a tile of rows."""
    scalar = PRODUCTS[spec.product].accumulator
    return spec.rows * _row_of_sums(target.lanes(scalar), spec.columns) * scalar.nbytes


def _row_of_sums(lanes: int, columns: int) -> int:
    """Elements of a row of sums: whole vectors, of which one may begin at any column."""
    return (-(-columns // lanes) + 1) * lanes


def emit_dots(target: Target, spec: DotsSpec) -> str:
    """The kernel of `spec`; its arguments are `argument_names`."""
    return _Dots(target, spec).text()


class _Dots:
    """The kernel while it is written."""

    def __init__(self, target: Target, spec: DotsSpec) -> None:
        self.spec = spec
        self.product = PRODUCTS[spec.product]
        k = self.k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
        self.scalar = self.product.accumulator
        self.lanes = target.lanes(self.scalar)
        words = k.pointer("arguments", I64)
        self.given = {name: words.load(index) for index, name in enumerate(argument_names(spec))}
        self.tile = k.pointer("scratch", self.scalar)
        self.rows_ahead = -(-spec.rows // -(-spec.columns // spec.across))
        self.row_of_sums = _row_of_sums(self.lanes, spec.columns)
        self.whole = self.given["k"] - self.given["k"] % self.lanes
        self.starts: dict[str, Pointer] = {}

    def text(self) -> str:
        k, spec, given = self.k, self.spec, self.given
        with k.loop(k["begin"], k["end"]) as number:
            item = BatchItem(k, given, number // given["row_blocks"])
            self.starts = {name: item.start(name, self.scalar) for name in ("a", "b")}
            first = number % given["row_blocks"] * given["row_block"]
            last = minimum(k, first + given["row_block"], given["m"])
            with k.loop(first, last, spec.rows) as row:
                height = minimum(k, last - row, spec.rows)
                for rows in k.choose(height, range(1, spec.rows + 1)):
                    self._tile_of_sums(row, rows)
                self._write(item, row, height)
        return k.finish()

    def _write(self, item: BatchItem, row: Value, height: Value) -> None:
        """Finish the sums of some rows from `row` on."""
        k, spec = self.k, self.spec
        across = range(0, spec.rows if spec.turned else spec.columns, self.lanes)
        if spec.turned:
            masks: list[Value | None] = [k.lanes_below(height - begin, self.lanes) for begin in across]
            writer = item.writer(spec.epilogue, self.scalar, row, masks)
            writer.over_registers([[self.tile.load(begin, self.lanes) for begin in across]], k.constant(I64, 0))
            return
        masks = [
            k.lanes_below(k.constant(I64, spec.columns - begin), self.lanes)
            if spec.columns - begin < self.lanes
            else None
            for begin in across
        ]
        writer = item.writer(spec.epilogue, self.scalar, k.constant(I64, 0), masks)
        writer.over_rows(self.tile, k.constant(I64, self.row_of_sums), row, height)

    def _tile_of_sums(self, row: Value, rows: int) -> None:
        """The dot products of some rows, to scratch."""
        done = 0
        for first, last, columns in self.spec.parts():
            count = (last - first) // columns
            with self.k.loop(0, count) as part:
                ahead = row + self.spec.rows + (part + done) * self.rows_ahead
                self._multiply(row, rows, part * columns + first, columns, ahead)
            done += count

    def _multiply(self, row: Value, rows: int, column: Value, columns: int, ahead: Value) -> None:
        """The dot products of some rows and columns, while rows from `ahead` on are asked for."""
        k, given = self.k, self.given
        a = [self._line("a", row + number) for number in range(rows)]
        b = [self._line("b", column + number) for number in range(columns)]
        asks = self.spec.asks_ahead and rows == self.spec.rows
        wanted = [self._line("a", ahead + number) for number in range(self.rows_ahead)] if asks else []
        zero = k.constant(self.scalar.vector(self.lanes), 0)
        sums = [[k.variable(zero.type, 0) for _ in range(columns)] for _ in range(rows)]
        with k.loop(0, self.whole, self.lanes) as start:
            for line in wanted:
                line.offset(start).prefetch(level=2)
            self._step(a, b, start, None, sums)
        with k.when(self.whole < given["k"]):
            mask = k.lanes_below(given["k"] - self.whole, self.lanes)
            self._step(a, b, self.whole, mask, sums)
        if self.spec.turned:
            for first in range(0, rows, self.lanes):
                found = self._sums_of_lanes([total.get() for (total,) in sums[first : first + self.lanes]])
                self.tile.store(found, first)
            return
        for number, totals in enumerate(sums):
            found = self._sums_of_lanes([total.get() for total in totals])
            self.tile.offset(column).store(found, number * self.row_of_sums)

    def _sums_of_lanes(self, vectors: list[Value]) -> Value:
        """A vector whose lanes are the sums over the lanes of the vectors, each a tree of halves.

        Halves of two vectors are added at once: vectors half as many places apart each time, so that all end in order.
        """
        lanes = self.lanes
        kept: list[Value | None] = [*vectors, *[None] * (lanes - len(vectors))]
        part = lanes
        while len(kept) > 1:
            half, part = len(kept) // 2, part // 2
            kept = [self._halves_added(*pair, part) for pair in zip(kept[:half], kept[half:], strict=True)]
        assert kept[0] is not None
        return kept[0]

    def _halves_added(self, first: Value | None, second: Value | None, part: int) -> Value | None:
        """Parts of so many lanes of both vectors in turns, each the sum of two that were neighbours."""
        if first is None:
            return None
        k, lanes = self.k, self.lanes

        def places(start: int, exists: bool) -> list[int]:
            return [place if exists else -1 for place in range(start, start + part)]

        low, high = (
            [
                place
                for start in range(beside, lanes, 2 * part)
                for place in (*places(start, True), *places(lanes + start, second is not None))
            ]
            for beside in (0, part)
        )
        return k.shuffle(first, second, low) + k.shuffle(first, second, high)

    def _line(self, name: str, number: Value) -> Pointer:
        """A row of A or a column of B."""
        return self.starts[name].offset(number * self.given[f"{name}_stride"])

    def _step(
        self, a: list[Pointer], b: list[Pointer], start: Value, mask: Value | None, sums: list[list[Variable]]
    ) -> None:
        """One vector of every line from `start` on."""
        right = [line.load(start, self.lanes, mask) for line in b]
        for line, totals in zip(a, sums, strict=True):
            left = line.load(start, self.lanes, mask)
            for vector, total in zip(right, totals, strict=True):
                total.set(self.k.fma(left, vector, total.get()))

"""What kernels of Strassen's scheme in Winograd's form share: seven products of quarters, and how one is multiplied.

The scheme is in `gemm_strassen`. A product reads a part of A where its rows lie, or a sum that was made of them; B from
packed panels, or a sum that its first tile of rows makes while it multiplies by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import EpilogueWriter, TileEpilogue, writer_of
from sardonyx.compiler.llvm.kernels.products.gemm_micro import BUSY, Panels, Rows, Tile, multiply_tile, store_tile
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I32, I64, PTR, Type
from sardonyx.light_dataclass import dataclass

# Sums of quarters of A; tiles of a panel and a block of rows, one for each product.
A_SUMS = 4
TILES = 7
# Of sixteenths, parts of A that are made for an outer product: three quarters of its own, unless they are A's, and four
# sums.
PARTS = 3 + A_SUMS

# Numbers of the quarters of A and of B, of S1 to S4, and of the place in scratch where one sum T after the other lies.
Q11, Q12, Q21, Q22 = range(4)
S1, S2, S3, S4 = range(4, 8)
T = 4


@dataclass(frozen=True)
class Factors:
    """One product: the numbers of A's and B's part; B's is made of two others first where they are given."""

    a: int
    b: int
    made: tuple[int, int] | None = None


# P1, P2, P3, P5, P6, P4, P7: T1, T2 and T4 come one of the other.
SEVEN = (
    Factors(Q11, Q11),
    Factors(Q12, Q21),
    Factors(S4, Q22),
    Factors(S1, T, (Q12, Q11)),
    Factors(S2, T, (Q22, T)),
    Factors(Q22, T, (Q21, T)),
    Factors(S3, T, (Q22, Q12)),
)


def least_making(rows: int) -> int:
    """Rows of the lowest tiles that make sums of B, where the highest have `rows`.

    Three quarters of these, so that halves of 49 rows, as maps of 7x7 have, are tiles of 9; two less than few rows.
    """
    return rows - max(2, rows // 4)


def combined(products: Sequence[Value]) -> list[Value]:
    """The quarters of C from the seven products."""
    p1, p2, p3, p5, p6, p4, p7 = products
    u = p1 + p6
    v = u + p7
    return [p1 + p2, u + p5 + p3, v + p4, v + p5]


@dataclass(frozen=True)
class QuarterSpec:
    """The structure of a kernel; its ``repr`` identifies the compiled code. A tile has `rows` x `vectors` registers."""

    product: str = "f32"
    rows: int = 12
    vectors: int = 2
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)


class Table:
    """For each product, in memory: where A's part begins and the step between its rows; where B's begins, the two
    that it is made of, and how many words ahead of it are asked for."""

    def __init__(self, k: Function, products: int) -> None:
        self.k = k
        self.a, self.stride, self.b, self.left, self.right, self.ahead = (k.stack(I64, products) for _ in range(6))

    def enter(self, column: Pointer, number: int, pointer: Pointer) -> None:
        column.store(address_word(self.k, pointer), number)


@dataclass(frozen=True)
class Chunk:
    """Rows of each part of A, the first of them; the first panel of each part of the columns, and how many."""

    rows: Value
    row_start: Value
    first_panel: Value
    panels: Value


def address_word(k: Function, pointer: Pointer) -> Value:
    """An address as an integer."""
    return k.emit(I64, f"ptrtoint ptr {pointer.address.name} to i64")


def sums_of_a(a11: Value, a12: Value, a21: Value, a22: Value) -> tuple[Value, Value, Value, Value]:
    """S1 to S4 of elements of the quarters of A."""
    s1 = a21 + a22
    s2 = s1 - a11
    return s1, s2, a11 - a21, a12 - s2


class QuarterKernel:
    """A kernel while it is written: its arguments, a sum of B, tiles, the table of products, how one is multiplied.

    `names` are those of the arguments; among them are `row_block`, `tile_rows`, `b_sum_scratch` and `tile_scratch`.
    """

    def __init__(self, target: Target, spec: QuarterSpec, names: Sequence[str], products: int) -> None:
        self.rows, self.vectors, self.epilogue = spec.rows, spec.vectors, spec.epilogue
        self.product = PRODUCTS[spec.product]
        self.word = self.product.word
        k = self.k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
        self.lanes = target.lanes(self.product.accumulator)
        self.panel = self.lanes * self.vectors
        words = k.pointer("arguments", I64)
        self.given = {name: words.load(index) for index, name in enumerate(names)}
        self.b_sum = self.scratch("b_sum_scratch", self.word)
        self.tiles = self.scratch("tile_scratch", self.product.accumulator)
        self.tile_size = self.given["row_block"] * self.panel
        self.table = Table(k, products)
        self.block = k.stack(self.product.accumulator, self.rows * self.panel)  # a tile's sums of one block of K

    def chunk(self, number: Value, rows: str) -> Chunk:
        """The chunk of this number, where each part of A has as many rows as the argument called `rows` says."""
        k, given = self.k, self.given
        first = number % given["groups"] * given["group"]
        panels = minimum(k, given["panels"] - first, given["group"])
        row_start = number // given["groups"] * given["row_block"]
        return Chunk(minimum(k, given[rows] - row_start, given["row_block"]), row_start, first, panels)

    def scratch(self, name: str, scalar: Type) -> Pointer:
        """Where a part of scratch begins."""
        return self.k.pointer(self.k.advance(self.k["scratch"], self.given[name], 1), scalar)

    def enter_b(self, products: Sequence[Factors], parts: Sequence[Pointer], following: Value) -> None:
        """Enter where the products' parts of B begin, four quarters and the sum T of them.

        Each quarter is read next so many words behind.
        """
        # What only the sums read is asked for as well: while the first of them is multiplied by, which has it first.
        apart = address_word(self.k, parts[Q12]) - address_word(self.k, self.b_sum)
        beside = following + apart // self.word.nbytes
        for number, factors in enumerate(products):
            self.table.enter(self.table.b, number, parts[factors.b])
            ahead: Value | int = following if factors.b != T else 0
            if factors.made:
                self.table.enter(self.table.left, number, parts[factors.made[0]])
                self.table.enter(self.table.right, number, parts[factors.made[1]])
                ahead = beside if factors.made[0] == Q12 else 0
            self.table.ahead.store(ahead, number)

    def multiply(
        self, rows: Value, number: Value, tile: Pointer, elements: Value, *, fresh: Value, of_seven: Value
    ) -> None:
        """A product of the table over so many elements of K, tile after tile of rows, added to `tile` unless `fresh`.

        If it is one `of_seven`, its first tile of rows makes the sum of B where there is one.
        """
        k, table, most = self.k, self.table, self.rows
        a, stride = k.pointer(table.a.load(number), self.word), table.stride.load(number)
        b = k.pointer(table.b.load(number), self.word)
        there = Panels((b,), self.vectors, (None,) * self.vectors, self.panel, table.ahead.load(number))
        first_made = next(index for index, factors in enumerate(SEVEN) if factors.made)
        is_made = (number >= first_made) & of_seven
        making = range(most + least_making(most), 2 * most + 1)
        shared = Rows(a, stride, True).sharing(k)
        following = k.variable(I64, 0)
        with k.loop_while(lambda: following.get() < rows):
            row = following.get()
            height = self._height(rows - row)
            following.set(row + height)
            lines = replace(shared, start=a.offset(row * stride))
            place = tile.offset(row * self.panel)
            start = k.pointer(k.select(fresh, place.address, self.block.address), place.scalar)
            written = Tile(start, k.constant(I64, self.panel), self.panel)
            selector = k.select(is_made & row.equals(0), height + most, height)
            for case in k.choose(selector, (*range(1, most + 1), *making)):
                panels = there
                if case > most:
                    left, right = (k.pointer(column.load(number), self.word) for column in (table.left, table.right))
                    panels = replace(there, starts=(left,), minus=right, kept=b)
                cut = case - most if case > most else case
                values = multiply_tile(k, self.product, lines, panels, cut, elements, 1)
                store_tile(written, values)
            with k.otherwise(fresh):
                self._add_block(place, height)

    def _height(self, left: Value) -> Value:
        """Rows of the next tile where so many are left.

        A tile so low that its sums do not keep the units busy takes as long as a higher one: the one before it leaves
        it some of its rows.
        """
        k, tile = self.k, self.given["tile_rows"]
        busy = BUSY // 2 if k.target.takes_turns else BUSY
        least = -(-busy // self.vectors)
        over = left - tile
        lower = k.larger(left - least, least_making(self.rows))
        return k.select((over > 0) & (over < least), lower, minimum(k, left, tile))

    def _add_block(self, tile: Pointer, rows: Value) -> None:
        """Add the sums of a block of K to a tile: sums of blocks lose less than one sum of all."""
        with self.k.loop(0, rows * self.panel, self.panel) as at:
            for vector in range(self.vectors):
                place = tile.offset(at).offset(vector * self.lanes)
                place.store(place.load(0, self.lanes) + self.block.offset(at).load(vector * self.lanes, self.lanes))

    def keep_bits(self, place: Pointer, line: Pointer, elements: Value) -> None:
        """Note at a place, a word of 32 bits, which bits results of a row of A keep: all, or none where it is zeros."""
        k = self.k
        place.store(k.select(self.has_numbers(line, elements), k.constant(I32, -1), k.constant(I32, 0)))

    def kept(self, results: Value, bits: Value) -> Value:
        """Results of a row with the bits that it keeps, in all lanes."""
        return (results.bits_as(I32) & bits).bits_as(results.type.scalar)

    def has_numbers(self, line: Pointer, elements: Value) -> Value:
        """Whether a row of A holds anything but zeros.

        What the sums leave of the row that it is paired with is far below that one's numbers, but above zero: an
        operator that divides a row by its length, as those of padded positions, would make much of it.
        """
        k, lanes = self.k, self.lanes
        found, at = k.variable(BOOL, False), k.variable(I64, 0)
        whole = elements - elements % lanes
        with k.loop_while(lambda: ~found.get() & (at.get() < whole)):
            found.set(k.any_lane(line.offset(at.get()).load(0, lanes).differs(0)))
            at.set(at.get() + lanes)
        with k.when(~found.get() & (whole < elements)):
            last = line.offset(whole).load(0, lanes, k.lanes_below(elements - whole, lanes))
            found.set(k.any_lane(last.differs(0)))
        return found.get()

    def writer(self, column: Value) -> EpilogueWriter:
        """What stores rows of a panel of results that begins at a column."""
        masks = [None] * self.vectors
        return writer_of(self.k, self.epilogue, self.given, self.product.accumulator, column, masks)

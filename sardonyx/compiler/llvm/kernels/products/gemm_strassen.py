"""Matrix multiplication by seven products of quarters instead of eight: Strassen's recursion once, in Winograd's form.

With A, B and C cut in halves along both axes,

    S1 = A21 + A22   S2 = S1 - A11   S3 = A11 - A21   S4 = A12 - S2
    T1 = B12 - B11   T2 = B22 - T1   T3 = B22 - B12   T4 = B21 - T2
    P1 = A11 B11   P2 = A12 B21   P3 = S4 B22   P4 = A22 T4   P5 = S1 T1   P6 = S2 T2   P7 = S3 T3
    C11 = P1 + P2   C12 = U + P5 + P3   C21 = U + P7 + P4   C22 = U + P7 + P5   where U = P1 + P6

(V. Strassen, "Gaussian elimination is not optimal", Numerische Mathematik 13, 1969; S. Winograd, "On multiplication of
2x2 matrices", Linear Algebra and its Applications 4, 1971; the sign of T4 is chosen so that nothing is subtracted at
the end.) B is read from the same packed panels as by `gemm`: halves of K are halves of a panel, halves of N halves of
the panels, and no copy of B exists. Each of the sums T is the difference of two things that are there already; the
first tile of rows makes it, of a block of K of one panel, while it multiplies by it, and leaves it to the others. The
sums S of a block of rows are made by every thread that has a chunk of it, once in a run: a core reads what it wrote
itself much sooner than what another one did. That they are there already is told by the stamp of the run beside them.

The error grows with the largest elements of the matrices rather than with those of a row and a column (N. Higham,
"Accuracy and Stability of Numerical Algorithms", 2002, section 23.2.2). What is not finite would spread to other rows
and columns: a chunk in whose results such a number turns up is computed again, by the eight ordinary products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import EpilogueWriter, TileEpilogue, writer_of
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Panels, Registers, Rows, Tile, multiply_tile, store_tile
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.system import nanoseconds
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I64, PTR, Type

# Sums of quarters of A; tiles of a panel and a block of rows, one for each product.
A_SUMS = 4
TILES = 7
# Sums of B are made by tiles of this many rows less than the highest, or more.
LEAST_MAKING = 2

# Numbers of the quarters of A and of B, of S1 to S4, and of the place in scratch where one sum T after the other lies.
_11, _12, _21, _22 = range(4)
_S1, _S2, _S3, _S4 = range(4, 8)
_T = 4


@dataclass(frozen=True)
class _Factors:
    """One product: the numbers of A's and B's part; B's is made of two others first where they are given."""

    a: int
    b: int
    made: tuple[int, int] | None = None


# P1, P2, P3, P5, P6, P4, P7: T1, T2 and T4 come one of the other.
_SEVEN = (
    _Factors(_11, _11),
    _Factors(_12, _21),
    _Factors(_S4, _22),
    _Factors(_S1, _T, (_12, _11)),
    _Factors(_S2, _T, (_22, _T)),
    _Factors(_22, _T, (_21, _T)),
    _Factors(_S3, _T, (_22, _12)),
)
# Two after the other for C11, C12, C21, C22.
_EIGHT = tuple(_Factors(2 * row + k, 2 * k + column) for row in (0, 1) for column in (0, 1) for k in (0, 1))


def _combined(products: Sequence[Value]) -> list[Value]:
    """The quarters of C from the seven products."""
    p1, p2, p3, p5, p6, p4, p7 = products
    u = p1 + p6
    v = u + p7
    return [p1 + p2, u + p5 + p3, v + p4, v + p5]


@dataclass(frozen=True)
class StrassenSpec:
    """The structure of a kernel; its ``repr`` identifies the compiled code. A tile has `rows` x `vectors` registers."""

    product: str = "f32"
    rows: int = 12
    vectors: int = 2
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)


def argument_names(spec: StrassenSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order; strides and sizes count elements.

    a, b, stamp                   addresses of A, of the packed panels of B, and of a word that no other step of this
                                  run nor any run before has (`emit_stamp`)
    m, upper                      rows, and rows of the upper half: the lower half is the last `upper` rows, of which
                                  the first is left to the upper half where the number of rows is odd
    k, panels                     half of K, and panels of half of the columns
    a_stride, sums_stride         elements between rows
    sums_apart                    elements between S1, S2, S3 and S4, whose rows have room for whole vectors
    row_block, k_block, group     rows of a half, elements of half of K, and panels of a half of a chunk
    groups                        how many groups there are
    tile_rows                     rows of a tile; the first tile of a block has `rows - LEAST_MAKING` at least
    b_sum_scratch, tile_scratch, a_sums_scratch, mark_scratch
                                  byte offsets in scratch of the sum T, of the tiles, of S1 to S4, and of two words
    """
    names = ["a", "b", "stamp", "m", "upper", "k", "panels", "a_stride", "sums_stride", "sums_apart"]
    names += ["row_block", "k_block", "group", "groups", "tile_rows"]
    names += ["b_sum_scratch", "tile_scratch", "a_sums_scratch", "mark_scratch"]
    return (*names, *spec.epilogue.argument_names())


def emit_strassen(target: Target, spec: StrassenSpec) -> str:
    """The kernel of `spec`; a chunk is a block of rows of both halves of a group of panels of both halves.

    Chunks count groups of panels fastest, so that A's rows stay in the second cache. No result may lie where an operand
    does, as a chunk may be computed twice.
    """
    return _Strassen(target, spec).text()


def emit_stamp(target: Target, spec: tuple[()]) -> str:
    """A kernel that writes the time to the word at its only argument."""
    del spec
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    k.pointer(k.pointer("arguments", I64).load(), I64).store(nanoseconds(k))
    return k.finish()


@dataclass(frozen=True)
class _Chunk:
    """Rows of each half, the first of them, and the panels of the left half."""

    rows: Value
    row_start: Value
    first_panel: Value
    last_panel: Value


class _Table:
    """For each product, in memory: where A's part begins and the step between its rows; where B's begins, the two
    that it is made of, and how many words ahead of it are asked for."""

    def __init__(self, k: Function) -> None:
        self.k = k
        self.a, self.stride, self.b, self.left, self.right, self.ahead = (k.stack(I64, len(_EIGHT)) for _ in range(6))

    def enter(self, column: Pointer, number: int, pointer: Pointer) -> None:
        column.store(address_word(self.k, pointer), number)


def address_word(k: Function, pointer: Pointer) -> Value:
    """An address as an integer."""
    return k.emit(I64, f"ptrtoint ptr {pointer.address.name} to i64")


class _Strassen:
    """The kernel while it is written, loop by loop from the outside."""

    def __init__(self, target: Target, spec: StrassenSpec) -> None:
        self.spec = spec
        self.product = PRODUCTS[spec.product]
        self.word = self.product.word
        k = self.k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
        self.lanes = target.lanes(self.product.accumulator)
        self.panel = self.lanes * spec.vectors
        words = k.pointer("arguments", I64)
        self.given = {name: words.load(index) for index, name in enumerate(argument_names(spec))}
        self.b_sum = self._scratch("b_sum_scratch", self.word)
        self.tiles = self._scratch("tile_scratch", self.product.accumulator)
        self.a_sums = self._scratch("a_sums_scratch", self.word)
        self.mark = self._scratch("mark_scratch", I64)
        self.stamp = k.pointer(self.given["stamp"], I64).load()
        self.tile_size = self.given["row_block"] * self.panel
        self.table = _Table(k)
        self.eight = k.variable(I64, 0)  # 1 where the chunk takes the eight ordinary products

    def _scratch(self, name: str, scalar: Type) -> Pointer:
        return self.k.pointer(self.k.advance(self.k["scratch"], self.given[name], 1), scalar)

    def text(self) -> str:
        k, given = self.k, self.given
        pending = k.variable(BOOL)
        with k.loop(k["begin"], k["end"]) as number:
            first = number % given["groups"] * given["group"]
            row_start = number // given["groups"] * given["row_block"]
            chunk = _Chunk(
                minimum(k, given["upper"] - row_start, given["row_block"]),
                row_start,
                first,
                minimum(k, first + given["group"], given["panels"]),
            )
            self._sum_a(chunk)
            self.eight.set(0)
            pending.set(True)
            with k.loop_while(pending.get):
                self._products(chunk)
                pending.set(self._results(chunk) & self._takes_seven())
                self.eight.set(1)
        return k.finish()

    def _takes_seven(self) -> Value:
        return self.eight.get().equals(0)

    def _sum_a(self, chunk: _Chunk) -> None:
        """Make S1 to S4 of the chunk's rows, unless they were made for a chunk before it."""
        k, given = self.k, self.given
        wanted = self.mark.load(0).differs(self.stamp) | self.mark.load(1).differs(chunk.row_start)
        whole = given["k"] - given["k"] % self.lanes
        with k.when(wanted):
            with k.loop(0, chunk.rows) as row:
                upper, lower = self._rows(chunk.row_start + row)
                target = self.a_sums.offset(row * given["sums_stride"])
                with k.loop(0, whole, self.lanes) as column:
                    self._sum_vector(upper, lower, target, column, None)
                with k.when(whole < given["k"]):
                    self._sum_vector(upper, lower, target, whole, k.lanes_below(given["k"] - whole, self.lanes))
            self.mark.store(self.stamp, 0)
            self.mark.store(chunk.row_start, 1)

    def _rows(self, row: Value) -> tuple[Pointer, Pointer]:
        """The row of this number in the upper half of A, and in the lower half."""
        given = self.given
        upper = self.k.pointer(given["a"], self.word).offset(row * given["a_stride"])
        return upper, upper.offset((given["m"] - given["upper"]) * given["a_stride"])

    def _sum_vector(self, upper: Pointer, lower: Pointer, target: Pointer, column: Value, mask: Value | None) -> None:
        a11, a12, a21, a22 = (
            start.offset(column).load(0, self.lanes, mask)
            for half in (upper, lower)
            for start in (half, half.offset(self.given["k"]))
        )
        s1 = a21 + a22
        s2 = s1 - a11
        for which, value in enumerate((s1, s2, a11 - a21, a12 - s2)):
            target.offset(self.given["sums_apart"] * which).store(value, column)

    def _products(self, chunk: _Chunk) -> None:
        """All products of the chunk, summed over K in the tiles."""
        k, given = self.k, self.given
        with k.loop(0, given["k"], given["k_block"]) as k_start:
            elements = minimum(k, given["k"] - k_start, given["k_block"])
            self._enter_a(chunk, k_start)
            with k.loop(chunk.first_panel, chunk.last_panel) as panel:
                self._enter_b(chunk, panel, k_start)
                tiles = self.tiles.offset((panel - chunk.first_panel) * TILES * self.tile_size)
                eight = self.eight.get()
                with k.loop(0, eight + len(_SEVEN)) as number:
                    tile = tiles.offset((number >> eight) * self.tile_size)
                    fresh = k_start.equals(0) & (number & eight).equals(0)
                    self._product(chunk, number, tile, elements, fresh)

    def _enter_a(self, chunk: _Chunk, k_start: Value) -> None:
        """The parts of A from the chunk's first row and this block of K on."""
        given, table = self.given, self.table
        halves = [half.offset(k_start) for half in self._rows(chunk.row_start)]
        parts = [start for half in halves for start in (half, half.offset(given["k"]))]
        parts += [self.a_sums.offset(k_start + given["sums_apart"] * which) for which in range(A_SUMS)]

        def enter(products: Sequence[_Factors]) -> None:
            for number, factors in enumerate(products):
                table.enter(table.a, number, parts[factors.a])
                table.stride.store(given["a_stride"] if factors.a < _S1 else given["sums_stride"], number)

        self._either(enter)

    def _enter_b(self, chunk: _Chunk, panel: Value, k_start: Value) -> None:
        """The parts of B of this panel of each half from this block of K on."""
        k, given, table = self.k, self.given, self.table
        whole = given["k"] * (2 * self.panel)  # words of a panel
        left = k.pointer(given["b"], self.word).offset(panel * whole).offset(k_start * self.panel)
        right, down = left.offset(given["panels"] * whole), given["k"] * self.panel
        parts = [left, right, left.offset(down), right.offset(down), self.b_sum]
        following = self._following(chunk, panel, k_start, whole)
        # What only the sums read is asked for as well: while the first of them is multiplied by, which has it first.
        beside = following + (address_word(k, right) - address_word(k, self.b_sum)) // self.word.nbytes

        def enter(products: Sequence[_Factors]) -> None:
            for number, factors in enumerate(products):
                table.enter(table.b, number, parts[factors.b])
                ahead: Value | int = following if factors.b != _T else 0
                if factors.made:
                    table.enter(table.left, number, parts[factors.made[0]])
                    table.enter(table.right, number, parts[factors.made[1]])
                    ahead = beside if factors.made[0] == _12 else 0
                table.ahead.store(ahead, number)

        self._either(enter)

    def _following(self, chunk: _Chunk, panel: Value, k_start: Value, whole: Value) -> Value:
        """Words from a quarter's panel to the one that is read next: of the next panel, block of K or chunk."""
        k, given = self.k, self.given
        is_last = panel + 1 >= chunk.last_panel
        is_final = k_start + given["k_block"] >= given["k"]
        to_next_block = given["k_block"] * self.panel - (chunk.last_panel - chunk.first_panel - 1) * whole
        at_end = k.select(is_final, whole - k_start * self.panel, to_next_block)
        return k.select(is_last, at_end, whole)

    def _either(self, enter: Callable[[Sequence[_Factors]], None]) -> None:
        k, seven = self.k, self._takes_seven()
        with k.when(seven):
            enter(_SEVEN)
        with k.otherwise(seven):
            enter(_EIGHT)

    def _product(self, chunk: _Chunk, number: Value, tile: Pointer, elements: Value, fresh: Value) -> None:
        """One product over a block of K, tile after tile of rows; the first makes the sum of B where there is one."""
        k, spec, given, table = self.k, self.spec, self.given, self.table
        a, stride = k.pointer(table.a.load(number), self.word), table.stride.load(number)
        b = k.pointer(table.b.load(number), self.word)
        there = Panels((b,), spec.vectors, (None,) * spec.vectors, self.panel, table.ahead.load(number))
        first_made = next(index for index, factors in enumerate(_SEVEN) if factors.made)
        is_made = (number >= first_made) & self._takes_seven()
        making = range(2 * spec.rows - LEAST_MAKING, 2 * spec.rows + 1)
        with k.loop(0, chunk.rows, given["tile_rows"]) as row:
            height = minimum(k, chunk.rows - row, given["tile_rows"])
            rows = Rows(a.offset(row * stride), stride, True)
            place = Tile(tile.offset(row * self.panel), k.constant(I64, self.panel), self.panel)
            selector = k.select(is_made & row.equals(0), height + spec.rows, height)
            for case in k.choose(selector, (*range(1, spec.rows + 1), *making)):
                panels = there
                if case > spec.rows:
                    left, right = (k.pointer(column.load(number), self.word) for column in (table.left, table.right))
                    panels = replace(there, starts=(left,), minus=right, kept=b)
                cut = case - spec.rows if case > spec.rows else case
                values = multiply_tile(k, self.product, rows, panels, cut, elements, 1)
                with k.when(fresh):
                    store_tile(place, values)
                with k.otherwise(fresh):
                    store_tile(place, self._added(place, values))

    def _added(self, tile: Tile, values: Registers) -> Registers:
        """The tile in memory and the one in registers: sums of blocks of K lose less than one sum of all."""
        return {
            (row, panel, vector): tile.element(row, panel, vector, self.lanes).load(0, self.lanes) + value
            for (row, panel, vector), value in values.items()
        }

    def _results(self, chunk: _Chunk) -> Value:
        """The epilogue of the quarters of C; whether those of the seven products are not finite.

        What is not finite in A is in S4 and so in C12, in B in T4 and so in C21.
        """
        k, spec, given = self.k, self.spec, self.given
        zeros = k.constant(self.product.accumulator.vector(self.lanes), 0)
        seen = k.variable(zeros.type, 0)
        seven = self._takes_seven()
        below = given["m"] - given["upper"]
        # Of an odd number of rows the middle one is in both halves.
        twice = given["upper"].differs(below) & chunk.row_start.equals(0)
        with k.loop(chunk.first_panel, chunk.last_panel) as panel:
            writers = [self._writer((panel + given["panels"] * side) * self.panel) for side in range(2)]
            start = self.tiles.offset((panel - chunk.first_panel) * TILES * self.tile_size)
            with k.loop(0, chunk.rows) as row:
                places = [start.offset(self.tile_size * which).offset(row * self.panel) for which in range(TILES)]
                quarters: list[list[Value]] = [[], [], [], []]
                for vector in range(spec.vectors):
                    tiles = [place.load(vector * self.lanes, self.lanes) for place in places]
                    combined = _combined(tiles)
                    seen.set(k.fma(combined[1], zeros, k.fma(combined[2], zeros, seen.get())))
                    for quarter, tile, result in zip(quarters, tiles, combined, strict=False):
                        quarter.append(k.select(seven, result, tile))
                upper = chunk.row_start + row
                for side, writer in enumerate(writers):
                    writer.over_registers([quarters[side]], upper)
                with k.otherwise(twice & row.equals(0)):
                    for side, writer in enumerate(writers):
                        writer.over_registers([quarters[2 + side]], upper + below)
        total = k.horizontal("add", seen.get())
        return total.differs(total)

    def _writer(self, column: Value) -> EpilogueWriter:
        spec = self.spec
        return writer_of(self.k, spec.epilogue, self.given, self.product.accumulator, column, [None] * spec.vectors)

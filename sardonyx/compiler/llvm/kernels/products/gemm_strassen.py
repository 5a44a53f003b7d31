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

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.quarter_kernel import (
    A_SUMS,
    S1,
    SEVEN,
    TILES,
    Chunk,
    Factors,
    QuarterKernel,
    QuarterSpec,
    combined,
    sums_of_a,
)
from sardonyx.compiler.llvm.system import nanoseconds
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I32, I64, PTR

# Two after the other for C11, C12, C21, C22.
_EIGHT = tuple(Factors(2 * row + k, 2 * k + column) for row in (0, 1) for column in (0, 1) for k in (0, 1))


def argument_names(spec: QuarterSpec) -> tuple[str, ...]:
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
    tile_rows                     rows of a tile; the first tile of a block has `least_making(rows)` at least
    b_sum_scratch, tile_scratch, a_sums_scratch, mark_scratch
                                  byte offsets in scratch of the sum T, of the tiles, of S1 to S4, and of two words
    """
    names = ["a", "b", "stamp", "m", "upper", "k", "panels", "a_stride", "sums_stride", "sums_apart"]
    names += ["row_block", "k_block", "group", "groups", "tile_rows"]
    names += ["b_sum_scratch", "tile_scratch", "a_sums_scratch", "mark_scratch"]
    return (*names, *spec.epilogue.argument_names())


def emit_strassen(target: Target, spec: QuarterSpec) -> str:
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


class _Strassen(QuarterKernel):
    """The kernel while it is written, loop by loop from the outside."""

    def __init__(self, target: Target, spec: QuarterSpec) -> None:
        super().__init__(target, spec, argument_names(spec), len(_EIGHT))
        self.a_sums = self.scratch("a_sums_scratch", self.word)
        self.mark = self.scratch("mark_scratch", I64)
        self.stamp = self.k.pointer(self.given["stamp"], I64).load()
        self.eight = self.k.variable(I64, 0)  # 1 where the chunk takes the eight ordinary products

    def text(self) -> str:
        k = self.k
        pending = k.variable(BOOL)
        with k.loop(k["begin"], k["end"]) as number:
            chunk = self.chunk(number, "upper")
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

    def _sum_a(self, chunk: Chunk) -> None:
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
                for half, line in enumerate((upper, lower)):
                    self.keep_bits(self._bits(row, half), line, given["k"] * 2)
            self.mark.store(self.stamp, 0)
            self.mark.store(chunk.row_start, 1)

    def _bits(self, row: Value, half: int) -> Pointer:
        """Behind the last element of a row of a sum of A: what `keep_bits` says of a row of a half of A."""
        end = self.given["sums_apart"] * half + (row + 1) * self.given["sums_stride"] - 1
        return self.k.pointer(self.a_sums.offset(end).address, I32)

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
        for which, value in enumerate(sums_of_a(a11, a12, a21, a22)):
            target.offset(self.given["sums_apart"] * which).store(value, column)

    def _products(self, chunk: Chunk) -> None:
        """All products of the chunk, summed over K in the tiles."""
        k, given = self.k, self.given
        with k.loop(0, given["k"], given["k_block"]) as k_start:
            elements = minimum(k, given["k"] - k_start, given["k_block"])
            self._enter_a(chunk, k_start)
            with k.loop(0, chunk.panels) as turn:
                self._enter_b(chunk, turn, k_start)
                tiles = self.tiles.offset(turn * TILES * self.tile_size)
                eight = self.eight.get()
                with k.loop(0, eight + len(SEVEN)) as number:
                    tile = tiles.offset((number >> eight) * self.tile_size)
                    fresh = k_start.equals(0) & (number & eight).equals(0)
                    self.multiply(chunk.rows, number, tile, elements, fresh=fresh, of_seven=self._takes_seven())

    def _enter_a(self, chunk: Chunk, k_start: Value) -> None:
        """The parts of A from the chunk's first row and this block of K on."""
        given, table = self.given, self.table
        halves = [half.offset(k_start) for half in self._rows(chunk.row_start)]
        parts = [start for half in halves for start in (half, half.offset(given["k"]))]
        parts += [self.a_sums.offset(k_start + given["sums_apart"] * which) for which in range(A_SUMS)]

        def enter(products: Sequence[Factors]) -> None:
            for number, factors in enumerate(products):
                table.enter(table.a, number, parts[factors.a])
                table.stride.store(given["a_stride"] if factors.a < S1 else given["sums_stride"], number)

        self._either(enter)

    def _enter_b(self, chunk: Chunk, turn: Value, k_start: Value) -> None:
        """The parts of B of this panel of each half from this block of K on."""
        k, given = self.k, self.given
        whole = given["k"] * (2 * self.panel)  # words of a panel
        left = k.pointer(given["b"], self.word).offset((chunk.first_panel + turn) * whole).offset(k_start * self.panel)
        right, down = left.offset(given["panels"] * whole), given["k"] * self.panel
        parts = [left, right, left.offset(down), right.offset(down), self.b_sum]
        following = self._following(chunk, turn, k_start, whole)
        self._either(lambda products: self.enter_b(products, parts, following))

    def _following(self, chunk: Chunk, turn: Value, k_start: Value, whole: Value) -> Value:
        """Words from a quarter's panel to the one that is read next: of the next panel, block of K or chunk."""
        k, given = self.k, self.given
        is_last = turn + 1 >= chunk.panels
        is_final = k_start + given["k_block"] >= given["k"]
        to_next_block = given["k_block"] * self.panel - (chunk.panels - 1) * whole
        at_end = k.select(is_final, whole - k_start * self.panel, to_next_block)
        return k.select(is_last, at_end, whole)

    def _either(self, enter: Callable[[Sequence[Factors]], None]) -> None:
        k, seven = self.k, self._takes_seven()
        with k.when(seven):
            enter(SEVEN)
        with k.otherwise(seven):
            enter(_EIGHT)

    def _results(self, chunk: Chunk) -> Value:
        """The epilogue of the quarters of C; whether those of the seven products are not finite.

        What is not finite in A is in S4 and so in C12, in B in T4 and so in C21.
        """
        k, given = self.k, self.given
        zeros = k.constant(self.product.accumulator.vector(self.lanes), 0)
        seen = k.variable(zeros.type, 0)
        seven = k.splat(self.eight.get().to(I32), self.lanes).equals(0)
        below = given["m"] - given["upper"]
        # Of an odd number of rows the middle one is in both halves.
        twice = given["upper"].differs(below) & chunk.row_start.equals(0)
        with k.loop(0, chunk.panels) as turn:
            panel = chunk.first_panel + turn
            writers = [self.writer((panel + given["panels"] * side) * self.panel) for side in range(2)]
            start = self.tiles.offset(turn * TILES * self.tile_size)
            with k.loop(0, chunk.rows) as row:
                places = [start.offset(self.tile_size * which).offset(row * self.panel) for which in range(TILES)]
                bits = [k.splat(self._bits(row, half).load(), self.lanes) for half in range(2)]
                quarters: list[list[Value]] = [[], [], [], []]
                for vector in range(self.vectors):
                    tiles = [place.load(vector * self.lanes, self.lanes) for place in places]
                    quartered = combined(tiles)
                    seen.set(k.fma(quartered[1], zeros, k.fma(quartered[2], zeros, seen.get())))
                    for which, (quarter, result) in enumerate(zip(quarters, quartered, strict=True)):
                        quarter.append(k.select(seven, self.kept(result, bits[which // 2]), tiles[which]))
                upper = chunk.row_start + row
                for side, writer in enumerate(writers):
                    writer.over_registers([quarters[side]], upper)
                with k.otherwise(twice & row.equals(0)):
                    for side, writer in enumerate(writers):
                        writer.over_registers([quarters[2 + side]], upper + below)
        total = k.horizontal("add", seen.get())
        return total.differs(total)

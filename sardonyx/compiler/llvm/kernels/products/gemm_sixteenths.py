"""Matrix multiplication by 49 products of sixteenths instead of 64: the scheme of `gemm_strassen` in itself.

Each of the seven outer products is a product of matrices of half the rows, half of K and half the columns, and takes
seven inner products. A chunk makes the sums of A of one outer product after the other, all of K, and multiplies them by
all its panels while they lie in the second cache. The four outer sums T of B were made by a step before
(`emit_b_sums`), packed as B is; inner ones are made while the first rows are multiplied, as those of one level. Two
sums of outer products are kept for each panel, in this order:

    U = P1   C11 = U + P2   U = U + P6   W = U + P5   C12 = W + P3   C22 = W + P7, U = U + P7   C21 = U + P4

The error grows as that of one level does, once more. Where a result is not finite, its panels take an ordinary product
behind the seven. Rows of zeros give zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.quarter_kernel import (
    A_SUMS,
    Q11,
    Q12,
    Q21,
    Q22,
    S1,
    SEVEN,
    TILES,
    Chunk,
    QuarterKernel,
    QuarterSpec,
    T,
    address_word,
    combined,
    sums_of_a,
)
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32, I64, PTR
from sardonyx.light_dataclass import dataclass

# The outer products in their order; behind them the quarters of C as ordinary products.
_P1, _P2, _P6, _P5, _P3, _P7, _P4, _ORDINARY = range(8)
_PASSES = _ORDINARY + 4
# The quarter of C that each pass completes.
_COMPLETED = {_P2: Q11, _P3: Q12, _P7: Q22, _P4: Q21} | {_ORDINARY + quarter: quarter for quarter in range(4)}
# The quarters of A whose sum each takes, with their signs.
_A = (
    ((Q11, 1),),
    ((Q12, 1),),
    ((Q21, 1), (Q22, 1), (Q11, -1)),
    ((Q21, 1), (Q22, 1)),
    ((Q12, 1), (Q21, -1), (Q22, -1), (Q11, 1)),
    ((Q11, 1), (Q21, -1)),
    ((Q22, 1),),
)
# The part of B that each takes: a quarter, or one of T1 to T4.
_T1, _T2, _T3, _T4 = range(T, T + 4)
_B = (Q11, Q21, _T2, _T1, Q22, _T3, _T4)
# No quarter.
_NONE = 4
# Vectors of sums of A that are made one behind the other.
_ABREAST = 2


def argument_names(spec: QuarterSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order; strides and sizes count elements.

    a, b, b_sums                  addresses of A, of the packed panels of B, and of the sums that `emit_b_sums` made
    m, half, quarter              rows, those of an outer half, and of a half of that: lower halves are the last rows,
                                  of which the first is left to the upper half where the number of rows is odd
    k, panels                     a quarter of K, and panels of a quarter of the columns
    a_stride, part_stride         elements between rows of A, and of its parts, which have room for whole vectors
    parts_apart                   elements between the parts of A
    row_block, k_block, group     rows of a quarter, elements of a quarter of K, and panels of a quarter of a chunk
    groups                        how many groups there are
    tile_rows                     rows of a tile; the first tile of a block has `least_making(rows)` at least
    b_sum_scratch, tile_scratch, part_scratch, u_scratch, w_scratch, seen_scratch
                                  byte offsets in scratch of an inner sum of B, of the tiles, of A's parts, of U, of W,
                                  and of a vector for each panel that tells whether all results are finite
    """
    names = ["a", "b", "b_sums", "m", "half", "quarter", "k", "panels", "a_stride", "part_stride", "parts_apart"]
    names += ["row_block", "k_block", "group", "groups", "tile_rows"]
    names += ["b_sum_scratch", "tile_scratch", "part_scratch", "u_scratch", "w_scratch", "seen_scratch"]
    return (*names, *spec.epilogue.argument_names())


def emit_sixteenths(target: Target, spec: QuarterSpec) -> str:
    """The kernel of `spec`; a chunk is a block of rows of each quarter of them by a group of panels of each quarter.

    No result may lie where an operand does, as some may be computed twice.
    """
    return _Sixteenths(target, spec).text()


B_SUM_NAMES = ("b", "b_sums", "k", "panels")


def emit_b_sums(target: Target, spec: int) -> str:
    """A kernel that makes T1 to T4 of packed panels of `spec` columns of float32; a chunk is a panel of each half.

    Its arguments are the addresses of the panels and of the sums, half of K, and panels of half of the columns.
    """
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    given = {name: words.load(index) for index, name in enumerate(B_SUM_NAMES)}
    word = PRODUCTS["f32"].word
    lanes = target.lanes(word)
    size = given["k"] * spec
    with k.loop(k["begin"], k["end"]) as panel:
        left = k.pointer(given["b"], word).offset(panel * size * 2)
        right = left.offset(given["panels"] * size * 2)
        quarters = (left, right, left.offset(size), right.offset(size))
        sums = [k.pointer(given["b_sums"], word).offset((panel + given["panels"] * one) * size) for one in range(4)]
        with k.loop(0, size, lanes) as at:
            b11, b12, b21, b22 = (quarter.offset(at).load(0, lanes) for quarter in quarters)
            t1 = b12 - b11
            t2 = b22 - t1
            for place, value in zip(sums, (t1, t2, b22 - b12, b21 - t2), strict=True):
                place.store(value, at)
    return k.finish()


@dataclass(frozen=True)
class _Pass:
    """Its number, whether it is an outer product of the seven, and the number of the quarter of C that it completes."""

    number: Value
    of_seven: Value
    quarter: Value


class _Sixteenths(QuarterKernel):
    """The kernel while it is written, loop by loop from the outside."""

    def __init__(self, target: Target, spec: QuarterSpec) -> None:
        super().__init__(target, spec, argument_names(spec), TILES)
        k, accumulator = self.k, self.product.accumulator
        self.parts = self.scratch("part_scratch", self.word)
        self.u = self.scratch("u_scratch", accumulator)
        self.w = self.scratch("w_scratch", accumulator)
        self.seen = self.scratch("seen_scratch", accumulator)
        self.a_starts = k.stack(I64, TILES)
        # By pass: where B's part begins, the words from panel to panel of it, the quarter of C or one more than all.
        self.b_starts, self.b_steps, self.completed = (k.stack(I64, _PASSES) for _ in range(3))

    def text(self) -> str:
        k = self.k
        self._enter_passes()
        with k.loop(k["begin"], k["end"]) as number:
            chunk = self.chunk(number, "quarter")
            with k.loop(0, chunk.panels) as turn:
                self._seen(turn).store(self._zeros())
            with k.loop(0, _PASSES) as number_of_pass:
                one = _Pass(number_of_pass, number_of_pass < _ORDINARY, self.completed.load(number_of_pass))
                self._enter_a(chunk, one)
                with k.loop(0, chunk.panels) as turn:
                    seen = k.horizontal("add", self._seen(turn).load(0, self.lanes))
                    with k.when(one.of_seven | seen.differs(seen)):
                        self._multiply_panel(chunk, one, turn)
                        self._add_outer(chunk, one, turn)
        return k.finish()

    def _zeros(self) -> Value:
        return self.k.constant(self.product.accumulator.vector(self.lanes), 0)

    def _seen(self, turn: Value) -> Pointer:
        """Zeros for a panel of the chunk, where all of its results are finite."""
        return self.seen.offset(turn * self.lanes)

    def _enter_passes(self) -> None:
        k, given = self.k, self.given
        half = given["k"] * (2 * self.panel)  # words of half a panel, and of a panel of sums
        right = given["panels"] * half * 4
        b, sums = k.pointer(given["b"], self.word), k.pointer(given["b_sums"], self.word)
        places = [b, b.offset(right), b.offset(half), b.offset(right + half)]
        places += [sums.offset(given["panels"] * half * (2 * one)) for one in range(4)]
        for one in range(_PASSES):
            part = _B[one] if one < _ORDINARY else Q11
            self.b_starts.store(address_word(k, places[part]), one)
            self.b_steps.store(half * 2 if part < T else half, one)
            self.completed.store(_COMPLETED.get(one, _NONE), one)

    def _line(self, half: Value | int, quarter: Value | int, row: Value) -> Pointer:
        """A row of A by its number within the upper or lower quarter of the upper or lower half."""
        return self.k.pointer(self.given["a"], self.word).offset(
            self._below(half, quarter, row) * self.given["a_stride"]
        )

    def _below(self, half: Value | int, quarter: Value | int, row: Value) -> Value:
        """The number of that row in A and C."""
        given = self.given
        return row + (given["m"] - given["half"]) * half + (given["half"] - given["quarter"]) * quarter

    def _enter_a(self, chunk: Chunk, one: _Pass) -> None:
        """Make the parts of A that the pass takes, all of K, and note where they begin."""
        k, given = self.k, self.given

        def enter(number: int, start: Pointer, stride: Value) -> None:
            self.a_starts.store(address_word(k, start), number)
            self.table.stride.store(stride, number)

        for case in k.choose(one.number, range(_ORDINARY)):
            made = (Q11, Q12, Q22, *range(S1, S1 + A_SUMS)) if len(_A[case]) > 1 else tuple(range(S1, S1 + A_SUMS))
            places = {part: self.parts.offset(given["parts_apart"] * index) for index, part in enumerate(made)}
            for number, factors in enumerate(SEVEN):
                if factors.a in places:
                    enter(number, places[factors.a], given["part_stride"])
                else:
                    outer = _A[case][0][0]
                    line = self._line(outer // 2, factors.a // 2, chunk.row_start)
                    enter(number, line.offset(given["k"] * (2 * (outer % 2) + factors.a % 2)), given["a_stride"])
            with k.loop(0, chunk.rows) as row:
                self._make_parts(case, chunk.row_start + row, row, places)
        with k.otherwise(one.of_seven):
            for number in range(4):
                enter(number, self._line(one.quarter >> 1, number // 2, chunk.row_start), given["a_stride"])
        with k.when(one.of_seven & one.quarter.differs(_NONE)), k.loop(0, chunk.rows) as row:
            for inner in (0, 1):
                line = self._line(one.quarter >> 1, inner, chunk.row_start + row)
                self.keep_bits(self._bits(row, inner), line, given["k"] * 4)

    def _bits(self, row: Value, inner: int) -> Pointer:
        """Behind the last element of a row of a part of A: what `keep_bits` says of a row of the quarter of C that a
        pass completes, in its upper or lower half."""
        end = self.given["parts_apart"] * inner + (row + 1) * self.given["part_stride"] - 1
        return self.k.pointer(self.parts.offset(end).address, I32)

    def _make_parts(self, case: int, row: Value, into: Value, places: dict[int, Pointer]) -> None:
        """A row of each part of A that an outer product takes and that is not A's."""
        k, given = self.k, self.given
        size = given["k"]
        lines = [[self._line(half, quarter, row) for quarter in (0, 1)] for half in (0, 1)]
        sources = [
            [
                (self._kept(lines[outer // 2][inner // 2].offset(size * (2 * (outer % 2) + inner % 2))), sign)
                for outer, sign in _A[case]
            ]
            for inner in (Q11, Q12, Q21, Q22)
        ]
        targets = {part: self._kept(place.offset(into * given["part_stride"])) for part, place in places.items()}

        zeros = self._zeros()

        def sum_vector(column: Value, beside: int, mask: Value | None) -> None:
            found = []
            for terms in sources:
                total = zeros
                for number, (place, sign) in enumerate(terms):
                    value = place.offset(column).load(beside, self.lanes, mask)
                    total = value if number == 0 else total + value if sign > 0 else total - value
                found.append(total)
            x11, x12, x21, x22 = found
            made = {Q11: x11, Q12: x12, Q22: x22} | dict(enumerate(sums_of_a(x11, x12, x21, x22), S1))
            for part, target in targets.items():
                target.offset(column).store(made[part], beside)

        many, whole = (size - size % step for step in (_ABREAST * self.lanes, self.lanes))
        with k.loop(0, many, _ABREAST * self.lanes) as column:
            for turn in range(_ABREAST):
                sum_vector(column, turn * self.lanes, None)
        with k.loop(many, whole, self.lanes) as column:
            sum_vector(column, 0, None)
        with k.when(whole < size):
            sum_vector(whole, 0, k.lanes_below(size - whole, self.lanes))

    def _multiply_panel(self, chunk: Chunk, one: _Pass, turn: Value) -> None:
        """The inner products of an outer one for a panel, or four ordinary ones, in the tiles."""
        k, given = self.k, self.given
        count = k.select(one.of_seven, k.constant(I64, len(SEVEN)), k.constant(I64, 4))
        size = k.select(one.of_seven, given["k"], given["k"] * 4)
        block = k.select(one.of_seven, given["k_block"], size)
        with k.loop(0, size, block) as k_start:
            with k.when(one.of_seven):
                self._enter_b(chunk, one, turn, k_start)
            with k.otherwise(one.of_seven):
                self._enter_ordinary_b(chunk, one, turn)
            elements = minimum(k, size - k_start, block)
            fresh = k_start.equals(0)
            with k.loop(0, count) as number:
                self.table.a.store(self.a_starts.load(number) + k_start * self.word.nbytes, number)
                tile = self.tiles.offset(number * self.tile_size)
                self.multiply(chunk.rows, number, tile, elements, fresh=fresh, of_seven=one.of_seven)

    def _enter_ordinary_b(self, chunk: Chunk, one: _Pass, turn: Value) -> None:
        """The panels of B for four ordinary products, all of K."""
        k, given = self.k, self.given
        for number in range(4):
            quarter = (one.quarter & 1) * 2 + number % 2
            panel = quarter * given["panels"] + chunk.first_panel + turn
            start = k.pointer(given["b"], self.word).offset(panel * given["k"] * (4 * self.panel))
            self.table.enter(self.table.b, number, start)
            self.table.ahead.store(0, number)

    def _enter_b(self, chunk: Chunk, one: _Pass, turn: Value, k_start: Value) -> None:
        """The parts of the outer product's part of B of this panel of each half of it, from this block of K on."""
        k, given, nbytes = self.k, self.given, self.word.nbytes
        step = self.b_steps.load(one.number)
        start = k.pointer(self.b_starts.load(one.number), self.word)
        left = start.offset((chunk.first_panel + turn) * step).offset(k_start * self.panel)
        right, down = left.offset(given["panels"] * step), given["k"] * self.panel
        parts = [left, right, left.offset(down), right.offset(down), self.b_sum]
        is_last = turn + 1 >= chunk.panels
        is_final = k_start + given["k_block"] >= given["k"]
        following = one.number + 1
        next_start = self.b_starts.load(following) + chunk.first_panel * self.b_steps.load(following) * nbytes
        to_next_pass = (next_start - address_word(k, left)) // nbytes
        at_end = k.select(is_last, to_next_pass, step - k_start * self.panel)
        self.enter_b(SEVEN, parts, k.select(is_final, at_end, given["k_block"] * self.panel))

    def _add_outer(self, chunk: Chunk, one: _Pass, turn: Value) -> None:
        """The quarters of the outer product of a panel, added to what is kept, or to the results that they complete."""
        k = self.k
        apart = turn * self.tile_size * 4
        u, w = (self._tiles(place.offset(apart), 4) for place in (self.u, self.w))
        tiles = self._tiles(self.tiles, TILES)
        from_w = one.number.equals(_P3) | one.number.equals(_P7)

        def either(condition: Value) -> list[Pointer]:
            return [
                k.pointer(k.select(condition, mine.address, yours.address), mine.scalar)
                for mine, yours in zip(w, u, strict=True)
            ]

        def products(at: Value) -> list[list[Value]]:
            loaded = [
                [tile.offset(at).load(vector * self.lanes, self.lanes) for tile in tiles]
                for vector in range(self.vectors)
            ]
            return [combined(vectors) for vectors in loaded]

        def keep(sources: Sequence[Pointer] | None, targets: Sequence[Pointer]) -> None:
            with k.loop(0, chunk.rows * self.panel, self.panel) as at:
                for vector, quarters in enumerate(products(at)):
                    for which, value in enumerate(quarters):
                        if sources is not None:
                            value = value + sources[which].offset(at).load(vector * self.lanes, self.lanes)
                        targets[which].offset(at).store(value, vector * self.lanes)

        with k.when(one.number.equals(_P1)):
            keep(None, u)
        to_w = one.number.equals(_P5)
        with k.when(to_w | one.number.equals(_P6) | one.number.equals(_P7)):
            keep(u, either(to_w))
        with k.when(one.quarter.differs(_NONE)):
            sources = either(from_w)
            self._complete(chunk, one, turn, products, sources, tiles)

    def _tiles(self, start: Pointer, count: int) -> list[Pointer]:
        """Tiles that follow one another."""
        return [self._kept(start.offset(self.tile_size * which)) for which in range(count)]

    def _kept(self, place: Pointer) -> Pointer:
        """The place in a register: LLVM would work it out again for every vector."""
        return self.k.pointer(self.k.opaque(place.address), place.scalar)

    def _complete(
        self,
        chunk: Chunk,
        one: _Pass,
        turn: Value,
        products: Callable[[Value], list[list[Value]]],
        sources: Sequence[Pointer],
        tiles: Sequence[Pointer],
    ) -> None:
        """The epilogue of a panel of each half of a quarter of C: of the sums, or of tiles of ordinary products."""
        k, given = self.k, self.given
        half, side = one.quarter >> 1, one.quarter & 1
        panel = side * given["panels"] * 2 + chunk.first_panel + turn
        writers = [self.writer((panel + given["panels"] * inner) * self.panel) for inner in (0, 1)]
        # Of an odd number of rows the middle one is in both halves.
        at_middle = (
            given["m"].differs(given["half"] * 2) & half.equals(1),
            given["half"].differs(given["quarter"] * 2),
        )
        zeros = self._zeros()
        seen = k.variable(zeros.type, 0)
        seen.set(self._seen(turn).load(0, self.lanes))
        of_seven = k.splat(one.number.to(I32), self.lanes) < _ORDINARY
        with k.loop(0, chunk.rows) as row:
            at = row * self.panel
            number = chunk.row_start + row
            bits = [k.splat(self._bits(row, inner).load(), self.lanes) for inner in (0, 1)]
            quarters: list[list[Value]] = [[], [], [], []]
            for vector, values in enumerate(products(at)):
                for which, value in enumerate(values):
                    kept, tile = (
                        place.offset(at).load(vector * self.lanes, self.lanes)
                        for place in (sources[which], tiles[which])
                    )
                    result = kept + value
                    seen.set(k.fma(k.select(of_seven, result, tile), zeros, seen.get()))
                    quarters[which].append(k.select(of_seven, self.kept(result, bits[which // 2]), tile))
            for inner in (0, 1):
                with k.otherwise(at_middle[inner] & number.equals(0)):
                    for writer, quarter in zip(writers, quarters[2 * inner : 2 * inner + 2], strict=True):
                        writer.over_registers([quarter], self._below(half, inner, number))
        self._seen(turn).store(seen.get())

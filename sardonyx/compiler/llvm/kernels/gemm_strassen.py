"""Matrix multiplication by seven products of quarters instead of eight: Strassen's recursion once, in Winograd's form.

With A, B and C cut in halves along both axes,

    S1 = A21 + A22   S2 = S1 - A11   S3 = A11 - A21   S4 = A12 - S2      (made by a step before)
    T1 = B12 - B11   T2 = B22 - T1   T3 = B22 - B12   T4 = B21 - T2      (made here, panel by panel)
    P1 = A11 B11   P2 = A12 B21   P3 = S4 B22   P4 = A22 T4   P5 = S1 T1   P6 = S2 T2   P7 = S3 T3
    C11 = P1 + P2   C12 = U + P5 + P3   C21 = U + P7 + P4   C22 = U + P7 + P5   where U = P1 + P6

(V. Strassen, "Gaussian elimination is not optimal", Numerische Mathematik 13, 1969; S. Winograd, "On multiplication of
2x2 matrices", Linear Algebra and its Applications 4, 1971; the sign of T4 is chosen so that nothing is subtracted at
the end.) B is read from the same packed panels as by `gemm`: halves of K are halves of a panel, halves of N halves of
the panels, so the sums T of a panel fit in the second cache while a block of rows uses them, and no copy of B exists.

The error grows with the largest elements of the matrices rather than with those of a row and a column (N. Higham,
"Accuracy and Stability of Numerical Algorithms", 2002, section 23.2.2). What is not finite would spread to other rows
and columns: a chunk in whose results such a number turns up is computed again, by the eight ordinary products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable, minimum
from sardonyx.compiler.llvm.kernels.gemm_epilogue import BATCH_DIMS, EpilogueWriter, Place, TileEpilogue
from sardonyx.compiler.llvm.kernels.gemm_micro import Panels, Rows, Tile, multiply_tile, store_tile
from sardonyx.compiler.llvm.kernels.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, PTR

# Sums of quarters of A, and tiles of a panel and a block of rows: one for each product.
A_SUMS = 4
TILES = 7
_B_SUMS = 4
_QUARTERS = 4

# The products in the order of their tiles: numbers of the quarters 11, 12, 21, 22, and from 4 on of the sums.
_FAST = ((0, 0), (1, 2), (7, 3), (4, 4), (5, 5), (6, 6), (3, 7))
_PLAIN = ((0, 0), (1, 2), (0, 1), (1, 3), (2, 0), (3, 2), (2, 1), (3, 3))


@dataclass(frozen=True)
class StrassenSpec:
    """The structure of a kernel; its ``repr`` identifies the compiled code. A tile has `rows` x `vectors` registers."""

    product: str = "f32"
    rows: int = 12
    vectors: int = 2
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)


def argument_names(spec: StrassenSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order; strides and sizes count elements.

    a, sums, b                    addresses of A, of S1 to S4 and of the packed panels of B
    m, upper                      rows, and rows of the upper half: the lower half is the last `upper` rows, of which
                                  the first is left to the upper half where the number of rows is odd
    k, panels                     half of K, and panels of half of the columns
    a_stride, sums_stride         elements between rows
    sums_apart                    elements between S1, S2, S3 and S4
    row_block, k_block, group     rows of a half, elements of half of K, and panels of a half of a chunk
    row_blocks, groups            how many there are
    tile_rows                     rows of a tile, at most the tile's
    sums_scratch, tile_scratch    byte offsets in scratch of T1 to T4 and of the tiles
    b_sums_apart                  elements between T1, T2, T3 and T4
    """
    names = ["a", "sums", "b", "m", "upper", "k", "panels", "a_stride", "sums_stride", "sums_apart"]
    names += ["row_block", "k_block", "group", "row_blocks", "groups", "tile_rows"]
    names += ["sums_scratch", "tile_scratch", "b_sums_apart"]
    return (*names, *spec.epilogue.argument_names())


def emit_strassen(target: Target, spec: StrassenSpec) -> str:
    """The kernel of `spec`; a chunk is a block of rows of both halves of a group of panels of both halves.

    Chunks count blocks of rows fastest, then groups of panels.
    """
    return _Strassen(target, spec).text()


@dataclass(frozen=True)
class _Chunk:
    """Rows of each half, the first of them, and the panels of the left half."""

    rows: Value
    row_start: Value
    first_panel: Value
    last_panel: Value


@dataclass(frozen=True)
class _Table:
    """For each product: where A's and B's part begin, the step between A's rows, and how far ahead B is asked for."""

    a: Pointer
    stride: Pointer
    b: Pointer
    ahead: Pointer


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
        self.b_sums = k.pointer(k.advance(k["scratch"], self.given["sums_scratch"], 1), self.word)
        self.tiles = k.pointer(k.advance(k["scratch"], self.given["tile_scratch"], 1), self.product.accumulator)
        self.tile_size = self.given["row_block"] * self.panel
        parts = [k.stack(I64, len(_PLAIN)) for _ in range(4)]
        self.table = _Table(*parts)
        self.plain = k.variable(I64, 0)  # whether the chunk takes the ordinary products

    def text(self) -> str:
        k, given = self.k, self.given
        pending = k.variable(I64, 0)
        with k.loop(k["begin"], k["end"]) as number:
            row_start = number % given["row_blocks"] * given["row_block"]
            first = number // given["row_blocks"] * given["group"]
            chunk = _Chunk(
                minimum(k, given["upper"] - row_start, given["row_block"]),
                row_start,
                first,
                minimum(k, first + given["group"], given["panels"]),
            )
            self.plain.set(0)
            pending.set(1)
            with k.loop_while(lambda: pending.get().differs(0)):
                self._products(chunk)
                pending.set(0)
                with k.when(self.plain.get().equals(0)):
                    bad = self._combine(chunk)
                    with k.when(bad):
                        self.plain.set(1)
                        pending.set(1)
            self._epilogues(chunk)
        return k.finish()

    def _products(self, chunk: _Chunk) -> None:
        """All products of the chunk: their sums over K in the tiles."""
        k, given = self.k, self.given
        with k.loop(0, given["k"], given["k_block"]) as k_start:
            elements = minimum(k, given["k"] - k_start, given["k_block"])
            self._fill_a(chunk, k_start)
            with k.loop(chunk.first_panel, chunk.last_panel) as panel:
                self._fill_b(panel, k_start, elements)
                tiles = self.tiles.offset((panel - chunk.first_panel) * TILES * self.tile_size)
                plain = self.plain.get()
                count = k.select(plain.equals(0), len(_FAST), len(_PLAIN))
                with k.loop(0, count) as number:
                    # Two ordinary products follow one another in a tile.
                    tile = tiles.offset((number >> plain) * self.tile_size)
                    fresh = k_start.equals(0) & (number & plain).equals(0)
                    self._product(chunk, number, tile, elements, fresh)

    def _fill_a(self, chunk: _Chunk, k_start: Value) -> None:
        """The parts of A in the table, from the chunk's first row and this block of K on."""
        k, given = self.k, self.given
        a, sums = k.pointer(given["a"], self.word).offset(k_start), k.pointer(given["sums"], self.word).offset(k_start)
        below = chunk.row_start + (given["m"] - given["upper"])
        upper, lower = a.offset(chunk.row_start * given["a_stride"]), a.offset(below * given["a_stride"])
        parts = [(start, given["a_stride"]) for start in (upper, upper.offset(given["k"]))]
        parts += [(start, given["a_stride"]) for start in (lower, lower.offset(given["k"]))]
        for which in range(A_SUMS):
            start = sums.offset(given["sums_apart"] * which).offset(chunk.row_start * given["sums_stride"])
            parts.append((start, given["sums_stride"]))
        self._enter([[parts[left] for left, _ in products] for products in (_FAST, _PLAIN)])

    def _enter(self, choices: Sequence[Sequence[tuple[Pointer, Value]]]) -> None:
        fast = self.plain.get().equals(0)
        for number, (start, stride) in enumerate(choices[0]):
            other, other_stride = choices[1][number]
            self.table.a.store(self._number(self.k.select(fast, start.address, other.address)), number)
            self.table.stride.store(self.k.select(fast, stride, other_stride), number)
        start, stride = choices[1][-1]
        self.table.a.store(self._number(start.address), len(_PLAIN) - 1)
        self.table.stride.store(stride, len(_PLAIN) - 1)

    def _number(self, address: Value) -> Value:
        return self.k.emit(I64, f"ptrtoint ptr {address.name} to i64")

    def _fill_b(self, panel: Value, k_start: Value, elements: Value) -> None:
        """The parts of B in the table for one panel of each half, having made the sums."""
        k, given = self.k, self.given
        whole = given["k"] * (2 * self.panel)  # words of a panel
        b = k.pointer(given["b"], self.word).offset(panel * whole).offset(k_start * self.panel)
        right, down = given["panels"] * whole, given["k"] * self.panel
        quarters = [b, b.offset(right), b.offset(down), b.offset(right).offset(down)]
        sums = [self.b_sums.offset(given["b_sums_apart"] * which) for which in range(_B_SUMS)]
        fast = self.plain.get().equals(0)
        with k.when(fast):
            with k.loop(0, elements * self.panel, self.panel) as at:
                for vector in range(self.spec.vectors):
                    b11, b12, b21, b22 = (
                        quarter.offset(at).load(vector * self.lanes, self.lanes) for quarter in quarters
                    )
                    t1 = b12 - b11
                    t2 = b22 - t1
                    for start, value in zip(sums, (t1, t2, b22 - b12, b21 - t2), strict=True):
                        start.offset(at).store(value, vector * self.lanes)
            parts = [*quarters, *sums]
            # The next panel of the quarter that only the sums read is asked for with the first of these.
            ahead: dict[int, Value] = {}
            for number, (_, part) in enumerate(_FAST):
                self.table.b.store(self._number(parts[part].address), number)
                if part < _QUARTERS:
                    ahead[number] = whole
                elif part == _QUARTERS:
                    apart = self._number(quarters[1].address) - self._number(sums[0].address)
                    ahead[number] = whole + apart // self.word.nbytes
                self.table.ahead.store(ahead.get(number, k.constant(I64, 0)), number)
        with k.otherwise(fast):
            for number, (_, part) in enumerate(_PLAIN):
                self.table.b.store(self._number(quarters[part].address), number)
                self.table.ahead.store(0, number)

    def _product(self, chunk: _Chunk, number: Value, tile: Pointer, elements: Value, fresh: Value) -> None:
        """One product over a block of K: tile after tile of rows."""
        k, spec, given = self.k, self.spec, self.given
        a = k.pointer(self.table.a.load(number), self.word)
        stride = self.table.stride.load(number)
        b = k.pointer(self.table.b.load(number), self.word)
        panels = Panels((b,), spec.vectors, (None,) * spec.vectors, self.panel, self.table.ahead.load(number))
        with k.loop(0, chunk.rows, given["tile_rows"]) as row:
            height = minimum(k, chunk.rows - row, given["tile_rows"])
            rows = Rows(a.offset(row * stride), stride, True)
            place = Tile(tile.offset(row * self.panel), k.constant(I64, self.panel), self.panel)
            for case in k.choose(height, range(1, spec.rows + 1)):
                values = multiply_tile(k, self.product, rows, panels, case, elements, 1, place, fresh)
                store_tile(place, values)

    def _combine(self, chunk: _Chunk) -> Value:
        """The quarters of C from the products, in the first four tiles; whether one of them is not finite.

        C12 has in it what is not finite in A, and C21 what is not in B.
        """
        k = self.k
        zeros = k.constant(self.product.accumulator.vector(self.lanes), 0)
        seen = [k.variable(zeros.type, 0) for _ in range(self.spec.vectors)]
        with k.loop(chunk.first_panel, chunk.last_panel) as panel, k.loop(0, chunk.rows) as row:
            start = self.tiles.offset((panel - chunk.first_panel) * TILES * self.tile_size).offset(row * self.panel)
            places = [start.offset(self.tile_size * which) for which in range(TILES)]
            for vector, variable in enumerate(seen):
                at = vector * self.lanes
                p1, p2, p3, p5, p6, p7, p4 = (place.load(at, self.lanes) for place in places)
                u = p1 + p6
                v = u + p7
                results = (p1 + p2, u + p5 + p3, v + p4, v + p5)
                for place, result in zip(places, results, strict=False):
                    place.store(result, at)
                variable.set(k.fma(results[1], zeros, k.fma(results[2], zeros, variable.get())))
        total = self._total(seen)
        return total.differs(total)

    def _total(self, variables: Sequence[Variable]) -> Value:
        first, *others = variables
        vector = first.get()
        for other in others:
            vector = vector + other.get()
        return self.k.horizontal("add", vector)

    def _epilogues(self, chunk: _Chunk) -> None:
        """The epilogue of each quarter of each panel."""
        k, spec, given = self.k, self.spec, self.given

        def place(name: str, scalar: object) -> Place:
            return Place(k.pointer(given[name], scalar), given[f"{name}_stride"])  # type: ignore[arg-type]

        epilogue = spec.epilogue
        operands = [place(f"operand{index}", operand.type) for index, operand in enumerate(epilogue.operands)]
        outputs = [
            place(f"output{index}", epilogue.output_type(index, self.product.accumulator))
            for index in range(max(1, len(epilogue.outputs)))
        ]
        # Of an odd number of rows the middle one is in both halves.
        twice = k.select(chunk.row_start.equals(0), given["upper"] * 2 - given["m"], 0)
        with k.loop(chunk.first_panel, chunk.last_panel) as panel, k.loop(0, _QUARTERS) as quarter:
            tile = self.tiles.offset(((panel - chunk.first_panel) * TILES + quarter) * self.tile_size)
            is_lower = (quarter >> 1).differs(0)
            skipped = k.select(is_lower, twice, 0)
            row = chunk.row_start + k.select(is_lower, given["m"] - given["upper"], 0) + skipped
            column = (panel + (quarter & 1) * given["panels"]) * self.panel
            writer = EpilogueWriter(k, epilogue, operands, outputs, column, [None] * spec.vectors)
            start = tile.offset(skipped * self.panel)
            writer.over_rows(start, k.constant(I64, self.panel), row, chunk.rows - skipped)


_ = BATCH_DIMS

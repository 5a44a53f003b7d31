"""Matrix multiplication with an epilogue for few columns: every element of C is a dot product of two lines in memory.

The micro-kernel of `gemm` spreads a word of A over the lanes of a row of C; where C has few columns most lanes are
idle, and a word is loaded for each multiplication. Here lanes run along K, which takes as many multiplications as
there are numbers, and one sum over the lanes for each element of C. A's rows and B's columns are contiguous.

The sums depend on K and the width of vectors alone, so results have the same bits for any rows, chunks or threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import EpilogueWriter, Place, TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, PTR, Type


@dataclass(frozen=True)
class DotsSpec:
    """The structure of a kernel: C has `columns` columns, a tile of it `rows` rows.

    The product is one whose words are what tensors hold.
    """

    product: str
    columns: int
    rows: int
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)


def argument_names(spec: DotsSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order; a chunk is `row_block` of the m rows.

    Strides, in elements, are those between rows of A and between columns of B. Those of batches are not used.
    """
    return ("a", "b", "m", "k", "a_stride", "b_stride", "row_block", *spec.epilogue.argument_names())


def scratch_bytes(target: Target, spec: DotsSpec) -> int:
    """Bytes of scratch: a vector for each row of a tile."""
    scalar = PRODUCTS[spec.product].accumulator
    return spec.rows * target.lanes(scalar) * scalar.nbytes


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
        self.whole = self.given["k"] - self.given["k"] % self.lanes

    def text(self) -> str:
        k, spec, given = self.k, self.spec, self.given
        writer = self._writer()
        with k.loop(k["begin"], k["end"]) as number:
            first = number * given["row_block"]
            last = minimum(k, first + given["row_block"], given["m"])
            with k.loop(first, last, spec.rows) as row:
                height = minimum(k, last - row, spec.rows)
                for rows in k.choose(height, range(1, spec.rows + 1)):
                    self._multiply(row, rows)
                writer.over_rows(self.tile, k.constant(I64, self.lanes), row, height)
        return k.finish()

    def _multiply(self, row: Value, rows: int) -> None:
        """The dot products of some rows, a vector of each row to scratch."""
        k, given, columns = self.k, self.given, self.spec.columns
        a = [self._line("a", row + number) for number in range(rows)]
        b = [self._line("b", k.constant(I64, number)) for number in range(columns)]
        zero = k.constant(self.scalar.vector(self.lanes), 0)
        sums = [[k.variable(zero.type, 0) for _ in range(columns)] for _ in range(rows)]
        with k.loop(0, self.whole, self.lanes) as start:
            self._step(a, b, start, None, sums)
        with k.when(self.whole < given["k"]):
            mask = k.lanes_below(given["k"] - self.whole, self.lanes)
            self._step(a, b, self.whole, mask, sums)
        for number, line in enumerate(sums):
            vector = zero
            for column, total in enumerate(line):
                vector = k.insert(vector, k.horizontal("add", total.get()), column)
            self.tile.store(vector, number * self.lanes)

    def _line(self, name: str, number: Value) -> Pointer:
        """A row of A or a column of B."""
        return self.k.pointer(self.given[name], self.scalar).offset(number * self.given[f"{name}_stride"])

    def _step(
        self, a: list[Pointer], b: list[Pointer], start: Value, mask: Value | None, sums: list[list[Variable]]
    ) -> None:
        """One vector of every line from `start` on."""
        right = [line.load(start, self.lanes, mask) for line in b]
        for line, totals in zip(a, sums, strict=True):
            left = line.load(start, self.lanes, mask)
            for vector, total in zip(right, totals, strict=True):
                total.set(self.k.fma(left, vector, total.get()))

    def _writer(self) -> EpilogueWriter:
        k, given, epilogue = self.k, self.given, self.spec.epilogue

        def place(name: str, scalar: Type) -> Place:
            return Place(k.pointer(given[name], scalar), given[f"{name}_stride"])

        operands = [place(f"operand{index}", operand.type) for index, operand in enumerate(epilogue.operands)]
        outputs = [
            place(f"output{index}", epilogue.output_type(index, self.scalar))
            for index in range(max(1, len(epilogue.outputs)))
        ]
        mask = k.lanes_below(k.constant(I64, self.spec.columns), self.lanes)
        return EpilogueWriter(k, epilogue, operands, outputs, k.constant(I64, 0), [mask])

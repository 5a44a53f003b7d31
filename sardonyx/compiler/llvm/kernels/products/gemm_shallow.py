"""Matrix multiplication with an epilogue for a small K: writing C is what takes time, so it is written line by line.

The micro-kernel of `gemm` writes a little of each of many rows. Here a few rows are done from their first column to
their last: their words of A stay in registers, spread over the lanes, and K vectors of B make the next vectors of C.

Every element is accumulated in the order of K, as in `gemm`: results have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from sardonyx.compiler.llvm.builder import Function, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue, writer_of
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, PTR
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class ShallowSpec:
    """The structure of a kernel: K is `depth`, and `rows` rows are done at once. B is packed in panels of `vectors`.

    The product is one whose words are what tensors hold; the epilogue is written out for each vector.
    """

    product: str
    depth: int
    rows: int
    vectors: int
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)


def argument_names(spec: ShallowSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order; a chunk is `row_block` rows of `group` panels.

    Chunks count blocks of rows fastest, of which there are `row_blocks`. Strides, in elements, are those between rows;
    those of batches are not used.
    """
    names = ("a", "b", "m", "n", "a_stride", "row_block", "row_blocks", "group")
    return (*names, *spec.epilogue.argument_names())


def emit_shallow(target: Target, spec: ShallowSpec) -> str:
    """The kernel of `spec`; its arguments are `argument_names`."""
    return _Shallow(target, spec).text()


class _Shallow:
    """The kernel while it is written."""

    def __init__(self, target: Target, spec: ShallowSpec) -> None:
        self.spec = spec
        self.product = PRODUCTS[spec.product]
        k = self.k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
        self.lanes = target.lanes(self.product.accumulator)
        self.panel = self.lanes * spec.vectors
        words = k.pointer("arguments", I64)
        self.given = {name: words.load(index) for index, name in enumerate(argument_names(spec))}

    def text(self) -> str:
        k, given, spec = self.k, self.given, self.spec
        panels = (given["n"] + (self.panel - 1)) // self.panel
        with k.loop(k["begin"], k["end"]) as number:
            first_row = number % given["row_blocks"] * given["row_block"]
            last_row = minimum(k, first_row + given["row_block"], given["m"])
            first = number // given["row_blocks"] * given["group"]
            last = minimum(k, first + given["group"], panels)
            with k.loop(first_row, last_row, spec.rows) as row:
                for rows in k.choose(minimum(k, last_row - row, spec.rows), range(1, spec.rows + 1)):
                    self._rows(row, rows, first, last)
        return k.finish()

    def _rows(self, row: Value, rows: int, first: Value, last: Value) -> None:
        """Some rows of all panels from `first` on, the last of which may be narrow."""
        k, given = self.k, self.given
        a = k.pointer(given["a"], self.product.word).offset(row * given["a_stride"])
        words = [
            [k.splat(a.offset(given["a_stride"] * number).load(step), self.lanes) for step in range(self.spec.depth)]
            for number in range(rows)
        ]
        whole = minimum(k, last, given["n"] // self.panel)
        with k.loop(first, whole) as panel:
            self._tile(row, words, panel, [None] * self.spec.vectors)
        with k.loop(whole, last) as panel:
            left = given["n"] - panel * self.panel
            masks = [k.lanes_below(left - vector * self.lanes, self.lanes) for vector in range(self.spec.vectors)]
            self._tile(row, words, panel, masks)

    def _tile(self, row: Value, words: list[list[Value]], panel: Value, masks: Sequence[Value | None]) -> None:
        """The product of some rows and a panel, finished in registers."""
        k, spec = self.k, self.spec
        b = k.pointer(self.given["b"], self.product.word).offset(panel * (spec.depth * self.panel))
        zero = k.constant(self.product.accumulator.vector(self.lanes), 0)
        tile = [[zero] * spec.vectors for _ in words]
        for step in range(spec.depth):
            vectors = [b.load(step * self.panel + at * self.lanes, self.lanes) for at in range(spec.vectors)]
            for line, own in zip(tile, words, strict=True):
                for at, vector in enumerate(vectors):
                    line[at] = self.product.multiply(k, own[step], vector, line[at])
        writer = writer_of(k, spec.epilogue, self.given, self.product.accumulator, panel * self.panel, masks)
        writer.over_registers(tile, row)

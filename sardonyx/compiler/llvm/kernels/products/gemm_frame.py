"""What all loops of a product's kernel share: its arguments, a chunk and a block of K within it, and how to find rows
of A, words of B and the writer of C from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import EpilogueWriter, Place
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Panels, Registers, Request, Rows, Tile, multiply_tile
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_spec import GemmSpec, argument_names
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import Runs
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BF16, BOOL, F32, I64, PTR, U32
from sardonyx.light_dataclass import dataclass

# Bytes of a cache line.
_LINE = 64


@dataclass(frozen=True)
class Chunk:
    """What a chunk works on: operands at its batch (A at its first row unless it is windows), its rows and panels."""

    a: Pointer
    b: Pointer
    rows: Value
    row_start: Value
    first_panel: Value
    last_panel: Value
    operands: tuple[Place, ...]
    outputs: tuple[Place, ...]


@dataclass(frozen=True)
class Block:
    """A block of K within a chunk: A's rows from there on, and whether it is the first and the last one."""

    k_start: Value
    elements: Value
    words: Value
    a: Rows
    fresh: Value
    final: Value
    runs: Runs | None = None


class Frame:
    """The kernel of a product while it is written."""

    def __init__(self, target: Target, spec: GemmSpec) -> None:
        self.spec = spec
        self.product = PRODUCTS[spec.product]
        k = self.k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
        k.flushes = self.product.packed_a == BF16 and self.product.stored_a == F32
        self.lanes = target.lanes(self.product.accumulator)
        self.panel = self.lanes * spec.vectors
        words = k.pointer("arguments", I64)
        self.given = {name: words.load(index) for index, name in enumerate(argument_names(spec))}
        self.table = words.offset(len(self.given))
        self.scratch = k.pointer("scratch", self.product.word)
        # Rows of a tile of a panel and a vector; two of them are as high as a tile of one panel.
        packed = spec.b == "packed" and not self.product.in_tiles
        self.joined_rows = spec.rows // 2 if packed and spec.vectors > 1 and spec.rows % 2 == 0 else 0

    def words(self, elements: Value) -> Value:
        """How many words hold so many elements along K."""
        return self.product.words_before(self.product.padded(elements))

    @property
    def left_bytes(self) -> int:
        """Bytes of a row of A in a step of K."""
        return self.product.word.nbytes * self.product.left_words

    def are_together(self, block: Block, rows: Rows) -> Value:
        """Whether rows of A follow one another without a gap."""
        return rows.stride.equals(block.words * self.product.left_words)

    def rows_from(self, block: Block, row: Value) -> Rows:
        """A's rows within the block from this one on."""
        a = block.a
        return Rows(a.start.offset(row * a.stride if a.along_k else row), a.stride, a.along_k)

    def rows_behind(self, block: Block, rows: Rows, height: int = 0) -> tuple[Request, ...]:
        """Asks for the rows of A behind a tile of whole height, which the next tile multiplies; for `height` of them.

        In each step of K a tile reads a word of every row, and so a line of all of them every few steps: no stream that
        a machine's own prefetchers follow. But rows that hold all of K follow one another without a gap.
        """
        k, spec = self.k, self.spec
        if not rows.along_k or spec.a == "windows" or self.product.is_bounded:
            return ()
        step = (height or spec.rows) * self.left_bytes  # bytes that a tile reads in a step of K
        apart = k.select(self.are_together(block, rows), k.constant(I64, min(_LINE, step) if height else _LINE), 0)
        return (Request(rows.start.offset(rows.stride * spec.rows), -(-step // _LINE), apart),)

    def with_begins(self, b: Panels) -> Panels:
        """Panels of bounded words, of all K, with where those begin, which lies as the words do, one for each vector of
        them; and a panel alone with how many words it has."""
        if not self.product.is_bounded:
            return b
        k, given = self.k, self.given
        before = [k.emit(I64, f"ptrtoint ptr {start.address.name} to i64") - given["b"] for start in b.starts]
        begins = k.pointer(given["begins"], U32)
        b = replace(b, begins=tuple(begins.offset(nbytes // (self.panel * U32.nbytes)) for nbytes in before))
        if len(before) > 1:
            return b
        ends = k.pointer(given["ends"], U32)  # what a panel lacks to the longest one is zeros
        return replace(b, words=ends.load(before[0] // (given["k"] * self.panel)).to(I64))

    def writer(self, chunk: Chunk, column: Value, masks: Sequence[Value | None]) -> EpilogueWriter:
        return EpilogueWriter(self.k, self.spec.epilogue, chunk.operands, chunk.outputs, column, masks)

    def joins(self, chunk: Chunk, panel: Value) -> Value:
        """Whether the panel is a whole one before a last one of one vector at most: they are multiplied together.

        A vector alone takes a word of A per multiplication, more than machines load.
        """
        if not self.joined_rows:
            return self.k.constant(BOOL, False)
        left = self.given["n"] - panel * self.panel
        fits = (left > self.panel) & (left <= self.panel + self.lanes)
        return fits & (panel >= chunk.first_panel) & (panel + 2 <= chunk.last_panel)

    def joined(
        self,
        chunk: Chunk,
        block: Block,
        rows: Rows,
        panel: Value,
        before: Tile | None = None,
        requests: tuple[Request, ...] = (),
        halved: bool = False,
    ) -> Registers:
        """The tile of some rows, of a whole panel and the vector behind it, added to the one `before`, if any."""
        k, spec = self.k, self.spec
        apart = self.words(self.given["k"]) * self.panel
        start = chunk.b.offset(panel * apart).offset(self.product.words_before(block.k_start) * self.panel)
        starts = (*(start.offset(vector * self.lanes) for vector in range(spec.vectors)), start.offset(apart))
        b = Panels(starts, 1, (None,), self.panel, requests=requests, halved=halved)
        return multiply_tile(k, self.product, rows, b, self.joined_rows, block.words, 1, before)

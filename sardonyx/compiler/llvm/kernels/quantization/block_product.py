"""The product of rows of bytes with weights of 2, 4 or 8 bits that have a scale for each block of a column.

Weights stay packed: a lane's word holds 32 bits of one column, whose numbers are taken apart by a shift and a mask
into unsigned bytes for the dot product of bytes. One pass over a panel of columns serves a few rows, so that a single
row is bound by the bandwidth of the packed weights. Sums are exact within a block; the scaled blocks are added in the
order of K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import partial

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue, fits_registers
from sardonyx.compiler.llvm.kernels.products.gemm_product import (
    has_sums_of_pairs,
    multiply_bytes,
    sums_of_pairs,
    widened_sums,
)
from sardonyx.compiler.llvm.kernels.quantization.byte_blocks import HIGHEST, WORD
from sardonyx.compiler.llvm.kernels.quantization.tile_writer import TileWriter
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, I32, I64, PTR, U32
from sardonyx.light_dataclass import dataclass

_UNROLLED = 4  # words of a column in one turn of the inner loop
_LINE = 64


@dataclass(frozen=True)
class BlockProductSpec:
    """Weights of `bits` in blocks of `block` elements; with `has_zeros` each block has a zero point.

    A tile has `rows` rows and `vectors` vector registers of columns, which make a panel. `ahead`: bytes ahead of those
    in use that are asked for (0: none).
    """

    bits: int
    block: int
    has_zeros: bool
    rows: int
    vectors: int
    ahead: int
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)

    @property
    def per_byte(self) -> int:
        """Numbers of the weights in a byte."""
        return 8 // self.bits

    @property
    def words(self) -> int:
        """Words of a column in a block."""
        return self.block * self.bits // 32


def argument_names(spec: BlockProductSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order.

    a, a_scales, a_sums      rows of bytes in words, and what `emit_byte_blocks` says of their blocks
    b                        panels [blocks * words][panel] of words
    scales, zeros            panels [blocks][panel] of float32; the zeros are there with `has_zeros`
    m, n, blocks             rows, columns, blocks of K
    row_block, row_blocks    rows of a chunk, and how many such there are
    group                    panels of a chunk
    """
    names = ("a", "a_scales", "a_sums", "b", "scales", "zeros", "m", "n", "blocks", "row_block", "row_blocks", "group")
    return (*names, *spec.epilogue.argument_names())


def emit_block_product(target: Target, spec: BlockProductSpec) -> str:
    """The kernel of `spec`; chunks count blocks of rows fastest, then groups of panels."""
    return _BlockProduct(target, spec).text()


class _BlockProduct:
    """The kernel while it is written."""

    def __init__(self, target: Target, spec: BlockProductSpec) -> None:
        self.spec = spec
        k = self.k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
        words = k.pointer("arguments", I64)
        given = self.given = {name: words.load(index) for index, name in enumerate(argument_names(spec))}
        self.lanes = target.lanes(F32)
        self.panel = self.lanes * spec.vectors
        self.a, self.a_scales = k.pointer(given["a"], I32), k.pointer(given["a_scales"], F32)
        self.a_sums = k.pointer(given["a_sums"], F32 if spec.has_zeros else I32)
        self.b, self.scales = k.pointer(given["b"], U32), k.pointer(given["scales"], F32)
        self.zeros = k.pointer(given["zeros"], F32)
        self.blocks = given["blocks"]
        self.writer = TileWriter(
            k,
            spec.epilogue,
            given,
            F32,
            spec.vectors,
            spec.rows,
            k.pointer("scratch", F32),
            at_once=fits_registers(spec.epilogue),
        )

    def text(self) -> str:
        k, given, spec = self.k, self.given, self.spec
        panels = (given["n"] + (self.panel - 1)) // self.panel
        with k.loop(k["begin"], k["end"]) as chunk:
            first_row = chunk % given["row_blocks"] * given["row_block"]
            last_row = minimum(k, given["m"], first_row + given["row_block"])
            first = chunk // given["row_blocks"] * given["group"]
            last = minimum(k, first + given["group"], panels)
            with k.loop(first, last) as panel, k.loop(first_row, last_row, spec.rows) as row:
                column = panel * self.panel
                sums = partial(self._sums, panel, row)
                self.writer.write(column, given["n"] - column, row, minimum(k, last_row - row, spec.rows), sums)
        return k.finish()

    def _sums(self, panel: Value, row: Value, height: int) -> dict[tuple[int, int], Value]:
        """The products of `height` rows with a panel, by row and vector."""
        k, spec, lanes = self.k, self.spec, self.lanes
        places = [(at, vector) for at in range(height) for vector in range(spec.vectors)]
        totals = {place: k.variable(F32.vector(lanes), 0.0) for place in places}
        a_words = self.blocks * (spec.block // WORD)
        rows = [self.a.offset((row + at) * a_words) for at in range(height)]
        starts = [(row + at) * self.blocks for at in range(height)]
        begin = panel * self.blocks
        with k.loop(0, self.blocks) as block:
            sums = self._block(rows, starts, block, begin, places)
            scales = self.scales.offset((begin + block) * self.panel)
            zeros = self.zeros.offset((begin + block) * self.panel)
            factors = [k.splat(self.a_scales.load(start + block), lanes) for start in starts]
            for at, vector in places:
                value = sums[at, vector].to(F32)
                if spec.has_zeros:
                    below = k.splat(self.a_sums.load(starts[at] + block), lanes)
                    value = k.fma(-below, zeros.load(vector * lanes, lanes), value)
                factor = scales.load(vector * lanes, lanes) * factors[at]
                totals[at, vector].set(k.fma(value, factor, totals[at, vector].get()))
        return {place: variable.get() for place, variable in totals.items()}

    def _block(
        self,
        rows: Sequence[Pointer],
        starts: Sequence[Value],
        block: Value,
        begin: Value,
        places: Sequence[tuple[int, int]],
    ) -> dict[tuple[int, int], Value]:
        """The exact sums of one block."""
        k, spec, lanes = self.k, self.spec, self.lanes
        wide = I32.vector(lanes)
        sums = {}
        for at, vector in places:
            origin = 0 if spec.has_zeros else k.splat(self.a_sums.load(starts[at] + block), lanes)
            sums[at, vector] = k.variable(wide, origin)
        line = self.b.offset((begin + block) * (spec.words * self.panel))
        words = [row.offset(block * (spec.block // WORD)) for row in rows]
        unroll = min(spec.words, _UNROLLED)
        # Numbers of few bits: the sums of all pairs in a turn fit in 16.
        largest = ((1 << spec.bits) - 1) * HIGHEST * 2
        in_pairs = has_sums_of_pairs(k.target) and unroll * spec.per_byte * largest < 1 << 15
        pairs: dict[tuple[int, int], Value] = {}
        with k.loop(0, spec.words, unroll) as first:
            for step in range(unroll):
                here = line.offset((first + step) * self.panel)
                loaded = [here.load(vector * lanes, lanes) for vector in range(spec.vectors)]
                if spec.ahead:
                    for byte in range(0, self.panel * WORD, _LINE):
                        here.prefetch((spec.ahead + byte) // WORD, level=2)
                for number in range(spec.per_byte):
                    parts = [self._numbers(value, number) for value in loaded]
                    for at, row in enumerate(words):
                        word = k.splat(row.load((first + step) * spec.per_byte + number), lanes)
                        for vector, part in enumerate(parts):
                            if in_pairs:
                                product = sums_of_pairs(k, part, word)
                                before = pairs.get((at, vector))
                                pairs[at, vector] = product if before is None else before + product
                                continue
                            variable = sums[at, vector]
                            variable.set(multiply_bytes(k, part, word, variable.get()))
            for place, total in pairs.items():
                sums[place].set(sums[place].get() + widened_sums(k, total))
        return {place: variable.get() for place, variable in sums.items()}

    def _numbers(self, words: Value, number: int) -> Value:
        """The number `number` of every byte, as a byte."""
        bits = self.spec.bits
        if bits == 8:
            return words
        byte = (1 << bits) - 1
        return (words >> (bits * number)) & (byte * 0x01010101)

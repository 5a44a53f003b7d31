"""The product of real rows with weights of 2, 4 or 8 bits, in float32.

Weights stay packed in memory. A panel of them is made real in scratch memory, near the core, and meets all rows of the
chunk there; sums are added in the order of K. A few rows meet the weights in registers. For a product of so many rows
that it is worth it to multiply less, whole matrices are made real in memory, panel by panel.
"""

from __future__ import annotations

from dataclasses import field
from functools import partial

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue, fits_registers
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Panels, Rows, multiply_tile
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.quantization.tile_writer import Sums, TileWriter
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, I32, I64, PTR, U32
from sardonyx.light_dataclass import dataclass

# A whole number below it is its last bits, as 1 is the last place of a float of this size.
RAISED = float(1 << 23)
_BITS_OF_RAISED = 0x4B000000


@dataclass(frozen=True)
class UnpackedProductSpec:
    """Weights of `bits` in blocks of `block` elements; with `has_zeros` each block has a zero point, a fraction if
    they are real ones.

    A tile has `rows` rows and `vectors` vector registers of columns, which make a panel. Where weights are not
    `stored`, tiles meet them in registers: K is a multiple of the block, and nothing is written to scratch but the ends
    of rows.
    """

    bits: int
    block: int
    has_zeros: bool
    rows: int
    vectors: int
    stored: bool = True
    has_real_zeros: bool = False
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)

    @property
    def words(self) -> int:
        """Words of a column in a block."""
        return self.block * self.bits // 32


def argument_names(spec: UnpackedProductSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order.

    a                        rows of float32, `k` elements each
    b                        panels [blocks * words][panel] of words
    scales, zeros            panels [blocks][panel] of float32; the zeros are there with `has_zeros`, `RAISED` if whole
    m, n, k, blocks          rows, columns, elements and blocks of K
    row_block, row_blocks    rows of a chunk, and how many such there are
    group                    panels of a chunk
    unpacked                 the byte offset in scratch of the real panel, [blocks * block][panel]
    """
    names = ("a", "b", "scales", "zeros", "m", "n", "k", "blocks", "row_block", "row_blocks", "group", "unpacked")
    return (*names, *spec.epilogue.argument_names())


def emit_unpacked_product(target: Target, spec: UnpackedProductSpec) -> str:
    """The kernel of `spec`; chunks count blocks of rows fastest, then groups of panels."""
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    given = {name: words.load(index) for index, name in enumerate(argument_names(spec))}
    lanes = target.lanes(F32)
    panel = lanes * spec.vectors
    room = k.pointer("scratch", F32)
    writer = TileWriter(
        k, spec.epilogue, given, F32, spec.vectors, spec.rows, room, at_once=fits_registers(spec.epilogue)
    )
    a, real = k.pointer(given["a"], F32), k.pointer(k.advance(k["scratch"], given["unpacked"], 1), F32)
    panels = (given["n"] + (panel - 1)) // panel
    with k.loop(k["begin"], k["end"]) as chunk:
        first_row = chunk % given["row_blocks"] * given["row_block"]
        last_row = minimum(k, given["m"], first_row + given["row_block"])
        first = chunk // given["row_blocks"] * given["group"]
        with k.loop(first, minimum(k, first + given["group"], panels)) as number:
            column = number * panel
            if not spec.stored:
                with k.loop(first_row, last_row, spec.rows) as row:
                    row_sums = partial(_row_sums, k, spec, given, number, a.offset(row * given["k"]))
                    rows = minimum(k, last_row - row, spec.rows)
                    writer.write(column, given["n"] - column, row, rows, row_sums)
            else:
                _unpack(k, spec, given, number, real)
                _rows(k, spec, given, column, (first_row, last_row), a, real, writer)
    return k.finish()


def _rows(
    k: Function,
    spec: UnpackedProductSpec,
    given: dict[str, Value],
    column: Value,
    rows: tuple[Value, Value],
    a: Pointer,
    real: Pointer,
    writer: TileWriter,
) -> None:
    """All tiles of rows of a chunk with a panel that is real."""
    panel = k.target.lanes(F32) * spec.vectors
    weights = Panels((real,), spec.vectors, (None,) * spec.vectors, panel)
    with k.loop(*rows, spec.rows) as row:

        def sums(height: int) -> Sums:
            left = Rows(a.offset(row * given["k"]), given["k"], True)
            found = multiply_tile(k, PRODUCTS["f32"], left, weights, height, given["k"], 1)
            return {(at, vector): value for (at, _, vector), value in found.items()}

        writer.write(column, given["n"] - column, row, minimum(k, rows[1] - row, spec.rows), sums)


class _Weights:
    """A panel of packed weights: scales, zero points and real differences of a block, vector by vector."""

    def __init__(self, k: Function, spec: UnpackedProductSpec, given: dict[str, Value], number: Value) -> None:
        self.k, self.spec = k, spec
        self.lanes = k.target.lanes(F32)
        self.panel = self.lanes * spec.vectors
        self.first = number * given["blocks"]
        self.packed, self.scales = k.pointer(given["b"], U32), k.pointer(given["scales"], F32)
        self.zeros = k.pointer(given["zeros"], F32)

    def vectors(self, place: Pointer) -> list[Value]:
        return [place.load(vector * self.lanes, self.lanes) for vector in range(self.spec.vectors)]

    def factors(self, block: Value) -> list[Value]:
        return self.vectors(self.scales.offset((self.first + block) * self.panel))

    def origins(self, block: Value) -> list[Value]:
        """What is taken from numbers: the zero points, those that are whole `RAISED`."""
        if self.spec.has_zeros:
            return self.vectors(self.zeros.offset((self.first + block) * self.panel))
        middle = float(1 << (self.spec.bits - 1)) + RAISED
        return [self.k.constant(F32.vector(self.lanes), middle)] * self.spec.vectors

    def words(self, block: Value, word: Value) -> list[Value]:
        return self.vectors(self.packed.offset(((self.first + block) * self.spec.words + word) * self.panel))

    def difference(self, word: Value, element: int, origin: Value) -> Value:
        """One of the numbers of a word less its zero point.

        With the bits of 2^23 above a number it is that much larger as a float, without a conversion.
        """
        bits = self.spec.bits
        number = (word >> (bits * element)) & ((1 << bits) - 1)
        raised = number.bits_as(I32).to(F32) if self.spec.has_real_zeros else (number | _BITS_OF_RAISED).bits_as(F32)
        return raised - origin


def _unpack(k: Function, spec: UnpackedProductSpec, given: dict[str, Value], number: Value, real: Pointer) -> None:
    """Write (q - zero point) * scale of a panel's weights."""
    weights, per_word = _Weights(k, spec, given, number), 32 // spec.bits
    with k.loop(0, given["blocks"]) as block:
        factors, origins = weights.factors(block), weights.origins(block)
        target = real.offset(block * (spec.block * weights.panel))
        with k.loop(0, spec.words) as word:
            loaded = weights.words(block, word)
            rows = target.offset(word * (per_word * weights.panel))
            for element in range(per_word):
                for vector, value in enumerate(loaded):
                    weight = weights.difference(value, element, origins[vector]) * factors[vector]
                    rows.store(weight, element * weights.panel + vector * weights.lanes)


# Sums of the rows of a block, so that the multiply-adds need not wait for one another.
_CHAINS = 4


def _row_sums(
    k: Function, spec: UnpackedProductSpec, given: dict[str, Value], number: Value, a: Pointer, height: int
) -> Sums:
    """The product of some rows with a panel: the sums of a block are scaled, and added to those before."""
    weights, per_word = _Weights(k, spec, given, number), 32 // spec.bits
    wide, vectors, chains = F32.vector(weights.lanes), range(spec.vectors), range(max(1, _CHAINS // height))
    places = [(row, vector) for row in range(height) for vector in vectors]
    totals = {place: k.variable(wide, 0.0) for place in places}
    rows = [a.offset(row * given["k"]) for row in range(height)]
    with k.loop(0, given["blocks"]) as block:
        factors, origins = weights.factors(block), weights.origins(block)
        lines = [row.offset(block * spec.block) for row in rows]
        sums = {place: [k.variable(wide, 0.0) for _ in chains] for place in places}
        with k.loop(0, spec.words) as word:
            loaded = weights.words(block, word)
            for element in range(per_word):
                at = word * per_word + element
                multiples = [k.splat(line.load(at), weights.lanes) for line in lines]
                for vector, value in enumerate(loaded):
                    difference = weights.difference(value, element, origins[vector])
                    for row, multiple in enumerate(multiples):
                        total = sums[row, vector][element % len(chains)]
                        total.set(k.fma(multiple, difference, total.get()))
        for (row, vector), parts in sums.items():
            found = [one.get() for one in parts]
            while len(found) > 1:
                found = [one + other for one, other in zip(found[::2], found[1::2], strict=True)]
            total = totals[row, vector]
            total.set(k.fma(found[0], factors[vector], total.get()))
    return {place: total.get() for place, total in totals.items()}


@dataclass(frozen=True)
class RealPanelsSpec:
    """Weights of `bits` in blocks of `block` elements; with `has_zeros` each block has a zero point, a fraction if
    they are real ones. A panel has `vectors` vector registers of columns."""

    bits: int
    block: int
    has_zeros: bool
    vectors: int
    has_real_zeros: bool


# What the words of the kernel's arguments are, in order: those of `argument_names`, panels of a chunk and of all, and
# where the real panels go, [panels][blocks * block][panel].
PANEL_ARGUMENTS = ("b", "scales", "zeros", "blocks", "group", "panels", "real")


def emit_real_panels(target: Target, spec: RealPanelsSpec) -> str:
    """The kernel that makes all weights real, as products read them; chunks count groups of panels."""
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    given = {name: words.load(index) for index, name in enumerate(PANEL_ARGUMENTS)}
    whole = UnpackedProductSpec(
        spec.bits, spec.block, spec.has_zeros, 1, spec.vectors, has_real_zeros=spec.has_real_zeros
    )
    panel = target.lanes(F32) * spec.vectors
    first, last = k["begin"] * given["group"], minimum(k, given["panels"], k["end"] * given["group"])
    with k.loop(first, last) as number:
        start = k.pointer(given["real"], F32).offset(number * (given["blocks"] * (spec.block * panel)))
        _unpack(k, whole, given, number, start)
    return k.finish()

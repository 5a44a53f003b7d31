"""Rows of real numbers as signed bytes, with a scale for each block of a row.

A block's scale is its largest magnitude / 127, as onnxruntime's products of accuracy level 4 have it. The bytes lie in
the order in which `block_product` meets the numbers of the packed weights.
"""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.mathematics.rounding import rint
from sardonyx.compiler.llvm.narrow_floats import widened
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, I8, I32, type_of
from sardonyx.compiler.llvm.walk import kernel_frame, share
from sardonyx.light_dataclass import dataclass

# Elements that are handled together; blocks are a multiple of them.
LANES = 16
# The largest magnitude of a byte.
HIGHEST = 127

# Bytes of one word, as a dot product takes them.
WORD = 4


@dataclass(frozen=True)
class ByteBlocksSpec:
    """Rows of `dtype` in blocks of `block` elements; a byte of the weights holds `per_byte` numbers.

    `origin` is what all weights stand for as 0; without one, the sums of blocks are given.
    """

    dtype: str
    block: int
    per_byte: int
    origin: int | None

    ARGUMENTS = ("source", "stride", "rows", "per_chunk", "k", "blocks", "words", "scales", "sums")


def emit_byte_blocks(target: Target, spec: ByteBlocksSpec) -> str:
    """The kernel of `spec`: `words`, [rows][blocks * block / 4] words of bytes; `scales`, [rows][blocks] in float32.

    `sums` holds for each block -origin times the sum of its bytes, in int32, or just that sum in float32.
    """
    k, words = kernel_frame(target)
    given = {name: words.load(index) for index, name in enumerate(spec.ARGUMENTS)}
    scalar = type_of(np.dtype(spec.dtype))
    assert scalar is not None
    source, bytes_ = k.pointer(given["source"], scalar), k.pointer(given["words"], I8)
    scales = k.pointer(given["scales"], F32)
    sums = k.pointer(given["sums"], F32 if spec.origin is None else I32)
    begin, end = share(k, given["rows"], given["per_chunk"])
    with k.loop(begin, end) as row, k.loop(0, given["blocks"]) as block:
        place = row * given["blocks"] + block
        line, target_line = source.offset(row * given["stride"] + block * spec.block), bytes_.offset(place * spec.block)
        left = given["k"] - block * spec.block
        whole = left >= spec.block

        def convert(count: Value | None, line: Pointer = line, to: Pointer = target_line, at: Value = place) -> None:
            scale, total = _block(k, spec, line, count, to)
            scales.store(scale, at)
            sums.store(total.to(F32) if spec.origin is None else total * -spec.origin, at)

        with k.when(whole):
            convert(None)
        with k.otherwise(whole):
            convert(left)
    return k.finish()


def _block(
    k: Function, spec: ByteBlocksSpec, line: Pointer, count: Value | None, target: Pointer
) -> tuple[Value, Value]:
    """Write the bytes of a block, of which `count` elements exist (None: all); its scale, and the sum of its bytes."""
    wide = F32.vector(LANES)

    def load(first: Value) -> Value:
        mask = None if count is None else k.lanes_below(count - first, LANES)
        return widened(line.load(first, LANES, mask), F32)

    largest = k.variable(wide, 0.0)
    with k.loop(0, spec.block, LANES) as first:
        largest.set(k.larger(largest.get(), k.unary("fabs", load(first))))
    most = k.horizontal("max", largest.get())
    inverse = k.select(most.equals(0.0), k.constant(F32, 0.0), HIGHEST / most)
    total = k.variable(I32.vector(LANES), 0)
    with k.loop(0, spec.block, LANES) as first:
        whole = _rounded(k, load(first) * k.splat(inverse, LANES))
        total.set(total.get() + whole)
        target.store(k.shuffle(whole.to(I8), None, _order(spec.per_byte)), first)
    return most * (1 / HIGHEST), k.horizontal("add", total.get())


def _rounded(k: Function, scaled: Value) -> Value:
    """The nearest whole numbers of a byte; 0 for NaN, which the scale holds as well."""
    limited = k.faster_smaller(k.faster_larger(rint(k, scaled), float(-HIGHEST)), float(HIGHEST))
    known = k.select(scaled.differs(scaled), k.constant(scaled.type, 0.0), limited)
    whole = scaled.type.with_scalar(I32)
    return k.emit(whole, f"fptosi {known.type} {known.name} to {whole}")


def _order(per_byte: int) -> list[int]:
    """Which element lies at each place: byte i of word j is the number j of byte i of the weights."""
    group = WORD * per_byte
    return [
        first + per_byte * byte + number
        for first in range(0, LANES, group)
        for number in range(per_byte)
        for byte in range(WORD)
    ]

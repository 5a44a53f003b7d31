"""The hidden state of a recurrent layer as bytes, and what the sums of their products with R stand for.

Of a state the numbers x become bytes a = x / s + p. With signed bytes b and zero points q of R's columns, the sums of
(a - p) (b - q) are those of a b, less p times those of b and q times those of a - p. Kept for each direction are, as
words of 32 bits, s, p, and the sums of a - p for every row of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import emit_working
from sardonyx.compiler.llvm.types import F32, I32
from sardonyx.kernel.canonical import Canonical
from sardonyx.light_dataclass import dataclass

# Bytes that an inner product takes at once.
WORD = 4


@dataclass(frozen=True)
class Quantization:
    """`parameters`: scale and zero point, both real, of the least and the largest number; `byte`: what becomes of a
    number, a scale and a zero point."""

    parameters: Canonical
    byte: Canonical


def quantize_state(
    k: Function,
    quantization: Quantization,
    sizes: tuple[Value, Value, Value],
    state: Pointer,
    codes: Pointer,
    ranges: Pointer,
) -> None:
    """Emit the bytes of a state in float32 over the range of all its rows, and what is kept of them.

    `sizes` are the rows of the batch, the hidden units, and the elements between rows.
    """
    rows, hidden, step = sizes
    lanes = k.target.lanes(F32)
    whole = hidden & -lanes
    stretches = ((0, whole, lanes), (whole, hidden, 1))
    low, high = k.variable(F32, 0.0), k.variable(F32, 0.0)
    with k.loop(0, rows) as row:
        for first, last, width in stretches:
            least, most = (k.variable(F32.vector(width), 0.0) for _ in range(2))
            with k.loop(first, last, width) as at:
                number = state.load(row * step + at, width)
                least.set(k.faster_smaller(number, least.get()))
                most.set(k.faster_larger(number, most.get()))
            low.set(k.smaller(low.get(), k.horizontal("min", least.get())))
            high.set(k.larger(high.get(), k.horizontal("max", most.get())))
    scale, zero = emit_working(k, quantization.parameters.roots, [low.get(), high.get()])
    ranges.cast(F32).store(scale)
    ranges.store(zero.to(I32), 1)
    with k.loop(0, rows) as row:
        total = k.variable(I32, -(zero.to(I32) * hidden.to(I32)))
        for first, last, width in stretches:
            sums = k.variable(I32.vector(width), 0)
            with k.loop(first, last, width) as at:
                inputs = [state.load(row * step + at, width), k.splat(scale, width), k.splat(zero, width)]
                (byte,) = emit_working(k, quantization.byte.roots, inputs)
                codes.store(byte, row * step + at)
                sums.set(sums.get() + byte.to(I32))
            total.set(total.get() + k.horizontal("add", sums.get()))
        ranges.store(total.get(), row + 2)


def real_sums(
    ranges: Pointer,
    row: Value,
    sums: Sequence[Value],
    columns: Sequence[Pointer],
    places: Sequence[Value],
) -> list[Value]:
    """What the sums of a row's products stand for; of `columns`, the sums, zero points and scales of R's columns, those
    of each of the sums begin at its place."""
    column_sums, column_zeros, column_scales = columns
    scale, zero, row_sum = ranges.cast(F32).load(), ranges.load(1), ranges.load(row + 2)
    found = []
    for total, place in zip(sums, places, strict=True):
        lanes = total.type.lanes
        exact = total - column_sums.load(place, lanes) * zero - column_zeros.load(place, lanes) * row_sum
        found.append(exact.to(F32) * (column_scales.load(place, lanes) * scale))
    return found

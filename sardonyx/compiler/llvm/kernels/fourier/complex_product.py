"""Products of complex numbers, real and imaginary parts in turn."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Pointer, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, F64, I32, Type
from sardonyx.compiler.llvm.walk import kernel_frame, share
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class ComplexProductSpec:
    """Numbers of `type` times factors of `factor`, of which the conjugates are taken if `conjugate`."""

    type: Type
    factor: Type
    conjugate: bool = False


def emit_complex_product(target: Target, spec: ComplexProductSpec) -> str:
    """Rows times rows of factors, which are used in turn.

    Arguments: data, factors, result, rows, rows per chunk, complex elements that are read of a row, words between rows
    of the data, elements of a result's row (those behind the ones that are read are 0), rows of factors.
    """
    k, words = kernel_frame(target)
    data, result = k.pointer(words.load(0), spec.type), k.pointer(words.load(2), spec.type)
    factors = k.pointer(words.load(1), spec.factor)
    count, step, width, turns = (words.load(at) for at in (5, 6, 7, 8))
    working = F64 if F64 in (spec.type, spec.factor) else F32
    lanes = target.lanes(working)
    swapped = [lane ^ 1 for lane in range(lanes)]
    evens, odds = [lane & -2 for lane in range(lanes)], [lane | 1 for lane in range(lanes)]
    subtracts = (k.iota(I32, lanes) & 1).equals(int(spec.conjugate))

    def product(row: Pointer, factor: Pointer, to: Pointer, word: Value, mask: Value | None) -> None:
        a, b = (one.load(word, lanes, mask).to(working) for one in (row, factor))
        straight = a * k.shuffle(b, None, evens)
        crossed = k.shuffle(a, None, swapped) * k.shuffle(b, None, odds)
        to.store(k.select(subtracts, straight - crossed, straight + crossed).to(spec.type), word, mask)

    begin, end = share(k, words.load(3), words.load(4))
    with k.loop(begin, end) as place:
        row, to = data.offset(place * step), result.offset(place * width * 2)
        turn = place - (place // turns) * turns
        factor = factors.offset(turn * count * 2)
        whole, total = (count * 2) & -lanes, count * 2
        with k.loop(0, whole, lanes) as word:
            product(row, factor, to, word, None)
        with k.when(whole < total):
            product(row, factor, to, whole, k.lanes_below(total - whole, lanes))
        zero = k.constant(working, 0).to(spec.type)
        with k.loop(total, width * 2) as word:
            to.store(zero, word)
    return k.finish()

"""Products of complex numbers, real and imaginary parts in turn."""

from __future__ import annotations

from sardonyx.compiler.arguments import Read, Record, Size, Write, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import F32, F64, I32, Type, type_of
from sardonyx.compiler.llvm.walk import share
from sardonyx.light_dataclass import dataclass

# Elements that a chunk multiplies at least: some microseconds of work.
_CHUNK_ELEMENTS = 16 << 10


@dataclass(frozen=True)
class ComplexProductSpec:
    """Numbers of `type` times factors of `factor`, of which the conjugates are taken if `conjugate`."""

    type: Type
    factor: Type
    conjugate: bool = False


class Arguments(Record):
    data = Read(lambda spec: spec.type)
    factors = Read(lambda spec: spec.factor)
    result = Write(lambda spec: spec.type)
    rows = Size()
    per_chunk = Size()
    count = Size()  # complex elements that are read of a row
    step = Size()  # words between rows of the data
    width = Size()  # elements of a result's row: those behind the ones that are read are 0
    turns = Size()  # rows of factors


@kernel(Arguments)
def emit_complex_product(k: Function, a: Arguments, spec: ComplexProductSpec) -> None:
    """Rows times rows of factors, which are used in turn."""
    data, result = a.data, a.result
    factors = a.factors
    count, step, width, turns = a.count, a.step, a.width, a.turns
    working = F64 if F64 in (spec.type, spec.factor) else F32
    lanes = k.target.lanes(working)
    swapped = [lane ^ 1 for lane in range(lanes)]
    evens, odds = [lane & -2 for lane in range(lanes)], [lane | 1 for lane in range(lanes)]
    subtracts = (k.iota(I32, lanes) & 1).equals(int(spec.conjugate))

    def product(row: Pointer, factor: Pointer, to: Pointer, word: Value, mask: Value | None) -> None:
        x, y = (one.load(word, lanes, mask).to(working) for one in (row, factor))
        straight = x * k.shuffle(y, None, evens)
        crossed = k.shuffle(x, None, swapped) * k.shuffle(y, None, odds)
        to.store(k.select(subtracts, straight - crossed, straight + crossed).to(spec.type), word, mask)

    begin, end = share(k, a.rows, a.per_chunk)
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


def complex_product(
    binder: Binder, x: Tensor, factors: Tensor, result: Tensor, count: int, turns: int, *, conjugate: bool = False
) -> None:
    """Add the step that multiplies the first `count` elements of rows [rows, ..., 2] by `turns` rows of factors."""
    type_, kind = type_of(x.dtype), type_of(factors.dtype)
    assert type_ is not None
    assert kind is not None
    rows = x.shape[0]
    per_chunk = max(1, _CHUNK_ELEMENTS // max(1, result.shape[1]))
    binder.step(
        emit_complex_product,
        ComplexProductSpec(type_, kind, conjugate),
        Arguments(
            data=x,
            factors=factors,
            result=result,
            rows=rows,
            per_chunk=per_chunk,
            count=count,
            step=x.shape[1] * 2,
            width=result.shape[1],
            turns=turns,
        ),
        chunks=-(-rows // per_chunk),
        flops=6.0 * rows * count,
        detail=f"{rows} rows of {count}",
    )

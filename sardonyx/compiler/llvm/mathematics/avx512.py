"""Instructions of AVX-512 that other machines have none for, and computing with whole registers of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.types import I32, Type

LESSER_MAGNITUDE = 2  # the mode of `range` that takes the operand nearer to zero, with the first one's sign


def has_avx512(k: Function, x: Value) -> bool:
    """Whether the target has AVX-512's instructions for values of this type."""
    bits = x.type.lanes * x.type.bits
    return "avx512vl" in k.target.features and (bits in (128, 256) or bits % 512 == 0)


def by_avx512(k: Function, name: str, operands: Sequence[Value], *modes: int) -> Value:
    """An instruction's result, by halves where the vectors are wider than a register."""
    type_ = operands[0].type
    lanes, bits = type_.lanes, type_.lanes * type_.bits
    if bits > 512:
        halves = [range(lanes // 2), range(lanes // 2, lanes)]
        low, high = (by_avx512(k, name, [k.shuffle(one, None, half) for one in operands], *modes) for half in halves)
        return k.shuffle(low, high, range(lanes))
    letter = "s" if type_.bits == 32 else "d"
    mask = Type("i", max(8, lanes))
    arguments = [*operands, *(k.constant(I32, mode) for mode in modes), operands[0], k.constant(mask, -1)]
    if bits == 512:
        arguments.append(k.constant(I32, 4))  # round as the processor is set to
    return k.call(f"llvm.x86.avx512.mask.{name}.p{letter}.{bits}", type_, *arguments)


def has_tables(k: Function, x: Value) -> bool:
    """Whether powers of 2 are looked up."""
    return x.type.bits == 32 and "avx512vl" in k.target.features


def by_registers(k: Function, x: Value, compute: Callable[[Value], Value]) -> Value:
    """What `compute` makes of whole registers: of all that `x` fills, of a part of one where it is narrower.

    The bits are the same for any number of lanes.
    """
    lanes, whole = x.type.lanes, k.target.lanes(x.type.scalar)
    if lanes > whole:
        halves = [k.shuffle(x, None, half) for half in (range(lanes // 2), range(lanes // 2, lanes))]
        low, high = k.abreast([partial(by_registers, k, half, compute) for half in halves])
        return k.shuffle(low, high, range(lanes))
    if lanes == whole:
        return compute(x)
    if lanes == 1:
        return compute(k.splat(x, whole)).lane(0)
    return k.shuffle(compute(k.shuffle(x, None, [min(lane, lanes - 1) for lane in range(whole)])), None, range(lanes))

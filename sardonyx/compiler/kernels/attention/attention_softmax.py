"""The softmax of the rows of scores of an attention kernel, block of keys after block of keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from sardonyx.compiler.kernels.attention.attention_frame import Block, Frame, RowTable
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.products.gemm_packing import converted
from sardonyx.compiler.llvm.mathematics.elements import polynomial
from sardonyx.compiler.llvm.mathematics.exponentials import exp
from sardonyx.compiler.llvm.mathematics.hyperbolic import tanh
from sardonyx.compiler.llvm.narrow_floats import narrowed, widened
from sardonyx.compiler.llvm.types import BF16, F32, F64, I32, type_of

# 2^f for f from -1/2 to 1/2 with a relative error of 9e-8, 1.6e-7 where float32 evaluates it; exactly 1 at 0.
_EXP2 = (1.0, 0.69314700365, 0.24022242427, 0.055507335812, 0.009671512991, 0.0013264727313)
# The same with an error of 1.0e-4, for weights that are rounded to bfloat16, by up to 3.9e-3, before they are used.
_COARSE_EXP2 = (1.0, 0.69328292735, 0.2422109618, 0.055008931392)

# Fewer registers than these do not hold the constants of an exponential beside what is computed: they are read for each
# vector, so that several vectors share them.
_REGISTERS_OF_CONSTANTS = 32
_ABREAST = 2

_LOG2_E = math.log2(math.e)
_HALVED_BIAS = 126  # what the exponent of half a power of two is counted from
_MAGIC = 12582912.0  # 1.5 * 2^23: adding it rounds a float32 to an integer, which the low bits then hold


def exponential(k: Function, x: Value, powers: Sequence[float] = _EXP2) -> Value:
    """e^x where x is not positive, in float32 with a relative error of 2e-7 + 1e-7 * |x|; 0 where it is not normal or
    close to that.

    With other `powers`, 2^f between -1/2 and 1/2 by powers of f, the error is theirs.
    """
    if x.type.scalar == F64:
        return exp(k, x)
    x = x * _LOG2_E
    if "avx512dq" in k.target.features and x.type.lanes == 16:
        mode = k.constant(I32, 4)  # round as the processor is set to
        every = k.constant(I32, -1).to(type_of(np.dtype(np.int16)) or I32)
        # What is left of x without the nearest whole number; infinity leaves nothing.
        part = k.call("llvm.x86.avx512.mask.reduce.ps.512", x.type, x, k.constant(I32, 0), x, every, mode)
        power = polynomial(k, part, powers)
        return k.call("llvm.x86.avx512.mask.scalef.ps.512", x.type, power, x - part, power, every, mode)
    # Twice the power times half of the scale, whose bits are 0 from the bound on: below it the product is 0 by itself.
    bounded = k.faster_larger(k.constant(x.type, -_HALVED_BIAS), x)  # NaN stays NaN
    shifted = bounded + _MAGIC
    power = polynomial(k, bounded - (shifted - _MAGIC), [2.0 * factor for factor in powers])
    return power * ((shifted.bits_as(I32) + _HALVED_BIAS) << 23).bits_as(F32)


def widest(k: Function, operation: str, vector: Value) -> Value:
    """The maximum (which may ignore NaN) or the sum of the lanes, in every lane."""
    distance = vector.type.lanes // 2
    while distance:
        other = k.shuffle(vector, None, [lane ^ distance for lane in range(vector.type.lanes)])
        vector = k.faster_larger(vector, other) if operation == "max" else vector + other
        distance //= 2
    return vector


def softmax_row(frame: Frame, table: RowTable, here: Block, index: Value, low: Value, high: Value) -> None:
    """Scores [low, high) of a row become their exponentials; maximum, sum and accumulated values are brought along.

    `low` is a multiple of the lanes; the scores up to the next multiple after `high` become 0. The exponentials are
    elements of the product's words.
    """
    k, lanes = frame.k, frame.lanes
    row = frame.score_row(index)
    change = _settle_top(frame, table, here, index, low, high)
    shifts = _shifts(frame, table, index)
    sums = k.variable(frame.compute.vector(lanes), 0.0)
    # Weights as words take less room than the scores that they come from: none is overwritten before it is read.
    weights = k.pointer(row.address, frame.product.packed_a)

    def weigh(at: Value, mask: Value | None, count: int = 1) -> None:
        places = [at + lanes * number for number in range(count)]
        for place, weight in zip(places, _weights(frame, row, places, shifts, mask), strict=True):
            weights.store(converted(k, weight, frame.product.packed_a), place)
            sums.set(sums.get() + weight)

    whole, many = whole_end(frame, low, high), low
    if k.target.registers < _REGISTERS_OF_CONSTANTS:
        many = low + ((whole - low) & -(lanes * _ABREAST))
        with k.loop(low, many, lanes * _ABREAST) as at:
            weigh(at, None, _ABREAST)
    with k.loop(many, whole, lanes) as at:
        weigh(at, None)
    with k.when(whole < high):
        weigh(whole, k.lanes_below(high - whole, lanes))
    total = widest(k, "add", sums.get()).lane(0)
    _bring_along(frame, table, here, index, change, total)


def start_row(frame: Frame, table: RowTable, here: Block, index: Value, low: Value, high: Value) -> None:
    """What `softmax_row` does of a row whose weights are made by `weigh_row`, some keys at a time.

    Their sums, lane by lane, take the place of the maxima.
    """
    change = _settle_top(frame, table, here, index, low, high)
    zero = frame.k.constant(frame.compute.vector(frame.lanes), 0.0)
    frame.maximum(index).store(zero)
    _bring_along(frame, table, here, index, change, zero.lane(0))


def weigh_row(frame: Frame, table: RowTable, index: Value, low: Value, high: Value) -> None:
    """The exponentials of the scores [low, high) of a row as words in tiles, with 0 behind them."""
    k, lanes = frame.k, frame.lanes
    row, shifts = frame.score_row(index), _shifts(frame, table, index)
    stride = frame.product.words(frame.spec.keys_in_tiles)
    sums = k.variable(frame.compute.vector(lanes), frame.maximum(index).load(0, lanes))

    def weigh(at: Value, left: Value | None) -> None:
        pair = []
        for first in (0, lanes):
            mask = None if left is None else k.lanes_below(left - first, lanes)
            pair.append(_weight(frame, row, at + first, shifts, mask))
            sums.set(sums.get() + pair[-1])
        frame.store_words(frame.weights, stride, index, at - low, frame.weight_words(*pair))

    whole = low + ((high - low) & -frame.panel)
    with k.loop(low, whole, frame.panel) as at:
        weigh(at, None)
    with k.when(whole < high):
        weigh(whole, high - whole)
    frame.maximum(index).store(sums.get())


def add_sum(frame: Frame, table: RowTable, index: Value) -> None:
    """Add the weights that `weigh_row` made of a row to its sum."""
    total = widest(frame.k, "add", frame.maximum(index).load(0, frame.lanes)).lane(0)
    table.sums.store(table.sums.load(index) + total, index)


def _settle_top(frame: Frame, table: RowTable, here: Block, index: Value, low: Value, high: Value) -> Value:
    """Bring the maximum of a row along; the logarithm of what it changes of what was summed before."""
    k, lanes = frame.k, frame.lanes
    tops = frame.maximum(index).load(0, lanes) if frame.is_fused else _add_biases(frame, table, here, index, low, high)
    top = widest(k, "max", tops).lane(0)
    before = table.tops.load(index)
    now = k.faster_larger(before, top)
    table.tops.store(now, index)
    return before - _finite(frame, now)


def _shifts(frame: Frame, table: RowTable, index: Value) -> Value:
    """What is taken from the scores of a row, in all lanes."""
    return frame.k.splat(_finite(frame, table.tops.load(index)), frame.lanes)


def _finite(frame: Frame, top: Value) -> Value:
    return frame.k.select(top.equals(float("-inf")), 0.0, top)  # a row without any key yet: exp(-inf - 0) is 0


def _weight(frame: Frame, row: Pointer, at: Value, shifts: Value, mask: Value | None) -> Value:
    """The exponentials of a vector of scores; 0 outside of `mask`."""
    return _weights(frame, row, [at], shifts, mask)[0]


def _weights(
    frame: Frame, row: Pointer, places: Sequence[Value], shifts: Value, mask: Value | None = None
) -> list[Value]:
    """The same of vectors at several places, all worked out at once."""
    k = frame.k
    is_coarse = frame.product.packed_a == BF16 and frame.product.parts == 1

    def weight(at: Value) -> Value:
        difference = row.load(at, frame.lanes) - shifts
        found = exponential(k, difference, _COARSE_EXP2 if is_coarse else _EXP2)
        return found if mask is None else k.select(mask, found, 0.0)

    return k.abreast([partial(weight, at) for at in places])


def whole_end(frame: Frame, low: Value, high: Value) -> Value:
    """The end of the whole vectors of [low, high)."""
    return low + (frame.k.larger(high - low, 0) & -frame.lanes)


def _bring_along(frame: Frame, table: RowTable, here: Block, index: Value, change: Value, total: Value) -> None:
    """Correct the sum and the accumulated values of a row for its new maximum."""
    k, lanes = frame.k, frame.lanes
    accumulator = table.accumulator(index)

    def factor() -> Value:
        return exponential(k, k.splat(change, lanes)).lane(0)

    with k.when(here.first):
        for column, _ in frame.pieces(frame.spec.value_size):
            accumulator.store(k.constant(frame.compute.vector(lanes), 0.0), column)
        start = factor() if frame.spec.sink else None  # a sink alone has the sum 1
        table.sums.store(total if start is None else total + start, index)
    with k.otherwise(here.first):
        correction = factor()
        table.sums.store(k.fma(table.sums.load(index), correction, total), index)
        for column, _ in frame.pieces(frame.spec.value_size):
            accumulator.store(accumulator.load(column, lanes) * correction, column)


def _add_biases(frame: Frame, table: RowTable, here: Block, index: Value, low: Value, high: Value) -> Value:
    """Soft-cap the scores, add the biases, rule out what the row does not see; their maxima, which ignore NaN."""
    k, spec, lanes = frame.k, frame.spec, frame.lanes
    row = frame.score_row(index)
    first = (table.word(index, "low") - here.start).to(I32)
    end = (table.word(index, "high") - here.start).to(I32)
    biases = [] if spec.folded else [_RowBias(frame, table, here, index, number) for number in range(len(spec.biases))]
    places = k.iota(I32, lanes)

    def visit(at: Value, top: Value, mask: Value | None) -> Value:
        score = row.load(at, lanes)
        if spec.softcap:
            cap = frame.given["softcap"].bits_as(F64).to(frame.compute)
            score = tanh(k, score / cap) * cap
        for bias in biases:
            score = bias.added(score, at, mask)
        inside = mask
        if spec.limited:
            column = at.to(I32) + places
            inside = column < end
            if spec.left:
                inside = inside & (column >= first)
        if inside is not None:
            score = k.select(inside, score, float("-inf"))
        if inside is not None or biases or spec.softcap:
            row.store(score, at)
        return k.faster_larger(score, top)

    whole = whole_end(frame, low, high)
    wide = frame.compute.vector(lanes)
    tops = [k.variable(wide, float("-inf")) for _ in range(1 if spec.softcap else 2)]
    paired = low + ((whole - low) & -(lanes * len(tops)))
    with k.loop(low, paired, lanes * len(tops)) as at:
        for number, top in enumerate(tops):
            top.set(visit(at + number * lanes, top.get(), None))
    if len(tops) > 1:
        with k.loop(paired, whole, lanes) as at:
            tops[0].set(visit(at, tops[0].get(), None))
    with k.when(whole < high):
        tops[0].set(visit(whole, tops[0].get(), k.lanes_below(high - whole, lanes)))
    total = tops[0].get()
    for other in tops[1:]:
        total = k.faster_larger(total, other.get())
    return total


class Bias:
    """Something that is added to scores: numbers, or a mask."""

    def __init__(self, frame: Frame, number: int) -> None:
        self.frame = frame
        scalar = type_of(np.dtype(frame.spec.biases[number]))
        assert scalar is not None
        self.scalar = scalar
        self.masked = frame.given[f"bias_masked{number}"].bits_as(F64).to(frame.compute)

    def values(self, row: Pointer, at: Value, mask: Value | None) -> Value:
        """A vector of what is added to the scores of the keys from `at` on."""
        k, compute = self.frame.k, self.frame.compute
        values = row.load(at, self.frame.lanes, mask)
        if self.scalar.is_float:
            return widened(values, compute)
        keep = values if values.type.bits == 1 else values > 0
        return k.select(keep, k.constant(compute.vector(self.frame.lanes), 0.0), self.masked)


class _RowBias(Bias):
    """The bias of one row."""

    def __init__(self, frame: Frame, table: RowTable, here: Block, index: Value, number: int) -> None:
        super().__init__(frame, number)
        self.row = frame.k.pointer(table.word(index, f"bias{number}"), self.scalar).offset(here.start)

    def added(self, score: Value, at: Value, mask: Value | None) -> Value:
        """A vector of scores with the bias of its keys."""
        return score + self.values(self.row, at, mask)


def finish_row(frame: Frame, table: RowTable, index: Value) -> None:
    """Divide the accumulated values by the sum of the weights and store them; a row that saw no key gives 0."""
    k = frame.k
    total = table.sums.load(index)
    one = k.constant(frame.compute, 1.0)
    inverse = k.select(total.equals(0.0), k.constant(frame.compute, 0.0), one / total)
    accumulator = table.accumulator(index)
    output = k.pointer(table.word(index, "output"), frame.spec.result_type)
    for at, mask in frame.pieces(frame.spec.value_size):
        output.store(narrowed(k, accumulator.load(at, frame.lanes) * inverse, output.scalar), at, mask)

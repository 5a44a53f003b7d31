"""The softmax of the rows of scores of an attention kernel, block of keys after block of keys."""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.llvm.builder import Pointer, Value
from sardonyx.compiler.llvm.kernels.attention_frame import Block, Frame, RowTable
from sardonyx.compiler.llvm.mathematics import exp, tanh
from sardonyx.compiler.llvm.types import F64, I32, type_of


def softmax_row(frame: Frame, table: RowTable, here: Block, index: Value, low: Value, high: Value) -> None:
    """Scores [low, high) of a row become their exponentials; maximum, sum and accumulated values are brought along.

    `low` is a multiple of the lanes; the scores up to the next multiple after `high` become 0.
    """
    k = frame.k
    row = frame.score_row(index)
    top = _add_biases(frame, table, here, index, row, low, high)
    before = table.tops.load(index)
    now = k.faster_larger(before, top)
    table.tops.store(now, index)
    shift = k.select(now.equals(float("-inf")), 0.0, now)  # a row without any key yet: exp(-inf - 0) is 0
    sums = k.variable(frame.compute.vector(frame.lanes), 0.0)
    with k.loop(low, high, frame.lanes) as at:
        weight = exp(k, row.load(at, frame.lanes) - shift)
        row.store(weight, at)
        sums.set(sums.get() + weight)
    factor = exp(k, k.splat(before - shift, frame.lanes)).lane(0)
    total = k.horizontal("add", sums.get())
    table.sums.store(k.fma(table.sums.load(index), factor, total), index)
    accumulator = table.accumulator(index)
    with k.when(here.first):
        for column, _ in frame.pieces(frame.spec.value_size):
            accumulator.store(k.constant(sums.type, 0.0), column)
    with k.otherwise(here.first):
        for column, _ in frame.pieces(frame.spec.value_size):
            accumulator.store(accumulator.load(column, frame.lanes) * factor, column)


def _add_biases(
    frame: Frame, table: RowTable, here: Block, index: Value, row: Pointer, low: Value, high: Value
) -> Value:
    """Soft-cap the scores, add the biases, rule out what the row does not see; their maximum, which ignores NaN."""
    k, spec, lanes = frame.k, frame.spec, frame.lanes
    limited = spec.left or spec.right or bool(spec.lengths)
    first = (table.word(index, "low") - here.start).to(I32)
    end = (table.word(index, "high") - here.start).to(I32)
    biases = [_Bias(frame, table, here, index, number) for number in range(len(spec.biases))]
    places = k.iota(I32, lanes)

    def visit(at: Value, top: Value, mask: Value | None) -> Value:
        score = row.load(at, lanes)
        if spec.softcap:
            cap = frame.given["softcap"].bits_as(F64).to(frame.compute)
            score = tanh(k, score / cap) * cap
        for bias in biases:
            score = bias.added(score, at, mask)
        inside = mask
        if limited:
            column = at.to(I32) + places
            inside = column < end
            if spec.left:
                inside = inside & (column >= first)
        if inside is not None:
            score = k.select(inside, score, float("-inf"))
        if inside is not None or biases or spec.softcap:
            row.store(score, at)
        return k.faster_larger(score, top)

    whole = low + ((k.larger(high - low, 0)) & -lanes)
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
    return k.horizontal("max", total)


class _Bias:
    """One row of something that is added to the scores."""

    def __init__(self, frame: Frame, table: RowTable, here: Block, index: Value, number: int) -> None:
        k = self.k = frame.k
        self.frame = frame
        scalar = type_of(np.dtype(frame.spec.biases[number]))
        assert scalar is not None
        self.is_mask = not scalar.is_float
        self.row = k.pointer(table.word(index, f"bias{number}"), scalar).offset(here.start)
        self.masked = frame.given[f"bias_masked{number}"].bits_as(F64).to(frame.compute)

    def added(self, score: Value, at: Value, mask: Value | None) -> Value:
        """A vector of scores with the bias of its keys."""
        values = self.row.load(at, self.frame.lanes, mask)
        if not self.is_mask:
            return score + values.to(self.frame.compute)
        keep = values if values.type.bits == 1 else values > 0
        return score + self.k.select(keep, self.k.constant(self.frame.compute, 0.0), self.masked)


def finish_row(frame: Frame, table: RowTable, index: Value) -> None:
    """Divide the accumulated values by the sum of the weights and store them; a row that saw no key gives 0."""
    k = frame.k
    total = table.sums.load(index)
    one = k.constant(frame.compute, 1.0)
    inverse = k.select(total.equals(0.0), k.constant(frame.compute, 0.0), one / total)
    accumulator = table.accumulator(index)
    output = k.pointer(table.word(index, "output"), frame.storage)
    for at, mask in frame.pieces(frame.spec.value_size):
        output.store((accumulator.load(at, frame.lanes) * inverse).to(frame.storage), at, mask)

"""What the parts of the attention kernel share: types, arguments, the places in scratch, the table of rows."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sardonyx.compiler.kernels.attention.attention_spec import (
    ROW_BYTES,
    ROW_WORDS,
    SCORES_STRIDE,
    AttentionSpec,
    fixed_layout,
)
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.products.gemm_packing import parts_of
from sardonyx.compiler.llvm.kernels.products.gemm_parts import paired_parts
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE
from sardonyx.compiler.llvm.types import I64, U32, Type
from sardonyx.light_dataclass import dataclass

# Vectors of a head that are written out at most.
_MOST_WRITTEN_OUT = 128
_WITHOUT_SIGN = 0x7FFFFFFF
_LARGE = (56 + 127) << 23  # the bits of 2^56, sums of whose squares are far from infinity


class Frame:
    """The kernel under construction: its function, specification and arguments by name."""

    def __init__(self, k: Function, spec: AttentionSpec, given: Mapping[str, Value]) -> None:
        self.k, self.spec, self.given = k, spec, given
        self.storage, self.compute, self.product = spec.storage_type, spec.compute_type, spec.product
        layout = fixed_layout(k.target, spec)
        self.rows, self.lanes = layout.rows, layout.lanes
        self.panel = 2 * self.lanes  # keys, or value columns, of a packed panel
        self.apart = self.lanes if self.product.parts > 1 else 1  # of the keys whose weights are one word
        self.query_stride, self.accumulator_stride = layout.query_stride, layout.accumulator_stride
        self.table = k.pointer("scratch", I64)
        self.queries = self.scratch(k.constant(I64, layout.queries_at), self.product.word)
        self.scores = self.scratch(k.constant(I64, layout.scores_at))
        self.maxima = self.scratch(k.constant(I64, layout.maxima_at))
        self.weights = self.scratch(k.constant(I64, layout.weights_at), self.product.word)
        # The largest bits of each operand, where products of parts need to know of large numbers.
        self.bits = {
            operand: k.variable(U32.vector(self.lanes), 0)
            for operand in (("queries", "keys", "values") if self.product.parts > 1 else ())
        }
        # Whether the product itself gives the maxima, because nothing happens to its scores later.
        self.is_fused = not (spec.few_rows or spec.limited or spec.softcap or (spec.biases and not spec.folded))

    def scratch(self, at: Value, scalar: Type | None = None) -> Pointer:
        """A place in scratch, `at` bytes from its start, as elements of the type that is computed in, or of another."""
        return self.k.pointer(self.k.advance(self.k["scratch"], at, 1), scalar or self.compute)

    def words(self, values: Value) -> list[Value]:
        """Numbers of one row that follow one another as words of the product, of each part."""
        packed = parts_of(self.k, self.product, self.product.packed_a, values)
        return packed if self.product.depth == 1 else [part.bits_as(self.product.word) for part in packed]

    def weight_words(self, first: Value, second: Value) -> list[Value]:
        """Weights of two vectors of keys as words, of each part."""
        if self.apart > 1:
            return paired_parts(self.k, first, second, True)
        return self.words(self.k.shuffle(first, second, list(range(2 * self.lanes))))

    def value_words(self, first: Value, second: Value) -> list[Value]:
        """Values of the two keys of a word as words, of each part."""
        if self.apart > 1:
            return paired_parts(self.k, first, second, False)
        return self.words(
            self.k.shuffle(first, second, [lane // 2 + lane % 2 * self.lanes for lane in range(2 * self.lanes)])
        )

    def store_words(self, rows: Pointer, stride: int, index: Value, at: Value | int, words: Sequence[Value]) -> None:
        """The words of a row from its number `at` on: rows lie `stride` words apart, or in tiles of as many."""
        product, spread = self.product, SIDE if self.product.in_tiles else 1
        row = index * stride if spread == 1 else index // spread * (spread * stride) + index % spread * SIDE
        place = rows.offset(row).offset(at // product.depth * (product.parts * spread))
        for part, vector in enumerate(words):
            place.store(vector, part * product.unit * spread)

    def watch_anew(self, *operands: str) -> None:
        """Forget what was watched of these operands."""
        for operand in operands:
            if operand in self.bits:
                self.bits[operand].set(self.k.constant(U32.vector(self.lanes), 0))

    def watch(self, operand: str, numbers: Iterable[Value]) -> None:
        """Remember how large these numbers of an operand are."""
        if operand not in self.bits:
            return
        largest = self.bits[operand]
        for vector in numbers:
            for first in range(0, vector.type.lanes, self.lanes):
                part = self.k.shuffle(vector, None, list(range(first, first + self.lanes)))
                bits = part.bits_as(U32) & _WITHOUT_SIGN
                largest.set(self.k.select(bits > largest.get(), bits, largest.get()))

    def is_large(self, *operands: str) -> Value:
        """Whether some numbers of these operands are so large that products of their parts may not be finite; infinity
        and what is no number are."""
        return self.k.any_lane(
            functools.reduce(
                lambda one, other: one | other, [self.bits[operand].get() >= _LARGE for operand in operands]
            ),
        )

    def score_row(self, index: Value | int) -> Pointer:
        return self.scores.offset(index * SCORES_STRIDE)

    def maximum(self, index: Value | int) -> Pointer:
        """The maxima of a row, lane by lane."""
        return self.maxima.offset(index * self.lanes)

    def pieces(self, size: int, depth: int = 1) -> Iterator[tuple[int | Value, Value | None]]:
        """The vectors that cover `size` elements: where each starts, and the mask of the last where it is not full.

        With a depth they are the elements of as many words as a vector has lanes. What is done with them is written
        out; where they are very many, pairs of them come in a loop, to which all must be the same.
        """
        lanes = self.lanes * depth
        looped = size // (2 * lanes) * (2 * lanes) if size > _MOST_WRITTEN_OUT * lanes else 0
        if looped:
            with self.k.loop(0, looped, lanes) as place:
                yield place, None
        yield from self.written_out(size, depth, looped)

    def written_out(self, size: int, depth: int = 1, first: int = 0) -> Iterator[tuple[int, Value | None]]:
        """Those from the element `first` on, each of them by itself."""
        lanes = self.lanes * depth
        for at in range(first, size, lanes):
            left = size - at
            mask = None if left >= lanes else self.k.lanes_below(self.k.constant(I64, left), lanes)
            yield at, mask


@dataclass(frozen=True)
class Block:
    """A block of keys and values: where its first ones are, the number of its first key, how many there are.

    `biases` are the addresses of what all rows add to the scores of these keys, where biases are folded; `sources`
    where the rows of keys and of values come from, where they are appended to a cache.
    """

    keys: Pointer
    values: Pointer
    start: Value
    count: Value
    first: Value
    last: Value
    biases: tuple[Value, ...] = ()
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class Source:
    """The past rows and the new rows of a head, as addresses."""

    past: Value
    new: Value
    past_step: int  # bytes
    new_step: Value  # bytes


class RowTable:
    """The rows of a block by index: words about each, and its running maximum, sum and accumulated values."""

    def __init__(self, frame: Frame, kept: Value) -> None:
        k = frame.k
        self.frame = frame
        room = k.larger(frame.given["keep"] * frame.given["group_rows"], frame.rows)
        self.tops = frame.scratch(frame.given["state_at"]).offset(kept)
        self.sums = self.tops.offset(room)
        accumulators = frame.scratch(frame.given["accumulators_at"])
        self.accumulators = accumulators.offset(kept * frame.accumulator_stride)

    def fill(self, index: Value, words: Mapping[str, Value]) -> None:
        row = self.frame.table.offset(index * (ROW_BYTES // 8))
        for name, word in words.items():
            row.store(word, ROW_WORDS.index(name))

    def word(self, index: Value, name: str) -> Value:
        return self.frame.table.offset(index * (ROW_BYTES // 8)).load(ROW_WORDS.index(name))

    def start(self, index: Value, sink: Value | None) -> None:
        """A row before its first key: no maximum and no sum, or those of its sink."""
        k, compute = self.frame.k, self.frame.compute
        self.tops.store(k.constant(compute, float("-inf")) if sink is None else sink, index)
        self.sums.store(k.constant(compute, 0.0 if sink is None else 1.0), index)

    def accumulator(self, index: Value) -> Pointer:
        return self.accumulators.offset(index * self.frame.accumulator_stride)

"""TfIdfVectorizer over integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.arguments import Read, Record, Size, Write, kernel
from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.classic.sorted_keys import last_not_above
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.types import BOOL, F32, F64, I64, U64, Type
from sardonyx.compiler.llvm.walk import share
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.graph.types import numpy_dtype
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact

# Tables with a place for every key have at most this many: they stay in the first or second cache.
_MOST_PLACES = 1 << 14
# Tokens that are worth a claim of their own.
_CHUNK = 512
_F32, _INTEGERS = np.dtype(np.float32), (np.dtype(np.int32), np.dtype(np.int64))


@dataclass(frozen=True)
class NgramSpec:
    """Tokens are integers of `bits`; with `once`, an n-gram counts as one however often it occurs.

    With `dense_words` or `dense_edges`, keys are all numbers from the first one on.
    """

    bits: int
    once: bool
    dense_words: bool
    dense_edges: bool


class Arguments(Record):
    tokens = Read(lambda spec: Type("i", spec.bits))
    result = Write(F32)
    rows = Size()
    per_chunk = Size()
    columns = Size()
    coordinates = Size()
    vocabulary = Read(I64)  # ascending tokens
    numbers = Read(I64)  # the number of each
    words = Size()  # how many
    keys = Read(I64)  # ascending node * width + number
    targets = Read(I64)  # the node behind each
    edges = Size()  # how many
    width = Size()
    grams = Read(I64)  # the n-gram that ends at each node, or -1
    places = Read(I64)  # where each n-gram counts
    weights = Read(F32)  # how much
    count = Size()  # n-grams
    distances = Size()  # how far tokens may lie apart
    longest = Size()  # tokens of an n-gram


@kernel(Arguments)
def emit_ngrams(k: Function, a: Arguments, spec: NgramSpec) -> None:
    """Rows of coordinates, [rows, coordinates], from rows of tokens.

    Scratch memory holds the number of each token of a row, and behind them how often each n-gram occurs.
    """
    a.loaded()  # most are read inside loops
    tokens, result = a.tokens, a.result
    seen = k.pointer("scratch", I64)
    counts = seen.offset(a.columns)
    trie = _Trie(k, spec, a)
    begin, end = share(k, a.rows, a.per_chunk)
    with k.loop(begin, end) as row:
        line = tokens.offset(row * a.columns)
        with k.loop(0, a.columns) as column:
            seen.store(trie.number_of(line.load(column).to(I64)), column)
        with k.loop(0, a.count) as gram:
            counts.store(0, gram)
        # Tokens of which one lies beyond the row are none.
        furthest = k.larger(minimum(k, a.distances, a.columns - 1), 1)
        with k.loop(1, furthest + 1) as distance, k.loop(0, a.columns) as start:
            _follow(k, trie, seen, counts, start, distance, a)
        _weigh(k, spec, counts, result.offset(row * a.coordinates), a)


class _Trie:
    """Look-ups by place where there is a value for every key, else by binary search."""

    def __init__(self, k: Function, spec: NgramSpec, a: Arguments) -> None:
        self._k, self._spec, self._a = k, spec, a
        self.grams = a.grams

    def _find(
        self, keys: Pointer, count: Value, values: Pointer, wanted: Value, otherwise: Value | int, *, dense: bool
    ) -> Value:
        """The value of a key; of others, `otherwise`. There is at least one key."""
        k = self._k
        if dense:
            place = wanted - keys.load(0)  # the difference may wrap around, but then it is no place
            known = place.to(U64) < count.to(U64)
            return k.select(known, values.load(k.select(known, place, 0)), otherwise)
        place = last_not_above(k, keys, count, wanted)
        return k.select(keys.load(place).equals(wanted), values.load(place), otherwise)

    def number_of(self, token: Value) -> Value:
        """A token's number; that of a token in no n-gram has no edges."""
        a = self._a
        vocabulary, numbers = a.vocabulary, a.numbers
        return self._find(vocabulary, a.words, numbers, token, a.width - 1, dense=self._spec.dense_words)

    def step(self, node: Value, number: Value) -> Value:
        """The node behind the edge of a token; -1 where there is none."""
        a = self._a
        keys, targets = a.keys, a.targets
        key = node * a.width + number
        return self._find(keys, a.edges, targets, key, -1, dense=self._spec.dense_edges)


def _follow(
    k: Function, trie: _Trie, seen: Pointer, counts: Pointer, start: Value, distance: Value, a: Arguments
) -> None:
    """Count the n-grams that begin at a token, the others a distance apart; single ones at the first distance alone."""
    node, place, length = k.variable(I64, 0), k.variable(I64, start), k.variable(I64, 0)
    going = k.variable(BOOL, True)
    with k.loop_while(going.get):
        node.set(trie.step(node.get(), seen.load(place.get())))
        with k.when(node.get() >= 0):
            gram = trie.grams.load(node.get())
            with k.when((gram >= 0) & ((length.get() > 0) | distance.equals(1))):
                counts.store(counts.load(gram) + 1, gram)
        place.set(place.get() + distance)
        length.set(length.get() + 1)
        going.set((node.get() >= 0) & (place.get() < a.columns) & (length.get() < a.longest))


def _weigh(k: Function, spec: NgramSpec, counts: Pointer, result: Pointer, a: Arguments) -> None:
    """Add the n-grams up where they count."""
    places, weights = a.places, a.weights
    with k.loop(0, a.coordinates) as coordinate:
        result.store(0.0, coordinate)
    with k.loop(0, a.count) as gram:
        count = counts.load(gram)
        count = k.smaller(count, 1) if spec.once else count
        weighted = (count.to(F64) * weights.load(gram).to(F64)).to(F32)
        place = places.load(gram)
        result.store(result.load(place) + weighted, place)


@template("ngrams")
class Ngrams(NativeKernel):
    """Weighted counts of n-grams.

    Parameters: `trie`; `places`, where each n-gram of the pool counts, of so many `coordinates`; its `weights`; `once`;
    `distances` between tokens that are tried; tokens of the `longest` n-gram; `check` of the input's shape.
    """

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        data = inputs[0]
        known = data is not None and data.dtype is not None and numpy_dtype(data.dtype) in _INTEGERS
        return None if known else "only tokens of int32 and int64 are looked up"

    def bind(self, binder: Binder, data: Tensor) -> Sequence[Tensor]:
        self.parameters["check"](data.shape)
        data = contiguous(binder, data)
        columns = data.shape[-1] if data.shape else 1
        rows, coordinates = data.shape[0] if len(data.shape) == 2 else 1, self.parameters["coordinates"]
        result = binder.new(_F32, (*data.shape[:-1], coordinates))
        trie, count = self.parameters["trie"], len(self.parameters["places"])
        words_known = np.array(sorted(trie.numbers), np.int64)
        word_numbers = np.array([trie.numbers[token] for token in words_known.tolist()], np.int64)
        vocabulary, numbers, dense_words = _table(words_known, word_numbers, trie.width - 1)
        keys, targets, dense_edges = _table(trie.keys, trie.targets, -1)
        arrays = {
            "vocabulary": vocabulary,
            "numbers": numbers,
            "keys": keys,
            "targets": targets,
            "grams": trie.gram,
            "places": np.asarray(self.parameters["places"], np.int64),
            "weights": np.asarray(self.parameters["weights"], np.float32),
        }
        known = {name: binder.constant(np.ascontiguousarray(array)) for name, array in arrays.items()}
        per_chunk = max(1, _CHUNK // max(1, columns))
        arguments = Arguments(
            tokens=data,
            result=result,
            rows=rows,
            per_chunk=per_chunk,
            columns=columns,
            coordinates=coordinates,
            words=numbers.size,
            edges=targets.size,
            width=trie.width,
            count=count,
            distances=self.parameters["distances"],
            longest=self.parameters["longest"],
            **known,
        )
        if result.size:
            binder.step(
                emit_ngrams,
                NgramSpec(data.dtype.itemsize * 8, self.parameters["once"], dense_words, dense_edges),
                arguments,
                chunks=-(-rows // per_chunk),
                scratch=8 * (columns + count),
                flops=float(rows * columns),
                detail=f"{rows} rows of {columns} tokens, {count} n-grams",
            )
        return [result]


def _table(keys: Array, values: Array, otherwise: int) -> tuple[Array, Array, bool]:
    """Ascending keys and their values, at least one; or, where it is small, the first key and a value for each number
    from it to the last key, and True.
    """
    if not keys.size:
        return np.zeros(1, np.int64), np.full(1, otherwise, np.int64), True
    span = int(keys[-1]) - int(keys[0]) + 1
    if span > _MOST_PLACES:
        return keys, values, False
    every = np.full(span, otherwise, np.int64)
    every[keys - keys[0]] = values
    return keys[:1], every, True

"""Weighted counts of n-grams in rows of tokens."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.classic.sorted_keys import last_not_above
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, F32, F64, I64, U64, Type
from sardonyx.compiler.llvm.walk import kernel_frame, share
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class NgramSpec:
    """Tokens are integers of `bits`; with `once`, an n-gram counts as one however often it occurs.

    With `dense_words` or `dense_edges`, keys are all numbers from the first one on.
    """

    bits: int
    once: bool
    dense_words: bool
    dense_edges: bool


# The arguments in order; all numbers are int64, the weights float32.
ARGUMENTS = (
    *("tokens", "result", "rows", "per_chunk", "columns", "coordinates"),
    *("vocabulary", "numbers", "words"),  # ascending tokens, the number of each, how many
    *("keys", "targets", "edges", "width"),  # ascending node * width + number, the node behind each, how many
    *("grams", "places", "weights", "count"),  # the n-gram that ends at each node or -1; where it counts, how much
    *("distances", "longest"),  # how far tokens may lie apart, tokens of an n-gram
)


def emit_ngrams(target: Target, spec: NgramSpec) -> str:
    """Rows of coordinates, [rows, coordinates], from rows of tokens; the words are `ARGUMENTS`.

    Scratch memory holds the number of each token of a row, and behind them how often each n-gram occurs.
    """
    k, words = kernel_frame(target)
    a = {name: words.load(place) for place, name in enumerate(ARGUMENTS)}
    tokens, result = k.pointer(a["tokens"], Type("i", spec.bits)), k.pointer(a["result"], F32)
    seen = k.pointer("scratch", I64)
    counts = seen.offset(a["columns"])
    trie = _Trie(k, spec, a)
    begin, end = share(k, a["rows"], a["per_chunk"])
    with k.loop(begin, end) as row:
        line = tokens.offset(row * a["columns"])
        with k.loop(0, a["columns"]) as column:
            seen.store(trie.number_of(line.load(column).to(I64)), column)
        with k.loop(0, a["count"]) as gram:
            counts.store(0, gram)
        # Tokens of which one lies beyond the row are none.
        furthest = k.larger(minimum(k, a["distances"], a["columns"] - 1), 1)
        with k.loop(1, furthest + 1) as distance, k.loop(0, a["columns"]) as start:
            _follow(k, trie, seen, counts, start, distance, a)
        _weigh(k, spec, counts, result.offset(row * a["coordinates"]), a)
    return k.finish()


class _Trie:
    """Look-ups by place where there is a value for every key, else by binary search."""

    def __init__(self, k: Function, spec: NgramSpec, a: dict[str, Value]) -> None:
        self._k, self._spec, self._a = k, spec, a
        self.grams = k.pointer(a["grams"], I64)

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
        a, k = self._a, self._k
        vocabulary, numbers = k.pointer(a["vocabulary"], I64), k.pointer(a["numbers"], I64)
        return self._find(vocabulary, a["words"], numbers, token, a["width"] - 1, dense=self._spec.dense_words)

    def step(self, node: Value, number: Value) -> Value:
        """The node behind the edge of a token; -1 where there is none."""
        a, k = self._a, self._k
        keys, targets = k.pointer(a["keys"], I64), k.pointer(a["targets"], I64)
        key = node * a["width"] + number
        return self._find(keys, a["edges"], targets, key, -1, dense=self._spec.dense_edges)


def _follow(
    k: Function, trie: _Trie, seen: Pointer, counts: Pointer, start: Value, distance: Value, a: dict[str, Value]
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
        going.set((node.get() >= 0) & (place.get() < a["columns"]) & (length.get() < a["longest"]))


def _weigh(k: Function, spec: NgramSpec, counts: Pointer, result: Pointer, a: dict[str, Value]) -> None:
    """Add the n-grams up where they count."""
    places, weights = k.pointer(a["places"], I64), k.pointer(a["weights"], F32)
    with k.loop(0, a["coordinates"]) as coordinate:
        result.store(0.0, coordinate)
    with k.loop(0, a["count"]) as gram:
        count = counts.load(gram)
        count = k.smaller(count, 1) if spec.once else count
        weighted = (count.to(F64) * weights.load(gram).to(F64)).to(F32)
        place = places.load(gram)
        result.store(result.load(place) + weighted, place)

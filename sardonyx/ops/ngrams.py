"""Counts of n-grams in sequences of tokens: TfIdfVectorizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.program import Host, Kernel, Template
from sardonyx.ops.framework.facts import UNKNOWN, Fact, tensor
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.runtime.forks import cached_property
from sardonyx.runtime.memory import memory

MODES = ("TF", "IDF", "TFIDF")
_LARGEST_SKIP = (1 << 62) - 1  # more tokens than any row has


class Trie:
    """The n-grams of a pool as paths of tokens from a root, all look-ups being of whole arrays.

    `step` follows edges from nodes (the root is 0, a dead end -1); `gram` is each node's place in the pool, or -1. An
    edge's key, of which `keys` holds all in order, is node * `width` + the token's number in `numbers`.
    """

    def __init__(self, grams: Sequence[tuple[int, Sequence[Any]]]) -> None:
        self.numbers = {
            token: number for number, token in enumerate({token: None for _, gram in grams for token in gram})
        }
        self.width = len(self.numbers) + 1
        edges: dict[int, int] = {}
        places = {0: -1}
        for place, gram in grams:
            node = 0
            for token in gram:
                node = edges.setdefault(node * self.width + self.numbers[token], len(edges) + 1)
                places.setdefault(node, -1)
            if places[node] >= 0:
                raise ValueError(f"the pool has the n-gram {list(gram)} twice")
            places[node] = place
        self.gram = np.array([places[node] for node in range(len(places))], np.int64)
        self.keys = np.array(sorted(edges), np.int64)
        self.targets = np.array([edges[key] for key in sorted(edges)], np.int64)
        self.roots = np.full(self.width, -1, np.int64)  # what follows the root, by the token's number
        for number in self.numbers.values():
            self.roots[number] = edges.get(number, -1)

    def tokens(self, data: Array) -> Array:
        """The number of each token; one that no n-gram has gets a number without edges."""
        found = map(self.numbers.get, data.ravel().tolist(), repeat(self.width - 1))
        return np.fromiter(found, np.int64, data.size).reshape(data.shape)

    def step(self, nodes: Array, tokens: Array) -> Array:
        keys = nodes * self.width + tokens
        slots = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where((nodes >= 0) & (self.keys[slots] == keys), self.targets[slots], -1)

    def found(self, tokens: Array, longest: int, distances: int) -> Iterator[tuple[Array, Array]]:
        """The rows of n-grams in (rows, tokens), and their places in the pool, in parts; one for each occurrence."""
        for distance in range(1, min(distances, max(1, tokens.shape[1] - 1)) + 1):
            nodes = self.roots[tokens]
            for length in range(1, longest + 1):
                if length > 1:
                    reach = tokens.shape[1] - distance * (length - 1)
                    if reach <= 0:
                        break
                    nodes = self.step(nodes[:, :reach], tokens[:, -reach:])
                if length == 1 and distance > 1:
                    continue
                grams = self.gram[nodes]  # a dead end takes the last one's, and is left out
                rows, columns = np.nonzero((grams >= 0) & (nodes >= 0))
                yield rows, grams[rows, columns]


@operator("TfIdfVectorizer", since=9)
class TfIdfVectorizer(Operator):
    """Tokens (columns) or (rows, columns) to (coordinates) or (rows, coordinates): weighted counts of n-grams.

    An n-gram's tokens may lie up to `max_skip_count` tokens apart, all at one distance; single tokens count once.
    N-grams with one coordinate add up there.
    """

    # "The i-th element in weights is the weight of the i-th n-gram in pool": onnx.reference takes the weight of the
    # i-th coordinate instead, and fails where there are no weights.
    max_gram_length: int
    max_skip_count: int
    min_gram_length: int
    mode: str
    ngram_counts: tuple[int, ...]
    ngram_indexes: tuple[int, ...]
    pool_int64s: tuple[int, ...] = ()
    pool_strings: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    _trie: Trie | None = None

    def trie(self) -> Trie:
        """The pool's n-grams of the wanted lengths."""
        if self._trie is None:
            self._trie = Trie(list(self._grams()))
        return self._trie

    def _grams(self) -> Iterator[tuple[int, Sequence[Any]]]:
        pool: Sequence[Any] = self.pool_strings or self.pool_int64s
        bounds, place = [*self.ngram_counts, len(pool)], 0
        for length, (start, end) in enumerate(pairwise(bounds), 1):
            if not 0 <= start <= end <= len(pool) or (end - start) % length:
                raise ValueError(f"ngram_counts {list(self.ngram_counts)} does not cut {len(pool)} tokens into n-grams")
            for first in range(start, end, length):
                if self.min_gram_length <= length <= self.max_gram_length:
                    yield place, pool[first : first + length]
                place += 1
        if place != len(self.ngram_indexes) or min(self.ngram_indexes, default=-1) < 0:
            raise ValueError(f"ngram_indexes must have {place} entries of 0 or more, one for each n-gram of the pool")

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if self.pool_strings or inputs[0] == np.dtype(object):
            return Host(self.run, "strings are Python objects")
        try:
            self._check_attributes()
            trie = self.trie()
        except ValueError as error:
            return Host(self.run, f"its attributes contradict each other: {error}")
        count = len(self.ngram_indexes)
        parameters = {
            "trie": trie,
            "places": self.ngram_indexes,
            "coordinates": self._size(),
            "weights": np.ones(count) if self.mode == "TF" or not self.weights else self.weights,
            "once": self.mode == "IDF",
            "distances": min(self.max_skip_count, _LARGEST_SKIP) + 1,
            "longest": min(self.max_gram_length, len(self.ngram_counts)),
            "check": self._check_shape,
        }
        return Template("ngrams", parameters, self.run)

    def run(self, data: Array) -> Sequence[Value]:
        self._check_attributes()
        self._check_shape(data.shape)
        if (data.dtype == object) != bool(self.pool_strings):
            raise ValueError(f"the pool is of {'strings' if self.pool_strings else 'integers'}, the input is not")
        rows = data.reshape(1, -1) if data.ndim < 2 else data
        result = self._weighted(rows)
        return (result[0] if data.ndim < 2 else result,)

    def _check_attributes(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode '{self.mode}' is none of {', '.join(MODES)}")
        if not 1 <= self.min_gram_length <= self.max_gram_length or self.max_skip_count < 0:
            raise ValueError("min_gram_length must be from 1 to max_gram_length, and max_skip_count 0 or more")
        if bool(self.pool_strings) == bool(self.pool_int64s):
            raise ValueError("one of pool_strings and pool_int64s must hold the n-grams")
        if self.weights and len(self.weights) != len(self.ngram_indexes):
            raise ValueError(f"weights has {len(self.weights)} entries for {len(self.ngram_indexes)} n-grams")

    def _check_shape(self, shape: Sequence[int]) -> None:
        if len(shape) > 2 or (len(shape) == 2 and not shape[0]):
            raise ValueError(f"the input must be of shape [C] or [B, C] with B > 0, not {list(shape)}")

    def _weighted(self, rows: Array) -> Array:
        """What each row has of each coordinate, (rows, coordinates)."""
        trie, size = self.trie(), self._coordinate_count
        coordinates, weights, is_plain = self._coordinates, self._factors, self._is_plain
        width = size if is_plain else len(coordinates)
        memory.require(len(rows) * (width + size) * 4, "the counts of n-grams")
        counts: Array = np.zeros(len(rows) * width, np.float32)
        if rows.size and trie.numbers:
            for found, grams in trie.found(trie.tokens(rows), self.max_gram_length, self.max_skip_count + 1):
                places = found * width + (coordinates[grams] if is_plain else grams)
                np.add.at(counts, places, np.ones(len(places), np.float32))
        counts = counts.reshape(len(rows), width)
        if self.mode == "TF":
            return counts
        if self.mode == "IDF":
            np.minimum(counts, 1, out=counts)
        if not is_plain:
            result = np.zeros((len(rows), size), np.float32)
            np.add.at(result.T, coordinates, (counts * weights).T)
            return result
        counts *= weights
        return counts

    @cached_property
    def _coordinates(self) -> Array:
        """The coordinate of each n-gram."""
        return np.array(self.ngram_indexes, np.int64)

    @cached_property
    def _is_plain(self) -> bool:
        """Whether counts can add up in coordinates before weights are applied."""
        return self.mode == "TF" or len(set(self.ngram_indexes)) == len(self.ngram_indexes)

    @cached_property
    def _factors(self) -> Array:
        """The weights of what is counted: of coordinates, or of n-grams."""
        weights = np.array(self.weights or np.ones(len(self.ngram_indexes)), np.float32)
        if not self._is_plain or self.mode == "TF":
            return weights
        factors = np.zeros(self._coordinate_count, np.float32)
        factors[self._coordinates] = weights
        return factors

    @cached_property
    def _coordinate_count(self) -> int:
        return self._size()

    def _size(self) -> int:
        return max(self.ngram_indexes, default=-1) + 1

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        shape = (inputs[0] or UNKNOWN).shape
        if shape is None:
            return [Fact(ir.TensorType(ir.DataType.FLOAT), None)]
        return [tensor(ir.DataType.FLOAT, (*shape[:-1], self._size()))]

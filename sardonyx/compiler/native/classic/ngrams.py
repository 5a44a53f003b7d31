"""TfIdfVectorizer over integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.classic.ngrams import ARGUMENTS, NgramSpec, emit_ngrams
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact

# Tables with a place for every key have at most this many: they stay in the first or second cache.
_MOST_PLACES = 1 << 14
# Tokens that are worth a claim of their own.
_CHUNK = 512
_F32, _INTEGERS = np.dtype(np.float32), (np.dtype(np.int32), np.dtype(np.int64))


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

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data = inputs[0]
        assert data is not None
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
        words = {
            **known,
            "tokens": data,
            "result": result,
            "rows": rows,
            "per_chunk": per_chunk,
            "columns": columns,
            "coordinates": coordinates,
            "words": numbers.size,
            "edges": targets.size,
            "width": trie.width,
            "count": count,
            "distances": self.parameters["distances"],
            "longest": self.parameters["longest"],
        }
        if result.size:
            binder.step(
                emit_ngrams,
                NgramSpec(data.dtype.itemsize * 8, self.parameters["once"], dense_words, dense_edges),
                [words[name] for name in ARGUMENTS],
                reads=(data, *known.values()),
                writes=(result,),
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

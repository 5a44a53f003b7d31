"""Constant weights of bytes in bounded words, where a machine multiplies those faster than pairs of 16 bits."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable

import numpy as np

from sardonyx.compiler.binding import Address, Array, Binder, Tensor
from sardonyx.compiler.llvm.kernels.products.bounded_words import DEPTH, BoundedWordsSpec, emit_bounded_words
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.llvm.types import I32
from sardonyx.compiler.native.products.packed_constants import Packed
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.memory.constant_memory import constant_empty

# Of more words than this for each one of the weights, products of widened bytes take less time; and what no panel may
# pass, as all have room for the longest one's.
MOST_WORDS = 1.3
_ROOM = 1.5
# Panels that one thread packs.
_FEW = 8


@dataclass(frozen=True, eq=False)
class BoundedWords:
    """Words [panels, most, lanes] and where in its run each begins, [panels, most]; `ends` [panels, runs] counts those
    of a panel up to the end of each run. What no panel has is zero."""

    words: Array
    begins: Array
    ends: Array


def in_bounded_words(
    binder: Binder, given: Tensor, key: Hashable, as_matrices: Callable[[Array], Array], shape: tuple[int, ...]
) -> Packed | None:
    """The constant `given` in bounded words; `as_matrices`, which `key` names, makes signed bytes [..., K, N] of it.
    None where there would be too many."""
    library = binder.library

    def panels(array: Array) -> Array:
        matrix = as_matrices(array)
        missing = -matrix.shape[-2] % DEPTH
        if missing:
            matrix = np.pad(matrix, [*[(0, 0)] * (matrix.ndim - 2), (0, missing), (0, 0)])
        return in_one_array(bounded_words(library, matrix, matrix.shape[-2]))

    if 0 in shape:
        return None
    words = binder.derived(given, ("bounded words", key), panels)
    lanes = binder.target.lanes(I32)
    steps = words_of_panel(words, math.prod(shape[:-2]) * -(-shape[-1] // lanes), 1, lanes)
    return Packed(words, shape, steps) if steps else None


# Stands for words that would be too many.
_NONE = np.zeros(1, np.int32)


def in_one_array(found: BoundedWords | None) -> Array:
    """The words, where they begin and how many there are in int32, one after the other, as `words_of_panel` reads."""
    if found is None:
        return _NONE
    parts = (found.words, found.begins, found.ends)
    whole = constant_empty(sum(part.size for part in parts), np.dtype(np.int32))
    done = 0
    for part in parts:
        whole[done : done + part.size].reshape(part.shape)[...] = part
        done += part.size
    return whole


def words_of_panel(array: Tensor, panels: int, runs: int, lanes: int) -> int:
    """How many words each of so many panels has in an array that `in_one_array` made, 0 where those are too many."""
    return 0 if array.size == _NONE.size else (array.size - panels * runs) // (panels * (lanes + 1))


def begins_of(array: Tensor, panels: int, words: int, lanes: int) -> Address:
    """Where it lies where words begin, in such an array."""
    return Address(array.buffer, array.offset + panels * words * lanes * I32.nbytes)


def ends_of(array: Tensor, panels: int, words: int, lanes: int) -> Address:
    """Where the ends of runs lie in such an array."""
    return Address(array.buffer, array.offset + panels * words * (lanes + 1) * I32.nbytes)


def bounded_words(library: KernelLibrary, matrix: Array, run: int) -> BoundedWords | None:
    """Signed bytes [..., K, N] as bounded words, the panels of a matrix before those of the next one; None where they
    would be too many. K consists of runs of so many bytes, a multiple of four."""
    lanes = library.target.lanes(I32)
    size_k, size_n = matrix.shape[-2:]
    panels, runs = -(-size_n // lanes), size_k // run
    batches = matrix.reshape(-1, size_k, size_n)
    count = len(batches) * panels
    weights = np.zeros((count * size_k + 1, lanes), np.int8)
    by_panels = weights[:-1].reshape(len(batches), panels, size_k, lanes)
    whole = size_n // lanes
    for batch, into in zip(batches, by_panels, strict=True):
        split = batch[:, : whole * lanes].reshape(size_k, whole, lanes)
        into[:whole] = split.transpose(1, 0, 2)
        if whole < panels:
            into[whole, :, : size_n - whole * lanes] = batch[:, whole * lanes :]
    room = int(size_k // DEPTH * _ROOM)
    words, begins = np.zeros((count, room, lanes), np.int32), np.zeros((count, room), np.int32)
    ends = np.zeros((count, runs), np.int64)
    threads = min(os.cpu_count() or 1, -(-count // _FEW))
    arguments = (weights, words, begins, ends, runs, run, room)
    library.run(emit_bounded_words, BoundedWordsSpec(), arguments, count, threads)
    most = int(ends[:, -1].max())
    if most > room or ends[:, -1].mean() > MOST_WORDS * (size_k // DEPTH):
        return None
    return BoundedWords(words[:, :most], begins[:, :most], ends)

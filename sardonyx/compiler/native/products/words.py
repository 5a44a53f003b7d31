"""Left-hand sides of products as their words, for products of several elements in one: rows, or tiles of AMX."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.kernels.products.framed_words import FramedWordsSpec, emit_framed_words
from sardonyx.compiler.llvm.kernels.products.gemm_packing import (
    WordsInTilesSpec,
    WordsSpec,
    emit_words,
    emit_words_in_tiles,
)
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE
from sardonyx.compiler.llvm.types import type_of
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.pad import Frame, framed

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_WORDS = np.dtype(np.int32)

# Rows that one chunk writes as words.
_ROWS_OF_WORDS = 16


def as_words(binder: Binder, matrix: Tensor, product: str) -> Tensor:
    """A's rows as rows of words. Rows that are none yet are written as such, with room for whole vectors."""
    kind = PRODUCTS[product]
    *outer, size_k = matrix.shape
    if _are_words(matrix, product):
        strides = [stride // kind.depth for stride in matrix.strides[:-1]]
        return Tensor(_WORDS, (*outer, size_k // kind.depth), (*strides, 1), matrix.buffer, matrix.offset)
    stride = row_step(matrix)
    if stride is None:
        matrix, stride = contiguous(binder, matrix), size_k
        if _are_words(matrix, product):
            return as_words(binder, matrix, product)
    row, count = row_words(binder, matrix, product), math.prod(outer)
    words = binder.new(_WORDS, (*outer, row))
    binder.step(
        emit_words,
        WordsSpec(product, matrix.dtype == _BFLOAT16),
        [matrix, stride, count, size_k, words, row, _ROWS_OF_WORDS],
        reads=(matrix,),
        writes=(words,),
        chunks=-(-count // _ROWS_OF_WORDS),
    )
    return words


def row_words(binder: Binder, matrix: Tensor, product: str) -> int:
    """Words of a row of A as `as_words` gives them."""
    kind, size_k = PRODUCTS[product], matrix.shape[-1]
    if _are_words(matrix, product):
        return size_k // kind.depth
    lanes = binder.target.lanes(kind.word)
    return max(1, -(-size_k // (kind.depth * lanes))) * lanes * kind.parts * kind.left_words


def as_framed_words(binder: Binder, image: Tensor, product: str, added: Sequence[tuple[int, int]]) -> Tensor:
    """Images, [batch, lines, places, channels] with their channels together, as rows of words for each place, with so
    many lines and places of zeros added before and after."""
    if _are_words(image, product):
        none = (0, 0)
        frame = Frame((none,) * len(image.shape), (none, *added, none))
        return contiguous(binder, framed(binder, as_words(binder, image, product), frame, "constant", None))
    batch, lines, places, channels = image.shape
    row = row_words(binder, image, product)
    (above, below), (before, behind) = added
    whole = binder.new(_WORDS, (batch, above + lines + below, before + places + behind, row))
    _, frame_lines, pitch, _ = whole.shape
    binder.step(
        emit_framed_words,
        FramedWordsSpec(product, image.dtype == _BFLOAT16),
        [image, *image.strides[:-1], lines, places, channels, whole, row, frame_lines, pitch, above, before],
        reads=(image,),
        writes=(whole,),
        chunks=batch * frame_lines,
    )
    return whole


def as_tiles(binder: Binder, matrix: Tensor, product: str) -> Tensor:
    """A's rows as tiles of words, which follow one another; each matrix has whole ones."""
    kind = PRODUCTS[product]
    *outer, count, size_k = matrix.shape
    step = row_step(matrix.reshaped((*outer, size_k), (*matrix.strides[:-2], matrix.strides[-1])))
    if step is None:
        matrix, step = contiguous(binder, matrix), count * size_k
    row, tiles = kind.words(max(1, size_k)), -(-count // SIDE)
    whole = binder.new(_WORDS, (*outer, tiles * SIDE, row))
    binder.step(
        emit_words_in_tiles,
        WordsInTilesSpec(product),
        [matrix, matrix.strides[-2], count, size_k, whole, row, tiles, step],
        reads=(matrix,),
        writes=(whole,),
        chunks=math.prod(outer) * tiles,
    )
    return whole.reshaped((*outer, count, row), whole.strides)


def _are_words(matrix: Tensor, product: str) -> bool:
    """Whether the rows hold what the product multiplies already, and whole words of it as they lie."""
    kind = PRODUCTS[product]
    if type_of(matrix.dtype) != kind.packed_a or matrix.strides[-1] != 1 or kind.parts > 1:
        return False
    # What comes together is read together: words behind the last one would be those of the next row.
    together = kind.depth * kind.unit
    return matrix.shape[-1] % together == 0 and not any(step % kind.depth for step in matrix.strides[:-1])


def row_step(matrix: Tensor) -> int | None:
    """The distance of all rows of all batches; None where it differs, or the elements of a row do not lie together."""
    if matrix.strides[-1] != 1 and matrix.shape[-1] != 1:
        return None
    axes = [(size, step) for size, step in zip(matrix.shape[:-1], matrix.strides[:-1], strict=True) if size != 1]
    if any(step != size * below for (_, step), (size, below) in itertools.pairwise(axes)):
        return None
    return axes[-1][1] if axes else 0

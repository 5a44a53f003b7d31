"""Constant right-hand sides of matrix products, packed into panels once, when a session is made."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import panel_columns, panels_of
from sardonyx.compiler.llvm.kernels.products.gemm_packing import PackSpec, emit_pack
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.memory.arena_layout import ALIGNMENT
from sardonyx.runtime.memory.constant_memory import constant_empty

# A chunk packs this many elements of K of this many panels: rows are read by the kilobyte, panels written likewise.
_K_BLOCK = 64
_GROUP = 16
# Fewer bytes than this are packed by one thread.
_SMALL = 1 << 20


@dataclass(frozen=True, eq=False)
class Packed:
    """A constant in panels: the vector of words, and its shape [..., K, N] before packing.

    For products of parts they are panels of float32, so that products by vectors read the same ones. Of bounded words
    every panel has `steps`, and behind them all lies where each begins.
    """

    words: Tensor
    shape: tuple[int, ...]
    steps: int = 0


def in_panels(
    binder: Binder,
    given: Tensor,
    key: Hashable,
    as_matrices: Callable[[Array], Array],
    product: str,
    shape: tuple[int, ...],
) -> Packed:
    """The constant `given` in panels for a product; `as_matrices`, which `key` names, makes [..., K, N] of it."""
    packed, library = panels_product(product), binder.library

    def panels(array: Array) -> Array:
        return pack_b(library, as_matrices(array), packed)

    return Packed(binder.derived(given, ("panels", key, packed), panels), shape)


def panels_product(product: str) -> str:
    """The product whose words panels hold: those that are split into parts while they are multiplied are float32."""
    return "f32" if PRODUCTS[product].parts > 1 else product


def pack_b(library: KernelLibrary, array: Array, product: str, panel: int = 0) -> Array:
    """Panels of `array`, [..., K, N] with either of the last two strides equal to one element, one batch after another.

    The panels have `panel` columns, or as many as products of N columns take, and are a vector of the product's words.
    The array is read where it lies: it may be a view of a mapped file.
    """
    target, kind = library.target, PRODUCTS[product]
    size_k, size_n = array.shape[-2:]
    item = array.itemsize
    batches = array.reshape(math.prod(array.shape[:-2]), size_k, size_n)
    by_rows = batches.strides[-1] == item or size_n == 1
    if not by_rows and batches.strides[-2] != item and size_k != 1:
        batches, by_rows = np.ascontiguousarray(batches), True
    stride = batches.strides[-2 if by_rows else -1] // item
    panel = panel or panel_columns(target, product, size_n)
    panels = panels_of(size_n, panel)
    words = panels * panel * kind.words(size_k)
    packed = constant_empty(words * len(batches), np.dtype(f"{'f' if kind.word.is_float else 'i'}{kind.word.nbytes}"))
    k_blocks = max(1, -(-size_k // _K_BLOCK))
    groups = -(-panels // _GROUP)
    chunks = len(batches) * groups * k_blocks
    spec = PackSpec(product, "rows" if by_rows else "columns", panel // target.lanes(kind.accumulator))
    steps = (_K_BLOCK, _GROUP, k_blocks, batches.strides[0] // item, words)
    threads = min(os.cpu_count() or 1, chunks) if packed.nbytes > _SMALL else 1
    library.run(emit_pack, spec, (batches, stride, size_k, size_n, packed, *steps), chunks, threads)
    return packed


def line_step(count: int, dtype: np.dtype[np.generic]) -> int:
    """Elements from one column of so many elements to the next: an odd number of cache lines, which spreads them over
    all sets of the caches."""
    return (-(-count * dtype.itemsize // ALIGNMENT) | 1) * ALIGNMENT // dtype.itemsize


def in_lines(matrix: Array) -> Array:
    """The columns of a matrix as rows that are `line_step` apart, the first at the beginning of a cache line."""
    size_k, size_n = matrix.shape
    lines = constant_empty(size_n * line_step(size_k, matrix.dtype), matrix.dtype)
    rows = lines.reshape(size_n, -1)
    rows[:, :size_k], rows[:, size_k:] = matrix.T, 0
    return lines

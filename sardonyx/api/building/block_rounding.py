"""Blocks of numbers as integers of a few bits: a scale and a zero point for each block.

Blocks lie along the last axis of their arrays, [rows, blocks, elements of a block], in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Elements that are worked on at once: they and what is made of them stay in a core's caches.
AT_ONCE = 1 << 18


def slices(rows: int, length: int, at_once: int = AT_ONCE) -> Iterator[slice]:
    """Parts of `rows` rows of `length` elements, of about `at_once` elements each."""
    step = max(1, at_once // max(1, length))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def in_blocks(rows: Array, block: int) -> Array:
    """Rows in float32, [rows, blocks, block], the last block of each filled up with zeros."""
    count, length = rows.shape
    blocks = -(-length // block)
    if length == blocks * block:
        return np.ascontiguousarray(rows, np.float32).reshape(count, blocks, block)
    filled = np.zeros((count, blocks * block), np.float32)
    filled[:, :length] = rows
    return filled.reshape(count, blocks, block)


def largest_at_the_end(groups: Array, bits: int) -> tuple[Array, Array]:
    """The scale and zero point of each block, the largest magnitude at the lower end of the codes."""
    high, low = groups.max(axis=2), groups.min(axis=2)
    largest = np.where(np.abs(high) > np.abs(low), high, low)
    middle = 1 << (bits - 1)
    return largest / np.float32(-middle), np.full(largest.shape, middle, np.uint8)


def whole_range(groups: Array, bits: int) -> tuple[Array, Array]:
    """The scale and zero point that map the range of each block, zero included, to all codes."""
    high, low = np.maximum(groups.max(axis=2), 0), np.minimum(groups.min(axis=2), 0)
    top = np.float32((1 << bits) - 1)
    scale = (high - low) / top
    raw = np.divide(-low, scale, out=np.zeros_like(scale), where=scale != 0)
    return scale, np.clip(np.floor(raw + np.float32(0.5)), 0, top).astype(np.uint8)


def codes_of(groups: Array, scale: Array, zero: Array, bits: int) -> Array:
    """The codes of blocks as uint8, halves rounded up; `scale` as it is stored, but in float32."""
    reciprocal = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    shifted = groups * reciprocal[..., None]
    shifted += zero[..., None].astype(np.float32)
    np.clip(shifted, 0, (1 << bits) - 1, out=shifted)
    shifted += np.float32(0.5)
    return shifted.astype(np.uint8)
